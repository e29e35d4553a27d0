"""The inputs of `Calibration.admits`, and its answers."""

import importlib.util
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import ExifTags, Image, ImageOps

from mmcalib.admission.admits import admit_item
from mmcalib.corpus.chat import url_part
from mmcalib.domain.model import Server
from mmcalib.domain.shapes import AudioShape, ImageShape
from tests import builders
from tests.corpus.media import asking, png
from tests.odd_media import frames_url, gif, silence
from tests.report.example import calibration

GATE = replace(
    builders.GATE,
    budget_tokens=600,
    rules={"image": builders.AREA, **builders.GATE.rules},
    server=Server(limits={"VLLM_MAX_AUDIO_DECODE_DURATION_S": 600}),
)
PAGE, LARGE = (560, 420), (2800, 1400)


@pytest.mark.parametrize(
    "item",
    [
        png(*PAGE),
        memoryview(png(*PAGE)),
        io.BytesIO(png(*PAGE)),
        Image.new("RGB", PAGE),
        ImageShape(*PAGE),
    ],
    ids=lambda item: type(item).__name__,
)
def test_a_picture_in_any_hand_is_what_it_is_on_disk(item: Any, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(*PAGE))
    on_disk = admit_item(GATE, tmp_path / "a.png")
    assert on_disk.fits
    assert on_disk.tokens == 300
    assert admit_item(GATE, item) == on_disk


def test_sound_as_an_array() -> None:
    minute = admit_item(GATE, (np.zeros(60 * 16_000, np.float32), 16_000))
    assert minute == admit_item(GATE, AudioShape(60 * 16_000, 16_000))
    assert "600 s" in admit_item(GATE, (np.zeros((601 * 16_000, 2), np.int16), 16_000)).reason


@pytest.mark.parametrize(
    "item", [7, io.StringIO("words"), np.zeros(9), (np.zeros(9), 0), ([0.0], 8000)]
)
def test_anything_else_is_refused_with_what_is_taken(item: Any) -> None:
    with pytest.raises(TypeError, match="mmcalib takes a path, a URL, bytes, a binary file"):
        admit_item(GATE, item)


def test_a_chat_request(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(*PAGE))
    on_disk = admit_item(GATE, asking((tmp_path / "a.png").as_uri()), tmp_path)
    assert (on_disk.answer, on_disk.tokens) == ("fits", 300)
    path = admit_item(GATE, asking(str(tmp_path / "a.png")), tmp_path)
    assert (path.answer, path.reason[:40]) == ("no", "vLLM accepts no paths, only URLs: file:/")
    assert admit_item(GATE, showing(frames_url(6))).fits
    assert admit_item(GATE, asking("https://example.com/a.png")).answer == "unknown"
    assert admit_item(GATE, {"messages": []}).reason.startswith("not a chat request")


def showing(url: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [url_part("video_url", url)]}]}


def test_what_a_request_declares_decides_of_an_animation(tmp_path: Path) -> None:
    """A GIF may be a `video_url`."""
    path = gif(tmp_path / "a.gif", 12)
    answer = admit_item(GATE, showing(path.as_uri()), tmp_path)
    assert answer.fits, answer
    assert admit_item(GATE, path).tokens == 2 * 2


def test_fit_gives_the_picture_in_that_size() -> None:
    """It is neither cropped nor stretched."""
    large = Image.new("RGB", LARGE, "green")
    fitted = admit_item(GATE, large).fit(large)
    assert isinstance(fitted, Image.Image)
    assert admit_item(GATE, fitted).fits
    page = Image.new("RGB", PAGE)
    assert admit_item(GATE, page).fit(page) is page


def noise(*axes: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, axes, np.uint8)


