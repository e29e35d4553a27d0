"""Calibrate every bundled model for the sample corpus on several GPUs, and say what has no file.

    python benchmarks/every_model.py [--model ID] [--gpu NAME] [--media sample] [--jobs 2]
        [--rows reports/every-model.jsonl] [--out reports/every-model.md]

--model and --gpu may be given several times. Needs vLLM, no GPU and no weights, and hours for all
models: each is kept in ROWS when it ends, and what is there is not run again. Exits 1 where a model
ends in anything but a file or a verdict that says what would serve.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from calibrations import calibrated, commit, keep, kept, retentions  # noqa: E402
from pages import page  # noqa: E402

from mmcalib.admission.calibration import Calibration  # noqa: E402
from mmcalib.models.catalogue import Geometry, bundled_models  # noqa: E402

GPUS: Final = ("L4", "L40S", "H100-80G")
CONTEXT_TOKENS: Final = 32_768
_POSITIONS: Final = re.compile(r'"max_position_embeddings": (\d+)')


@dataclass(frozen=True, slots=True)
class Cell:
    """One model on one GPU. `problem` is why there is no file, and what would serve instead."""

    model: str
    gpu: str
    verdict: str = "crash"
    problem: str = ""
    default_tokens: int | None = None
    tokens: int | None = None
    kept: float = 1.0
    remedies: str = ""
    warnings: str = ""
    commit: str = field(default_factory=commit)

    @property
    def is_answered(self) -> bool:
        return self.verdict == "pass" or (self.verdict == "fail" and "→" in self.problem)


def cells_of(model: Geometry, gpus: Sequence[str], media: Path, out: Path) -> Iterator[Cell]:
    sounds_only = set(model.modalities) == {"audio"}
    data = media / "audio" if sounds_only else media
    requests = media / ("requests-audio.jsonl" if sounds_only else "requests.jsonl")
    words = ["--model", model.id, "--data", str(data), "--requests", str(requests)]
    config = json.dumps(model.values("config"))
    own = max(map(int, _POSITIONS.findall(config)), default=0)
    if own:
        words += ["--max-model-len", str(min(own, CONTEXT_TOKENS))]
    for gpu, found, problem in calibrated(words, gpus, out):
        yield _cell(model.id, gpu, found, problem)


def _cell(model: str, gpu: str, found: Calibration | None, problem: str) -> Cell:
    if found is None:
        says_no = " does not fit on " in problem or "would not start" in problem
        return Cell(model, gpu, "fail" if says_no else "crash", problem.replace("try:", "→"))
    failed = next((check for check in found.checks if check.status == "fail"), None)
    return Cell(
        model,
        gpu,
        found.verdict,
        f"{failed.code} {failed.detail} → {failed.remedy}" if failed else "",
        found.memory.default.kv_cache_tokens,
        found.memory.calibrated.kv_cache_tokens,
        retentions(found)[0],
        ", ".join(f"{e.setting} {e.value}" for e in found.evidence if e.label == "rehearsed"),
        " ".join(sorted({check.code for check in found.checks if check.status == "warn"})),
    )


def page_of(cells: Sequence[Cell]) -> str:
    verdicts = Counter(cell.verdict for cell in cells)
    template = Path(__file__).with_suffix(".md.j2")
    values = {"cells": cells, "verdicts": verdicts, "context": CONTEXT_TOKENS}
    return page(template, {"tokens": _tokens}, total=len(bundled_models()), **values)


def _tokens(count: int | None) -> str:
    return "does not start" if count is None else f"{count:,}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", action="append")
    parser.add_argument("--gpu", action="append")
    parser.add_argument("--media", type=Path, default=Path("sample"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--rows", type=Path, default=Path("reports/every-model.jsonl"))
    parser.add_argument("--out", type=Path, default=Path("reports/every-model.md"))
    asked = parser.parse_args()
    done = {(cell.model, cell.gpu) for cell in kept(asked.rows, Cell)}

    def add(model: Geometry) -> None:
        gpus = [gpu for gpu in asked.gpu or GPUS if (model.id, gpu) not in done]
        if gpus and (not asked.model or model.id in asked.model):
            with tempfile.TemporaryDirectory() as out:
                cells = list(cells_of(model, gpus, asked.media, Path(out)))
            keep(asked.rows, cells)
            print(f"{model.id}: {', '.join(f'{c.gpu} {c.verdict}' for c in cells)}", flush=True)

    models = bundled_models()
    with ThreadPoolExecutor(asked.jobs) as pool:
        list(pool.map(add, models))
    order = [model.id for model in models]
    cells = sorted(kept(asked.rows, Cell), key=lambda cell: order.index(cell.model))
    asked.out.write_text(page_of(cells), encoding="utf-8")
    return int(not all(cell.is_answered for cell in cells))


if __name__ == "__main__":
    sys.exit(main())
