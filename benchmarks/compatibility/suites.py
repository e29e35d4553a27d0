"""The project's own tests of what faces vLLM, run with another release of it."""

from __future__ import annotations

import subprocess
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from pathlib import Path

from compatibility.commands import surroundings
from compatibility.environments import ROOT
from compatibility.rows import Cell

# By the row of the page, the folder of tests, and which of them. What takes long is left to the
# release that the project is developed with; the seeds share two servers.
_QUICK = "engine and not slow and not long"
SUITES = {
    "tests of the layer": ("tests/releases", _QUICK),
    "tests of the engine": ("tests/engine", _QUICK),
    "tests of rehearsal": ("tests/rehearsal", _QUICK),
    "conformance seeds": ("tests/conformance", "engine"),
}
# Of what does not hold, so much is named.
_NAMED = 4
# Before the reason of what is expected to fail, and is not run.
_NOT_RUN = "[NOTRUN] "


def suites(python: Path, scratch: Path, only: Sequence[str] = ()) -> Iterator[tuple[str, Cell]]:
    """Each suite, or those of the rows `only`."""
    for name, (folder, which) in SUITES.items():
        if only and name not in only:
            continue
        report = scratch / f"{Path(folder).name}.xml"
        report.unlink(missing_ok=True)
        words = ["-m", "pytest", "-p", "no:cacheprovider", "-q", "-n", "2", "--dist", "loadfile"]
        words += ["-m", which, f"--junitxml={report}", folder]
        started = time.monotonic()
        with report.with_suffix(".log").open("wb") as log:
            done = subprocess.run(
                [str(python), *words],
                cwd=ROOT,
                env=surroundings(),
                stdout=log,
                stderr=log,
                check=False,
            )
        seconds = round(time.monotonic() - started, 1)
        if not report.exists():
            why = f"pytest ended with {done.returncode} and no report"
            yield name, Cell("error", why, seconds)
            continue
        yield name, of_report(report, seconds)


def of_report(report: Path, seconds: float) -> Cell:
    """What pytest's JUnit report says: what failed by name, and what is expected to with its
    reason.
    """
    failed, expected, passed = [], [], 0
    for case in ElementTree.parse(report).iter("testcase"):
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(case.get("name", ""))
        elif skipped is None:
            passed += 1
        elif skipped.get("type") == "pytest.xfail":
            expected.append(skipped.get("message", "").removeprefix(_NOT_RUN))
    if failed:
        named = ", ".join(failed[:_NAMED]) + (", …" if len(failed) > _NAMED else "")
        return Cell("failed", f"{len(failed)} of {passed + len(failed)}: {named}", seconds)
    reasons = "; ".join(dict.fromkeys(expected))
    if not passed:
        return Cell("not tried", reasons or "no test of it runs here", seconds)
    return Cell(f"{passed} pass", reasons, seconds)
