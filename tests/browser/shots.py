"""Screenshots of a report: `python tests/browser/shots.py reports/demo/report.html`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Literal

from playwright.sync_api import sync_playwright

Scheme = Literal["light", "dark"]
WIDE_PX, MOBILE_PX = 1280, 390
# A whole page scrolls for ten screens; a picture shows what a reader sees first, and the charts.
SHOTS: tuple[tuple[str, int, Scheme, str | None], ...] = (
    ("light", WIDE_PX, "light", None),
    ("dark", WIDE_PX, "dark", None),
    ("mobile", MOBILE_PX, "light", None),
    ("frontier", WIDE_PX, "light", "#frontier"),
    ("memory", WIDE_PX, "light", "#memory"),
    ("items", WIDE_PX, "light", "#items"),
)
HEIGHT_PX = 1400


def main(report: Path) -> None:
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for name, width, scheme, part in SHOTS:
            page = browser.new_page(
                viewport={"width": width, "height": HEIGHT_PX}, color_scheme=scheme
            )
            page.goto(report.resolve().as_uri())
            path = report.with_name(f"{name}.png")
            if part:
                page.locator(part).screenshot(path=path)
            else:
                page.screenshot(path=path)
            page.close()
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
