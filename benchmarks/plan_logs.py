"""Put public failing starts to the first answer of `plan --log`, beside their published fix.

    python benchmarks/plan_logs.py

Reads benchmarks/plan_logs.jsonl: the quoted lines, the source, and the fix that its author or a
maintainer published. The answer is computed from the lines alone, without vLLM or the model.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from mmcalib.limits.policy import COSTS
from mmcalib.logs.starts import last_failed, read_starts
from mmcalib.remedies.log import answer_log
from mmcalib.remedies.memory import Proposal
from mmcalib.text import GIB, gib

ROOT = Path(__file__).resolve().parent.parent
# A number of the same argument is the published fix if it is at most this much below it.
NEAR = 0.25


def is_same(fix: Proposal, published: dict[str, object]) -> bool:
    """Check whether a fix is the published one: its arguments, and no number above."""
    for name, value in fix.changes.items():
        known = published.get(name)
        if isinstance(value, int | float) and isinstance(known, int | float):
            if not known * (1 - NEAR) <= value <= known:
                return False
        elif known != value:
            return False
    return True


def verdict(fixes: tuple[Proposal, ...], least: str, case: dict[str, object]) -> str:
    published, cost = case["fix"], str(case["cost"])
    assert isinstance(published, dict)
    if not fixes:
        return "the published hardware" if least and cost == "hardware" else "no answer"
    for number, fix in enumerate(fixes):
        if is_same(fix, published):
            return (
                "the published fix" if number == 0 else f"the published fix, as number {number + 1}"
            )
    cheaper = COSTS.index(fixes[0].cost) <= COSTS.index(cost)
    return "another fix at no greater cost" if cheaper else "another fix, dearer"


def main() -> None:
    lines = (ROOT / "benchmarks" / "plan_logs.jsonl").read_text("utf-8").splitlines()
    rows, counts, slowest = [], dict[str, int](), 0.0
    for case in map(json.loads, lines):
        begun = time.perf_counter()
        starts = read_starts(case["log"])
        total = case.get("total_gib")
        answer = answer_log(starts, last_failed(starts), total and round(total * GIB))
        slowest = max(slowest, time.perf_counter() - begun)
        ours = answer.fixes[0].flags if answer.fixes else answer.least or "—"
        how = verdict(answer.fixes, answer.least, case)
        counts[how] = counts.get(how, 0) + 1
        missing = gib(answer.missing_bytes)
        rows.append((case["id"], answer.phase or "—", missing, case["published"], ours, how))
    head = ("log", "phase", "missing", "published fix", "first proposal", "is")
    table = [f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows)]
    page = [
        "# `plan --log` on public failing starts",
        "",
        f"{len(rows)} logs; the slowest first answer took {slowest * 1000:.0f} ms besides imports.",
        "The proposals are computed from the quoted lines alone. They are not rehearsed here.",
        "A number is the published one if it is not above it, and at most 25 % below.",
        "*No answer*: the line states no figure, and `plan` asks for the GPU and the model.",
        "",
        *(f"- {how}: {count}" for how, count in sorted(counts.items())),
        "",
        *table,
        "",
        "Made by `python benchmarks/plan_logs.py`; sources are in `benchmarks/plan_logs.jsonl`.",
    ]
    (ROOT / "reports" / "plan-logs.md").write_text("\n".join(page) + "\n", encoding="utf-8")
    print("\n".join(page))


if __name__ == "__main__":
    main()
