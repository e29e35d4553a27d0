"""mmcalib's `check` against vLLM's real API server, over requests that Hypothesis generates.

    python benchmarks/conformance.py [--requests 500] [--model KEY ...] [--seed 1]

Each model is calibrated for a small corpus, cut to one layer with dummy weights, and served by
`vllm serve --config engine.yaml` on this machine's CPU. Every request is given to `check` and then
to the server. Results are appended to --results as they come, and the same command goes on with
what is missing; the page has the last hearing of every model. --examples keeps the shortest request
of each disagreement, and is asked first. Exits 1 where `check` let in what the server
refused, where the server failed, or where more than one in a hundred was refused by `check` alone.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from judging import page, run  # noqa: E402
from judging.subject import SUBJECTS  # noqa: E402

from mmcalib.models.resolve import cache_dir  # noqa: E402


def main() -> int:
    given = _arguments()
    hearing = run.Hearing(
        folder=given.cache,
        results=given.results or given.cache / "results.jsonl",
        examples=given.examples,
        requests=given.requests,
        seed=given.seed,
        deadline=time.monotonic() + given.seconds,
    )
    keys = () if given.no_requests else given.model or [one.key for one in SUBJECTS]
    text, rows = _write_page(hearing, given.out)
    for key in keys:
        run.hear_one(key, hearing, _say)
        text, rows = _write_page(hearing, given.out)
    print(text)
    print(f"wrote {given.out}")
    return 0 if page.passes(rows) else 1


def _write_page(hearing: run.Hearing, out: Path) -> tuple[str, list[page.Asked]]:
    """The page of the last hearing of every model, and its rows."""
    every = run.last_heard(hearing)
    rows = {heard.key: heard.rows(hearing) for heard in every}
    notes = [
        f"{heard.note}: {len(rows[heard.key])} requests"
        + f"; {heard.late} more were not answered in time by this busy machine" * bool(heard.late)
        for heard in every
    ]
    died = [one for heard in every for one in heard.died]
    flat = [row for each in rows.values() for row in each]
    fields = {name for heard in every for name in heard.fields}
    text = page.page(flat, {"seed": hearing.seed, **run.versions()}, notes, died, fields)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, "utf-8")
    return text, flat


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    every = [one.key for one in SUBJECTS]
    add(
        "--model", action="append", metavar="KEY", choices=every, help=f"repeat; {', '.join(every)}"
    )
    add("--requests", type=int, default=500, help="per model (500)")
    add("--seed", type=int, default=1)
    add("--seconds", type=float, default=3600.0, help="begin no request after so long (3600)")
    add("--out", type=Path, default=ROOT / "reports" / "conformance.md")
    add("--results", type=Path, help="JSONL of raw results (in --cache)")
    add("--examples", type=Path, default=ROOT / "tests" / "conformance" / "examples.jsonl")
    add("--cache", type=Path, default=cache_dir() / "conformance", help="media, calibrations, logs")
    add("--no-requests", action="store_true", help="make the page of what is kept, and no request")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