# `check` needs no torch, and the newest Python has none here.
torch = importlib.import_module("torch") if importlib.util.find_spec("torch") else None
ARRAYS: list[Any] = [noise(1400, 2800, 3), noise(3, 1400, 2800).astype(np.float32)]
CLIPS: dict[str, Any] = {
    "pictures": [Image.new("RGB", (448, 448))] * 70,
    "arrays": [noise(448, 448, 3)] * 70,
}
if torch is not None:
    ARRAYS += [torch.from_numpy(noise(3, 1400, 2800))]
    ARRAYS += [torch.from_numpy(noise(1400, 2800, 3)).to(torch.bfloat16)]
    CLIPS["tensor"] = torch.zeros(70, 3, 448, 448)


@pytest.mark.parametrize(
    "pixels", ARRAYS, ids=lambda pixels: f"{pixels.dtype} {tuple(pixels.shape)}"
)
def test_fit_shrinks_an_array_to_the_mean_of_its_pixels(pixels: Any) -> None:
    answer = admit_item(GATE, pixels)
    assert answer == admit_item(GATE, Image.new("RGB", LARGE))
    fitted: Any = answer.fit(pixels)
    assert (type(fitted), fitted.dtype) == (type(pixels), pixels.dtype)
    assert sorted(fitted.shape) == [3, 489, 978]
    assert float(fitted.sum()) / (3 * 489 * 978) == pytest.approx(127, abs=1)
    assert admit_item(GATE, fitted).fits


@pytest.mark.parametrize("clip", CLIPS.values(), ids=CLIPS.keys())
def test_a_clip_of_frames_keeps_all_of_them_as_vllm_s_library_does(clip: Any) -> None:
    """35 steps of 256 tokens; a server would take 32 frames. It fits with all 70, smaller."""
    answer = admit_item(GATE, clip)
    assert (answer.answer, answer.tokens) == ("no", 35 * 256)
    fitted = answer.fit(clip)
    assert len(fitted) == 70
    assert admit_item(GATE, fitted).fits
    offline = {"prompt": "", "multi_modal_data": {"video": fitted, "image": noise(2, 56, 56, 3)}}
    assert "video" not in admit_item(GATE, offline).reason
    odd = [Image.new("RGB", PAGE), Image.new("RGB", LARGE)]
    assert admit_item(GATE, odd).reason == "frames differ in size, which vLLM rejects"


def test_a_photo_is_turned_by_its_exif_as_in_vllm() -> None:
    """It was taken as the camera's sensor lay, and `fit` squeezed it into the turned size."""
    photo, file = Image.new("RGB", LARGE), io.BytesIO()
    exif = photo.getexif()
    exif[ExifTags.Base.Orientation] = 6
    photo.save(file, "JPEG", exif=exif)
    opened = Image.open(file)
    answer = admit_item(GATE, opened)
    assert answer == admit_item(GATE, file.getvalue())
    assert isinstance(answer.largest, ImageShape)
    fitted: Any = answer.fit(opened)
    turned = ImageOps.exif_transpose(fitted)
    assert turned.size == (answer.largest.width_px, answer.largest.height_px)
    assert turned.height == pytest.approx(2 * turned.width, rel=0.01)
    assert admit_item(GATE, fitted).fits


def test_where_no_size_fits_that_is_said() -> None:
    strip = Image.new("RGB", (3, 700))
    with pytest.raises(ValueError, match="no size fits: aspect ratio 233:1"):
        admit_item(GATE, strip).fit(strip)


def test_sound_that_the_server_refuses_can_be_cut(tmp_path: Path) -> None:
    answer = admit_item(GATE, silence(tmp_path / "a.flac", 700, 8_000))
    assert answer.largest == AudioShape(600 * 8_000, 8_000)
    assert answer.remedy == (
        "VLLM_MAX_AUDIO_DECODE_DURATION_S=700 for the server or cut to 600.00 s"
    )


def test_a_calibration_asks_what_its_own_server_lets_in(tmp_path: Path) -> None:
    path = silence(tmp_path / "a.wav", 700, 8_000)
    kept = calibration()
    assert kept.gate.server.limits["VLLM_MAX_AUDIO_DECODE_DURATION_S"] == 600
    assert kept.admits(path).answer == "no"
