"""The processor on another device. The device is the CPU here, or torch's own without values: what
is asserted is asserted of vLLM's real processors, by the code that a GPU runs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from mmcalib.domain.items import Item, Skipped
from mmcalib.domain.processed import TensorSpec
from mmcalib.domain.setting import DEFAULT, Setting
from mmcalib.domain.shapes import AudioShape, ImageShape, Modality, Shape
from mmcalib.engine.messages import (
    Blank,
    CompareDevices,
    DevicesCompared,
    DeviceTried,
    File,
    TryDevice,
)
from mmcalib.media.probe import probe
from mmcalib.models import find, materialise
from mmcalib.progress import Silent
from mmcalib.releases.release import VLLM_0_33
from mmcalib.workflows.device import DeviceComparison
from mmcalib.workflows.proof.processor_device import (
    DevicePairs,
    compare,
    compare_apart,
    compared_check,
    processor_device,
)
from tests.engine.conftest import QWEN, Lab
from tests.upstream import QIANFAN, since

pytestmark = pytest.mark.engine

Open = Callable[[str], Lab]
GEMMA, LLAVA = "google/gemma-3-4b-it", "llava-hf/llava-onevision-qwen2-7b-ov-hf"
OMNI, INTERN = "Qwen/Qwen2.5-Omni-7B", "OpenGVLab/InternVL2-2B"


def tried(lab: Lab, *modalities: Modality) -> DeviceTried:
    return lab.host.ask(TryDevice(modalities), "trying")


def both(
    lab: Lab, subject: Blank | File, device: str = "cpu", setting: Setting = DEFAULT
) -> DevicesCompared:
    return lab.host.ask(CompareDevices(setting, subject, device), "comparing")


@pytest.mark.parametrize(
    ("model", "modalities"),
    [
        (QWEN, ("image", "video")),
        (GEMMA, ("image",)),
        (LLAVA, ("image", "video")),
        (OMNI, ("image", "video", "audio")),
    ],
)
def test_processors_of_torch_are_seen_to_heed_a_device(
    lab: Open, model: str, modalities: tuple[Modality, ...]
) -> None:
    assert tried(lab(model), *modalities).unfit == {}


@since(VLLM_0_33, QIANFAN)
def test_one_that_takes_no_device_is_told_with_its_own_words(lab: Open) -> None:
    unfit = tried(lab(INTERN), "image").unfit
    assert "unexpected keyword argument 'device'" in unfit["image"]


def test_the_installed_vllm_names_its_option(qwen: Lab) -> None:
    found = tried(qwen, "image")
    assert found.option == "--mm-processor-device"
    assert found.threads >= 1


def test_trying_a_device_moves_nothing_that_is_measured_later(qwen: Lab) -> None:
    image = Blank(ImageShape(1300, 876))
    before = qwen.cost(image)
    tried(qwen, "image", "video")
    after = qwen.cost(image)
    assert (before.tokens, before.tensor_bytes) == (after.tokens, after.tensor_bytes)


def test_an_item_is_described_field_by_field(qwen: Lab) -> None:
    found = both(qwen, Blank(ImageShape(280, 280)))
    assert found.cpu is not None
    assert found.device is not None
    assert (found.cpu.tokens, found.cpu.embeds) == (100, 100)
    # 4 patches a token, of 14 × 14 pixels, 2 frames and 3 colours.
    assert found.cpu.forms == (
        TensorSpec("image_grid_thw", "int64", (3,)),
        TensorSpec("pixel_values", found.cpu.forms[1].dtype, (400, 1176)),
    )
    assert found.cpu.forms == found.device.forms
    assert found.largest_difference == 0
    assert found.device.peak_bytes is None, "the CPU has no memory of its own"


@pytest.mark.slow
def test_a_process_apart_finds_the_same_and_ends(engine_cache: Path, tmp_path: Path) -> None:
    Image.new("RGB", (280, 280)).save(tmp_path / "a.png")
    geometry = find(GEMMA)
    assert geometry is not None
    folder = materialise(geometry, engine_cache / GEMMA.replace("/", "--"))
    chosen = [(ImageShape(280, 280), str(tmp_path / "a.png"))]
    found = compare_apart(
        str(folder), None, DeviceComparison("cpu", ("image",)), DEFAULT, chosen, Silent()
    )
    assert compared_check(found).status == "pass"
    assert [pair.cpu.embeds for pair in found.pairs["image"]] == [256]


@pytest.mark.slow
def test_a_model_that_cannot_be_opened_again_breaks_off(tmp_path: Path) -> None:
    comparison = DeviceComparison("cpu", ("image",))
    found = compare_apart(str(tmp_path), None, comparison, DEFAULT, [], Silent())
    assert found.ended
    assert compared_check(found).status == "fail"


def test_the_setting_holds_on_the_device_too(qwen: Lab) -> None:
    cap = Setting({"images_kwargs": {"size": {"longest_edge": 512 * 784, "shortest_edge": 3136}}})
    found = both(qwen, Blank(ImageShape(4032, 3024)), setting=cap)
    assert found.cpu is not None
    assert found.device is not None
    assert found.cpu.tokens == found.device.tokens <= 512


def test_what_the_cpu_refuses_has_no_result_at_all(qwen: Lab) -> None:
    found = both(qwen, Blank(ImageShape(1, 300)))
    assert (found.cpu, found.device) == (None, None)
    assert "aspect ratio" in found.refusal


def test_what_the_device_alone_refuses_keeps_the_result_of_the_cpu(lab: Open) -> None:
    # Values are wanted back from a device that holds none.
    audio = Blank(AudioShape(32_000, 16_000))
    found = both(lab("Qwen/Qwen2-Audio-7B-Instruct"), audio, "meta")
    assert found.cpu is not None
    assert found.device is None
    assert "meta" in found.refusal


def test_a_device_that_is_not_there_is_a_refusal(qwen: Lab) -> None:
    found = both(qwen, Blank(ImageShape(280, 280)), "cuda")
    assert found.cpu is not None
    assert found.device is None
    assert found.refusal


def sample(shared: Path, *modalities: Modality) -> list[tuple[Shape, str]]:
    """Every readable file of the development corpus."""
    paths = [p for m in modalities for p in sorted((shared / "corpora/dev" / m).iterdir())]
    shapes = [(probe(Item(str(path))), str(path)) for path in paths]
    return [(shape, path) for shape, path in shapes if not isinstance(shape, Skipped)]


@pytest.mark.parametrize(
    ("model", "modalities"),
    [(QWEN, ("image", "video")), (GEMMA, ("image",)), (OMNI, ("audio",))],
)
def test_every_item_of_a_corpus_comes_out_the_same(
    lab: Open, shared: Path, model: str, modalities: tuple[Modality, ...]
) -> None:
    chosen = sample(shared, *modalities)
    comparison = DeviceComparison("cpu", modalities, option="--mm-processor-device", threads=2)
    found = compare(lab(model).host, comparison, DEFAULT, chosen, Silent())
    check = compared_check(found)
    assert check.status == "pass", check.detail
    pairs = {m: len(several) for m, several in found.pairs.items()}
    assert set(pairs) == set(modalities)
    assert sum(pairs.values()) >= len(chosen) - 2, "what vLLM cannot load is left out"
    kept = processor_device(found)
    assert kept is not None
    for one in kept.modalities.values():
        assert (one.differing, one.largest_difference) == (0, 0)
        assert one.device_items_per_s > 0


def test_a_refusal_of_the_device_alone_fails_where_it_was_asked_for(
    lab: Open, shared: Path
) -> None:
    chosen = sample(shared, "audio")[:2]
    asked = compare(lab(OMNI).host, DeviceComparison("meta", ("audio",)), DEFAULT, chosen, Silent())
    check = compared_check(asked)
    assert check.status == "fail"
    assert f"{chosen[0][1]}: refused on meta alone" in check.detail
    auto = DevicePairs(DeviceComparison("meta", ("audio",), asked=False), refused=asked.refused)
    assert compared_check(auto).status == "warn"
