"""The docs as a site: every page, every link, and nothing from elsewhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.howto.copy_of import copy_of

from .refresh import ROOT

pytestmark = pytest.mark.skipif(find_spec("material") is None, reason="needs mkdocs-material")

# What a browser fetches by itself, of each tag.
FETCHED = {"script": "src", "img": "src", "link": "href", "iframe": "src"}


class Html(HTMLParser):
    """The links, fetches and anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.fetches: list[str] = []
        self.anchors: set[str] = set()
        self.text = ""
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {name for key in ("id", "name") if (name := given.get(key))}
        if tag == "a" and (link := given.get("href")):
            self.links.append(link)
        if given.get("rel") != "canonical" and (fetch := given.get(FETCHED.get(tag, ""))):
            self.fetches.append(fetch)

    def handle_data(self, data: str) -> None:
        self.text += data


def make(folder: Path, source: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """What `make site` does, into another folder."""
    words = ["-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    return subprocess.run(
        [sys.executable, *words],
        cwd=source,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = make(folder)
    assert done.returncode == 0, done.stderr
    return folder


def pages(site: Path) -> Iterator[tuple[Path, Html]]:
    """All but the one for pages that are not there, whose links are from the root."""
    for path in sorted(site.rglob("*.html")):
        if path.name != "404.html":
            yield path, Html(path)


def test_every_page_of_the_docs_is_reached_from_the_first(site: Path) -> None:
    first = site / "index.html"
    reached = {(site / link.partition("#")[0]).resolve() for link in Html(first).links}
    docs = {
        path.relative_to(ROOT / "docs").with_suffix(".html")
        for path in (ROOT / "docs").rglob("*.md")
    }
    wanted = {(site / path).resolve() for path in docs - {Path("README.html")}}
    assert wanted - reached == set()
    said = Html(first).text
    assert "mmcalib validate --config" in said
    assert "mmcalib rehearse --model" in said


def test_links_lead_somewhere_and_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    found = {path.resolve(): page for path, page in pages(site)}
    lost, far = [], []
    for path, page in found.items():
        far += [f for f in page.fetches if re.match(r"(?!data:)([a-z]+:)?//", f)]
        for link in [*page.links, *page.fetches]:
            if re.match(r"[a-z]+:", link):
                continue
            name, _, anchor = link.partition("#")
            target = (path.parent / name).resolve() if name else path
            known = found.get(target)
            if not target.exists() or (anchor and known and anchor not in known.anchors):
                lost.append(f"{path.relative_to(site.resolve())}: {link}")
    assert (lost, far) == ([], [])


def test_it_can_be_searched(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text("utf-8"))
    held = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert {"right-size.html", "validate.html", "project/reports/small-gpus.html"} <= held


def test_a_link_that_leads_nowhere_is_an_error(tmp_path: Path) -> None:
    copy = copy_of(tmp_path)
    text = (ROOT / "docs" / "gpus.md").read_text("utf-8")
    lost = ("../reports/gone.md", "../tests/gone.py", "gone.md", "plan.md#gone")
    copy.write("docs/gpus.md", text + "".join(f"\n[lost]({link})\n" for link in lost))
    done = make(tmp_path / "site", copy.folder)
    assert done.returncode != 0
    assert [link for link in lost if f"'{link}'" not in done.stderr] == [], done.stderr
