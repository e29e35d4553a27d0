"""A real Chromium, the system's: `apt-get install chromium`. Tests that need it skip without."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Open = Callable[..., Any]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: make setup")
    named = os.environ.get("MMCALIB_CHROMIUM") or "chromium"
    program = shutil.which(named) or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("needs Chromium: apt-get install chromium, or set MMCALIB_CHROMIUM")
    with playwright.sync_playwright() as driver:
        # Chromium's own sandbox does not start for root, which containers run as.
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium: Any, tmp_path: Path) -> Iterator[Open]:
    """Open a report from disk, as a user does; nothing that the page complains of is forgiven."""
    complaints: list[str] = []
    contexts = []

    def open_it(text: str, *, width: int = 1600, **how: Any) -> Any:
        context = chromium.new_context(viewport={"width": width, "height": 900}, **how)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda asked: complaints.extend(_elsewhere(asked.url)))
        path = tmp_path / "report.html"
        path.write_text(text, encoding="utf-8")
        page.goto(path.as_uri())
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert complaints == []


def _elsewhere(url: str) -> list[str]:
    return [] if url.startswith(("file:", "data:")) else [f"asks for {url}"]
