"""The reserve in bytes: the part that decides, its name, and the remedies."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mmcalib.census.accesses import Accesses
from mmcalib.checks import reserve
from mmcalib.checks.catalogue import INPUT_MEMORY, MEMORY_RESERVE
from mmcalib.checks.check import Check, verdict
from mmcalib.checks.facts import JudgedConfig
from mmcalib.checks.items import rehearsed_inputs
from mmcalib.checks.reserve import embeddings_only_check, reserved_bytes_check
from mmcalib.configs.read import WrittenConfiguration
from mmcalib.domain.knobs import DEFAULT
from mmcalib.domain.memory import (
    Budget,
    Dummy,
    EncoderOutputs,
    EncoderStep,
    PhasePeak,
    PromptsPeak,
    RehearsedMemory,
    StepPeak,
)
from mmcalib.domain.shapes import AudioShape, ImageShape, Modality, Shape
from mmcalib.errors import VllmRefused
from mmcalib.limits import demand
from mmcalib.limits.costs import CostTable, ItemCost
from mmcalib.limits.demand import Shortfall, WorstStep, leave_room, use_free
from mmcalib.limits.values import Count, ProfileReserve
from mmcalib.models import gpus
from mmcalib.models.resolve import ResolvedModel
from mmcalib.prediction import worst_steps
from mmcalib.prediction.rehearse import Predicted, rehearsal_document
from mmcalib.prediction.worst_steps import RehearseAll, check_retention, find_remedies
from mmcalib.releases.constants import CONTEXT_BYTES, VLLM_SLACK_BYTES
from mmcalib.workflows.judging import explain_unrehearsed, judge_memory
from tests.builders import some
from tests.limits.costed import table_of
from tests.workflows.rehearsals import GIB, WIDTH, answering, deepstack, limits, peaks, rehearsed

GPU = gpus.find_gpu("L4")
MIB = 1 << 20
SECOND = AudioShape(16_000, 16_000)


def config_of(budget: Budget, table: CostTable | None = None, modality="image") -> JudgedConfig:
    counts = {modality: Count(1, "", "given")}
    table = table or table_of(DEFAULT, {})
    return JudgedConfig({}, counts, budget, budget, ProfileReserve(1, 1), table)


def shortfall(at: Predicted, config: JudgedConfig) -> Any:
    return worst_steps.find_shortfall(config, at.calibrated, at.steps)


def reserved_check(at: Predicted, config: JudgedConfig, remedies: Sequence[str] = ()) -> Any:
    return reserved_bytes_check(shortfall(at, config), at.calibrated, config, remedies)


FOUR = config_of(limits(16_384, 4))


def predicted(config: JudgedConfig, after: RehearsedMemory) -> Predicted:
    return Predicted(GPU, None, after, steps=dict.fromkeys(config.counts, after))


def served(budget: Budget, alone: int, each: int) -> RehearsedMemory:
    """A model with recurrent layers: bytes a token of a prompt, and for each prompt more."""
    one = budget.max_num_batched_tokens * alone
    many = budget.max_num_seqs
    prompts = [(1, one), (many, one + (many - 1) * each)]
    prefills = tuple(PromptsPeak(n, PhasePeak("prefill", at, 0, "", ())) for n, at in prompts)
    return deepstack(budget, prefills=prefills, outputs=None, merge_peak_bytes=None)


def limits_of(args: Mapping[str, Any]) -> Budget:
    return limits(args.get("max_num_batched_tokens", 16_384), args.get("max_num_seqs", 4))


def on_full_card(memory: RehearsedMemory) -> RehearsedMemory:
    """Little more than vLLM's own slack stays free outside what vLLM takes."""
    return replace(memory, requested_bytes=memory.total_bytes - 200 * MIB)


def answers(alone: int, each: int) -> RehearseAll:
    """Rehearse any values."""
    return answering(lambda args: served(limits_of(args), alone, each))


