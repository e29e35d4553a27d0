"""Settings that change nothing when switched off are not emitted."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmcalib.checks.facts import Decision
from mmcalib.decision.effects import Footprints, drop_idle_settings, find_effects, probe_shapes
from mmcalib.decision.explore import BudgetSource
from mmcalib.domain.memory import Dummy
from mmcalib.domain.model import ModelInfo
from mmcalib.domain.shapes import ImageShape, VideoShape
from mmcalib.engine.messages import ComputeBudget, Measure, Measured
from mmcalib.errors import EngineError
from mmcalib.limits.effects import Effect
from mmcalib.limits.policy import Policy
from mmcalib.progress import Silent
from mmcalib.workflows.corpus import LoadedCorpus
from mmcalib.workflows.run.document import add_effects, evidence
from mmcalib.workflows.run.stages import check_decision
from tests.builders import some
from tests.workflows.corpora import corpus, decide
from tests.workflows.fake_host import FRAMES, FakeHost, opened

PAGE, CLIP = ImageShape(1316, 756), VideoShape(240, 30.0, 8.0, 280, 280)
MODEL = opened()
SIZE = "mm_processor_kwargs.images_kwargs.size"
FRAMES_KEPT = "media_io_kwargs.video.num_frames"


def without_idle(
    decided: Decision, policy: Policy | None = None, host: type[FakeHost] = FakeHost
) -> Decision:
    there = host(MODEL)
    budgets = BudgetSource(there, MODEL, "/m", policy or Policy())  # type: ignore[arg-type]
    return drop_idle_settings(decided, budgets, Silent())


def calibrated(
    read: LoadedCorpus, policy: Policy | None = None, host: type[FakeHost] = FakeHost
) -> Decision:
    return without_idle(decide(read, policy), policy, host)


def asked(model: ModelInfo = MODEL) -> Footprints:
    shapes = probe_shapes(model.modalities)
    return Footprints(FakeHost(model), "/m", model.serve_defaults, shapes)  # type: ignore[arg-type]


def by_name(found: list[Effect] | tuple[Effect, ...]) -> dict[str, Effect]:
    return {effect.name: effect for effect in found}


class FillingHost(FakeHost):
    """A host that fills in a missing edge, as vLLM 0.32 does for Qwen3-VL."""

    def measure(self, request: Measure, doing: str) -> Iterator[Measured]:
        for subject in request.subjects:
            shape = self._shape(subject)
            assert shape is not None
            yield Measured(self.cost(shape, request.setting.mm_processor_kwargs))


def test_what_stands_beside_a_cap_stays_where_it_could_be_missed() -> None:
    """And nobody is warned of what mmcalib itself wrote."""
    decision = calibrated(corpus([PAGE]), host=FillingHost)
    found = by_name(decision.effects)
    assert found[f"{SIZE}.longest_edge"].has_effect
    assert found[f"{SIZE}.shortest_edge"].outcome == "stated"
    size = decision.engine_args["mm_processor_kwargs"]["images_kwargs"]["size"]
    assert set(size) == {"longest_edge", "shortest_edge"}
    assert _check(decision).status == "pass"


def test_a_hint_that_leaves_the_profile_as_it_is_goes() -> None:
    """Under its cap the largest item is the corpus', with the hint and without."""
    before, decision = decide(corpus([PAGE])), calibrated(corpus([PAGE]))
    assert before.hints["image"] == {"width": 1316, "height": 756}
    assert before.budget.dummies["image"].embeds == 1269
    assert decision.hints == {}
    assert decision.engine_args["limit_mm_per_prompt"] == {"image": 1, "video": 0, "audio": 0}
    assert decision.refused_hints == {"image": "vLLM profiles the same without it"}
    check = _check(decision)
    assert check.status == "pass"
    assert "limit_mm_per_prompt.image.width" in check.detail
    assert {e.setting for e in _evidence(decision)} >= {"limit_mm_per_prompt.image"}


def test_a_loader_option_that_changes_no_frame_goes_with_a_warning() -> None:
    given_ = {"video": {"num_frames": FRAMES, "max_duration": 9}}
    decision = calibrated(corpus([PAGE, CLIP]), Policy(media_io_kwargs=given_))
    assert "media_io_kwargs" not in decision.engine_args
    assert decision.setting.media_io_kwargs == {}
    assert _check(decision).status == "warn"
    assert f"{FRAMES_KEPT}, media_io_kwargs.video.max_duration" in _check(decision).detail
    assert not [e for e in _evidence(decision) if e.setting.startswith("media_io_kwargs")]


