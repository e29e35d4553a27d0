"""report.html in a real browser, opened from disk."""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mmcalib.admission.calibration import Calibration
from mmcalib.report.markdown import issue
from mmcalib.report.report import Report, html
from tests.report.example import SERVE, calibration
from tests.report.hostile import NAMES, named
from tests.report.huge import huge
from tests.schemas import CALIBRATION

OVERLAP = (Path(__file__).parent / "overlap.js").read_text(encoding="utf-8")
CONTRAST = (Path(__file__).parent / "contrast.js").read_text(encoding="utf-8")
WIDTHS_PX = (360, 800, 1600)
MOST_OPENING_S = 2.0
Open = Callable[..., Any]


@pytest.fixture(scope="module")
def demo() -> str:
    """The sample corpus' report."""
    found = Calibration.load(CALIBRATION)
    return html(Report(found, SERVE, thumbnails=False))


@pytest.fixture(scope="module")
def small() -> str:
    """The report of a calibration without a GPU."""
    return html(Report(calibration(), SERVE, thumbnails=False))


def unfold(page: Any) -> Any:
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true })")
    return page


def test_it_opens_without_a_complaint_and_shows_its_charts(open_page: Open, demo: str) -> None:
    page = unfold(open_page(demo))
    charts = page.locator("figure")
    assert charts.count() == 9
    for chart in charts.all():
        svg = chart.locator("svg:visible")
        assert svg.count() == 1
        box = svg.bounding_box()
        assert box["width"] > 300
        assert box["height"] > 60
        assert svg.locator('[role="graphics-symbol"]').count() > 0


@pytest.mark.parametrize("width", WIDTHS_PX)
@pytest.mark.parametrize("of", ["demo", "small"])
def test_no_text_overflows_or_overlaps(open_page: Open, request, of: str, width: int) -> None:
    page = open_page(request.getfixturevalue(of), width=width)
    assert page.evaluate(OVERLAP) == []
    assert unfold(page).evaluate(OVERLAP) == []


@pytest.mark.parametrize("width", WIDTHS_PX)
def test_no_name_however_long_overflows(open_page: Open, width: int) -> None:
    found = named(NAMES["long"])
    page = open_page(html(Report(found, SERVE + "/x" * 300, thumbnails=False)), width=width)
    assert page.evaluate(OVERLAP) == []


@pytest.mark.parametrize("width", WIDTHS_PX)
def test_hostile_names_stay_text(open_page: Open, width: int) -> None:
    name = "/".join(text for kind, text in NAMES.items() if kind != "long")
    page = open_page(html(Report(named(name), SERVE, thumbnails=False)), width=width)
    assert page.locator("script").count() == 1
    assert "<script>alert(1)</script>" in page.locator("h1").inner_text()
    assert "a\\u202egnp.exe" in page.locator("h1").inner_text()
    assert page.evaluate(OVERLAP) == []


@pytest.mark.parametrize("allowed", [True, False], ids=["clipboard", "by hand"])
def test_the_copy_buttons_copy(open_page: Open, demo: str, allowed: bool) -> None:
    permissions = ["clipboard-read", "clipboard-write"]
    page = open_page(demo, permissions=permissions)
    if not allowed:
        refuse = "() => { navigator.clipboard.writeText = () => Promise.reject(new Error('no')) }"
        page.evaluate(refuse)
    for name, what in (
        ("Copy command", "#serve"),
        ("Copy YAML", "#yaml"),
        ("Copy for an issue", "#issue"),
    ):
        page.get_by_role("button", name=name).press("Enter")
        page.get_by_text("Copied to the clipboard").wait_for(state="attached")
        pasted = page.evaluate("navigator.clipboard.readText()")
        assert pasted == page.locator(what).text_content()
        assert pasted.strip()
    assert pasted == issue(Calibration.load(CALIBRATION))


def test_without_any_clipboard_the_text_is_there_to_be_copied(open_page: Open, demo: str) -> None:
    page = open_page(demo)
    page.evaluate(
        "() => { navigator.clipboard.writeText = () => Promise.reject(new Error('no'));"
        " document.execCommand = () => false }"
    )
    page.get_by_role("button", name="Copy for an issue").press("Enter")
    page.get_by_text("press Ctrl+C", exact=False).first.wait_for(state="attached")
    assert page.locator("#issue").is_visible()
    selected = page.evaluate("getSelection().toString()")
    assert selected.strip() == page.locator("#issue").text_content().strip()


def brightness(page: Any) -> float:
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(map(int, colour.removeprefix("rgb(").removesuffix(")").split(","))) / 3


