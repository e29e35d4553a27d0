"""What a plan takes from a log, tries and proposes, judged as `run` and `validate` judge it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from mmcalib.derive.fix_search import SearchResult
from mmcalib.derive.fixes import NO_CONSTRAINTS, Facts, Fix, Goal, parse_constraints
from mmcalib.derive.logs import Failure, OutOfMemory, Phase, StartupLog
from mmcalib.domain.memory import EncoderStep, RehearsedMemory
from mmcalib.domain.shapes import Modality
from mmcalib.errors import VllmRefused
from mmcalib.memory.checks import predicted_shortfall, reserved_check
from mmcalib.memory.rehearse import MemoryPrediction, Predicted
from mmcalib.models import gpus
from mmcalib.models.gpus import describe_gpu
from mmcalib.progress import Silent
from mmcalib.releases.constants import CONTEXT_BYTES, VLLM_SLACK_BYTES
from mmcalib.workflows.plan import from_log, trials
from mmcalib.workflows.plan.plan import combinations, try_fix
from mmcalib.workflows.plan.trials import MOST_REHEARSALS, FixTrials, search_fixes
from tests.derive.costed import AREA
from tests.workflows.rehearsals import BUDGET, FACTS, GIB, deepstack, limits, peaks, rehearsed

GPU = gpus.find_gpu("H100-80G")
L4 = describe_gpu("22GiB", "8.9")
ROOMY = {"model": "/m", "max_num_seqs": 256, "max_num_batched_tokens": 16_384}
FOUR = {**ROOMY, "max_num_seqs": 4}
SEQS = Fix("max_num_seqs=4", "max_num_seqs", {"max_num_seqs": 4}, "speed", "at most 4 at once")
REACHED = SearchResult((), reached=True, proven=True)


@dataclass
class DeepStack:
    """Qwen3-VL-8B, under-reserved at four sequences; else `mended_tokens` of KV cache are left."""

    steps: bool = True
    mended_tokens: int = 305_832

    def rehearse(
        self, engine_args: Mapping[str, Any], steps: tuple[EncoderStep, ...] = ()
    ) -> RehearsedMemory:
        if not self.steps and "limit_mm_per_prompt" in engine_args:
            raise VllmRefused("NotImplementedError: no kernel")
        seqs, batch = engine_args["max_num_seqs"], engine_args["max_num_batched_tokens"]
        left = 305_832 if (seqs, batch) == (4, 16_384) else self.mended_tokens
        # Little stays free outside what vLLM takes.
        requested = 22 * GIB - (200 << 20)
        return deepstack(limits(batch, seqs), kv_cache_tokens=left, requested_bytes=requested)


def bench(args: Mapping[str, Any], goal: Goal | None = None, **how: Any) -> trials.FixTrials:
    found = trials.FixTrials(MemoryPrediction(GPU, DeepStack(**how)), args, goal or Goal())
    found.rehearse(())
    return found


def judge(at: trials.FixTrials, *fixes: Fix) -> trials.JudgedFixes:
    found = trials.judge_fixes(at, fixes)
    assert found is not None
    return found


def test_a_configuration_is_judged_as_run_and_validate_do() -> None:
    at = bench(FOUR)
    found = judge(at)
    assert found.check.status == "fail"
    assert "under-reserved by 0.46 GiB: the language model's step" in found.check.detail
    after = at.find_rehearsal()
    assert isinstance(after, RehearsedMemory)
    same = Predicted(GPU, None, after, steps={"image": after})
    assert found.shortfall == predicted_shortfall(same, found.configuration)
    theirs = reserved_check(same, found.configuration, allow_under_reserve=False)
    assert theirs is not None
    assert found.check.detail == theirs.detail
    assert judge(bench(ROOMY)).check.status == "pass"


def test_a_goal_that_is_reached_already_is_not_where_it_is_under_reserved() -> None:
    """It would start, and may run out of memory under load: a setting that holds is proposed."""
    at = bench(FOUR)
    found = trials.choose_safe(at, REACHED)
    assert found.verdict == "reached"
    (mend,) = found.best.best
    assert mend.changes == {"max_num_seqs": 51}
    assert (mend.cost, found.best.proven) == ("nothing", True)
    assert judge(at, mend).check.status == "pass"
    held = trials.choose_safe(bench(ROOMY), REACHED)
    assert (held.verdict, held.best.best) == ("reached already", ())


def test_values_that_the_plan_chose_are_changed_until_they_hold() -> None:
    at = bench(ROOMY)
    at.outcome((SEQS,))
    found = trials.choose_safe(at, SearchResult((SEQS,), reached=True, proven=True))
    assert found.verdict == "reached"
    assert [fix.knob for fix in found.best.best] != ["max_num_seqs", "max_num_seqs"]
    proposed, _ = combinations(found.best, at)
    assert proposed is not None
    assert proposed.reserved is not None
    assert proposed.reserved.status == "pass"
    assert proposed.changes == {"max_num_seqs": 51}
    alone = try_fix(SEQS, at)
    assert alone.reaches
    assert "under-reserved by 0.46 GiB" in alone.warning


def test_of_what_else_was_mended_less_may_do() -> None:
    batch = Fix("b", "max_num_batched_tokens", {"max_num_batched_tokens": 8192}, "speed", "slower")
    at = bench(ROOMY)
    at.outcome((batch,))
    at.outcome((SEQS,))
    asked = SearchResult((batch,), reached=True, proven=True, others=((SEQS,), ()))
    found = trials.choose_safe(at, asked)
    assert found.best.best == (batch,)
    _, (mended,) = combinations(found.best, at)
    assert (mended.changes, mended.proven) == ({"max_num_seqs": 51}, False)
    assert found.best.proven


def test_what_no_setting_mends_is_said_and_is_no_success() -> None:
    """With each cure the KV cache has less than the goal."""
    at = bench(FOUR, Goal("kv_tokens", 300_000), mended_tokens=200_000)
    found = trials.choose_safe(at, REACHED)
    assert found.verdict == "under-reserved"
    assert found.best.best == ()


def test_where_steps_cannot_be_rehearsed_it_says_what_it_does_not_know() -> None:
    at = bench(ROOMY, steps=False)
    found = judge(at)
    assert (found.check.status, found.shortfall) == ("warn", None)
    assert "only tokens were compared, because rehearsals on H100-80G ended early" in (
        found.check.detail
    )
    assert "no kernel" in found.check.detail
    assert found.check.remedy.startswith("mmcalib rehearse --model /m --gpu H100-80G --verbose")
    at.prediction.gpu = describe_gpu("12GiB", "8.6")
    assert "--model /m --gpu-memory 12GiB --capability 8.6 --verbose" in judge(at).check.remedy
    assert trials.choose_safe(at, REACHED).verdict == "reached already"


def test_a_size_hint_is_a_trap_by_the_same_judgement() -> None:
    hint = Fix(
        "size hint for image",
        "size hint",
        {"limit_mm_per_prompt": {"image": {"width": 64, "height": 64}}},
        "requests",
        "smaller",
    )

    class Hinted(DeepStack):
        def rehearse(self, engine_args: Mapping[str, Any], steps: Any = ()) -> RehearsedMemory:
            found = super().rehearse(engine_args)
            limit = engine_args.get("limit_mm_per_prompt", {}).get("image", 1)
            if isinstance(limit, int):
                return found
            return deepstack(limits(16_384, 1), activation_peak_bytes=GIB // 2)

    at = trials.FixTrials(MemoryPrediction(GPU, Hinted()), ROOMY, Goal())
    at.rehearse(())
    at.outcome((hint,))
    warning = try_fix(hint, at).warning
    assert warning.startswith("a trap: vLLM still admits image items of 324 tokens; under-reserved")


@dataclass
class Qwen7B:
    """Qwen2.5-VL-7B rehearsed on an L4, profiled with the largest, hinted or capped image."""

    def rehearse(
        self, engine_args: Mapping[str, Any], steps: tuple[EncoderStep, ...] = ()
    ) -> RehearsedMemory:
        size = (engine_args.get("mm_processor_kwargs") or {}).get("images_kwargs", {}).get("size")
        item = min(16_384, size["longest_edge"] // 784) if size else 16_384
        limit = engine_args["limit_mm_per_prompt"]["image"]
        profiled = min(item, 324) if isinstance(limit, dict) and "width" in limit else item
        length = engine_args.get("max_model_len", 8_192)
        requested = round(engine_args.get("gpu_memory_utilization", 0.92) * 22 * GIB)
        encoder = profiled * 140_000
        peak = max(encoder, 300 << 20)
        kv_cache = requested - 16 * GIB - peak
        tokens = kv_cache // 57_344
        return rehearsed(
            budget=replace(
                BUDGET,
                max_tokens_per_item={"image": item},
                encoder_compute_budget=max(item, 2_048),
                encoder_cache_size=max(item, 2_048),
                max_model_len=length,
            ),
            weights_bytes=16 * GIB,
            buffers_bytes=0,
            non_torch_bytes=0,
            cudagraph_bytes=0,
            requested_bytes=requested,
            activation_peak_bytes=peak,
            phases=peaks(encoder, 300 << 20),
            encoder_tokens=profiled,
            kv_cache_bytes=kv_cache,
            kv_bytes_per_token=57_344,
            kv_cache_tokens=tokens if tokens >= length else None,
            max_concurrency=tokens / length if tokens >= length else None,
        )


HINTED: Mapping[str, Any] = {"count": 2, "width": 512, "height": 512}


def served(image: Any, goal: Goal | None = None, **args: Any) -> trials.FixTrials:
    limits = {"limit_mm_per_prompt": {"image": image, "video": 0}}
    at = trials.FixTrials(
        MemoryPrediction(L4, Qwen7B()), {"model": "/m", **limits, **args}, goal or Goal()
    )
    at.rehearse(())
    return at


def facts(at: trials.FixTrials) -> Facts:
    found = at.rehearse(())
    assert found.budget is not None
    return replace(FACTS, budget=found.budget, knobs=(AREA,))


def test_a_hint_that_shrinks_the_profile_alone_is_dropped_and_that_has_a_price() -> None:
    at = served(HINTED, max_model_len=32_768)
    assert not judge(at).holds
    honest = trials.without_trap_hints(at)
    (fix,) = honest.required
    assert fix.cost == "KV cache"
    assert fix.price.startswith("1.84 GiB less")
    found = trials.choose_safe(honest, REACHED)
    assert found.verdict == "reached"
    proposed, _ = combinations(found.best, honest)
    assert proposed is not None
    assert proposed.changes == {"limit_mm_per_prompt": {"image": 2, "video": 0}}
    assert [price.flags for price in proposed.fixes] == [proposed.flags]
    assert proposed.reserved is not None
    assert proposed.reserved.status == "pass"
    plain = served(2)
    assert trials.without_trap_hints(plain) is plain


def test_dropping_a_hint_is_combined_with_caps_and_a_shorter_context() -> None:
    at = served(HINTED, Goal("concurrency", 16))
    honest = trials.without_trap_hints(at)
    fixes, found = trials.search_fixes(honest, facts(at), Silent())
    settled_so = trials.choose_safe(honest, found)
    assert settled_so.verdict == "reached"
    proposed, _ = combinations(settled_so.best, honest)
    assert proposed is not None
    size = {"longest_edge": 3_211_264, "shortest_edge": 3_136}
    assert proposed.changes == {
        "max_model_len": 4_096,
        "mm_processor_kwargs": {"images_kwargs": {"size": size}},
        "limit_mm_per_prompt": {"image": 2, "video": 0},
    }
    assert proposed.reserved is not None
    assert proposed.reserved.status == "pass"
    whole = {"limit_mm_per_prompt": {"image": 2, "video": 0}}
    for fix in fixes:
        shown = try_fix(fix, honest)
        if not fix.untried and fix.knob not in {"limits", "size hint"}:
            assert shown.changes == {**fix.changes, **whole}
            assert shlex.quote('{"image": 2, "video": 0}') in shown.flags


OOM = OutOfMemory(
    tried_bytes=round(1.08 * GIB),
    total_bytes=22 * GIB,
    free_bytes=round(0.39 * GIB),
    allocated_bytes=round(20.91 * GIB),
    graph_pools_bytes=0,
    unallocated_bytes=0,
)


def exhausted(
    at: trials.FixTrials, *, phase: Phase | None = "serving: encoder"
) -> trials.FixTrials:
    log = StartupLog(failures=(Failure("", phase, OOM),))
    return replace(at, oom=trials.observe_oom(at, log))


def test_a_server_that_ran_out_of_memory_needs_more_room_whatever_is_reserved() -> None:
    """R4 alone would pass: what one step may encode is reserved."""
    calm = served(2, gpu_memory_utilization=0.95)
    assert judge(calm).holds
    at = exhausted(calm)
    assert at.oom is not None
    assert at.oom.outside_torch_bytes == 22 * GIB - sum(
        (OOM.free_bytes or 0, OOM.allocated_bytes or 0)
    )
    kv_cache = calm.rehearse(()).kv_cache_bytes
    assert at.oom.step_bytes == round(21.99 * GIB) - 16 * GIB - kv_cache
    assert (at.oom.step_modality, at.oom.step_items) == ("image", 2)
    assert at.oom.step_tokens == round(at.oom.step_bytes / 140_000)
    assert at.oom.step_limit_tokens == 16_384
    found = judge(at)
    assert not found.holds
    assert found.lacking_bytes == at.oom.lacking_bytes
    assert at.oom.lacking_bytes == round(1.08 * GIB) - round(0.39 * GIB) + VLLM_SLACK_BYTES
    so = trials.choose_safe(at, REACHED)
    assert so.verdict == "reached"
    (mend,) = so.best.best
    assert mend.changes == {"gpu_memory_utilization": 0.91}
    assert mend.cost == "KV cache"
    assert mend.price.startswith("0.88 GiB less")
    assert judge(at, mend).holds


def test_a_message_without_figures_still_asks_for_room() -> None:
    calm = served(2)
    failure = Failure("", "profile: sampler", OutOfMemory())
    oom = trials.observe_oom(calm, StartupLog(failures=(failure,)))
    assert oom is not None
    assert (oom.wanted_bytes, oom.step_bytes, oom.lacking_bytes) == (None, None, VLLM_SLACK_BYTES)
    at = replace(calm, oom=oom)
    so = trials.choose_safe(at, REACHED)
    # 0.15 of 22 GiB below the default of 0.92.
    assert [fix.changes for fix in so.best.best] == [{"gpu_memory_utilization": 0.91}]


def test_before_the_kv_cache_a_lower_utilization_makes_no_room() -> None:
    at = exhausted(served(2, gpu_memory_utilization=0.95), phase="profile: encoder")
    so = trials.choose_safe(at, REACHED)
    assert so.verdict == "under-reserved"
    _, found = trials.search_fixes(at, facts(at), Silent(), partial(trials.safe_outcome, at))
    assert found.reached
    assert "images_kwargs.size.longest_edge" in {fix.knob for fix in found.best}
    assert judge(at, *found.best).holds


def test_fixes_are_combined_until_they_reach_the_goal_and_hold() -> None:
    """A lower utilization alone leaves too few tokens; with smaller images it does not."""
    calm = served(2, Goal("kv_tokens", 45_000), gpu_memory_utilization=0.95)
    at = exhausted(calm)
    assert at.outcome(()).reached
    assert trials.choose_safe(at, REACHED).verdict == "under-reserved"
    _, found = trials.search_fixes(at, facts(at), Silent(), partial(trials.safe_outcome, at))
    so = trials.choose_safe(at, found)
    assert so.verdict == "reached"
    proposed, _ = combinations(so.best, at)
    assert proposed is not None
    assert proposed.changes["gpu_memory_utilization"] < 0.95
    assert proposed.memory.kv_cache_tokens is not None
    assert proposed.memory.kv_cache_tokens >= 45_000
    assert proposed.reserved is not None
    assert proposed.reserved.status == "pass"


@dataclass
class Wanting:
    """Has few tokens of KV cache until one argument has one value."""

    name: str
    value: Any
    asked: list[Mapping[str, Any]] = field(default_factory=list)

    def rehearse(
        self, engine_args: Mapping[str, Any], steps: tuple[EncoderStep, ...] = ()
    ) -> RehearsedMemory:
        self.asked.append(engine_args)
        enough = engine_args.get(self.name) == self.value
        return rehearsed(kv_cache_tokens=400_000 if enough else 1_000)


def search(wanting: Wanting, engine_args: Mapping[str, Any]) -> tuple[list[Fix], SearchResult]:
    with MemoryPrediction(gpus.find_gpu("H100-80G"), wanting) as prediction:
        bench = FixTrials(prediction, {"model": "/m", **engine_args}, Goal("kv_tokens", 200_000))
        return search_fixes(bench, FACTS, Silent())


def test_every_fix_is_rehearsed_on_its_own_and_the_one_that_does_it_is_found() -> None:
    wanting = Wanting("kv_cache_dtype", "fp8")
    fixes, found = search(wanting, {})
    on_their_own = [fix for fix in fixes if fix.alone and not fix.untried]
    for fix in on_their_own:
        assert {"model": "/m", **fix.changes} in wanting.asked
    assert [fix.name for fix in found.best] == ["kv_cache_dtype"]
    assert found.reached
    assert len(wanting.asked) <= MOST_REHEARSALS


@dataclass
class SharedCap:
    """Whose largest video is as large as the cap of images lets it be."""

    def rehearse(
        self, engine_args: Mapping[str, Any], steps: tuple[EncoderStep, ...] = ()
    ) -> RehearsedMemory:
        kwargs = engine_args.get("mm_processor_kwargs") or {}
        video = 4_096 if "images_kwargs" in kwargs else 114_688
        items: dict[Modality, int] = {"image": 4_096 if kwargs else 16_384, "video": video}
        return rehearsed(budget=replace(BUDGET, max_tokens_per_item=items), kv_cache_tokens=1_000)


def test_a_cap_of_images_that_turns_videos_away_costs_requests() -> None:
    both = replace(BUDGET, max_tokens_per_item={"image": 16_384, "video": 114_688})
    facts = replace(FACTS, knobs=(AREA,), budget=both)
    with MemoryPrediction(gpus.find_gpu("H100-80G"), SharedCap()) as prediction:
        bench = FixTrials(prediction, {"model": "/m"}, Goal("kv_tokens", 200_000))
        fixes, _ = search_fixes(bench, facts, Silent())
    caps = [fix for fix in fixes if fix.knob == AREA.name]
    assert [fix.level for fix in caps] == [0, 1]
    assert {fix.cost for fix in caps} == {"requests"}
    assert all("rejects larger video items" in fix.price for fix in caps)


def written(folder: Path, *lines: str) -> from_log.ServerLog:
    (folder / "server.log").write_text("\n".join(lines))
    return from_log.read_server_log(folder / "server.log")


def test_what_the_engine_took_by_default_is_rehearsed_as_it_was(tmp_path: Path) -> None:
    """Defaults differ between releases: 0.9 had 2,048 batched tokens where 0.32 has 8,192."""
    found = written(
        tmp_path,
        "vLLM API server version 0.31.0",
        "non-default args: {'model': 'm', 'max_model_len': 2048, 'port': 1, 'seed': 3}",
        "Using max model len 4096",
        "Chunked prefill is enabled with max_num_batched_tokens=2048.",
        "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 8.00 GiB",
    )
    assert found.engine_args == {
        "model": "m",
        "max_model_len": 2048,
        "max_num_batched_tokens": 2048,
    }
    said = from_log.describe_log(found, rehearsed(), gpus.find_gpu("L4"))
    assert said.notes == [
        "the log is from vLLM 0.31.0; mmcalib runs vLLM 0.32.0",
        "the log is from a GPU with 8.00 GiB; mmcalib rehearsed L4",
        "defaults of the log's engine: max_num_batched_tokens=2048",
        "ignored arguments of the log: seed",
    ]


def test_no_plan_exceeds_the_sequences_that_the_log_allows(tmp_path: Path) -> None:
    line = (
        "ValueError: max_num_seqs (256) exceeds available Mamba cache blocks (108). Please lower "
    )
    found = written(tmp_path, f"{line}max_num_seqs to at most 108 or increase it.")
    (fix,) = from_log.stated_fixes(found, NO_CONSTRAINTS)
    assert fix.changes == {"max_num_seqs": 108}
    assert from_log.stated_fixes(found, parse_constraints(["max_num_seqs"])) == ()
    at = trials.FixTrials(MemoryPrediction(GPU, DeepStack()), ROOMY, Goal(), required=(fix,))
    assert at.args(())["max_num_seqs"] == 108


def test_the_memory_that_other_processes_hold_is_read_from_the_log(tmp_path: Path) -> None:
    """A server that starts alone on an L4 finds all of it free but for its context."""
    message = "ValueError: Free memory on device cuda:0 ({free}/22.04 GiB) on startup is less than"
    l4 = gpus.find_gpu("L4")
    for free, expected in ((17.06, round(17.06 * GIB) + CONTEXT_BYTES), (21.7, None)):
        log = written(tmp_path, message.format(free=free) + " desired GPU memory utilization").log
        assert from_log.with_free_of_log(l4, log).free_bytes == expected
        given = gpus.with_free_memory(l4, "9GiB")
        assert from_log.with_free_of_log(given, log) == given
    # Of two GPUs: 0.84 GiB are the context and NCCL, not another process.
    taken = CONTEXT_BYTES + l4.nccl_bytes
    for free, expected in ((17.06, round(17.06 * GIB) + taken), (21.2, None)):
        log = written(tmp_path, message.format(free=free) + " desired GPU memory utilization").log
        several = replace(log, engine_args={"tensor_parallel_size": 2})
        assert from_log.with_free_of_log(l4, several).free_bytes == expected
    other = gpus.find_gpu("H100-80G")
    assert from_log.with_free_of_log(other, log) == other