EDGES, SIDES = st.integers(28, 3000), st.integers(28, 900)
CLIPS = st.builds(VideoShape, st.integers(1, 900), st.just(30.0), st.just(9.0), SIDES, SIDES)


@settings(max_examples=25)
@given(
    st.lists(st.builds(ImageShape, EDGES, EDGES) | CLIPS, min_size=1, max_size=6),
    st.sampled_from([Policy(), Policy(prefer="throughput"), Policy(max_tokens_per_item=300)]),
)
def test_what_goes_changes_nothing_and_what_stays_has_a_reason(shapes, policy: Policy) -> None:
    before, after = decide(corpus(shapes), policy), calibrated(corpus(shapes), policy)
    there = asked()
    now = some(there.budget(after.engine_args, build_dummy=True).budget)
    then = some(there.budget(before.engine_args, build_dummy=True).budget)
    assert replace(now, dummies={}) == replace(then, dummies={})
    profiled = now.profiled_modality
    assert profiled is not None
    assert now.dummies[profiled] == then.dummies[profiled]
    shown = [*(cost.shape for cost in after.table.costs.values()), *there.shapes]
    assert there.items(after.engine_args, shown) == there.items(before.engine_args, shown)
    outcomes = {e.setting: e.effect for e in _evidence(after, policy)}
    assert all(outcomes.values()), outcomes
    again, left = find_effects(after.engine_args, there)
    assert left == after.engine_args
    assert {e.outcome for e in again} <= {"moves", "stated"}
    assert set(after.hints) | set(after.refused_hints) == set(after.table.modalities())


def test_what_vllm_cannot_start_without_is_said_so() -> None:
    there = asked(opened(chunks=False))
    args = {"limit_mm_per_prompt": {"image": 1, "video": 0, "audio": 0}}
    found, _ = find_effects({**args, "max_num_batched_tokens": 16384}, there)
    words = by_name(found)["max_num_batched_tokens"].words
    assert words.startswith("without it: vLLM fails to start: Chunked MM input disabled")
    with pytest.raises(EngineError, match="vLLM rejects this configuration: Chunked"):
        find_effects(args, there)


def test_settings_that_only_memory_shows_stay() -> None:
    args = {"gpu_memory_utilization": 0.5, "kv_cache_dtype": "fp8"}
    found, left = find_effects(args, asked())
    assert {e.outcome for e in found} == {"not shown"}
    assert left == args


class EitherHost(FakeHost):
    """A host whose dummy is small with either of two options, which only both together show."""

    def ask(self, request: Any, doing: str) -> Any:
        answer = super().ask(request, doing)
        if not isinstance(request, ComputeBudget):
            return answer
        small = request.engine_args.get("media_io_kwargs", {})
        sizes = {m: Dummy(9 if small else d.embeds, 0, {}) for m, d in answer.dummies.items()}
        return replace(answer, dummies=sizes)


def test_what_goes_is_asked_for_together_once_more() -> None:
    policy = Policy(media_io_kwargs={"video": {"this": 1, "that": 1}})
    decided = decide(corpus([PAGE, CLIP]), policy, host=EitherHost)
    decision = without_idle(decided, policy, EitherHost)
    assert decision.engine_args == decided.engine_args
    found = by_name(decision.effects)
    words = "without it and the others that seemed idle: profiled "
    assert found["media_io_kwargs.video.this"].words.startswith(words)
    assert found["media_io_kwargs.video.that"].has_effect


def _evidence(decision: Decision, policy: Policy | None = None) -> list[Any]:
    return list(add_effects(evidence(decision, opened(), policy or Policy()), decision.effects))


def _check(decision: Decision) -> Any:
    found = check_decision(corpus([PAGE]), {}, decision, Policy())
    return next(check for check in found if check.name == "effect of each setting")


def test_a_loader_option_that_changes_frames_stays() -> None:
    given_ = {"video": {"num_frames": 8, "max_duration": 9}}
    decision = calibrated(corpus([CLIP]), Policy(media_io_kwargs=given_))
    assert decision.engine_args["media_io_kwargs"] == {"video": {"num_frames": 8}}
    effect = by_name(decision.effects)[FRAMES_KEPT]
    assert effect.words.startswith("without it: video of 64×64, 1800 frames, 60.0 s 16 → 64 tokens")
