import re
import sys
from html import unescape
from html.parser import HTMLParser

import pytest

from mmcalib.admission.calibration import Calibration
from mmcalib.report.html.frontier import frontiers
from mmcalib.report.html.memory import cache as cache_figure
from mmcalib.report.html.redact import redacted
from mmcalib.report.report import Report, html
from mmcalib.results.engine_yaml import yaml_entry
from tests.builders import some
from tests.report.example import SERVE, calibration, changed
from tests.report.golden import check_golden
from tests.report.hostile import NAMES, named
from tests.report.huge import huge
from tests.schemas import CALIBRATION

SVG = re.compile(r"<svg .*?</svg>", re.S)
# What is not the calibration's: kept in files of its own, or drawn by Vega, by version.
KEPT_ELSEWHERE = re.compile(r"(?<=<style>).*?(?=</style>)|(?<=<script>).*?(?=</script>)", re.S)


def rendered(found: Calibration, *, thumbnails: bool = True) -> str:
    return html(Report(found, SERVE, thumbnails=thumbnails))


class Elements(HTMLParser):
    """Names and attributes of all elements; every one must be closed in its turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "br", "wbr"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def page() -> str:
    return rendered(calibration())


def test_golden(page: str) -> None:
    check_golden("report.html", KEPT_ELSEWHERE.sub("…", SVG.sub("<svg>…</svg>", page)))


def test_without_what_draws_charts_each_is_a_line_and_its_table(page: str, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    bare = rendered(calibration())
    lines = re.findall(r'<p>No chart: <code>pip install "mmcalib\[report\]"</code>.*?</p>', bare)
    assert len(lines) == len(SVG.findall(page)) > 0
    assert SVG.sub(lines[0], page) == bare


def test_a_default_that_is_not_served_says_why() -> None:
    why = "vLLM would not start: no room for the KV cache"
    page = rendered(changed(calibration(), "traffic", default=None, default_problem=why))
    assert f"vLLM&#39;s defaults cannot serve: {why}." in page
    assert "steps (tuned" not in page[page.index('id="traffic"') :]


def test_nothing_is_fetched(page: str) -> None:
    for tag, attributes in Elements(page).found:
        assert [name for name in attributes if name.startswith("on")] == []
        assert tag not in ("link", "iframe", "object", "base", "form"), tag
        for name in ("src", "href", "xlink:href", "action"):
            target = attributes.get(name) or "#"
            assert target.startswith(("#", "data:image/jpeg;base64,")), (tag, target)
    assert "url(" not in page
    assert "@import" not in page
    assert "default-src 'none'; style-src 'unsafe-inline'" in page


def test_every_id_is_one_elements_and_every_reference_finds_it(page: str) -> None:
    found = Elements(page).found
    ids = [attributes["id"] or "" for _, attributes in found if "id" in attributes]
    assert sorted(ids) == sorted(set(ids))
    links = [a.get("href") or "" for _, a in found]
    asked: list[str | None] = [link[1:] for link in links if link.startswith("#")]
    asked += [a["data-copy"] for _, a in found if "data-copy" in a]
    asked += [a["aria-labelledby"] for _, a in found if "aria-labelledby" in a]
    assert set(asked) <= set(ids)


def test_charts_are_there_without_a_script_and_every_mark_has_words(page: str) -> None:
    found = Elements(page).found
    charts = [a for tag, a in found if tag == "svg"]
    assert len(charts) >= 12
    assert all(a["role"] == "graphics-document" and a["aria-label"] for a in charts)
    marks = [a for _, a in found if a.get("role") == "graphics-symbol"]
    assert marks
    assert [a for a in marks if not a.get("aria-label")] == []


def test_colours_follow_the_theme(page: str) -> None:
    drawn = "".join(SVG.findall(page))
    assert re.findall(r'(?:fill|stroke)="(?!none|var\(|transparent)[^"]*"', drawn) == []
    defined = set(re.findall(r"(--[a-z0-9-]+):", page))
    assert set(re.findall(r"var\((--[a-z0-9-]+)\)", page)) <= defined


def test_names_of_any_kind_stay_text() -> None:
    """There are as many elements as without them, and no character is hidden."""
    usual = [tag for tag, _ in Elements(rendered(named("usual.png"), thumbnails=False)).found]
    shown = rendered(named("/".join(NAMES.values())), thumbnails=False)
    assert [tag for tag, _ in Elements(shown).found] == usual
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in shown
    assert "\\u202e" in shown
    assert re.search("[\u200e\u200f\u202a-\u202e\u2066-\u2069]", shown) is None
    assert not set(shown) & set(map(chr, (*range(9), *range(11, 32), 0x7F, 0x85, 0x2028)))
    shown.encode("utf-8", errors="strict")


def test_names_reach_charts_as_text_too() -> None:
    """The knob and the GPU are drawn; both come from outside."""
    text = "</style></svg><i>]]>{{ 7 * 7 }}<!--"
    found = Calibration.load(CALIBRATION)
    points = [point.model_copy(update={"knob": text}) for point in found.frontier]
    for part in ("default", "calibrated"):
        found = changed(found, f"memory.{part}", gpu=text)
    shown = rendered(changed(found, "", frontier=points), thumbnails=False)
    assert "<i>" not in shown.replace('<i style="', "")
    assert ">49<" not in shown
    Elements(shown)


def test_what_is_not_known_is_said_in_one_line() -> None:
    found = changed(calibration(cache=None, frontier=[], startup=None), "costs", modalities={})
    text = re.sub(r"<[^>]+>", "", rendered(found))
    assert "no costs of single items" in text
    assert "No hit-rate curve" in text
    assert "no option that changes" in text
    assert "mmcalib replayed no requests" in text


def test_a_default_that_would_not_start_is_drawn_and_said() -> None:
    shown = rendered(Calibration.load(CALIBRATION), thumbnails=False)
    assert "vLLM defaults: 2.76 GiB short" in shown
    assert "would not start" in shown
    assert "290,928" in shown


def test_a_kv_cache_that_leaves_no_room_for_the_rest_of_the_start_is_not_praised() -> None:
    late = changed(Calibration.load(CALIBRATION), "memory.calibrated", starts=False)
    shown = rendered(late, thumbnails=False)
    assert '<dd class="big bad">' in shown
    assert "<bdi>does not start</bdi>" in shown


def test_a_failing_page_offers_nothing_to_serve(page: str) -> None:
    checks = [one.model_copy(update={"status": "fail"}) for one in calibration().checks]
    failed = rendered(calibration(verdict="fail", checks=checks))
    copied = [
        {a["data-copy"] for _, a in Elements(p).found if "data-copy" in a} for p in (page, failed)
    ]
    assert copied == [{"issue", "serve", "yaml"}, {"issue"}]
    assert SERVE not in failed


def test_a_setting_of_several_lines_is_copied_whole() -> None:
    template = "{% for m in messages %}\n\n# {{ m }}\n{% endfor %}\n"
    config = calibration().engine_config | {"chat_template": template}
    shown = rendered(calibration(engine_config=config), thumbnails=False)
    assert yaml_entry("chat_template", template) in unescape(shown)


def test_the_page_of_a_huge_corpus_is_small() -> None:
    """A million items have a tenth as many shapes."""
    assert len(rendered(huge(100_000)).encode()) < 2_500_000


def test_the_processor_cache_says_what_more_would_bring() -> None:
    """It has no more than is allowed, and says what that costs."""
    found = some(calibration().cache)
    enough = some(cache_figure(found))
    short = some(cache_figure(found.model_copy(update={"wanted": (76.54, 0.5)})))
    assert any("50.0% would hit with 76.54 GiB" in note for note in short.notes)
    assert len(short.notes) == len(enough.notes) + 1


def test_what_was_chosen_is_where_it_starts() -> None:
    """The points of the chosen values once lay where no engine starts."""
    found = Calibration.load(CALIBRATION)
    kept = {point.kv_cache_tokens for point in found.frontier if point.choice == "chosen"}
    assert kept == {found.memory.calibrated.kv_cache_tokens} != {None}
    for figure in frontiers(found):
        marks = re.findall(r'<path aria-label="([^"]*chosen)"', str(figure.drawing.wide))
        mine = [p for p in found.frontier if f"-{p.modality}" in figure.key]
        chosen = [p for p in mine if p.choice == "chosen"]
        assert len(marks) == len(chosen) > 0
        for mark in marks:
            assert "290,928 tokens" in mark


def test_points_above_the_default_are_drawn_above_it_with_who_gains() -> None:
    found = calibration()
    more = {"value": 25690112, "items_shrunk": 4, "items_gaining": 9, "mean_enlargement": 2.0}
    point = found.frontier[-1].model_copy(update={**more, "choice": "open"})
    (figure,) = frontiers(calibration(frontier=[*found.frontier, point]))
    drawn, plain = str(figure.drawing.wide), str(next(frontiers(found)).drawing.wide)
    assert "25,690,112, 9 gain" in drawn
    assert "200%" in drawn
    assert "200%" not in plain
    shown = dict(zip(figure.head, figure.rows[-1], strict=True))
    assert (shown["still shrunk"], shown["gain detail"]) == ("4", "9")


def test_redacted_one_file_has_one_name_everywhere_and_all_else_stays() -> None:
    found = calibration()
    clean, names = redacted(found)
    alias = names["/data/scan/page-7.png"]
    assert alias.endswith(".png")
    assert clean.corpus.modalities["image"].exemplar == alias
    assert [e.exemplar for e in clean.evidence].count(alias) == 3
    assert any(alias in check.detail for check in clean.checks)
    assert clean.model.id == "Qwen/Qwen2.5-VL-3B-Instruct"
    assert clean.engine_config == found.engine_config
    assert clean.frontier == found.frontier
    assert clean.memory == found.memory
    assert [e.reason for e in clean.evidence] == [e.reason for e in found.evidence]
