"""Media as programs hold them: tensors, rows of datasets, URLs; what fits, and what is made fit."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import mmcalib
from mmcalib.domain.shapes import AudioShape, ImageShape, VideoShape
from mmcalib.locations.domains import allowing
from mmcalib.workflows.gate.fitting import fitted
from mmcalib.workflows.gate.presented import admitted
from tests.corpus.serving import serving
from tests.odd_media import frames_url, gif, silence
from tests.report.example import calibration
from tests.report.test_presented import GATE, LARGE, PAGE, png

PAGE_TOKENS = 300


def asking(*urls: str) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"messages": [{"role": "user", "content": [*parts, {"type": "text", "text": "What?"}]}]}


def test_tensors_of_torch_are_taken_where_torch_is_there_already() -> None:
    torch = pytest.importorskip("torch")
    height, width = PAGE[1], PAGE[0]
    for picture in (
        torch.zeros((3, height, width), dtype=torch.uint8),
        torch.zeros((height, width, 3), dtype=torch.bfloat16),
        torch.zeros((1, height, width), requires_grad=True),
    ):
        assert admitted(GATE, picture).tokens == PAGE_TOKENS
    assert admitted(GATE, torch.zeros((6, 3, 56, 84))).tokens == 3 * 2 * 3
    sound = admitted(GATE, (torch.zeros((1, 16_000)), 16_000))
    assert sound == admitted(GATE, AudioShape(16_000, 16_000))


def test_neither_torch_nor_numpy_is_loaded_to_tell() -> None:
    code = (
        "import sys\n"
        "from mmcalib.workflows.gate import arrays, held, dataset_row, fitting, filtering\n"
        "print([m for m in ('torch', 'numpy', 'datasets', 'ray') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_file_stands_afterwards_where_it_stood() -> None:
    file = io.BytesIO(b"ahead" + png(PAGE))
    file.seek(5)
    assert admitted(GATE, file).tokens == PAGE_TOKENS
    assert file.tell() == 5


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        (ImageShape(0, 5), "width_px of 0: sizes are numbers above 0"),
        (ImageShape(5, -1), "height_px of -1: "),
        (ImageShape("a", 5), "width_px of 'a': "),  # type: ignore[arg-type]
        (ImageShape(None, 5), "width_px of None: "),  # type: ignore[arg-type]
        (ImageShape([5], 5), "width_px of [5]: "),  # type: ignore[arg-type]
        (VideoShape(10, float("nan"), 1.0, 64, 64), "fps of nan: "),
        (VideoShape(10, 10.0, float("inf"), 64, 64), "duration_s of inf: "),
        (AudioShape(16_000, 0), "sample_rate_hz of 0: "),
        (Image.new("L", (0, 5)), "width_px of 0: "),
    ],
)
def test_a_shape_that_nothing_has_does_not_fit(shape: Any, reason: str) -> None:
    """Finding of a user: a table that lacks a size ended the pipeline with a ZeroDivisionError."""
    found = admitted(GATE, shape)
    assert found.answer == "no"
    assert found.reason.startswith(reason)
    assert admitted(GATE, {"image": shape, "question": "What?"}).answer == "no"
    with pytest.raises(ValueError, match="no size of it fits"):
        fitted(GATE, shape)


def test_sizes_as_numpy_has_them_are_numbers() -> None:
    size = (np.int64(PAGE[0]), np.float32(PAGE[1]))
    assert admitted(GATE, ImageShape(*size)).tokens == PAGE_TOKENS  # type: ignore[arg-type]


def test_urls(tmp_path: Path) -> None:
    (tmp_path / "a b.png").write_bytes(png(PAGE))
    assert admitted(GATE, (tmp_path / "a b.png").as_uri()).tokens == PAGE_TOKENS
    assert admitted(GATE, frames_url(6)).fits
    with serving() as server:
        url = server.put("a.png", png(PAGE))
        away = admitted(GATE, url)
        assert (away.answer, away.reason[:10]) == ("unknown", "remote URL")
        assert admitted(GATE, asking(url)).answer == "unknown"
        assert server.asked == 0
        with allowing(["127.0.0.1"]):
            assert admitted(GATE, url).tokens == PAGE_TOKENS
            assert admitted(GATE, asking(url)).fits
    assert admitted(GATE, "gopher://host/a.png").reason == "URL of a scheme that is not read"


@pytest.mark.parametrize(
    "row",
    [
        {"image": Image.new("RGB", PAGE), "label": 3},
        {"image": {"bytes": png(PAGE), "path": None}, "label": 3},
        {"img": np.zeros((PAGE[1], PAGE[0], 3), np.uint8), "mask": np.zeros(PAGE)},
        {"images": [Image.new("RGB", PAGE)]},
        {"__key__": "a", "jpg": png(PAGE), "txt": b"words", "cls": 1},
        {"bytes": png(PAGE), "path": "a.png"},
    ],
    ids=lambda row: "-".join(row),
)
def test_a_row_with_one_medium_is_that_medium(row: dict[str, Any]) -> None:
    assert admitted(GATE, row) == admitted(GATE, ImageShape(*PAGE))


def test_rows_that_name_their_media(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(PAGE))
    path = str(tmp_path / "a.png")
    for row in ({"image_path": path, "id": "7"}, {"file_name": path}, {"path": path, "n": 1}):
        assert admitted(GATE, row).tokens == PAGE_TOKENS, row
    both = {"image": Image.new("RGB", LARGE), "path": path}
    assert admitted(GATE, both).answer == "no", "the picture that is held, not the one it came from"


def test_words_and_media_of_a_row_are_one_prompt() -> None:
    one, question = Image.new("RGB", PAGE), {"question": "What is it?"}
    pair = admitted(GATE, {"images": [one, one], **question})
    assert (pair.answer, pair.tokens) == ("fits", 2 * PAGE_TOKENS)
    three = admitted(GATE, {"a": one, "b": one, "c": one, **question})
    assert three.reason == "3 image items, limit_mm_per_prompt admits 2"
    long = admitted(GATE, {"image": one, "question": "x" * 4096})
    assert long.answer == "unknown"
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "?"}]}]
    assert admitted(GATE, {"messages": messages, "images": [one, one]}).tokens == pair.tokens
    inside = [{"role": "user", "content": [{"type": "image", "image": Image.new("RGB", LARGE)}]}]
    assert admitted(GATE, {"messages": inside}).answer == "no"


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (None, "no image, video or audio"),
        ({"image": None}, "the column image is empty"),
        ({"image": None, "question": "What is it?"}, "the column image is empty"),
        ({"image_path": "", "n": 1}, "the column image_path is empty"),
        ({"photo": float("nan")}, "the column photo is empty"),
        ({"image": {"bytes": None, "path": None}}, "the column image is empty"),
        ({"images": []}, "the column images is empty"),
        ({"audio": None, "width": 56, "height": 56}, "the column audio is empty"),
    ],
)
def test_a_row_without_its_medium_does_not_fit(item: Any, reason: str) -> None:
    """Finding of a user: `{"image": None}` fitted, with 0 tokens."""
    found = admitted(GATE, item)
    assert (found.answer, found.tokens, found.reason, found.unread) == ("no", None, reason, reason)


def test_a_row_may_be_words_alone_or_have_its_medium_in_another_column() -> None:
    assert admitted(GATE, {"images": [], "question": "What is it?"}).fits
    both = admitted(GATE, {"image": Image.new("RGB", PAGE), "audio": None})
    assert (both.answer, both.tokens) == ("fits", PAGE_TOKENS)


def test_a_row_of_sizes_is_a_picture_of_that_size() -> None:
    page = admitted(GATE, ImageShape(*PAGE))
    width, height = PAGE
    for row in (
        {"width": width, "height": height},
        {"WIDTH": float(width), "HEIGHT": float(height), "label": 3},
        {"original_width": width, "original_height": height},
        {"url": "https://example.org/a.png", "width": width, "height": height},
    ):
        assert admitted(GATE, row) == page
    assert admitted(GATE, {"width": None, "height": 5}).reason.startswith("width_px of None")
    away = {"url": "https://example.org/a.png", "width": None, "height": height}
    assert admitted(GATE, away).answer == "unknown"
    clip = {"video_url": "https://example.org/a.mp4", "width": width, "height": height}
    assert admitted(GATE, clip).answer == "unknown"
    with pytest.raises(TypeError, match="name one image"):
        admitted(GATE, {"width": width, "height": height, "fps": 25.0})
    large = {"Width": LARGE[0], "Height": LARGE[1], "n": 1}
    smaller = fitted(GATE, large)
    assert smaller["n"] == 1
    assert admitted(GATE, smaller).fits
    assert admitted(GATE, ImageShape(smaller["Width"], smaller["Height"])).fits


def test_sound_in_rows() -> None:
    samples = np.zeros(16_000, np.float32)
    sound = admitted(GATE, AudioShape(16_000, 16_000))
    assert sound.fits
    for row in (
        {"audio": {"array": samples, "sampling_rate": 16_000, "path": None}, "id": 1},
        {"amplitude": samples, "sample_rate": 16_000},
        {"audio": (samples, 16_000)},
    ):
        assert admitted(GATE, row) == sound


@pytest.mark.parametrize(
    "row", [{}, {"label": 3}, {"embedding": np.zeros((9, 9))}, {"image": 7}, {"data": b"\0\1"}]
)
def test_a_row_without_a_medium_is_a_type_error(row: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"this is dict of .*name one image, video, audio or path"):
        admitted(GATE, row)


def large_png() -> bytes:
    return png(LARGE)


def test_fit_gives_what_it_was_given_smaller(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    (tmp_path / "a.png").write_bytes(large_png())
    width, height = LARGE
    sharp = np.zeros((height, width, 3), np.uint8)
    sharp[:, width // 2 :] = 255
    for item in (
        large_png(),
        io.BytesIO(large_png()),
        Image.new("RGB", LARGE),
        tmp_path / "a.png",
        (tmp_path / "a.png").as_uri(),
        sharp,
        np.zeros((3, height, width), np.float32),
        torch.zeros((height, width), dtype=torch.int16),
        {"bytes": large_png(), "path": "a.png"},
        ImageShape(*LARGE),
    ):
        made = fitted(GATE, item)
        answer = admitted(GATE, made)
        assert answer.fits, type(item)
        assert answer.tokens is not None
        assert answer.tokens > 500, "it is the largest that fits"
        kind = Image.Image if isinstance(item, Path | str) else type(item)
        assert isinstance(made, kind)
    made = fitted(GATE, sharp)
    assert made.dtype == np.uint8
    assert (made[:, 0].max(), made[:, -1].min()) == (0, 255), "neither cropped nor turned"
    assert (
        fitted(GATE, torch.zeros((3, height, width), dtype=torch.bfloat16)).dtype is torch.bfloat16
    )
    page = png(PAGE)
    assert fitted(GATE, page) is page


def test_fit_cuts_sound_and_shrinks_frames() -> None:
    samples = np.arange(700 * 8_000, dtype=np.int32)
    made, rate = fitted(GATE, (samples, 8_000))
    assert (len(made), rate, made[-1]) == (600 * 8_000, 8_000, 600 * 8_000 - 1)
    cell = fitted(GATE, {"array": samples, "sampling_rate": 8_000})
    assert len(cell["array"]) == 600 * 8_000
    frames = fitted(GATE, np.zeros((8, 720, 1280, 3), np.uint8))
    assert frames.shape[0] == 8
    assert admitted(GATE, frames).fits


def test_fit_of_rows_and_requests(tmp_path: Path) -> None:
    page, question = Image.new("RGB", PAGE), {"question": "What?", "id": 7}
    row: dict[str, Any] = {"images": [page, large_png()], **question}
    made = fitted(GATE, row)
    assert made["images"][0] is row["images"][0]
    assert admitted(GATE, made["images"][1]).fits
    assert (made["id"], row["images"][1]) == (7, large_png()), "the row itself is left as it was"
    sound = {"amplitude": np.zeros(700 * 8_000, np.float32), "sample_rate": 8_000}
    assert fitted(GATE, sound)["amplitude"].shape == (600 * 8_000,)
    (tmp_path / "a.png").write_bytes(large_png())
    asked = fitted(GATE, asking(str(tmp_path / "a.png")), tmp_path)
    assert admitted(GATE, asked).fits
    assert asked["messages"][0]["content"][0]["image_url"]["url"].startswith("data:image/png")


def test_fit_says_why_it_cannot(tmp_path: Path) -> None:
    one = Image.new("RGB", PAGE)
    for item, why in (
        (b"no picture", "no size of it fits"),
        ({"images": [one, one, one]}, "no size of its media fits: 3 image items"),
        (silence(tmp_path / "a.wav", 700, 8_000), "not made smaller here: .* cut to 600.00 s"),
        (gif(tmp_path / "a.gif", 3).with_name("gone"), "no size of it fits: no such file"),
    ):
        with pytest.raises(ValueError, match=why):
            fitted(GATE, item)


def test_a_calibration_travels_to_workers() -> None:
    kept = calibration()
    assert kept.admits(Image.new("RGB", (1316, 756))).fits
    there = pickle.loads(pickle.dumps(kept))
    assert there.to_json() == kept.to_json()
    assert there.admits(ImageShape(1316, 756)).fits
    large = there.fit(Image.new("RGB", (4000, 3000)))
    assert there.admits(large).fits


def test_all_public_names_are_listed() -> None:
    assert {"calibrate", "filter", "Calibration", "Policy"} <= set(dir(mmcalib))