def test_a_prompt_beyond_the_reserve_is_named_with_a_batch_that_passes() -> None:
    found = shortfall(predicted(FOUR, served(FOUR.budget, 140_000, MIB)), FOUR)
    assert isinstance(found.worst, demand.PromptsStep)
    remedies = [one.changes for one, _ in find_remedies(found, FOUR, answers(140_000, MIB))]
    (batch,) = filter(None, [one.get("max_num_batched_tokens") for one in remedies])
    assert batch < 16_384
    assert batch % 324 == 0
    full = predicted(FOUR, on_full_card(served(FOUR.budget, 140_000, MIB)))
    check = reserved_check(full, FOUR, remedies=[f"--max-num-batched-tokens {batch}"])
    assert "of 4 prompts, as served, takes" in check.detail
    assert check.remedy.startswith(f"--max-num-batched-tokens {batch}")


def test_the_language_model_alone_is_judged_by_its_prompts() -> None:
    nothing = replace(
        FOUR.budget, encoder_cache_size=0, encoder_compute_budget=0, max_tokens_per_item={}
    )
    alone = config_of(nothing)
    after = replace(served(nothing, 140_000, MIB), phases=peaks(0, 16_384 * 111_000))
    check = reserved_check(predicted(alone, after), alone)
    assert (check.status, "of 4 prompts, as served" in check.detail) == ("warn", True)
    assert "vllm#52872" in check.detail
    dense = replace(after, prefills=())
    assert shortfall(predicted(alone, dense), alone) is None


def test_what_stays_resident_beside_the_language_model_decides() -> None:
    """1,296 tokens pass with `max_num_seqs 4`; 15,088 (494 MB) are resident."""
    at = predicted(FOUR, deepstack(FOUR.budget))
    found = shortfall(at, FOUR)
    assert isinstance(found.worst, demand.LanguageStep)
    assert found.nbytes == 15_088 * WIDTH == 494_403_584
    check = reserved_check(at, FOUR)
    assert check.status == "warn"
    assert "vLLM does not reserve 0.46 GiB of it" in check.detail
    assert check.remedy == "keep that memory free of other processes"
    full = predicted(FOUR, on_full_card(deepstack(FOUR.budget)))
    check = reserved_check(full, FOUR, remedies=["--one"])
    assert check.status == "fail"
    assert "under-reserved by 0.46 GiB" in check.detail
    step = "the language model's step of 16,384 tokens takes 1.69 GiB"
    assert f"{step} beside 16,384 tokens in the encoder cache (0.50 GiB)" in check.detail
    assert check.remedy == "--one, or --allow-under-reserve"


@pytest.mark.parametrize(("profiled", "peak"), [(6 * 1280, 640), (16_384, 600), (0, 600)])
def test_a_step_of_whole_items_is_scaled_up_to_a_full_one(profiled: int, peak: int) -> None:
    full = config_of(limits(8192, 64, 1280))
    step = rehearsed(phases=peaks(600, 0), encoder_tokens=profiled)
    first = next(worst_steps.list_demands(full, step, {"image": step}))
    assert (first.tokens, first.peak_bytes) == (8192, peak)


def test_the_merge_decides_where_it_takes_the_most() -> None:
    """Merging deepstack is in no profile."""
    at = predicted(FOUR, deepstack(FOUR.budget, merge_peak_bytes=3 * GIB))
    assert isinstance(shortfall(at, FOUR).worst, demand.MergeStep)
    check = reserved_check(at, FOUR)
    assert "the merge of 16,384 tokens into the text takes 3.00 GiB" in check.detail


def test_workspaces_that_stay_are_beside_the_encoder() -> None:
    """Experts keep theirs from the profile's language model on, when its encoder has run."""
    full = limits(324 * 50, 64)
    config = config_of(full)
    after = deepstack(full, kept_bytes=GIB)
    found = shortfall(predicted(config, after), config)
    bare = shortfall(predicted(config, deepstack(full)), config)
    assert isinstance(found.worst, WorstStep)
    assert found.worst.nbytes == found.worst.peak_bytes + GIB
    assert bare.passes
    assert not found.passes
    check = reserved_check(predicted(config, after), config)
    assert "beside 1.00 GiB of kernels' workspaces" in check.detail
    assert (check.status, "vLLM does not reserve 1.00 GiB of it" in check.detail) == ("warn", True)
    crash = reserved_check(predicted(config, on_full_card(after)), config)
    assert (crash.status, "out of memory under load" in crash.detail) == ("fail", True)


