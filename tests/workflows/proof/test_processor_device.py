"""`--device cuda`: its needs, and items that differ or end the engine."""

from typing import Any

import pytest

from mmcalib.checks.check import Check
from mmcalib.checks.engine import processor_check
from mmcalib.domain.knobs import DEFAULT
from mmcalib.domain.model import ProcessedItem
from mmcalib.domain.shapes import AudioShape, ImageShape, Shape
from mmcalib.engine.messages import CompareDevices, DeviceComparison, File
from mmcalib.errors import EngineDied, UsageError
from mmcalib.progress import Silent
from mmcalib.proof.prove import compare, cpu_build, require_cuda
from mmcalib.workflows.run.run import calibrate
from tests.workflows.corpora import pretended
from tests.workflows.fake_host import FakeHost, opened

MIB = 1 << 20


def processed(tokens: int, seconds: float, peak: int | None = None) -> ProcessedItem:
    return ProcessedItem(tokens, tokens, (f"pixels uint8 {tokens}×4",), seconds, peak)


class Gpu(FakeHost):
    """Miscounts, has no room for, cannot load, and dies of one item each; sounds run on the CPU."""

    def __init__(self) -> None:
        super().__init__(opened())
        self.warmed: list[bool] = []

    def ask(self, request: Any, doing: str) -> Any:
        assert isinstance(request, CompareDevices)
        self.warmed.append(request.warm)
        cpu = processed(100, 0.5)
        assert isinstance(request.subject, File)
        match request.subject.path.removesuffix(".jpg"):
            case "odd":
                return DeviceComparison(cpu, processed(99, 0.1, 4 * MIB))
            case "huge":
                return DeviceComparison(cpu, None, "CUDA out of memory")
            case "broken":
                return DeviceComparison(None, None, "cannot identify image file")
            case "fatal":
                raise EngineDied("the engine process was killed by SIGKILL", hint="its log")
            case "sound":
                return DeviceComparison(cpu, processed(100, 0.5, 0))
        return DeviceComparison(cpu, processed(100, 0.1, 8 * MIB))


def checked(*names: str, host: Gpu | None = None) -> Check:
    def shape(name: str) -> Shape:
        return AudioShape(16_000, 16_000) if name == "sound" else ImageShape(280, 280)

    sample = [(shape(name), f"{name}.jpg") for name in names]
    found = compare(host or Gpu(), "cuda", DEFAULT, sample, Silent(), pretended)  # type: ignore[arg-type]
    return processor_check(found)


def test_the_same_on_both_passes_with_its_figures() -> None:
    check = checked("good", "fine", "sound")
    assert (check.status, check.detail) == (
        "pass",
        "3 sampled items come out the same on cuda as on the CPU: tokens, embeds, types and shapes "
        "of tensors; image 10.0 items/s, CPU 2.0, at most 8.0 MiB each; audio 2.0 items/s, CPU "
        "2.0, computed on the CPU anyway",
    )


@pytest.mark.parametrize(
    ("names", "status", "said"),
    [
        ("good odd", "fail", "odd.jpg: 100 tokens on the CPU, 99 tokens on cuda; 1 of 2 sampled"),
        ("good huge", "fail", "huge.jpg: rejected only on cuda: CUDA out of memory; 1 of 2 "),
        ("good fatal", "fail", "failed: "),
        # What vLLM rejects anywhere is no difference.
        ("good broken", "pass", ""),
        ("broken", "skip", ""),
    ],
)
def test_a_difference_fails_and_names_the_item(names: str, status: str, said: str) -> None:
    check = checked(*names.split())
    assert check.status == status
    assert said in check.detail
    assert "odd" not in names or check.remedy.startswith("--mm-processor-device=cpu")


def test_without_cuda_nothing_is_read() -> None:
    with pytest.raises(UsageError, match="no GPU that CUDA can see") as refused:
        require_cuda("cuda", has_gpu=lambda: False)
    assert refused.value.hint == "--device cpu"
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
