from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from mmcalib.checks.check import Check, verdict
from mmcalib.corpus.chat import ChatRequest, Prompt
from mmcalib.domain.items import Skipped
from mmcalib.domain.model import ModelInfo
from mmcalib.domain.shapes import AudioShape, ImageShape, Modality, VideoShape
from mmcalib.limits.costs import ResampledClip
from mmcalib.limits.policy import Policy
from mmcalib.workflows.corpus import LoadedCorpus
from mmcalib.workflows.run.document import evidence
from mmcalib.workflows.run.stages import check_decision
from tests.workflows.corpora import corpus, decide, path_of
from tests.workflows.fake_host import INERT, KNOBS, opened

A, B = ImageShape(280, 280), ImageShape(560, 280)
CLIP = VideoShape(8, 8.0, 1.0, 280, 280)
# A floor that forbids downscaling anything, whatever else does not fit.
ANY_PIXEL = 10**9


def checks(
    read: LoadedCorpus,
    policy: Policy | None = None,
    model: ModelInfo | None = None,
    files: dict[str, Any] | None = None,
    left_out: dict[str, str] | None = None,
) -> dict[str, Check]:
    policy = policy or Policy()
    found = check_decision(read, left_out or {}, decide(read, policy, model, files), policy)
    assert len({check.name for check in found}) == len(found)
    return {check.name: check for check in found}


def test_a_good_corpus_passes_every_check() -> None:
    found = checks(corpus([], [[A, B], [A, CLIP]]))
    assert {check.status for check in found.values()} == {"pass"}
    assert verdict(found.values()) == "pass"
    assert not any(check.remedy for check in found.values())
    assert "all 4 files read" in found["readable files"].detail
    assert found["blank items cost the same"].detail.startswith("3 of 3 real items")
    assert "r.jsonl:2: 500 tokens of media + 0 of text + 1024" in found["prompt length"].detail


def test_requests_with_tools_need_a_server_that_parses_them() -> None:
    """Every one of them got HTTP 400, and the run passed."""
    read = corpus([], [[A], [A, B]])
    tools = {"tools": [{"type": "function", "function": {"name": "f"}}]}
    read.prompts.add([A], Prompt("r.jsonl:3", (), ChatRequest([{"role": "user"}], tools)))
    found = checks(read)["tool calls"]
    assert (found.status, found.detail[:24]) == ("warn", "1 of 3 requests have too")
    assert "--enable-auto-tool-choice --tool-call-parser" in found.remedy


def test_a_real_item_that_differs_from_its_stand_in_counts() -> None:
    files = {path_of(A): ImageShape(1400, 280)}
    found = checks(corpus([A, B]), files=files)["blank items cost the same"]
    assert found.status == "warn"
    assert "1 of 2 sampled items take other tokens" in found.detail
    assert f"{path_of(A)}: 500 tokens, blank 100" in found.detail
    assert "loaded as 1400×280, but its header gives 280×280" in found.detail


def test_a_file_that_is_out_of_reach_counts_by_its_stand_in() -> None:
    def away(media: Iterable[tuple[Modality, str]]) -> list[str | Skipped]:
        return [Skipped(p, "gone", out_of_reach=True) if p == path_of(B) else p for _, p in media]

    read = corpus([A, B, B])
    decision = decide(read, handed=away)
    assert {shape: cost.count for shape, cost in decision.table.costs.items()} == {A: 1, B: 2}
    assert decision.unreadable == ()
    found = {check.name: check for check in check_decision(read, {}, decision, Policy())}
    assert found["real items measured"].detail.startswith("1 sampled items could not be read")
    assert found["blank items cost the same"].detail.startswith("1 of 1 real items")


@pytest.mark.parametrize(
    ("lengths", "status", "says"),
    [
        ([], "skip", "librosa is missing"),
        ([16_000, 16_160], "pass", "2 resampled sounds"),
        ([16_000, 16_161, 15_000], "warn", "2 of 3 resampled sounds"),
    ],
)
def test_sounds_that_are_longer_in_librosa_are_warned_of(lengths, status: str, says: str) -> None:
    read = corpus([A, AudioShape(16_000, 16_000)])
    decision = decide(read)
    heard = tuple(ResampledClip(f"/{number}.mp3", 16_000, number) for number in lengths)
    decision = replace(decision, default_table=replace(decision.default_table, resampled=heard))
    (found,) = [c for c in check_decision(read, {}, decision, Policy()) if c.name == "audio length"]
    assert (found.status, says in found.detail) == (status, True)
    if status == "warn":
        assert "/16161.mp3: vLLM 16,000 samples, librosa 16,161; /15000.mp3" in found.detail