@pytest.mark.parametrize(("shared", "batch"), [(False, 18 * 324), (True, 15 * 324)])
def test_remedies_pass_as_they_are_rehearsed(shared: bool, batch: int) -> None:
    """The remedy is derived; one cached view keeps four pictures' storage."""
    asked: list[Mapping[str, Any]] = []

    def answer(args: Mapping[str, Any]) -> RehearsedMemory:
        after = on_full_card(deepstack(limits_of(args)))
        return replace(after, outputs=replace(some(after.outputs), shared=shared))

    short = shortfall(predicted(FOUR, on_full_card(deepstack(FOUR.budget))), FOUR)
    (more, roomy), (less, small) = find_remedies(short, FOUR, answering(answer, asked))
    assert less.changes == {"max_num_batched_tokens": batch}
    assert more.changes == {"max_num_seqs": 51}
    for after in (roomy, small):
        short = shortfall(predicted(FOUR, after), config_of(after.budget or FOUR.budget))
        assert short.passes
    assert all("limit_mm_per_prompt" in args for args in asked[1::2])


CLIP = ItemCost(SECOND, 12, "/c.wav", 27, 25, 1_536_000, 0.0, (), "real")
LISTENING = limits(2250, 256, 750, "audio")
CLIPS = config_of(LISTENING, table_of(DEFAULT, {SECOND: CLIP}), "audio")


def listening(step_bytes: int | None) -> RehearsedMemory:
    step = StepPeak(EncoderStep(SECOND, 90), step_bytes, 2250 if step_bytes else None, "refused")
    return rehearsed(
        budget=LISTENING,
        activation_peak_bytes=248 * MIB,
        phases=peaks(156 * MIB, 248 * MIB),
        encoder_tokens=2250,
        outputs=EncoderOutputs(8192, 2250 * 8192, shared=True),
        merge_peak_bytes=36 * MIB,
        steps=(step,),
    )


def test_padded_clips_decide_by_their_bytes() -> None:
    """90 such clips take 30 × the input."""
    assert worst_steps.encoder_steps(CLIPS) == (EncoderStep(SECOND, 90),)
    after = listening(4626 * MIB)
    check = reserved_check(predicted(CLIPS, after), CLIPS)
    assert check.status == "fail"
    assert "90 items such as /c.wav, 2,250 tokens of audio, takes 4.52 GiB" in check.detail
    assert rehearsed_inputs(after) == {INPUT_MEMORY.of("audio")}


def test_a_step_that_could_not_be_run_decides_nothing() -> None:
    """The warning that names no bytes stays."""
    after = listening(None)
    found = shortfall(predicted(CLIPS, after), CLIPS)
    assert not isinstance(found.worst, WorstStep) or not found.worst.items
    assert rehearsed_inputs(after) == set()


def test_a_step_of_short_dummies_is_run_with_the_largest_sound() -> None:
    """vLLM profiles Gemma 4 with a sound of 1 token; its largest has 750, in 80 times the bytes."""
    short: dict[Modality, Dummy] = {"audio": Dummy(1, 2048, {"length": 512})}
    budget = replace(limits(2496, 256, 750, "audio"), dummies=short)
    config, asked = config_of(budget, modality="audio"), list[tuple[EncoderStep, ...]]()

    def ask(args: Sequence[Mapping[str, Any]], steps: tuple[EncoderStep, ...]) -> Any:
        asked.append(steps)
        ran = tuple(StepPeak(step, 230 * MIB, 2250) for step in steps)
        own = peaks(9 * MIB, 9 * MIB)
        return [rehearsed(budget=budget, phases=own, encoder_tokens=1, steps=ran)] * len(args)

    steps = worst_steps.rehearse_worst_steps(config, ask)
    assert asked == [(), (EncoderStep(AudioShape(750 * 512, 16_000), 3),)]
    first = next(worst_steps.list_demands(config, steps["audio"], steps))
    assert first.peak_bytes == round(230 * MIB * 2496 / 2250)


