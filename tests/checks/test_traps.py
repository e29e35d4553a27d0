"""Traps of hand-written configurations, on facts as vLLM 0.32 has them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import yaml

from mmcalib.checks import file, items, limits, options, reserve
from mmcalib.checks.check import Check, RemedyStyle
from mmcalib.checks.facts import Alternatives, CheckFacts, JudgedConfig, LargestPrompt
from mmcalib.checks.file import WrittenFile, check_file
from mmcalib.domain.knobs import FrameSampling
from mmcalib.domain.memory import Budget, Dummy
from mmcalib.domain.model import Server
from mmcalib.domain.shapes import ImageShape, Modality, VideoShape
from mmcalib.limits import effects, values
from mmcalib.limits.costs import ItemCost
from mmcalib.limits.demand import Shortfall, WorstStep
from mmcalib.limits.effects import Effect, Footprint, ItemOutcome
from mmcalib.limits.processor_cache import CacheFloor
from mmcalib.limits.values import ProfileReserve
from mmcalib.workflows.validate.findings import hint_changes
from tests import builders
from tests.limits.costed import cost, table
from tests.workflows.fake_host import opened

OPTIONS = {
    "model": "model",
    "max-model-len": "max_model_len",
    "max-num-seqs": "max_num_seqs",
    "limit-mm-per-prompt": "limit_mm_per_prompt",
    "enable-prefix-caching": "enable_prefix_caching",
    "no-enable-prefix-caching": "enable_prefix_caching",
    "enforce-eager": "enforce_eager",
    "no-enforce-eager": "enforce_eager",
    "middleware": "middleware",
}
PARSED = {
    "model": "m",
    "max_model_len": 8192,
    "enable_prefix_caching": None,
    "enforce_eager": False,
}

KNOB = builders.area_cap()
FPS = FrameSampling(path=("video", "fps"), value=2, steps=(0.5, 1, 2))
OPENED = opened({"image": None, "video": None}, knobs=(KNOB, FPS))


def budget(
    most: Mapping[Modality, int],
    dummies: Mapping[Modality, Dummy] | None = None,
    *,
    max_model_len: int = 128_000,
    cache: int | None = None,
) -> Budget:
    tokens = cache or max(2048, *most.values())
    limits = {"max_num_batched_tokens": 2048, "max_num_seqs": 128}
    given = {"dummies": dict(dummies or {}), "max_model_len": max_model_len, **limits}
    return builders.budget(tokens, most, **given)


def from_file(text: str, *flags: str, values: Any = PARSED, refusal: str = "") -> dict[str, Check]:
    settings = yaml.safe_load(text)
    keys = [entry.partition(":")[0] for entry in text.splitlines() if entry[:1].strip()]
    twice = [key for key in settings if keys.count(key) > 1]
    written = WrittenFile(settings, twice, flags, OPTIONS)
    return {check.name: check for check in check_file(written, refusal, values, {})}


def test_a_file_that_arrives_has_one_finding() -> None:
    found = from_file("model: m\nmax_model_len: 8192\nenforce-eager: false\n")
    assert [(c.name, c.status) for c in found.values()] == [("config parsing", "pass")]


@pytest.mark.parametrize(
    ("key", "opposite"),
    [
        ("enable-prefix-caching", "no-enable-prefix-caching"),
        ("no-enable-prefix-caching", "enable-prefix-caching"),
    ],
)
def test_a_false_that_is_dropped_is_named_with_what_works(key: str, opposite: str) -> None:
    check = from_file(f"{key}: false\n")[f"false value of {key}"]
    assert (check.status, check.remedy) == ("fail", f"{opposite}: true")
    assert f"drops `{key}: false`" in check.detail


@pytest.mark.parametrize(
    ("key", "value", "remedy"),
    [
        ("max-model-length", 8192, "max-model-len: 8192"),
        ("max_pixels", 1003520, "mm-processor-kwargs: {max_pixels: 1003520}"),
        ("swap-space", 4, "remove it: vLLM 0.18.0 removed the option; nothing replaces it"),
        ("task", "generate", "remove it: vLLM 0.23.0 removed the option; use runner and convert"),
        ("zzz", 1, "remove it"),
    ],
)
def test_an_unknown_key_is_answered_with_what_was_meant(key: str, value, remedy: str) -> None:
    found = from_file(f"model: m\n{key}: {value}\n", refusal="unrecognized arguments")
    check = found[f"unknown key {key}"]
    assert (check.status, check.remedy) == ("fail", remedy)
    assert key in found["config parsing"].remedy


def test_an_unknown_key_that_is_false_is_dropped_and_not_refused() -> None:
    check = from_file("disable-foo: false\n")["unknown key disable-foo"]
    assert "silently drops it" in check.detail


def test_a_key_that_is_there_twice_and_a_flag_that_wins() -> None:
    found = from_file("max-model-len: 9\nmax-model-len: 8192\n", "--max-model-len", "4096")
    assert found["repeated key max-model-len"].detail.endswith("last one: max-model-len: 8192")
    assert "--max-model-len on the command line" in found["flag over max-model-len"].detail


def test_a_value_that_is_refused_and_how_limits_were_once_spelled() -> None:
    text = "limit-mm-per-prompt: image=2,video=1\nmax-num-seqs: many\n"
    refusal = "argument --limit-mm-per-prompt: Value image=2,video=1 cannot be converted to JSON."
    written = WrittenFile(yaml.safe_load(text), [], (), OPTIONS)
    assert written.key_at_fault(refusal) == "limit-mm-per-prompt"
    assert written.key_at_fault("argument --max-num-seqs: invalid int value: 'x'") == "max-num-seqs"
    assert written.key_at_fault("unrecognized arguments: --bogus") is None
    assert written.key_at_fault("argument --max-model-len: bad") is None
    bad = {"limit-mm-per-prompt": refusal, "max-num-seqs": "argument --max-num-seqs: bad"}
    found = {c.name: c for c in check_file(written, refusal, PARSED, bad)}
    limit = found["value of limit-mm-per-prompt"]
    assert (limit.status, limit.remedy) == ("fail", "limit-mm-per-prompt: {image: 2, video: 1}")
    assert found["value of max-num-seqs"].remedy == "correct or remove: max-num-seqs: many"
    whole = found["config parsing"].remedy
    assert whole == "correct or remove: limit-mm-per-prompt, max-num-seqs"


def test_what_arrives_otherwise_is_said() -> None:
    found = from_file("max-model-len: 32768\nmiddleware: []\n")["config parsing"]
    assert found.status == "fail"
    assert "wrote 32768, vLLM reads 8192" in found.detail
    assert "vLLM drops an empty list" in found.detail


def facts(
    args: Mapping[str, Any], asked: Budget, plain: Any = None, *costs: ItemCost, **known: Any
) -> CheckFacts:
    """Return the facts of a file with these arguments, and of these items."""
    counts = values.count_limits(args, OPENED)
    reserved = values.token_adequacy(args, asked, counts)
    judged = JudgedConfig(dict(args), counts, asked, plain or asked, reserved, table(*costs))
    known = {"model": OPENED, "tries": Alternatives(), **known}
    return CheckFacts(RemedyStyle.LINES, judged, **known)


GIB = 2**30
HINTED = {"limit_mm_per_prompt": {"image": {"count": 1, "width": 512, "height": 512}, "video": 0}}
LARGEST = Dummy(16_384, 0, {"width": 3584, "height": 3584})
PLAIN = budget({"image": 16_384}, {"image": LARGEST})


def test_a_hint_that_shrinks_the_profile_alone() -> None:
    asked = budget({"image": 16_384}, {"image": Dummy(324, 0, {"width": 512, "height": 512})})
    judged = facts(HINTED, asked, PLAIN, tries=Alternatives(remedies=["the cure"]))
    (check,) = reserve.check_written_hints(judged)
    assert (check.name, check.status, check.remedy) == ("image size hint", "fail", "the cure")
    assert "shrinks to 324 tokens, but vLLM still admits 16,384" in check.detail
    found = judged.configuration.adequacy
    assert (found.profiled_tokens, found.worst_step_tokens) == (324, 16_384)
    (reserved,) = reserve.check_reserved_tokens(judged)
    assert (reserved.status, reserved.remedy) == ("fail", "the cure")


def test_the_remedies_of_a_hint_are_the_knob_in_its_spelling_and_no_hint() -> None:
    (capped, knob), (plain, none) = hint_changes(HINTED, PLAIN, OPENED)
    area = 512 * 512 // 784 * 784
    assert (knob, none) == ((KNOB, area), None)
    assert plain == {"limit_mm_per_prompt": {"image": 1, "video": 0}}
    size = {"shortest_edge": 3136, "longest_edge": area}
    assert capped == {**plain, "mm_processor_kwargs": {"images_kwargs": {"size": size}}}


def test_a_hint_above_the_maximum_is_ignored() -> None:
    args = {"limit_mm_per_prompt": {"image": {"count": 2, "width": 5000, "height": 1000}}}
    asked = budget({"image": 16_384}, {"image": Dummy(16_384, 0, {"width": 3584, "height": 1000})})
    first, *_ = reserve.check_written_hints(facts(args, asked, PLAIN))
    assert (first.name, first.status) == ("image size hint maximum", "warn")
    assert "width 5,000: above vLLM's own largest image (width 3,584)" in first.detail
    assert first.remedy == "limit-mm-per-prompt: {image: {count: 2, height: 1000}}"


def test_a_hint_that_shrinks_the_cache_makes_larger_items_impossible() -> None:
    asked = budget({"image": 256}, {"image": Dummy(256, 0, {"width": 448, "height": 448})})
    (check,) = reserve.check_written_hints(facts(HINTED, asked, PLAIN))
    assert check.status == "warn"
    assert "exceeds the encoder cache of 2,048 tokens (HTTP 400)" in (check.detail)


def test_a_skipped_profile_reserves_nothing() -> None:
    args = {"skip_mm_profiling": True, "limit_mm_per_prompt": {"image": 1, "video": 0}}
    step = WorstStep(16_384, 3 * GIB, modality="image")
    short = Shortfall(GIB, step, 2 * GIB, requested_bytes=18 * GIB, total_bytes=20 * GIB)
    judged = facts(args, PLAIN, tries=Alternatives(short=short))
    assert judged.configuration.adequacy == ProfileReserve(0, 16_384)
    (check,) = reserve.check_skipped_profile(judged)
    assert "16,384 tokens and take 3.00 GiB" in check.detail
    assert check.remedy == "remove skip-mm-profiling, or gpu-memory-utilization: 0.8"
    assert not list(reserve.check_skipped_profile(facts({}, PLAIN)))


def test_a_modality_that_nobody_limits() -> None:
    args = {"limit_mm_per_prompt": {"image": 2}}
    both = budget({"image": 16_384, "video": 114_688})
    tries = Alternatives(without=PLAIN, gain=" and more")
    (check,) = limits.check_every_limited(facts(args, both, tries=tries))
    assert (check.name, check.status) == ("unlimited modalities", "warn")
    said = "video sets the encoder budget of 114,688 tokens, 16,384 with video: 0 and more"
    assert said in check.detail
    assert check.remedy.startswith("limit-mm-per-prompt: {image: 2, video: 0}")
    written = {"limit_mm_per_prompt": {"image": 2, "video": 0}}
    assert not list(limits.check_every_limited(facts(written, PLAIN)))


def fitting(args: dict[str, Any], context: int, *, own: bool = False) -> list[Check]:
    asked = budget({"image": 16_384}, max_model_len=context)
    most = items.largest_prompt(values.count_limits(args, OPENED), args, asked.max_tokens_per_item)
    return list(items.check_prompts_fit(facts(args, asked, prompt=LargestPrompt(most, own))))


def test_more_items_than_the_context_holds() -> None:
    (check,) = fitting({"limit_mm_per_prompt": {"image": 4, "video": 0}}, 32_768)
    assert check.status == "warn"
    assert "4 × image of 16,384 tokens takes 65,536" in check.detail
    assert "limit-mm-per-prompt: {image: 1, video: 0}" in check.remedy
    assert "longest_edge: 6221824" in check.remedy
    assert "max-model-len" not in check.remedy
    (fits,) = fitting({"limit_mm_per_prompt": {"image": 1, "video": 0}}, 32_768)
    assert fits.status == "pass"
    assert fitting({}, 32_768) == []


@pytest.mark.parametrize(("context", "status"), [(8192, "fail"), (32_768, "warn")])
def test_own_items_fail_where_one_alone_is_too_long(context: int, status: str) -> None:
    (check,) = fitting({"limit_mm_per_prompt": {"image": 4}}, context, own=True)
    assert check.status == status
    assert "the largest of yours" in check.detail
    assert check.remedy.endswith("--requests FILE checks your requests")


def test_limits_are_numbers_as_vllm_reads_them() -> None:
    args = {"limit_mm_per_prompt": {"image": {"count": "2", "width": "512"}, "video": "0"}}
    limits = {"image": {"count": 2, "width": 512}, "video": 0}
    assert values.normalize_limits(args) == {"limit_mm_per_prompt": limits}
    assert values.normalize_limits({"max_num_seqs": 4}) == {"max_num_seqs": 4}


def test_an_item_larger_than_the_encoder_cache() -> None:
    large, at = cost(ImageShape(9, 9), 9000), budget({"image": 1280}, cache=8192)
    args = {"mm_processor_kwargs": {"videos_kwargs": {"do_sample_frames": False}}}
    (check,) = items.check_items_admitted(facts(args, at, None, large))
    assert check.status == "fail"
    larger, cap = check.remedy.splitlines()
    assert yaml.safe_load(larger) == {"max-num-batched-tokens": 9000}
    size = {"longest_edge": 8192 * 784, "shortest_edge": 3136}
    both = {**args["mm_processor_kwargs"], "images_kwargs": {"size": size}}
    assert yaml.safe_load(cap) == {"mm-processor-kwargs": both}
    holds = budget({"image": 1280}, cache=9000)
    (kept,) = items.check_items_admitted(facts({}, holds, None, large))
    assert kept.status == "pass"


def test_fewer_frames_as_the_loader_spells_them() -> None:
    assert items.with_fewer_frames((KNOB, FPS), {}, 0.456) == {"video": {"fps": 0.91}}
    assert items.with_fewer_frames((KNOB,), {}, 0.5) is None
    check = items.common_video_check(9000, budget({"video": 8192}), {"video": {"fps": 0.91}})
    assert check.status == "warn"
    assert "media-io-kwargs: {video: {fps: 0.91}}" in check.remedy


PICTURE, CLIP = ImageShape(64, 64), VideoShape(8, 8.0, 1.0, 64, 64)


def test_a_flat_option_that_bleeds_and_one_that_does_not() -> None:
    args = {"mm_processor_kwargs": {"max_pixels": 9, "images_kwargs": {"a": 1}}}
    less = Footprint(items={PICTURE: ItemOutcome(100), CLIP: ItemOutcome(400)})
    with_ = Footprint(items={PICTURE: ItemOutcome(10), CLIP: ItemOutcome(40)})
    moved = effects.most_changed_items(with_, less)
    alone = effects.scope_option(args, "max_pixels", "image")
    assert alone == {"mm_processor_kwargs": {"images_kwargs": {"a": 1, "max_pixels": 9}}}
    check = builders.some(limits.flat_option_check("max_pixels", moved, {"image": alone}))
    assert (check.name, check.status) == ("scope of max_pixels", "warn")
    assert "image of 64×64: 100 → 10 tokens" in check.detail
    assert yaml.safe_load(check.remedy) == {"mm-processor-kwargs": alone["mm_processor_kwargs"]}
    assert check.remedy.endswith("# only for image")
    with_ = Footprint(items={PICTURE: ItemOutcome(10), CLIP: ItemOutcome(400)})
    one = effects.most_changed_items(with_, less)
    assert limits.flat_option_check("max_pixels", one, {}) is None


def test_a_config_class_arrives_with_what_was_written_of_it() -> None:
    """vLLM makes a class of `compilation-config`; what is at its default is not named again."""
    options = {"compilation-config": "compilation_config"}
    wrote = {"cudagraph_mm_encoder": True, "compile_mm_encoder": False}
    written = WrittenFile({"compilation-config": wrote}, [], (), options)
    (check,) = check_file(written, "", {"compilation_config": {"cudagraph_mm_encoder": True}}, {})
    assert check.status == "pass"
    (check,) = check_file(written, "", {"compilation_config": {"cudagraph_mm_encoder": False}}, {})
    assert check.status == "fail"
    assert "vLLM reads other values" in check.detail


FLOOR = CacheFloor({"image": (3, GIB // 10), "video": (1, GIB // 2)})
HEAVY = CacheFloor({"video": (9, GIB // 2)})


def cached(args: Mapping[str, Any], floor: CacheFloor, **known: Any) -> list[Check]:
    tries = Alternatives(cache_floor=floor, **known)
    return list(options.check_cache_floor(facts(args, PLAIN, tries=tries)))


@pytest.mark.parametrize(
    ("args", "floor", "said"),
    [
        ({"mm_processor_cache_gb": 0.3}, FLOOR, "mm_processor_cache_gb 0.3, but"),
        ({}, HEAVY, "vLLM's default of 4 GiB, but"),
        ({"mm_processor_cache_type": "shm", "data_parallel_size": 2}, HEAVY, "vLLM's default"),
    ],
)
def test_a_cache_below_one_request_is_warned_of(args, floor: CacheFloor, said: str) -> None:
    """Such a request gets HTTP 500; vLLM's default does it, too."""
    (check,) = cached(args, floor)
    assert (check.name, check.status) == ("processor cache for one request", "warn")
    assert check.detail.startswith(said)
    assert "_merge_mm_kwargs" in check.detail
    gib = "4.5" if floor is HEAVY else "0.8"
    assert check.remedy.startswith(f"mm-processor-cache-gb: 0, or mm-processor-cache-gb: {gib}")