@pytest.mark.parametrize(("good", "status"), [(2, "warn"), (1, "fail"), (0, "fail")])
def test_refused_items_are_counted_with_vllms_words(good: int, status: str) -> None:
    """A few are the user's affair; most of a modality refused is something broken."""
    slim = ImageShape(1, 300)
    found = checks(corpus([*[A] * good, slim, slim]))["image processing"]
    assert found.status == status
    assert f"2 of {good + 2}" in found.detail
    assert "aspect ratio" in found.detail


def test_modalities_that_are_not_served_are_named_with_the_reason() -> None:
    found = checks(corpus([A]), left_out={"audio": "4 audio items: the model does not take them"})
    assert found["modalities served"].status == "warn"
    assert "4 audio items" in found["modalities served"].detail
    assert "modalities served" not in checks(corpus([A]))


@pytest.mark.parametrize(
    ("items", "status", "says", "context"),
    [
        (6, "warn", "2 have less room for the answer", 2204),
        (11, "fail", "2 prompts are longer than the context", 3204),
    ],
)
def test_a_context_too_short_has_the_length_that_is_not(items, status, says, context) -> None:
    """vLLM takes a prompt with less room than reserved, and cuts the answer."""
    policy = Policy(max_model_len=2000, text_reserve_tokens=1000, min_image_pixels=ANY_PIXEL)
    found = checks(corpus([], [[A], [B] * items, [B] * items]), policy)["prompt length"]
    assert found.status == status
    assert says in found.detail
    assert found.remedy.startswith(f"--max-model-len {context}")


@pytest.mark.parametrize(("allowed", "status"), [(False, "fail"), (True, "warn")])
def test_under_reserved_fails_unless_it_is_allowed(allowed: bool, status: str) -> None:
    """Two items of 8000 nearly fit 15,999 tokens; vLLM profiles one."""
    policy = Policy(max_num_batched_tokens=15_999, allow_under_reserve=allowed)
    found = checks(corpus([ImageShape(2800, 2240)]), policy)["memory reserve"]
    assert found.status == status
    assert "encodes 8000 tokens, one step at most 15999" in found.detail
    assert "under-reserved" in found.detail
    assert "--max-num-batched-tokens" in found.remedy


def test_an_item_that_the_encoder_cache_cannot_hold_fails() -> None:
    """A slim picture costs more than the cap; the given value leaves it no room."""
    policy = Policy(max_tokens_per_item=64, max_num_batched_tokens=64)
    found = checks(corpus([ImageShape(28, 28 * 190)]), policy)["items admitted"]
    assert found.status == "fail"
    assert "exceed the encoder cache of 64 tokens" in found.detail
    assert found.remedy.startswith("--max-num-batched-tokens 1")


def test_a_knob_without_effect_is_a_warning() -> None:
    found = checks(corpus([A]), model=opened(knobs=(*KNOBS, INERT)))["effect of num_crops"]
    assert (found.status, "leaves it out" in found.detail) == ("warn", True)


def leaves(args: Any, name: str = "") -> dict[str, Any]:
    if not isinstance(args, dict):
        return {name: args}
    return {k: v for key, value in args.items() for k, v in leaves(value, f"{name}.{key}").items()}


@pytest.mark.parametrize(
    "policy",
    [
        Policy(),
        Policy(prefer="throughput"),
        Policy(max_tokens_per_item=64),
        Policy(count={"image": 3}),
        Policy(max_num_batched_tokens=4096, max_num_seqs=4, max_model_len=8192),
    ],
)
@pytest.mark.parametrize("shapes", [[A], [A, B, CLIP], [CLIP], [ImageShape(3584, 3584)]])
def test_every_emitted_value_has_one_reason(shapes: list[Any], policy: Policy) -> None:
    decision = decide(corpus(shapes), policy)
    given = list(evidence(decision, opened(), policy))
    values = leaves(decision.engine_args)
    emitted = {name.removeprefix("."): value for name, value in values.items()}
    assert {entry.setting: entry.value for entry in given} == emitted
    assert len(given) == len(emitted)
    assert all(entry.reason for entry in given)