@pytest.mark.parametrize(("width", "status"), [(4096, "pass"), (WIDTH, "fail")])
def test_embeddings_alone_are_held_in_bytes(width: int, status: str) -> None:
    """No tokens look adequate, but the encoder budget may be held."""
    alone = replace(
        limits(16_384, 4), max_tokens_per_item={}, profiled_modality=None, profiled_items=0
    )
    config = config_of(alone)
    after = deepstack(alone, phases=peaks(0, GIB)[1:], activation_peak_bytes=GIB)
    outputs = EncoderOutputs(width)
    after = on_full_card(replace(after, encoder_tokens=0, outputs=outputs, merge_peak_bytes=None))
    check = reserved_check(Predicted(GPU, None, after), config)
    assert check.status == status
    assert "16,384 tokens in the encoder cache" in check.detail
    (said,) = reserve.qualify_tokens_only([some(embeddings_only_check(alone))], config, NO_GPU)
    assert (said.status, "unknown" in said.detail) == ("warn", True)
    assert embeddings_only_check(FOUR.budget) is None


def test_what_cached_views_keep_is_said_with_its_assumption() -> None:
    """One small picture pins the batch that it came with."""
    stamp, page = ImageShape(32, 32), ImageShape(576, 576)
    costs: dict[Shape, ItemCost] = {
        stamp: ItemCost(stamp, 8, "/s.png", 4, 4, 1, 0.0, (), "real"),
        page: ItemCost(page, 90, "/p.png", 324, 324, 1, 0.0, (), "real"),
    }
    full = limits(324 * 50, 64)
    config = config_of(full, table_of(DEFAULT, costs))
    at = predicted(config, deepstack(full))
    possible = some(check_retention(at, config, Accesses()))
    assert possible.status == "warn"
    assert "no request order given" in possible.detail
    items = ((stamp, "/s.png"), (page, "/p.png"))
    known = some(check_retention(at, config, Accesses(items, [0, 1, 0, 1], [2, 4])))
    assert "2 batches, with each item that requests repeat" in known.detail
    for outputs in (
        EncoderOutputs(WIDTH, shared=False),
        EncoderOutputs(WIDTH, shared=True, outlive_request=False),
    ):
        nothing = predicted(config, deepstack(full, outputs=outputs))
        assert check_retention(nothing, config, Accesses()) is None


def test_rehearse_says_how_adequate_the_profile_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    model = ResolvedModel("m", str(tmp_path), "local", ())
    alone = replace(FOUR.budget, max_tokens_per_item={}, max_items_per_prompt={})
    for memory, profiled, worst, adequacy in (
        (deepstack(FOUR.budget), 1296, 1296, 1.0),
        (deepstack(alone, encoder_tokens=0), 0, 16_384, 0.0),
        (deepstack(FOUR.budget, encoder_tokens=0), 0, 1296, 0.0),
    ):
        found = some(rehearsal_document(memory, model, GPU, None).budget)
        assert (found.profiled_tokens, found.worst_step_tokens) == (profiled, worst)
        assert found.adequacy == adequacy


WRITTEN = WrittenConfiguration(Path("my engine.yaml"), flags=("--max-num-seqs", "4"))
NO_GPU = reserve.no_gpu("mmcalib run --gpu NAME")
TOKENS = Check(
    MEMORY_RESERVE, "pass", "vLLM's startup profile encodes 1296 tokens, one step at most 1296"
)


def test_tokens_alone_do_not_read_like_the_proven_pass() -> None:
    """Nobody named a GPU: it is a warning, which is no verdict, and names what would settle it."""
    (check,) = reserve.qualify_tokens_only([TOKENS], FOUR, NO_GPU)
    assert (check.id, check.status, verdict([check])) == (MEMORY_RESERVE, "warn", "pass")
    assert check.detail.startswith(f"{TOKENS.detail}; only tokens were compared, because --gpu")
    for part in ("padded or tiled", "keep their batch", "merge", "language model with a full"):
        assert part in check.detail
    assert "bytes are unknown" in check.detail
    assert check.remedy.startswith("mmcalib run --gpu NAME rehearses it")


