"""An image before and after a cap: the same part of it, and as small as the rule says."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import pytest
from PIL import Image, ImageDraw, ImageFilter, ImageStat

from mmcalib.derive.bounds import Area
from mmcalib.domain.shapes import ImageShape
from mmcalib.report.html.before_after import BeforeAfter, before_after
from mmcalib.report.html.roots import Roots
from mmcalib.report.report import Report, html
from mmcalib.result.costs import KnownCost
from mmcalib.workflows.gate.calibration import Calibration
from tests.report.example import SERVE, calibration

SHAPE = ImageShape(1400, 980)
CAP = 250_880


def page_of_text(path: Path) -> Path:
    """White, with fine lines in one corner."""
    image = Image.new("RGB", (SHAPE.width_px, SHAPE.height_px), "white")
    pen = ImageDraw.Draw(image)
    for x in range(1170, 1390, 4):
        pen.line((x, 750, x, 970), fill="black")
    image.save(path)
    return path


def calibrated(
    exemplar: Path, *, cap: int = CAP, rule: bool = True, shape: ImageShape = SHAPE
) -> Calibration:
    found = calibration()
    assert found.costs is not None
    part = found.costs.modalities["image"]
    known = KnownCost(
        shape=shape, tokens=320, embeds=320, basis="real", items=1, exemplar=str(exemplar)
    )
    area = Area(28, 3136, cap, 200.0)
    new = part.model_copy(update={"known": [known], "rule": area if rule else None})
    parts = {**found.costs.modalities, "image": new}
    costs = found.costs.model_copy(update={"modalities": parts})
    return found.model_copy(update={"costs": costs})


def decoded(uri: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))).convert("L")


def edges(image: Image.Image) -> float:
    return ImageStat.Stat(image.filter(ImageFilter.FIND_EDGES)).mean[0]


@pytest.fixture
def shown(tmp_path: Path) -> BeforeAfter:
    found = before_after(calibrated(page_of_text(tmp_path / "page.png")), names=None)
    assert found is not None
    return found


def test_it_is_as_large_as_the_processor_leaves_it(shown: BeforeAfter) -> None:
    # By hand: 1400 x 980 shrinks by 2.338 to 598 x 419, and to whole cells of 28 pixels.
    assert (shown.width_px, shown.height_px) == (588, 392)
    assert (shown.name, shown.shape, shown.tokens) == ("page.png", SHAPE, 320)


def test_both_are_the_same_part_where_there_is_most_to_see(shown: BeforeAfter) -> None:
    before, after = decoded(shown.before), decoded(shown.after)
    assert before.size == after.size == (240, 240)
    assert edges(before) > 100
    # Lines of a pixel, four apart, cannot be told apart any more.
    assert edges(after) < edges(before) / 3
    grey = [ImageStat.Stat(one).mean[0] for one in (before, after)]
    assert grey[0] == pytest.approx(grey[1], abs=8)


def test_the_page_shows_it_unless_pictures_are_not_wanted(tmp_path: Path) -> None:
    found = calibrated(page_of_text(tmp_path / "page.png"))
    said = "as the model is given it, 588 × 392 in 320 tokens"
    assert said in html(Report(found, SERVE))
    assert said not in html(Report(found, SERVE, thumbnails=False))
    hidden = html(Report(found, SERVE, redact_paths=True))
    assert said in hidden
    assert "page.png" not in hidden


@pytest.mark.parametrize("cap", [1_800_000, 1_372_000])
def test_what_keeps_its_size_is_not_shown(tmp_path: Path, cap: int) -> None:
    assert before_after(calibrated(page_of_text(tmp_path / "a.png"), cap=cap), names=None) is None


def test_nothing_is_said_without_a_rule(tmp_path: Path) -> None:
    found = calibrated(page_of_text(tmp_path / "a.png"), rule=False)
    assert before_after(found, names=None) is None


def test_only_files_below_the_roots_are_opened(tmp_path: Path) -> None:
    found = calibrated(page_of_text(tmp_path / "a.png"))
    elsewhere = Roots.of([tmp_path / "other"])
    assert before_after(found, names=None, roots=elsewhere) is None
    assert before_after(found, names=None, roots=Roots.of([tmp_path])) is not None


def test_a_file_that_is_no_picture_any_more_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"gone")
    assert before_after(calibrated(tmp_path / "a.png"), names=None) is None


def test_one_smaller_than_what_is_shown_is_not(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.new("RGB", (200, 200)).save(path)
    found = calibrated(path, cap=40_000, shape=ImageShape(1000, 1000))
    assert before_after(found, names=None) is None
