"""vLLM's real processors on the CPU or torch's meta device, by the code that a GPU runs."""

from pathlib import Path

import pytest
from PIL import Image

from mmcalib.checks.engine import processor_check
from mmcalib.domain.knobs import DEFAULT, Setting
from mmcalib.domain.shapes import AudioShape, ImageShape
from mmcalib.engine.messages import Blank, CompareDevices, DeviceComparison
from mmcalib.progress import Silent
from mmcalib.proof.prove import compare_apart
from tests.builders import some
from tests.engine.conftest import Lab, folder_of

pytestmark = pytest.mark.engine


def both(lab: Lab, subject: Blank, device="cpu", setting: Setting = DEFAULT) -> DeviceComparison:
    return lab.host.ask(CompareDevices(setting, subject, device), "comparing")


def test_an_item_is_described_field_by_field(qwen: Lab) -> None:
    found = both(qwen, Blank(ImageShape(280, 280)))
    cpu, device = some(found.cpu), some(found.device)
    assert (cpu.tokens, cpu.embeds) == (100, 100)
    grid, pixels = cpu.tensors
    assert grid == "image_grid_thw int64 3"
    # 4 patches a token, of 14 × 14 pixels, 2 frames and 3 colours.
    assert pixels.startswith("pixel_values ")
    assert pixels.endswith(" 400×1176")
    assert cpu.first_difference(device, "cpu") == ""
    assert device.peak_bytes is None, "the CPU has no memory of its own"


def test_the_setting_holds_on_the_device_too(qwen: Lab) -> None:
    cap = Setting({"images_kwargs": {"size": {"longest_edge": 512 * 784, "shortest_edge": 3136}}})
    found = both(qwen, Blank(ImageShape(4032, 3024)), setting=cap)
    assert some(found.cpu).tokens == some(found.device).tokens <= 512


def test_what_the_cpu_refuses_has_no_result_at_all(qwen: Lab) -> None:
    found = both(qwen, Blank(ImageShape(1, 300)))
    assert (found.cpu, found.device) == (None, None)
    assert "aspect ratio" in found.refusal


@pytest.mark.parametrize(
    ("model", "subject", "device", "says"),
    [
        # Values are wanted back from a device that holds none.
        ("Qwen/Qwen2-Audio-7B-Instruct", Blank(AudioShape(32_000, 16_000)), "meta", "meta"),
        ("Qwen/Qwen2.5-VL-3B-Instruct", Blank(ImageShape(280, 280)), "cuda", ""),
    ],
)
def test_a_refusal_of_the_device_keeps_the_cpu_s_result(lab, model, subject, device, says) -> None:
    found = both(lab(model), subject, device)
    assert found.cpu is not None
    assert found.device is None
    assert found.refusal
    assert says in found.refusal


@pytest.mark.slow
def test_a_process_apart_finds_the_same_and_ends(engine_cache: Path, tmp_path: Path) -> None:
    Image.new("RGB", (280, 280)).save(tmp_path / "a.png")
    folder = folder_of("google/gemma-3-4b-it", engine_cache)
    chosen = [(ImageShape(280, 280), str(tmp_path / "a.png"))]
    found = compare_apart(str(folder), None, "cpu", DEFAULT, chosen, Silent())
    assert processor_check(found).status == "pass"
    assert [cpu.embeds for cpu, _ in found.pairs["image"]] == [256]


@pytest.mark.slow
def test_a_model_that_cannot_be_opened_again_breaks_off(tmp_path: Path) -> None:
    found = compare_apart(str(tmp_path), None, "cpu", DEFAULT, [], Silent())
    assert found.ended
    assert processor_check(found).status == "fail"