def test_a_rehearsal_that_failed_leaves_tokens_alone_with_its_reason() -> None:
    words = "NotImplementedError: no kernel. Ask for another"
    failure = VllmRefused(f"{words} (vLLM, while rehearsing on L4)", reason=words)
    failed = Predicted(GPU, None, None, failure=failure)
    other = VllmRefused("it asserts")
    partly = Predicted(GPU, None, deepstack(FOUR.budget), steps={}, failure=other)
    for at, reason in ((failed, "no kernel"), (partly, "it asserts")):
        assert shortfall(at, FOUR) is None
        (check,) = judge_memory([TOKENS], (), FOUR, explain_unrehearsed(at, WRITTEN))
        assert check.status == "warn"
        assert "only tokens were compared, because rehearsals on L4 ended early" in check.detail
        assert f"{reason}; the bytes are unknown" in check.detail
        command = "mmcalib rehearse --config 'my engine.yaml' --gpu L4 --verbose"
        assert check.remedy.startswith(f"{command} -- --max-num-seqs 4 shows why")


def test_a_step_that_fits_needs_room_outside_the_utilization_too() -> None:
    """0.3 of 22 GiB are left, and the CUDA context takes 0.23."""
    fits = config_of(limits(16_384, 51))
    asked = 22 * GIB - 300 * MIB
    remedy = "--gpu-memory-utilization 0.98"
    for requested, found in ((20 * GIB, ("pass", "")), (asked, ("warn", remedy))):
        free = 22 * GIB - CONTEXT_BYTES
        after = deepstack(fits.budget, requested_bytes=requested, free_bytes=free)
        check = reserved_check(predicted(fits, after), fits)
        assert (check.status, check.remedy) == found, check.detail


def test_no_utilization_is_proposed_for_weights_beyond_the_gpu() -> None:
    fits = config_of(limits(16_384, 51))
    after = deepstack(fits.budget)
    huge = replace(after, weights_bytes=40 * GIB, kv_cache_bytes=-20 * GIB, kv_cache_tokens=None)
    check = reserved_check(predicted(fits, huge), fits)
    assert (check.status, check.remedy) == ("pass", "")


def test_a_smaller_share_for_vllm_leaves_room_for_what_no_profile_reserves() -> None:
    """Merging deepstack is in no profile, and only 2 GiB are free."""
    big = deepstack(FOUR.budget, merge_peak_bytes=6 * GIB)
    found = shortfall(predicted(FOUR, big), FOUR)
    assert not found.holds

    def answer(args: Mapping[str, Any]) -> RehearsedMemory:
        requested = round(args.get("gpu_memory_utilization", 20 / 22) * 22 * GIB)
        less = 20 * GIB - requested
        cache = big.kv_cache_bytes - less
        return replace(big, requested_bytes=requested, kv_cache_bytes=cache)

    ((remedy, after),) = find_remedies(found, FOUR, answering(answer))
    short = found.nbytes - found.outside_bytes + VLLM_SLACK_BYTES
    expected = math.floor(100 * (20 * GIB - short) / (22 * GIB)) / 100
    assert remedy.changes == {"gpu_memory_utilization": expected}
    left = shortfall(predicted(FOUR, after), FOUR)
    assert (left.holds, left.passes) == (True, False)


@pytest.mark.parametrize(("items", "cache", "seqs"), [(256, 4, 48), (256, 30, None), (0, 4, 1)])
def test_items_that_take_more_than_half_of_the_cache_come_from_fewer_sequences(items, cache, seqs):
    """256 short sounds of 48 MiB or 2 long ones of 6 GiB: less KV cache before few at once."""
    step, cache = WorstStep(1_792, 12 * GIB, modality="audio", items=items), cache * GIB
    short = Shortfall(GIB // 4, step, 2 * GIB, 0, 20 * GIB, 22 * GIB, cache)
    budget = limits(2_250, 256, item=750, modality="audio")
    assert leave_room(short, budget, {"audio": 1}, least=1).get("max_num_seqs") == seqs
    engine = leave_room(short, budget, {"audio": 1})
    assert engine.get("max_num_seqs") == (None if seqs == 1 else seqs)
    assert ("gpu_memory_utilization" in engine) == (seqs in (None, 1))
    # 2,154 MiB are free besides vLLM's own slack.
    assert use_free(short, budget, {"audio": 1}) == ({"max_num_seqs": 44} if items else {})
