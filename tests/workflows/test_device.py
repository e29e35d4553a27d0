"""Where the processor is measured: what each of the three words means, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from mmcalib.domain.model import ModelInfo
from mmcalib.domain.shapes import Modality
from mmcalib.engine.messages import DeviceTried, TryDevice
from mmcalib.errors import UsageError
from mmcalib.options.run import Device
from mmcalib.workflows.calibration.calibrate import calibrate
from mmcalib.workflows.device import DeviceComparison, cpu_build, device_comparison, require_cuda
from tests.workflows.fake_host import FakeHost, opened

ON_GPU = replace(opened(), device="cuda", versions={**opened().versions, "vllm": "0.32.0"})
OPTION = "--mm-processor-device"
MODALITIES: tuple[Modality, ...] = ("image", "audio")


class Trying(FakeHost):
    """Answers `TryDevice`; `tried` is None for one that must not be asked."""

    def __init__(self, model: ModelInfo, tried: DeviceTried | None) -> None:
        super().__init__(model)
        self._tried = tried

    def ask(self, request: Any, doing: str) -> Any:
        assert isinstance(request, TryDevice)
        assert self._tried is not None
        return self._tried


def found(
    device: Device,
    unfit: Mapping[Modality, str] | None = None,
    option: str = OPTION,
    model: ModelInfo = ON_GPU,
) -> DeviceComparison | None:
    host = Trying(model, DeviceTried(dict(unfit or {}), option, 2))
    return device_comparison(device, host, model, MODALITIES)  # type: ignore[arg-type]


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_without_a_gpu_nothing_is_asked_and_nothing_compared(device: Device) -> None:
    host = Trying(opened(), None)
    assert device_comparison(device, host, opened(), MODALITIES) is None  # type: ignore[arg-type]


def test_the_cpu_alone_is_the_cpu_alone_on_a_gpu_too() -> None:
    assert device_comparison("cpu", Trying(ON_GPU, None), ON_GPU, MODALITIES) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(("device", "asked"), [("auto", False), ("cuda", True)])
def test_on_a_gpu_every_modality_that_can_be_is_compared(device: Device, asked: bool) -> None:
    why: dict[Modality, str] = {"audio": "FeatureExtractor takes no device"}
    assert found(device, why) == DeviceComparison("cuda", ("image",), why, OPTION, 2, asked)


def test_a_processor_that_takes_no_device_is_refused_in_one_line() -> None:
    with pytest.raises(UsageError, match="does not run on a GPU: it takes none") as refused:
        found("cuda", {"image": "it takes none", "audio": "it takes none"})
    assert refused.value.hint == "--device cpu"


def test_a_release_without_the_option_is_refused_with_what_installs_one() -> None:
    with pytest.raises(UsageError, match=f"vLLM 0.32.0 has no {OPTION}") as refused:
        found("cuda", option="")
    assert "pip install" in refused.value.hint


@pytest.mark.parametrize("option", [OPTION, ""])
def test_auto_never_refuses_but_says_why(option: str) -> None:
    unfit: dict[Modality, str] = dict.fromkeys(MODALITIES, "it takes none") if option else {}
    one = found("auto", unfit, option)
    assert one is not None
    assert one.modalities == ()
    assert set(one.unfit) == set(MODALITIES)


def test_vllm_on_another_device_is_refused() -> None:
    with pytest.raises(UsageError, match="vLLM runs on cpu here"):
        found("cuda", model=opened())


def test_without_cuda_nothing_is_read(tmp_path: Any) -> None:
    with pytest.raises(UsageError, match="no GPU that CUDA can see") as refused:
        require_cuda("cuda", has_gpu=lambda: False)
    assert refused.value.hint == "--device cpu"
    require_cuda("auto", has_gpu=lambda: False)
    require_cuda("cpu", has_gpu=lambda: False)


def test_a_build_for_the_cpu_is_refused_beside_a_gpu() -> None:
    build = cpu_build()
    if not build:
        pytest.skip("needs vLLM's CPU build")
    with pytest.raises(UsageError, match="is built for the CPU") as refused:
        require_cuda("cuda", has_gpu=lambda: True)
    assert build in refused.value.message
    assert "pip install" in refused.value.hint


def test_the_library_refuses_a_word_that_is_no_device(tmp_path: Any) -> None:
    with pytest.raises(UsageError, match="--device gpu: no such choice"):
        calibrate("m", tmp_path, device="gpu")  # type: ignore[arg-type]
