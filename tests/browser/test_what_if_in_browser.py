"""The page's what-if: what it says, by what hand, and that vLLM's startup says the same."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from mmcalib.report.pages.html import html
from mmcalib.report.report import Report
from mmcalib.workflows.gate.calibration import Calibration
from mmcalib.workflows.memory.rehearse import rehearse
from tests.report.example import SERVE, calibration

ROOT = Path(__file__).resolve().parent.parent.parent
CONTRAST = (Path(__file__).parent / "contrast.js").read_text(encoding="utf-8")
OVERLAP = (Path(__file__).parent / "overlap.js").read_text(encoding="utf-8")
CAP = "images_kwargs.size.longest_edge"
OFF = 0.01
TURN = """([name, place]) => {
  const slider = [...document.querySelectorAll("#trial input[type=range]")].find(
    (one) => one.previousElementSibling.textContent === name);
  slider.value = place;
  slider.dispatchEvent(new Event("input", { bubbles: true }));
}"""
STOPS = """() => [...document.querySelectorAll("#trial input[type=range]")].map(
  (one) => [one.previousElementSibling.textContent, Number(one.max) + 1])"""

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def found() -> Calibration:
    return Calibration.load(ROOT / "docs" / "example" / "calibration.json")


@pytest.fixture
def demo(found: Calibration) -> str:
    return html(Report(found, SERVE, thumbnails=False))


def said(page: Any, name: str) -> str:
    text: str = page.locator(f"#trial-{name}").inner_text()
    return text


def tokens(page: Any) -> int | None:
    match = re.match(r"([\d,]+) tokens", said(page, "kv"))
    return int(match[1].replace(",", "")) if match else None


def test_it_begins_with_what_was_decided(open_page: Open, demo: str, found: Calibration) -> None:
    page = open_page(demo)
    memory = found.memory.calibrated
    assert tokens(page) == memory.kv_cache_tokens
    assert float(said(page, "at-once")) == memory.max_concurrency
    assert said(page, "rejected").startswith("0 of ")
    assert said(page, "basis").startswith("rehearsed")
    assert yaml.safe_load(page.locator("#trial-yaml").text_content()) == {
        key.replace("_", "-"): value for key, value in found.engine_config.items()
    }
    assert page.get_by_role("button", name="As calibrated").is_disabled()


def test_it_is_turned_by_keyboard_and_goes_back(open_page: Open, demo: str) -> None:
    page = open_page(demo)
    before = said(page, "kv")
    cap = page.locator("#trial").get_by_label(CAP)
    cap.focus()
    page.keyboard.press("Home")
    assert cap.get_attribute("aria-valuetext") == cap.evaluate(
        "one => one.nextElementSibling.textContent"
    )
    assert said(page, "kv") != before
    assert float(said(page, "shrunk").partition("%")[0]) > 50
    wanted = page.locator("#trial").get_by_label("requests at once")
    assert said(page, "holds") == "fit"
    wanted.fill("4")
    assert re.fullmatch(r"do not fit; of [\d,]+ tokens each they would", said(page, "holds"))
    page.get_by_role("button", name="As calibrated").press("Enter")
    page.wait_for_function(
        "before => document.getElementById('trial-kv').innerText === before", arg=before
    )
    assert wanted.input_value() == "1"


def test_a_smaller_context_holds_more_and_refuses_what_is_longer(
    open_page: Open, demo: str
) -> None:
    page = open_page(demo)
    before = float(said(page, "at-once"))
    page.locator("#trial").get_by_label("max_model_len").focus()
    page.keyboard.press("Home")
    assert float(said(page, "at-once")) > 8 * before
    assert not said(page, "rejected").startswith("0 of ")


def test_options_of_one_modality_are_turned_one_at_a_time(open_page: Open, demo: str) -> None:
    page = open_page(demo)
    frames, cap = (
        page.locator("#trial").get_by_label("video.fps"),
        page.locator("#trial").get_by_label("videos_kwargs.size"),
    )
    start = cap.input_value()
    cap.focus()
    page.keyboard.press("Home")
    assert cap.input_value() != start
    frames.focus()
    page.keyboard.press("Home")
    assert cap.input_value() == start
    assert "fps" in page.locator("#trial-yaml").text_content()


def test_what_would_not_start_says_so(open_page: Open, demo: str) -> None:
    page = open_page(demo)
    page.locator("#trial").get_by_label("videos_kwargs.size").focus()
    page.keyboard.press("End")
    assert said(page, "kv").startswith("would not start")
    assert said(page, "at-once") == "none"


def test_without_a_rehearsal_there_is_none(open_page: Open) -> None:
    page = open_page(html(Report(calibration(), SERVE, thumbnails=False)))
    assert page.locator("#what-if").count() == 0
    assert page.get_by_role("link", name="What if").count() == 0


def test_without_a_script_it_is_not_there(open_page: Open, demo: str) -> None:
    page = open_page(demo, java_script_enabled=False)
    assert page.locator("#what-if").is_hidden()
    assert page.locator('nav a[href="#what-if"]').is_hidden()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 800, 1280])
def test_it_can_be_read(open_page: Open, demo: str, width: int, scheme: str) -> None:
    page = open_page(demo, width=width, color_scheme=scheme)
    for place in (0, 3):
        page.evaluate(TURN, ["max_model_len", place])
        assert page.evaluate(CONTRAST) == []
        assert page.evaluate(OVERLAP) == []


@pytest.mark.engine
@pytest.mark.slow
def test_it_says_what_a_rehearsal_says(
    open_page: Open, demo: str, found: Calibration, tmp_path: Path
) -> None:
    """At ten settings by chance, each as the page writes it; some are between those rehearsed."""
    page, chance = open_page(demo), random.Random(23)
    stops = page.evaluate(STOPS)
    shown: dict[Path, int | None] = {}
    bases = set()
    while len(shown) < 10:
        page.get_by_role("button", name="As calibrated").evaluate("one => one.form.reset()")
        for name, count in chance.sample(stops, len(stops)):
            page.evaluate(TURN, [name, chance.randrange(count)])
        config = tmp_path / f"{len(shown)}.yaml"
        config.write_text(page.locator("#trial-yaml").text_content(), encoding="utf-8")
        shown[config] = tokens(page)
        bases.add(re.split(r"\W", said(page, "basis"))[0])
    assert bases == {"rehearsed", "computed"}
    answers = rehearse(gpu=found.memory.calibrated.gpu or "", configs=list(shown))
    for (config, page_says), answer in zip(shown.items(), answers, strict=True):
        really = answer.memory.kv_cache_tokens
        assert (page_says is None) == (really is None), config.read_text(encoding="utf-8")
        if page_says is not None and really is not None:
            assert abs(page_says / really - 1) <= OFF, (page_says, really)
