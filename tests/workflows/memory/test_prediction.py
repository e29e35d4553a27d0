"""Configurations on an imaginary GPU, and a model that none of them starts."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mmcalib.domain.memory import EncoderStep, RehearsedMemory
from mmcalib.domain.shapes import ImageShape, Modality
from mmcalib.errors import EngineDied, EngineError, VerdictError, VllmRefused
from mmcalib.models import gpus
from mmcalib.prediction.predict import RehearsalJudge, find_default_problem, reject_too_small
from mmcalib.prediction.rehearse import MemoryPrediction, Predicted
from mmcalib.remedies.memory import UTILIZATION
from tests.workflows.corpora import corpus, decide
from tests.workflows.fake_host import opened
from tests.workflows.rehearsals import BUDGET, GIB, rehearsed

STEPS = (EncoderStep(ImageShape(28, 28), 2),)


@dataclass
class Refusing:
    """Two sequences are refused, and three end it."""

    asked: list[Mapping[str, Any]] = field(default_factory=list)

    def rehearse(self, engine_args: Mapping[str, Any], steps: Any = ()) -> RehearsedMemory:
        self.asked.append(engine_args)
        seqs = engine_args.get("max_num_seqs")
        if seqs in (2, 3):
            raise VllmRefused("two are too many") if seqs == 2 else EngineDied("it died")
        return rehearsed(encoder_tokens=len(steps))


def prediction(process: Any, **how: Any) -> MemoryPrediction:
    return MemoryPrediction(gpus.find_gpu("L4"), process, {"model": "p"}, **how)


def test_the_same_is_rehearsed_once_and_more_steps_are_not_the_same() -> None:
    """The processor cache is not on the GPU."""
    process = Refusing()
    with prediction(process) as at:
        first, plain = at.rehearse_all([{"max_num_seqs": 1}, {}], STEPS)
        for cached in ({}, {"mm_processor_cache_gb": 2}):
            assert at.rehearse_or_none({"max_num_seqs": 1, **cached}) is first
        at.start({"max_num_seqs": 1}, STEPS)
        # Traffic needs the start alone.
        assert at.find_result({}) == plain
        at.rehearse({"max_num_seqs": 4}, STEPS)
        assert at.find_result({"max_num_seqs": 4}) == first
        assert at.find_result({"max_num_seqs": 5}) is None
    assert [one and one.encoder_tokens for one in (first, plain)] == [1, 0]
    assert process.asked[:2] == [{"model": "p", "max_num_seqs": 1}, {"model": "p"}]
    assert at.count == len(process.asked) == 3


def test_the_first_failure_of_what_is_tried_is_kept_unless_it_is_fatal() -> None:
    with prediction(Refusing()) as at:
        with pytest.raises(EngineError, match="two are too many"):
            at.rehearse({"max_num_seqs": 2})
        assert at.failure is None
        assert at.rehearse_all([{"max_num_seqs": 3}, {"max_num_seqs": 2}]) == [None, None]
    assert isinstance(at.failure, EngineDied)
    with prediction(Refusing(), fatal=(EngineDied,)) as at:
        assert at.rehearse_or_none({"max_num_seqs": 2}) is None
        with pytest.raises(EngineDied):
            at.rehearse_or_none({"max_num_seqs": 3})


# vLLM 0.32 on Qwen3-VL-8B with 32k on an L4, but for its advice.
SHORT = (
    "To serve at least one request with the model's max seq len (32768), (4.5 GiB KV cache is "
    "needed, which is larger than the available KV cache memory ({left} GiB). Based on the "
    "available memory, the estimated maximum model length is {longest}. Try increasing"
)


def refused(found: RehearsedMemory, problem: str) -> RehearsedMemory:
    return replace(found, kv_cache_tokens=None, max_concurrency=None, problem=problem)


class Pretended:
    """Leaves so many GiB for the KV cache where a modality is served alone, and `left` with all;
    `then` makes of that and the arguments what is answered.
    """

    def __init__(self, left: float, then: Any = lambda found, _: found, **alone: float) -> None:
        self.left, self.then, self.alone = left, then, alone
        self.asked: list[dict[str, Any]] = []

    def rehearse(self, engine_args: Mapping[str, Any], steps: Any = ()) -> RehearsedMemory:
        self.asked.append(dict(engine_args))
        limits = engine_args.get("limit_mm_per_prompt", {})
        left = next((self.alone[m] for m, count in limits.items() if count), self.left)
        taken = cast(tuple[Modality, ...], tuple(self.alone) or ("image",))
        found = rehearsed(
            kv_cache_bytes=int(left * GIB),
            budget=replace(BUDGET, max_items_per_prompt=dict.fromkeys(taken, 2)),
        )
        if left < 4.5:
            found = refused(found, SHORT.format(left=left, longest=int(left * 1000)))
        return self.then(found, engine_args)


CONTEXT = {"max_model_len": 32_768}


def judged(gpu: Pretended) -> None:
    with prediction(gpu) as at:
        reject_too_small(at, {}, {**CONTEXT, UTILIZATION: 0.92}, "a/b")


def test_what_starts_is_asked_once_and_without_its_media() -> None:
    gpu = Pretended(4.5, image=9.0, audio=9.0)
    judged(gpu)
    assert gpu.asked == [{"model": "p", **CONTEXT, UTILIZATION: 0.92, "skip_mm_profiling": True}]


def test_a_default_that_starts_needs_no_further_rehearsal() -> None:
    gpu = Pretended(4.5)
    with prediction(gpu) as at:
        at.rehearse(CONTEXT)
        reject_too_small(at, CONTEXT, CONTEXT, "a/b")
    assert gpu.asked == [{"model": "p", **CONTEXT}]


def test_one_that_does_not_says_what_fits() -> None:
    with pytest.raises(VerdictError) as caught:
        judged(Pretended(2.5))
    assert caught.value.message == (
        "a/b does not fit on L4: its weights, 7.00 GiB, leave 2.50 GiB for the KV cache before any "
        "media; one request of 32,768 tokens needs 4.50 GiB"
    )
    said = "--max-model-len 2048 or less, a GPU with about 23.91 GiB, -- --tensor-parallel-size 2, "
    assert caught.value.hint == said + "or a fix from mmcalib plan --model a/b --gpu L4"


def test_a_share_that_is_too_small_for_its_card_is_named() -> None:
    with pytest.raises(VerdictError) as caught:
        judged(Pretended(2.5, lambda found, _: replace(found, total_bytes=80 * GIB)))
    assert "or less, -- --gpu-memory-utilization 0.9" in caught.value.hint


def test_memory_outside_the_default_share_is_tried_before_a_model_is_refused() -> None:
    class Roomier(Pretended):
        def rehearse(self, engine_args: Mapping[str, Any], steps: Any = ()) -> RehearsedMemory:
            self.left = 4.5 if engine_args.get("gpu_memory_utilization") == 0.95 else 4.0
            return super().rehearse(engine_args, steps)

    with prediction(Roomier(4.0)) as at:
        reject_too_small(at, {}, CONTEXT, "a/b")
    with pytest.raises(VerdictError, match=r"4\.00 GiB for the KV cache"):
        judged(Roomier(4.0))


def test_recurrent_layers_are_judged_with_a_block_for_one_sequence() -> None:
    def recurrent(found: RehearsedMemory, args: Mapping[str, Any]) -> RehearsedMemory:
        why = "max_num_seqs (256) exceeds available Mamba cache blocks (14)"
        return found if args.get("max_num_seqs") == 1 else refused(found, why)

    judged(Pretended(4.5, recurrent))
    with pytest.raises(VerdictError, match=r"2\.50 GiB for the KV cache"):
        judged(Pretended(2.5, recurrent))


def test_remedies_that_are_not_enough_alone_are_tried_together() -> None:
    decision = decide(corpus([ImageShape(280, 280)]))
    with prediction(Pretended(4.0, image=4.0)) as at:
        judge = RehearsalJudge(at, {}, None, lambda _: None, reserves=False)
        found = [one.changes for one in judge.remedies(decision)]
        kept = replace(judge, given={UTILIZATION, "max_num_batched_tokens"}, concurrency=128)
        assert list(kept.remedies(decision)) == []
    assert found == [{UTILIZATION: 0.95}, {"max_num_batched_tokens": 2048}, {"max_num_seqs": 64}]


def test_what_load_would_take_of_the_reserve_is_left_by_a_lower_utilization() -> None:
    decision = decide(corpus([ImageShape(280, 280)]))
    loads = [SimpleNamespace(margin_bytes=n << 20, requested_bytes=20 * GIB) for n in (999, 50)]
    with prediction(Refusing()) as at:
        judge = RehearsalJudge(at, {}, None, lambda args: cast(Any, loads[bool(args)]))
        changes = getattr(judge.keep_reserve(decision), "changes", None)
        assert changes == {UTILIZATION: 0.904}, "100 of 22,528 MiB less"
        assert replace(judge, given={UTILIZATION}).keep_reserve(decision) is None


def test_the_default_is_judged_by_the_corpus_own_items_too() -> None:
    found, asked = decide(corpus([ImageShape(280, 280)]), model=opened(knobs=())), list[Any]()
    cheap = {m: replace(one, tensor_bytes=1) for m, one in found.plain.dummies.items()}
    decision = replace(found, plain=replace(found.plain, dummies=cheap))

    def ask(configs: Any, steps: Any = ()) -> list[RehearsedMemory | None]:
        asked.append((list(configs), steps))
        return [rehearsed()] * len(configs)

    predicted = Predicted(gpus.find_gpu("L4"), rehearsed(), rehearsed(kv_cache_tokens=1))
    find_default_problem(predicted, {}, decision, ask)
    assert asked[-1] == ([{}], (EncoderStep(ImageShape(280, 280), 128),))


def test_an_encoder_that_need_not_be_loaded_is_not_held_against_it() -> None:
    gpu = Pretended(2.5, image=3.5, audio=4.5, video=1.0)
    judged(gpu)
    assert (gpu.asked[1]["max_num_seqs"], gpu.asked[1]["max_num_batched_tokens"]) == (64, 2048)
    limits = [args["limit_mm_per_prompt"] for args in gpu.asked[2:]]
    assert limits == [{"image": 1, "audio": 0, "video": 0}, {"image": 0, "audio": 1, "video": 0}]
    with pytest.raises(VerdictError) as caught:
        judged(Pretended(2.5, image=3.5, audio=1.0))
    assert caught.value.hint.startswith("--max-model-len 3072 or less")