def test_without_requests_a_prompt_of_the_largest_items_must_fit() -> None:
    large = corpus([ImageShape(2800, 2240), A])
    one = checks(large, Policy(max_model_len=9024))["prompt length"]
    assert one.status == "pass"
    assert "8000 tokens of media + 1024" in one.detail
    for length, status in ((9023, "warn"), (8001, "warn"), (8000, "fail")):
        policy = Policy(max_model_len=length, min_image_pixels=ANY_PIXEL)
        assert checks(large, policy)["prompt length"].status == status, length
    policy = Policy(max_model_len=9024, count={"image": 2}, min_image_pixels=ANY_PIXEL)
    two = checks(large, policy)["prompt length"]
    assert two.status == "fail"
    assert "16000 tokens of media" in two.detail


def test_media_that_vllm_cannot_load_fail_the_verdict() -> None:
    """Other libraries read them, so no header tells; switched off would be the wrong answer."""
    found = checks(corpus([A, CLIP]), files={path_of(CLIP): None})
    assert found["video loading"].status == "fail"
    assert "1 of 1 sampled video items" in found["video loading"].detail
    decision = decide(corpus([A, CLIP]), files={path_of(CLIP): None})
    assert decision.counts["video"].reason == "vLLM can load no video of the corpus"


def test_a_count_of_what_the_corpus_lacks_is_said() -> None:
    found = checks(corpus([A]), Policy(count={"video": 3}))
    assert found["video samples"].status == "warn"
    assert "3 video items" in found["video samples"].detail


def test_an_assumed_count_says_what_it_causes_and_what_settles_it() -> None:
    """Without requests, one image per prompt was a plain pass."""
    found = checks(corpus([A, CLIP]))
    assumed = {name for name in found if name.startswith("assumed")}
    assert assumed == {"assumed image count", "assumed video count"}
    count = found["assumed image count"]
    assert count.status == "warn"
    assert count.detail.startswith("1 image per prompt, because there are no requests")
    assert "HTTP 400" in count.detail
    assert count.remedy == "--requests FILE, or --count image=N"
    given = checks(corpus([A]), Policy(count={"image": 1}))
    assert not any(name.startswith("assumed") for name in given)
    uncovered = checks(corpus([B], [[CLIP]]))["assumed image count"]
    assert "no request carries one" in uncovered.detail


def test_an_assumed_answer_matters_where_the_context_is_made_to_fit() -> None:
    requests = corpus([], [[A, B]])
    assert "assumed answer length" not in checks(requests)
    found = checks(requests, Policy(max_model_len="fit"))["assumed answer length"]
    assert (found.status, found.detail[:27]) == ("warn", "1,024 tokens for the answer")
    said = checks(requests, Policy(max_model_len="fit", text_reserve_tokens=512))
    assert "assumed answer length" not in said


def test_images_that_the_model_s_default_makes_smaller_are_named() -> None:
    huge = ImageShape(8400, 2800)
    found = checks(corpus([], [[A, huge]]))["model's size limit"]
    assert found.status == "warn"
    limit = "the model's default images_kwargs.size.longest_edge 12,845,056"
    assert found.detail.startswith(f"1 of 2 images shrinks to {limit}")
    assert f"{path_of(huge)}: 8400×2800, 23.5 megapixels" in found.detail
    # 8400 × 2800 pixels are 300 × 100 cells.
    assert found.remedy.startswith("--prefer detail sets 23,520,000: ")
    assert "30,000 at most" in found.remedy
    raised = checks(corpus([], [[A, huge]]), Policy(prefer="detail"))
    assert raised["model's size limit"].status == "pass"
    assert checks(corpus([], [[A]]))["model's size limit"].status == "pass"


def test_a_count_of_what_the_model_does_not_take_is_named() -> None:
    policy = Policy(count={"audio": 2, "image": 1})
    sighted = opened({"image": None, "video": None})
    found = checks(corpus([A]), policy, sighted)["limit of audio"]
    assert found.status == "warn"
    assert "--count audio=2 has no effect" in found.detail
    assert "limit of audio" not in checks(corpus([A]), Policy(count={"audio": 0}), sighted)


def test_a_cap_below_what_the_model_can_reach_is_said() -> None:
    model = opened(knobs=(INERT,))
    found = checks(corpus([ImageShape(2800, 2800)]), Policy(max_tokens_per_item=64), model)
    assert "smallest token cap" in " ".join(found)


def test_what_was_skipped_is_counted_and_the_first_named() -> None:
    found = checks(corpus([A], skipped=3))["readable files"]
    assert found.status == "warn"
    assert "3 skipped, for example /media/bad0.jpg: truncated" in found.detail
