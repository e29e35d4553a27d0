"""Rehearse every published startup log that can be, and write how far off each figure is.

    python benchmarks/memory_accuracy.py --python 0.10.2=old/bin/python --python 0.23.0=bin/python

Answers are kept beside the report: a release that is not named keeps the answers it gave before, so
that releases may be rehearsed one at a time.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from memory import allowances, cases, measured, rehearsals, report  # noqa: E402
from memory.scores import score  # noqa: E402

HERE = ROOT / "benchmarks"
SHARED = ROOT.parent / "shared" / "facts"
DEFAULT_LOGS = (
    *(SHARED / "memory_logs.jsonl", SHARED / "memory_logs_2.jsonl"),
    HERE / "memory_logs.jsonl",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--logs", type=Path, action="append", default=[], help="published startup logs; repeatable"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "reports" / "memory-accuracy.md")
    parser.add_argument(
        "--python", action="append", default=[], metavar="RELEASE=PYTHON",
        help="the Python of an environment with that vLLM; repeat for each release",
    )  # fmt: skip
    parser.add_argument("--only", action="append", default=[], help="rehearse this log alone")
    parser.add_argument("--log", type=Path, default=Path("memory-accuracy.log"))
    given = parser.parse_args()
    logs = given.logs or list(DEFAULT_LOGS)
    if missing := [str(path) for path in logs if not path.is_file()]:
        print(f"no {', '.join(missing)}: name files of published logs with --logs", file=sys.stderr)
        return 2
    pythons = dict(pair.split("=", 1) for pair in given.python)
    for release, python in pythons.items():
        if (found := rehearsals.release_of(python)) != release:
            print(f"{python} has vLLM {found}, not {release}", file=sys.stderr)
            return 2
    found_cases, excluded = cases.load(logs, HERE / "memory_cases.toml")
    fitted = allowances.load(HERE / "memory_allowances.toml")
    given.out.parent.mkdir(parents=True, exist_ok=True)
    answers = rehearsals.Answers(given.out.with_suffix(".json"))
    wanted = [case for case in found_cases if not given.only or case.id in given.only]
    for case, answer in rehearsals.rehearse(wanted, pythons, given.log):
        answers.put(case, answer)
        print(case.id, answer if isinstance(answer, str) else f"{answer.seconds:.1f} s", flush=True)
    scores, failed = [], []
    for case in found_cases:
        known = answers.get(case)
        if known is None:
            failed.append((case, f"not rehearsed: needs vLLM {case.release}"))
        elif isinstance(known, str):
            failed.append((case, known))
        else:
            scores.append(score(case, known, fitted))
    starts = measured.load(ROOT / "reports" / "gpu" / "results.jsonl", fitted)
    page = report.render(scores, failed, excluded, fitted, starts)
    given.out.write_text(page, encoding="utf-8")
    for group, error in report.worst(scores).items():
        print(f"{group}: largest error of the KV pool {error:.2f} GiB")
    print(*report.leave_one_out(fitted), sep="\n")
    print(f"wrote {given.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
