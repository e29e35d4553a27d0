"""What a plan proposes, judged by R4 as `run` and `validate` judge it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mmcalib.derive.fix import Fix
from mmcalib.derive.fix_search import Found
from mmcalib.derive.goal import Goal
from mmcalib.domain.rehearsed import EncoderStep, Rehearsed
from mmcalib.errors import VllmRefused
from mmcalib.gpus import catalogue
from mmcalib.gpus.gpu import described
from mmcalib.workflows.memory.checks import predicted_shortfall, reserved_check
from mmcalib.workflows.memory.predicted import Predicted
from mmcalib.workflows.memory.prediction import MemoryPrediction
from mmcalib.workflows.plan.bench import Bench
from mmcalib.workflows.plan.planned import best, others, tried
from mmcalib.workflows.plan.reserving import Judged, judged, settled
from tests.workflows.rehearsals import GIB, deepstack, limits

GPU = catalogue.find("H100-80G")
ROOMY = {"model": "/m", "max_num_seqs": 256, "max_num_batched_tokens": 16_384}
FOUR = {**ROOMY, "max_num_seqs": 4}
SEQS = Fix("max_num_seqs=4", "max_num_seqs", {"max_num_seqs": 4}, "speed", "at most 4 at once")


@dataclass
class DeepStack:
    """Qwen3-VL-8B, whose encoder cache keeps more beside the language model than four sequences
    reserve; where it is other than these four, `mended_tokens` of KV cache are left.
    """

    steps: bool = True
    mended_tokens: int = 305_832

    def rehearse(
        self, engine_args: Mapping[str, Any], steps: tuple[EncoderStep, ...] = ()
    ) -> Rehearsed:
        if not self.steps and "limit_mm_per_prompt" in engine_args:
            raise VllmRefused("NotImplementedError: no kernel")
        seqs, batch = engine_args["max_num_seqs"], engine_args["max_num_batched_tokens"]
        left = 305_832 if (seqs, batch) == (4, 16_384) else self.mended_tokens
        return deepstack(limits(batch, seqs), kv_cache_tokens=left)


def bench(args: Mapping[str, Any], goal: Goal | None = None, **how: Any) -> Bench:
    found = Bench(MemoryPrediction(GPU, DeepStack(**how)), args, goal or Goal())
    found.rehearse(())
    return found


def judge(at: Bench, *fixes: Fix) -> Judged:
    found = judged(at, fixes, GPU)
    assert found is not None
    return found


def test_a_configuration_is_judged_as_run_and_validate_do() -> None:
    at = bench(FOUR)
    found = judge(at)
    assert found.check.status == "fail"
    assert "under-reserved by 0.46 GiB: the language model's step" in found.check.detail
    after = at.found(())
    assert isinstance(after, Rehearsed)
    same = Predicted(GPU, None, after, steps={"image": after})
    assert found.shortfall == predicted_shortfall(same, found.configuration)
    theirs = reserved_check(same, found.configuration, allow_under_reserve=False)
    assert theirs is not None
    assert found.check.detail == theirs.detail
    assert judge(bench(ROOMY)).check.status == "pass"


def test_a_goal_that_is_reached_already_is_not_where_it_is_under_reserved() -> None:
    """It would start, and may run out of memory under load: a setting that holds is proposed."""
    at = bench(FOUR)
    found = settled(at, Found({}, (), reached=True, proven=True), GPU)
    assert found.verdict == "reached"
    (mend,) = found.best.best
    assert mend.changes == {"max_num_seqs": 51}
    assert (mend.cost, found.best.proven) == ("nothing", True)
    assert judge(at, mend).check.status == "pass"
    held = settled(bench(ROOMY), Found({}, (), reached=True, proven=True), GPU)
    assert (held.verdict, held.best.best) == ("reached already", ())


def test_values_that_the_plan_chose_are_changed_until_they_hold() -> None:
    at = bench(ROOMY)
    at.outcome((SEQS,))
    found = settled(at, Found({}, (SEQS,), reached=True, proven=True), GPU)
    assert found.verdict == "reached"
    assert [fix.knob for fix in found.best.best] != ["max_num_seqs", "max_num_seqs"]
    proposed = best(found.best, at, GPU)
    assert proposed is not None
    assert proposed.reserved is not None
    assert proposed.reserved.status == "pass"
    assert proposed.changes == {"max_num_seqs": 51}
    alone = tried(SEQS, at, GPU)
    assert alone.reaches
    assert "under-reserved by 0.46 GiB" in alone.warning


def test_of_what_else_was_mended_less_may_do() -> None:
    batch = Fix("b", "max_num_batched_tokens", {"max_num_batched_tokens": 8192}, "speed", "slower")
    at = bench(ROOMY)
    at.outcome((batch,))
    at.outcome((SEQS,))
    asked = Found({}, (batch,), reached=True, proven=True, others=((SEQS,), ()))
    found = settled(at, asked, GPU)
    assert found.best.best == (batch,)
    (mended,) = others(found.best, at, GPU)
    assert (mended.changes, mended.proven) == ({"max_num_seqs": 51}, False)
    assert found.best.proven


def test_what_no_setting_mends_is_said_and_is_no_success() -> None:
    """With each cure the KV cache has less than the goal."""
    at = bench(FOUR, Goal("kv_tokens", 300_000), mended_tokens=200_000)
    found = settled(at, Found({}, (), reached=True, proven=True), GPU)
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
    other = judged(at, (), described("12GiB", "8.6"))
    assert other is not None
    assert "--model /m --gpu-memory 12GiB --capability 8.6 --verbose" in other.check.remedy
    assert settled(at, Found({}, (), reached=True, proven=True), GPU).verdict == "reached already"


def test_a_size_hint_is_a_trap_by_the_same_judgement() -> None:
    hint = Fix(
        "size hint for image",
        "size hint",
        {"limit_mm_per_prompt": {"image": {"width": 64, "height": 64}}},
        "requests",
        "smaller",
    )

    class Hinted(DeepStack):
        def rehearse(self, engine_args: Mapping[str, Any], steps: Any = ()) -> Rehearsed:
            found = super().rehearse(engine_args)
            limit = engine_args.get("limit_mm_per_prompt", {}).get("image", 1)
            if isinstance(limit, int):
                return found
            return deepstack(limits(16_384, 1), activation_peak_bytes=GIB // 2)

    at = Bench(MemoryPrediction(GPU, Hinted()), ROOMY, Goal())
    at.rehearse(())
    at.outcome((hint,))
    warning = tried(hint, at, GPU).warning
    assert warning.startswith(
        "a trap: image items of 324 tokens are still admitted; under-reserved"
    )


def test_the_worst_step_has_nothing_of_what_is_not_served() -> None:
    """A limit that is left out admits vLLM's own largest, which sets the step."""
    asked: list[Mapping[str, Any]] = []

    class Asked(DeepStack):
        def rehearse(self, engine_args: Mapping[str, Any], steps: Any = ()) -> Rehearsed:
            asked.append(engine_args["limit_mm_per_prompt"])
            return super().rehearse(engine_args)

    at = Bench(
        MemoryPrediction(GPU, Asked()),
        {**ROOMY, "limit_mm_per_prompt": {"image": {"count": 2}, "video": 0}},
        Goal(),
    )
    at.rehearse(())
    judge(at)
    assert asked[1:] == [{"image": 1, "video": 0}]
