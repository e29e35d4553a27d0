"""vLLM's words on flags that a run was given."""

from collections.abc import Mapping
from typing import Any

import pytest

from mmcalib.child.failures import explain
from mmcalib.domain.memory import RehearsedMemory
from mmcalib.errors import EngineDied, EngineError, UsageError, VllmRefused
from mmcalib.models import gpus
from mmcalib.models.resolve import ResolvedModel
from mmcalib.prediction.rehearse import MemoryPrediction
from mmcalib.results.part import CheckResult, verdict_words
from mmcalib.workflows.run.stages import check_unstarted_flags, refuse_unusable
from tests.workflows.rehearsals import rehearsed

L4 = gpus.find_gpu("L4")
GIVEN = {"quantization": "awq", "tensor_parallel_size": 4, "enable_lora": True}
PYDANTIC = (
    "1 validation error for VllmConfig Value error, Cannot find the config file for awq "
    "[type=value_error, input_value=ArgsKwargs((), {'model_co... 'shutdown_timeout': 0})"
)


class Refusing:
    """Fails where one of these arguments is said, and else starts."""

    def __init__(self, error: EngineError, *names: str) -> None:
        self._error, self._names = error, names

    def rehearse(self, engine_args: Mapping[str, Any], steps: Any = ()) -> RehearsedMemory:
        if any(name in engine_args for name in self._names):
            raise self._error
        return rehearsed()


def judged(rehearsals: Refusing, model: str) -> None:
    resolved = ResolvedModel(id=model, path="p", source="bundled", notes=())
    with MemoryPrediction(L4, rehearsals, {"model": "p"}) as prediction:  # type: ignore[arg-type]
        refuse_unusable(prediction, GIVEN, GIVEN, ("--quantization", "awq"), resolved)


def refused(reason: str) -> VllmRefused:
    return VllmRefused(f"{reason} (vLLM, while rehearsing)", reason=reason)


@pytest.mark.parametrize("model", [f"Qwen/Qwen2.5-VL-{size}B-Instruct" for size in (3, 72)])
def test_a_checkpoint_that_is_not_quantized_says_which_is(model: str) -> None:
    with pytest.raises(UsageError) as error:
        judged(Refusing(refused(explain(ValueError(PYDANTIC))[0]), "quantization"), model)
    assert error.value.message == (
        f"vLLM rejects {model} with --quantization awq: Cannot find the config file for awq"
    )
    assert f"--model {model}-AWQ, or -- " in error.value.hint


def test_vllms_own_type_error_says_that_the_checkpoint_is_not_quantized() -> None:
    said = "CompressedTensorsConfig.__init__() missing 3 required positional arguments: 'ignore'"
    why, hint = explain(TypeError(said))
    assert "no quantization config, and CompressedTensors needs one" in why
    assert hint == "-- --quantization fp8, or --model with a quantized checkpoint"


def test_a_process_that_dies_or_rejects_more_says_nothing_of_the_flags() -> None:
    judged(Refusing(EngineDied("it was killed"), "quantization"), "m")
    judged(Refusing(refused("no such architecture"), "model"), "m")


def test_what_needs_a_gpu_is_named_in_the_verdict() -> None:
    (check,) = check_unstarted_flags(GIVEN, "cpu", L4)
    assert check.status == "skip"
    assert check.detail.endswith("memory on L4 is rehearsed")
    words = verdict_words("pass", [CheckResult.from_value(check)])
    assert words == "pass · not started with --quantization, --tensor-parallel-size"


@pytest.mark.parametrize(("given", "device"), [({"enable_lora": True}, "cpu"), (GIVEN, "cuda")])
def test_what_is_had_here_needs_no_word(given: Mapping[str, Any], device: str) -> None:
    assert not list(check_unstarted_flags(given, device, L4))


def test_without_a_gpu_to_rehearse_it_is_a_warning() -> None:
    (check,) = check_unstarted_flags(GIVEN, "cpu", None)
    assert (check.status, check.remedy) == ("warn", "--gpu NAME rehearses them")
