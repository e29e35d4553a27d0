"""Every link within the repository leads to a file and, where it names one, to a heading."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ..schemas import ROOT
from .pages import TEXTS, anchors, links


def leads_somewhere(page: str, target: str) -> bool:
    path, _, anchor = target.partition("#")
    file = ((ROOT / page).parent / path).resolve() if path else ROOT / page
    there = file.exists() and file.is_relative_to(ROOT)
    return there and (not anchor or anchor in anchors(file.read_text(encoding="utf-8")))


@pytest.mark.parametrize("page", TEXTS)
def test_links_lead_somewhere(page: str) -> None:
    local = [target for target in links(page) if "://" not in target]
    assert [target for target in local if not leads_somewhere(page, target)] == []


def test_an_anchor_is_what_github_makes_of_a_heading() -> None:
    text = "# R7: CPU cache\n## What it says as JSON\n### `--emit`\n## a\n## a\n```\n# no\n```\n"
    assert anchors(text) == {"r7-cpu-cache", "what-it-says-as-json", "--emit", "a", "a-1"}


def test_every_page_of_the_docs_is_in_their_index() -> None:
    index = {
        (ROOT / "docs" / target.partition("#")[0]).resolve() for target in links("docs/README.md")
    }
    pages = {path.resolve() for path in ROOT.glob("docs/**/*.md")} - {ROOT / "docs/README.md"}
    assert {str(path.relative_to(ROOT)) for path in pages - index} == set()


def test_pictures_are_carried_by_git_or_new() -> None:
    """A picture that git ignores is there on this machine only."""
    shown = {
        ((ROOT / page).parent / target).resolve()
        for page in TEXTS
        for target in links(page)
        if target.endswith((".png", ".svg"))
    }
    assert shown
    if (ROOT / ".git").exists():
        done = subprocess.run(
            ["git", "check-ignore", *map(str, shown)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert [Path(line).name for line in done.stdout.splitlines()] == []
