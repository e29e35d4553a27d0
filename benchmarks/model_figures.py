"""What vLLM makes of each bundled model: tokens, knobs, weights, and the smallest GPU on which it
starts.

    python benchmarks/model_figures.py [--model ID ...] [--out mmcalib/models/figures.json]

Of all models by default, else of those alone and what is kept of the others stays. Needs vLLM and
no GPU; half an hour on two cores.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from kept.found import Found, found  # noqa: E402
from kept.starts import Start, find_starts  # noqa: E402

from mmcalib.engine.host import EngineHost  # noqa: E402
from mmcalib.files import write_text  # noqa: E402
from mmcalib.models import Geometry, bundled  # noqa: E402
from mmcalib.models.figures import FILE, ModelFigures  # noqa: E402
from mmcalib.workflows.spec import cache_dir  # noqa: E402


def main() -> int:
    given = _arguments()
    chosen = [one for one in bundled() if not given.model or one.id in given.model]
    with EngineHost() as host:
        asked = [_asked(geometry, host) for geometry in chosen]
    default = [Start({"model": str(one.folder)}) for one in asked]
    calibrated = [Start({**one.calibrated, "model": str(one.folder)}) for one in asked]
    find_starts([*default, *calibrated], lambda words: print(words, file=sys.stderr, flush=True))
    out = Path(given.out)
    kept = {one["id"]: one for one in json.loads(out.read_text("utf-8"))} if out.exists() else {}
    found_now = map(_figures, chosen, asked, default, calibrated)
    kept |= {figures.id: asdict(figures) for figures in found_now}
    lines = [kept[one.id] for one in bundled() if one.id in kept]
    write_text(out, json.dumps(lines, indent=1, ensure_ascii=False) + "\n")
    return 0


def _asked(geometry: Geometry, host: EngineHost) -> Found:
    print(geometry.id, file=sys.stderr, flush=True)
    return found(geometry, host, cache_dir())


def _figures(geometry: Geometry, asked: Found, default: Start, calibrated: Start) -> ModelFigures:
    rehearsed = next(iter(default.rehearsed.values()), None)
    return ModelFigures(
        id=geometry.id,
        vllm=asked.vllm,
        tokens=asked.tokens,
        knobs=asked.knobs,
        weights_bytes=rehearsed.weights_bytes if rehearsed else None,
        default_gpu=default.gpu,
        calibrated=asked.calibrated,
        calibrated_gpu=calibrated.gpu,
    )


def _arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", action="append", default=[], metavar="ID")
    parser.add_argument("--out", default=str(ROOT / "mmcalib" / "models" / FILE))
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