def test_it_follows_the_system_and_then_the_reader(open_page: Open, demo: str) -> None:
    assert brightness(open_page(demo, color_scheme="light")) > 240
    page = open_page(demo, color_scheme="dark")
    assert brightness(page) < 40
    toggle = page.get_by_role("button", name="Theme")
    toggle.click()
    assert brightness(page) > 240
    toggle.click()
    assert brightness(page) < 40
    assert page.evaluate("localStorage.getItem('mmcalib-theme')") == "dark"
    # Not what Chromium kept: on a busy machine it drops what a page stored just before a reload.
    page.add_init_script("localStorage.setItem('mmcalib-theme', 'light')")
    page.reload()
    assert toggle.inner_text() == "Theme: light"
    assert brightness(page) > 240


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out_from_what_is_behind_them(open_page: Open, demo: str, scheme: str) -> None:
    """WCAG 2.1, 1.4.3: 4.5 to 1 for text of this size."""
    assert open_page(demo, color_scheme=scheme).evaluate(CONTRAST) == []


def test_marks_tell_what_they_are_to_the_mouse_and_to_the_keyboard(open_page, demo: str) -> None:
    page = unfold(open_page(demo))
    chart = page.locator("#chart-frontier-video .wide svg")
    marks = chart.locator('[role="graphics-symbol"]')
    tip = page.locator("#tip")
    assert tip.is_hidden()
    last = marks.last
    last.scroll_into_view_if_needed()
    last.hover(force=True)
    assert "chosen" in tip.inner_text()
    assert "290,928 tokens" in tip.inner_text()
    page.mouse.move(0, 0)
    assert tip.is_hidden()
    assert chart.locator('[tabindex="0"]').count() == 1
    chart.locator('[tabindex="0"]').focus()
    first = tip.inner_text()
    page.keyboard.press("ArrowRight")
    assert tip.is_visible()
    assert tip.inner_text() != first
    page.keyboard.press("End")
    assert "chosen" in tip.inner_text()
    page.keyboard.press("Escape")
    assert tip.is_hidden()


def test_everything_can_be_reached_with_the_keyboard_alone(open_page: Open, demo: str) -> None:
    page = open_page(demo)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the report"
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert {"theme", "serve", "yaml", "BUTTON", "A", "SUMMARY", "path"} <= reached


def test_a_screen_reader_finds_its_way(open_page: Open, demo: str) -> None:
    page = open_page(demo)
    for role in ("banner", "main", "navigation"):
        assert page.get_by_role(role).count() == 1, role
    assert page.get_by_role("heading", level=1).count() == 1
    assert page.get_by_role("heading", level=2).count() == 6
    assert page.locator("img:not([alt])").count() == 0
    assert page.locator("th:not([scope])").count() == 0


def test_without_a_script_all_but_the_buttons_is_there(open_page: Open, demo: str) -> None:
    page = open_page(demo, java_script_enabled=False)
    assert page.get_by_role("button").count() == 0
    for part in page.locator("details.part > summary").all():
        part.click()
    assert page.locator("figure svg:visible").count() == 9
    page.locator("#chart-cache ~ details summary").click()
    assert page.locator("#chart-cache ~ details table").is_visible()


def test_it_prints_with_all_tables_open(open_page: Open, demo: str) -> None:
    page = open_page(demo)
    assert len(page.pdf()) > 20_000
    page.emulate_media(media="print")
    assert page.locator("nav").is_hidden()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0


def test_the_report_of_a_million_items_opens_at_once(open_page: Open) -> None:
    text = html(Report(huge(100_000), SERVE))
    started = time.perf_counter()
    page = open_page(text)
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert time.perf_counter() - started < MOST_OPENING_S
    assert page.evaluate(OVERLAP) == []


def test_the_highest_step_names_what_lived_in_it(open_page: Open, demo: str) -> None:
    page = unfold(open_page(demo))
    highest = page.locator("#chart-traffic .wide svg [tabindex='0']")
    # The page scrolls to it, and the tip stays.
    highest.focus()
    page.evaluate("() => new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r)))")
    assert page.evaluate("scrollY") > 0
    tip = page.locator("#tip")
    tip.wait_for(state="visible")
    said = tip.inner_text().splitlines()
    assert re.fullmatch(r"step [\d,]+: [\d.]+ GiB, the highest peak", said[0])
    assert len(said) > 3
    assert all(re.fullmatch(r"[\d.]+ GiB .+ \(.+\)", line) for line in said[1:])
