"""Whether the CPU seconds of a dozen files tell those of the whole corpus.

    python benchmarks/throughput.py FOLDER [FOLDER ...] [--model ID ...] [--out FILE]

Per model and folder one child process measures a sample, as `mmcalib run` does, and the mean over
the corpus is computed of it. Then the same process loads and processes every shape's file, one
after the other, while the operating system counts what all of it takes. Needs vLLM, no GPU.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from mmcalib.census.census import Census  # noqa: E402
from mmcalib.census.sample import choose  # noqa: E402
from mmcalib.derive.policy import Policy  # noqa: E402
from mmcalib.derive.throughput import cpu_cost  # noqa: E402
from mmcalib.domain.setting import DEFAULT  # noqa: E402
from mmcalib.domain.shapes import Modality  # noqa: E402
from mmcalib.engine.host import EngineHost  # noqa: E402
from mmcalib.engine.messages import File, Measure  # noqa: E402
from mmcalib.models import resolve  # noqa: E402
from mmcalib.progress import Silent  # noqa: E402
from mmcalib.workflows.calibration.served import served_modalities  # noqa: E402
from mmcalib.workflows.decision.measure import measure  # noqa: E402
from mmcalib.workflows.opening import open_model  # noqa: E402
from mmcalib.workflows.read import read  # noqa: E402
from mmcalib.workflows.spec import cache_dir  # noqa: E402

MODELS = ("Qwen/Qwen2.5-VL-3B-Instruct", "OpenGVLab/InternVL2-2B", "Qwen/Qwen2.5-Omni-7B")
SAMPLE = 12
# What a reader may rely on.
LEAST, MOST = 0.8, 1.25


@dataclass(frozen=True, slots=True)
class Compared:
    """Seconds of the `files` of one modality, predicted from `measured` of them and as taken.

    `again` is how many times as long the measured files took then as they did later: no error of
    the prediction, but of the machine.
    """

    model: str
    folder: str
    modality: str
    measured: int
    files: int
    predicted_s: float
    taken_s: float
    again: float

    @property
    def ratio(self) -> float:
        return self.predicted_s / self.taken_s


def compare(model: str, folder: str) -> Iterator[Compared]:
    """One row per modality that the model takes and the folder has."""
    cache, silent = cache_dir(), Silent()
    resolved = resolve(model, cache_dir=cache)
    corpus = read([folder], [], allowed_root=None, cache=cache, progress=silent)
    with EngineHost() as host:
        opened = open_model(host, resolved, silent)
        corpus, _ = served_modalities(corpus, opened, Policy())
        # One file of each shape, so that both sides count the same files.
        census = Census()
        for entry in corpus.census.shapes():
            census.add(entry.shape, entry.exemplars[0])
        table, _ = measure(host, census, DEFAULT, choose(census, SAMPLE, 0), silent)
        for modality in table.modalities():
            cost = cpu_cost(table.of(modality))
            if cost:
                taken, each = _taken(host, modality, [c.exemplar for c in table.of(modality)])
                real = [c for c in table.of(modality) if c.basis == "real"]
                yield Compared(
                    model,
                    Path(folder).name,
                    modality,
                    cost.measured,
                    cost.items,
                    cost.mean_s * cost.items,
                    taken,
                    sum(c.cpu_s for c in real) / sum(each[c.exemplar] for c in real),
                )


def _taken(
    host: EngineHost, modality: Modality, paths: Sequence[str]
) -> tuple[float, dict[str, float]]:
    """CPU seconds that the child takes to load and process all of these, and each by itself."""
    before = _cpu_s(host.pid)
    request = Measure(DEFAULT, tuple(File(modality, path) for path in paths))
    costs = [answer.cost for answer in host.measure(request, "measuring")]
    taken = _cpu_s(host.pid) - before
    if not all(costs):
        raise SystemExit(f"{costs.count(None)} files were refused")
    return taken, {path: one.cpu_s for path, one in zip(paths, costs, strict=True) if one}


def _cpu_s(pid: int) -> float:
    """User and system seconds of all threads of a process, as Linux counts them."""
    fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def report(rows: list[Compared]) -> str:
    within = sum(LEAST <= row.ratio <= MOST for row in rows)
    lines = [
        "# CPU seconds of a corpus from a dozen of its files",
        "",
        f"Written by `benchmarks/throughput.py` on {os.cpu_count()} cores ({platform.machine()}), "
        f"Python {platform.python_version()}. *Predicted*: the mean that `throughput` in "
        f"`calibration.json` has, from up to {SAMPLE} measured files, × files. *Taken*: the same "
        "process then loaded and processed one file of every shape, one after the other; its CPU "
        "seconds as the operating system counts them, in steps of 10 ms. *Again*: what "
        "the measured files themselves took the first time ÷ the second, which is no error of the "
        "prediction but of a machine that others use too.",
        "",
        f"{within} of {len(rows)} ratios lie between {LEAST} and {MOST}.",
        "",
        "| model | corpus | modality | measured | files | predicted, s | taken, s | ratio "
        "| again |",
        "|---|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {r.model} | {r.folder} | {r.modality} | {r.measured} | {r.files} | "
        f"{r.predicted_s:.2f} | {r.taken_s:.2f} | {r.ratio:.2f} | {r.again:.2f} |"
        for r in rows
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--model", action="append")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows: list[Compared] = []
    for model in given.model or MODELS:
        for folder in given.folders:
            rows += compare(model, folder)
            print(model, folder, f"{rows[-1].ratio:.2f}", file=sys.stderr)
    text = report(rows)
    if given.out:
        given.out.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