def test_one_that_holds_any_request_passes_with_its_parts() -> None:
    (check,) = cached({"mm_processor_cache_gb": 0.8}, FLOOR)
    assert check.status == "pass"
    assert "3 × image of 107.4 MB + 1 × video of 536.9 MB = 0.80 GiB (computed)" in check.detail


SHM = {"mm_processor_cache_type": "shm"}
MIB = 2**20


@pytest.mark.parametrize(
    ("args", "image_bytes", "remedy"),
    [
        # `put` compares with `>` (shm_object_storage.py:706 of 0.33), and the default is 128 MiB
        # (vllm/config/multimodal.py:375).
        (SHM, 128 * MIB, None),
        (SHM, 128 * MIB + 1, "mm-shm-cache-max-object-size-mb: 130"),
        ({**SHM, "mm_shm_cache_max_object_size_mb": 300}, 299 * MIB, None),
        # Without any cache.
        ({**SHM, "mm_processor_cache_gb": 0}, 500 * MIB, None),
    ],
)
def test_an_item_that_the_shared_cache_does_not_store_is_named(args, image_bytes, remedy) -> None:
    # The context may hold no video beside the images of `FLOOR`, yet one on its own.
    found = cached(args, FLOOR, largest_bytes={"image": image_bytes, "video": 1})
    assert [check.remedy for check in found] == ([] if remedy is None else [remedy])
    assert all(one.name == "shared cache for one image" for one in found)


