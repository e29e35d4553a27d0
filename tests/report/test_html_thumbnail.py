import base64
import io
import tarfile
from pathlib import Path

import av
import pytest
from PIL import Image

from mmcalib.admission.calibration import Calibration
from mmcalib.domain.items import Item
from mmcalib.domain.shapes import Modality
from mmcalib.report.html.items import pictures
from mmcalib.report.report import Report, html
from tests.report.example import SERVE, calibration, changed

PREFIX = "data:image/jpeg;base64,"


def thumbnail(path: str, modality: Modality) -> str | None:
    return pictures([Item(path, modality)]).get(Item(path, modality))


def picture(uri: str | None) -> Image.Image:
    assert uri is not None
    assert uri.startswith(PREFIX)
    return Image.open(io.BytesIO(base64.b64decode(uri.removeprefix(PREFIX))))


def film(path: Path) -> Path:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height = 320, 160
        stream.pix_fmt = "yuv420p"
        for _ in range(3):
            frame = av.VideoFrame.from_image(Image.new("RGB", (320, 160), "red"))
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


@pytest.mark.parametrize("mode", ["RGB", "LA", "P", "I;16", "CMYK", "1"])
def test_an_image_of_any_kind_is_small_and_keeps_its_shape(mode: str, tmp_path: Path) -> None:
    path = tmp_path / ("a.jpg" if mode == "CMYK" else "a.png")
    Image.new(mode, (1200, 600)).save(path)
    assert picture(thumbnail(str(path), "image")).size == (240, 120)


def test_an_image_stands_as_a_viewer_shows_it(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (800, 400)).save(tmp_path / "a.jpg", exif=exif)
    assert picture(thumbnail(str(tmp_path / "a.jpg"), "image")).size == (120, 240)


def test_what_is_transparent_lies_on_white(tmp_path: Path) -> None:
    Image.new("RGBA", (20, 20), (0, 0, 0, 0)).save(tmp_path / "a.png")
    assert picture(thumbnail(str(tmp_path / "a.png"), "image")).getpixel((10, 10)) == (255,) * 3


def test_of_a_video_it_is_the_first_frame(tmp_path: Path) -> None:
    shown = picture(thumbnail(str(film(tmp_path / "a.mp4")), "video"))
    assert shown.size == (240, 120)
    pixel = shown.convert("RGB").getpixel((120, 60))
    assert isinstance(pixel, tuple)
    red, green, _ = pixel
    assert red > 200 > 60 > green


def test_members_of_archives_are_shown_too(tmp_path: Path) -> None:
    Image.new("RGB", (1200, 600)).save(tmp_path / "a.jpg")
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(tmp_path / "a.jpg", "x/a.jpg")
        archive.add(film(tmp_path / "a.mp4"), "a.mp4")
    members: dict[str, Modality] = {"x/a.jpg": "image", "a.mp4": "video"}
    for member, modality in members.items():
        uri = thumbnail(f"tar://{member}::{tmp_path}/a.tar", modality)
        assert picture(uri).size == (240, 120)
    assert thumbnail(f"tar://none.jpg::{tmp_path}/a.tar", "image") is None


def test_what_cannot_be_read_has_none_and_nothing_is_fetched_for_one(tmp_path: Path) -> None:
    Image.new("RGB", (40, 40)).save(tmp_path / "a.png")
    assert thumbnail(f"file://{tmp_path}/a.png", "image") is None
    assert thumbnail("tar://a.png::s3://bucket/a.tar", "image") is None
    (tmp_path / "a.jpg").write_bytes(b"\xff\xd8\xff\xe0 no more")
    (tmp_path / "a.mp4").write_bytes(b"no video")
    assert thumbnail(str(tmp_path / "a.jpg"), "image") is None
    assert thumbnail(str(tmp_path / "a.mp4"), "video") is None
    assert thumbnail(str(tmp_path / "gone.jpg"), "image") is None
    assert thumbnail(str(tmp_path), "image") is None
    assert thumbnail("s3://bucket/a.jpg", "image") is None
    assert thumbnail(str(tmp_path / "a.wav"), "audio") is None


def with_picture(tmp_path: Path) -> Calibration:
    path = tmp_path / "page.png"
    Image.new("RGB", (1316, 756), "teal").save(path)
    first, *others = calibration().costs.modalities["image"].known
    known = [first.model_copy(update={"exemplar": str(path)}), *others]
    return changed(calibration(), "costs.modalities.image", known=known)


def test_the_costliest_item_is_shown_unless_it_is_not_wanted(tmp_path: Path) -> None:
    found = with_picture(tmp_path)
    assert html(Report(found, SERVE)).count(PREFIX) == 1
    assert PREFIX not in html(Report(found, SERVE, thumbnails=False))


def test_a_picture_may_be_shown_and_its_name_withheld(tmp_path: Path) -> None:
    shown = html(Report(with_picture(tmp_path), SERVE, redact_paths=True))
    assert PREFIX in shown
    assert "page.png" not in shown
    assert str(tmp_path) not in shown
