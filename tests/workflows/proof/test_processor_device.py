"""What the comparison makes of items that differ, are refused, or end the engine."""

from __future__ import annotations

from typing import Any

import pytest

from mmcalib.domain.processed import Processed, TensorSpec
from mmcalib.domain.setting import DEFAULT
from mmcalib.domain.shapes import AudioShape, ImageShape, Modality, Shape
from mmcalib.engine.messages import CompareDevices, DevicesCompared, File
from mmcalib.errors import EngineDied
from mmcalib.progress import Silent
from mmcalib.workflows.device import DeviceComparison
from mmcalib.workflows.proof.processor_device import (
    DevicePairs,
    compare,
    compared_check,
    processor_device,
)
from tests.workflows.corpora import pretended
from tests.workflows.fake_host import FakeHost, opened

MIB = 1 << 20
IMAGE = ImageShape(280, 280)
SAMPLE: list[tuple[Shape, str]] = [
    *((IMAGE, f"{name}.jpg") for name in ("good", "odd", "huge", "broken", "fatal")),
    (AudioShape(16_000, 16_000), "good.wav"),
]
NO_DEVICE: dict[Modality, str] = {"audio": "it takes no device"}


def processed(tokens: int, seconds: float, peak: int | None = None) -> Processed:
    return Processed(tokens, tokens, (TensorSpec("pixels", "uint8", (tokens, 4)),), seconds, peak)


class Gpu(FakeHost):
    """Counts one item wrongly, has no room for another; one cannot be loaded, one ends it."""

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
                return DevicesCompared(cpu, processed(99, 0.1, 4 * MIB))
            case "huge":
                return DevicesCompared(cpu, None, "CUDA out of memory")
            case "broken":
                return DevicesCompared(None, None, "cannot identify image file")
            case "fatal":
                raise EngineDied("the engine process was killed by SIGKILL", hint="its log")
        return DevicesCompared(cpu, processed(100, 0.1, 8 * MIB), largest_difference=1.0)


def compared(*names: str, asked: bool = True) -> DevicePairs:
    chosen = [(shape, path) for shape, path in SAMPLE if path.split(".")[0] in names]
    comparison = DeviceComparison("cuda", ("image",), NO_DEVICE, "--mm-processor-device", 2, asked)
    return compare(Gpu(), comparison, DEFAULT, chosen, Silent(), pretended)  # type: ignore[arg-type]


def test_the_same_on_both_passes_and_names_what_was_not_compared() -> None:
    check = compared_check(compared("good"))
    assert check.status == "pass"
    assert "1 sampled items come out the same on cuda as on the CPU" in check.detail
    assert "audio items only on the CPU: it takes no device" in check.detail


@pytest.mark.parametrize(("asked", "status"), [(True, "fail"), (False, "warn")])
def test_a_difference_fails_only_where_the_device_was_asked_for(asked: bool, status: str) -> None:
    check = compared_check(compared("good", "odd", asked=asked))
    assert check.status == status
    assert "odd.jpg: 100 tokens on the CPU, 99 on cuda; 1 of 2 sampled items differ" in check.detail
    assert check.remedy.startswith("--mm-processor-device=cpu")


def test_what_has_no_room_on_the_device_is_named() -> None:
    check = compared_check(compared("good", "huge"))
    assert check.status == "fail"
    assert "huge.jpg: refused on cuda alone: CUDA out of memory" in check.detail


def test_what_vllm_refuses_anywhere_is_no_difference() -> None:
    assert compared_check(compared("good", "broken")).status == "pass"
    assert compared_check(compared("broken")).status == "skip"


def test_an_engine_that_ends_breaks_off_with_its_reason() -> None:
    found = compared("good", "fatal")
    assert found.ended
    check = compared_check(found)
    assert (check.status, check.detail.split(":")[0]) == ("fail", "broke off")


def test_nothing_that_can_run_there_is_skipped_with_the_reason() -> None:
    check = compared_check(DevicePairs(DeviceComparison("cuda", (), NO_DEVICE, asked=False)))
    assert (check.status, check.detail) == (
        "skip",
        "audio items only on the CPU: it takes no device",
    )


def test_the_first_of_a_kind_is_processed_once_before() -> None:
    host = Gpu()
    comparison = DeviceComparison("cuda", ("image", "audio"))
    compare(host, comparison, DEFAULT, [SAMPLE[0], SAMPLE[1], SAMPLE[-1]], Silent(), pretended)  # type: ignore[arg-type]
    assert host.warmed == [True, False, True]


def test_figures_are_of_all_items_that_both_made() -> None:
    kept = processor_device(compared("good", "odd", "huge"))
    assert kept is not None
    images = kept.modalities["image"]
    assert (images.items, images.differing) == (2, 1)
    assert (images.cpu_items_per_s, images.device_items_per_s) == (2.0, 10.0)
    assert (images.device_mean_bytes, images.device_peak_bytes) == (6 * MIB, 8 * MIB)
    assert images.largest_difference == 1.0
    assert kept.not_compared == NO_DEVICE


def test_nothing_is_kept_of_nothing() -> None:
    assert processor_device(None) is None
    assert processor_device(compared("broken")) is None