def test_a_variable_that_the_server_does_not_apply_is_named() -> None:
    applied, other = "VLLM_MAX_IMAGE_PIXELS", "VLLM_MAX_MEDIA_REQUEST_DOWNLOAD_SIZE_MB"
    server = Server(limits={applied: 9}, given=(applied, other))
    opened = replace(OPENED, server=server, versions={"vllm": "0.32.0"})
    (check,) = file.check_variables(facts({}, PLAIN, model=opened))
    assert check.name == f"effect of {other}"
    assert check.detail == "vLLM 0.32.0's server does not apply this variable"
    assert server.environment == {applied: 9}


def test_limits_that_show_nothing_only_bound() -> None:
    stated = (("limit_mm_per_prompt", "image"), ("max_model_len",))
    (check,) = file.effect_checks([Effect(path, "stated", "") for path in stated])
    assert check.detail == (
        "these only limit the items of a prompt: limit_mm_per_prompt.image; "
        "these repeat vLLM's defaults: max_model_len"
    )


@pytest.mark.parametrize("args", [{"mm_processor_cache_gb": 0}, {"mm_processor_cache_type": "shm"}])
def test_no_cache_and_one_that_keeps_what_is_touched_have_no_finding(args) -> None:
    assert cached(args, HEAVY) == []
