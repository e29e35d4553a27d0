"""Screenshots of a report: `python tests/browser/shots.py reports/demo/report.html`."""

import shutil
import sys
from pathlib import Path
from typing import Literal

from playwright.sync_api import sync_playwright

Scheme = Literal["light", "dark"]
WIDE_PX, MOBILE_PX = 1280, 390
# A picture shows what a reader sees first.
SHOTS: tuple[tuple[str, int, Scheme], ...] = (
    ("light", WIDE_PX, "light"),
    ("dark", WIDE_PX, "dark"),
    ("mobile", MOBILE_PX, "light"),
)
HEIGHT_PX = 1400


def main(report: Path) -> None:
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for name, width, scheme in SHOTS:
            page = browser.new_page(
                viewport={"width": width, "height": HEIGHT_PX}, color_scheme=scheme
            )
            page.goto(report.resolve().as_uri())
            page.screenshot(path=report.with_name(f"{name}.png"))
            page.close()
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
