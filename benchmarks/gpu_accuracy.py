"""Rehearse on a GPU that is there, start for real, compare; then send the trap its burst.

    python benchmarks/gpu_accuracy.py --out DIR [--limit-s 470] [--runner v1] [--card 16]
    python benchmarks/gpu_accuracy.py --out DIR --again --runner v1     rehearses anew
    python benchmarks/gpu_accuracy.py --out DIR --render          tables again
    python benchmarks/gpu_accuracy.py --out DIR --device cpu      shows that the program runs

Each configuration is rehearsed by the vLLM that then starts it with dummy weights. Results are
appended to DIR/results.jsonl as they come; a second call goes on with the cases that are missing.
The page is DIR/accuracy.md; reports/gpu is such a folder. Exits 1 where an aim is missed. Neither
`--again` nor `--render` needs a GPU; the first needs the vLLM that was measured.

Needs beside vLLM, and what it needs itself, platformdirs and bracex; of mmcalib only its sources.
`--card GIB` makes every allocation of torch beyond so much fail; what is
taken outside torch after the start (kernels loaded at first use) is not bounded.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from gpu import surroundings  # noqa: E402
from gpu.cases import UTILIZATION, Case, cases, next_case, on_cpu, wanted  # noqa: E402
from gpu.report import render  # noqa: E402
from gpu.results import Result, Results, read  # noqa: E402
from gpu.scores import disagreed, scores  # noqa: E402
from gpu.trial import Bench  # noqa: E402

from mmcalib.errors import MmcalibError  # noqa: E402
from mmcalib.models.gpus import detect_gpu  # noqa: E402
from mmcalib.models.gpus import find_gpu as find_gpu  # noqa: E402

# Imagined where there is none.
CPU_GPU = "L4"


def main() -> int:
    given = _arguments()
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / "results.jsonl"
    if given.render:
        return _page(path, given.out)
    surroundings.prepare(given.runner)
    if given.again:
        return _again(path, given)
    try:
        gpu = find_gpu(CPU_GPU) if given.device == "cpu" else detect_gpu()
    except MmcalibError as error:
        print(f"gpu_accuracy: {error.message}; --device cpu runs without one", file=sys.stderr)
        return 2
    vllm = surroundings.vllm_version()
    found = [on_cpu()]
    if given.device == "cuda":
        share = given.utilization
        if given.card is not None:
            share *= given.card * 2**30 / gpu.total_bytes
        found = list(cases(runner=given.runner, card_gib=given.card, utilization=share))
    found = wanted(found, given.only)
    results = Results(path, gpu.name, vllm)
    with tempfile.TemporaryDirectory(prefix="mmcalib-benchmark-") as scratch:
        bench = Bench(gpu, vllm, given.device, Path(scratch), given.out, given.step_s)
        try:
            _run(bench, found, results, time.monotonic() + given.limit_s, given)
        finally:
            bench.close()
    return _page(path, given.out)


def _again(path: Path, given: argparse.Namespace) -> int:
    """Rehearse anew each case of this vLLM and runner that was measured, on its GPU, imagined."""
    vllm = surroundings.vllm_version()
    for name in dict.fromkeys(one.gpu for one in read(path)):
        results = Results(path, name, vllm)
        known = [one for one in results if one.started and one.rehearsed]
        measured = [one for one in known if one.runner == given.runner]
        if not measured:
            continue
        total = (measured[0].rehearsed or {})["total_bytes"]
        gpu = replace(find_gpu(name), total_bytes=total)
        with tempfile.TemporaryDirectory(prefix="mmcalib-benchmark-") as scratch:
            bench = Bench(gpu, vllm, "cuda", Path(scratch), given.out, given.step_s)
            try:
                for result in bench.again(measured):
                    results.add(result)
                    print(_line(result), flush=True)
            finally:
                bench.close()
    return _page(path, given.out)


def _run(
    bench: Bench,
    found: Sequence[Case],
    results: Results,
    deadline: float,
    given: argparse.Namespace,
) -> None:
    """One case after the other, until all are done or the next would not end in time."""
    done = results.done(retry=given.retry)
    rehearsals = bench.rehearse([case for case in found if case.key not in done])
    took_s: list[float] = []
    while (case := next_case(found, done, deadline - time.monotonic(), took_s)) is not None:
        done.add(case.key)
        then = next_case(found, done, deadline - time.monotonic(), took_s)
        result = bench.run(case, rehearsals[case.key], then=None if given.cold else then)
        results.add(result)
        if not case.extra_s:
            took_s.append(result.seconds)
        print(_line(result), flush=True)
    missing = [case.key for case in found if case.key not in done]
    if missing:
        print(f"no time left for {len(missing)}: {', '.join(missing)}; the same command goes on")


def _line(result: Result) -> str:
    off = {one["name"]: one for one in result.components if one["measured"]}
    said = [
        f"{name} {one['predicted'] / one['measured'] - 1:+.1%}"
        for name, one in off.items()
        if name in ("KV pool", "encoder peak", "activation peak", "weights")
    ]
    said += [f"{step} failed: {why}" for step, why in result.failed.items()]
    if result.burst and result.burst["survived"]:
        said.append("burst answered")
    return f"{result.key}: {result.seconds:.0f} s; " + "; ".join(said)


def _page(path: Path, out: Path) -> int:
    """Write the page, a part for each GPU and vLLM that the results are of; 1 where an aim is
    missed. Results of the CPU have a page of their own, which compares nothing.
    """
    groups: dict[tuple[str, str, str], None] = {}
    for one in read(path):
        groups[one.gpu, one.vllm, one.device] = None
    failed, parts = False, {"cuda": "", "cpu": ""}
    for gpu, vllm, device in groups:
        kept = Results(path, gpu, vllm)
        results = [one for one in kept if one.device == device]
        parts[device] += render(results, gpu, vllm, kept.first_pools())
        if device == "cuda":
            found = scores(results)
            print(*found, *disagreed(results), sep="\n")
            failed = failed or any(score.verdict == "fail" for score in found)
    for device, name in (("cuda", "accuracy.md"), ("cpu", "cpu.md")):
        if parts[device]:
            (out / name).write_text(parts[device], encoding="utf-8")
            print(f"wrote {out / name}")
    if not groups:
        print(f"no results in {path}", file=sys.stderr)
    return 1 if failed or not groups else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder of results, pages and logs")
    add("--device", choices=("cuda", "cpu"), default="cuda")
    add("--only", action="append", default=[], metavar="CASE", help="keys that hold this; repeat")
    add("--limit-s", type=float, default=470.0, help="begin no case that would end later (470)")
    add("--step-s", type=float, default=150.0, help="silence of an engine that ends it (150)")
    add("--runner", choices=("auto", "v1", "v2"), default="auto", help="vLLM's model runner")
    add("--card", type=float, metavar="GIB", help="behave as on a card of so many GiB")
    add("--utilization", type=float, default=UTILIZATION, help=f"share asked for ({UTILIZATION})")
    add("--retry", action="store_true", help="try failed cases again")
    add("--cold", action="store_true", help="import vLLM for no case before its turn")
    add("--again", action="store_true", help="rehearse anew what was measured")
    add("--render", action="store_true", help="only write the pages again")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
