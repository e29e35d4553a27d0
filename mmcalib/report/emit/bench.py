"""The corpus as a load for `vllm bench serve`: requests of random pictures and clips of its sizes.

Options are those of `RandomMultiModalDataset` in vllm/benchmarks/datasets/datasets.py, 0.32.
"""

from __future__ import annotations

import json
import shlex

from mmcalib.derive.load_buckets import buckets
from mmcalib.domain.shapes import Modality, VideoShape
from mmcalib.errors import OutputError
from mmcalib.report.configuration_format import ConfigurationFormat
from mmcalib.report.load import items_per_request, limit, sized_items
from mmcalib.result.calibration import CalibrationDocument

_MODALITIES: tuple[Modality, ...] = ("image", "video")


def bench_text(calibration: CalibrationDocument) -> str:
    """Options, one to a line. Raises OutputError where the corpus has nothing but sound."""
    found = list(buckets(sized_items(calibration)))
    total = sum(one.items for one in found)
    if not total:
        raise OutputError(
            "--emit bench: vllm bench makes pictures and clips, and the corpus has neither",
            hint="--emit args",
        )
    shares: dict[tuple[int, int, int], float] = {}
    for one in found:
        shape = one.shape
        frames = shape.num_frames if isinstance(shape, VideoShape) else 1
        key = (shape.height_px, shape.width_px, frames)
        shares[key] = shares.get(key, 0.0) + one.items / total
    limits = {modality: limit(calibration, modality) for modality in _MODALITIES}
    rounded = {key: round(share, 6) for key, share in shares.items()}
    options = [
        ["--backend", "openai-chat"],
        ["--endpoint", "/v1/chat/completions"],
        ["--dataset-name", "random-mm"],
        ["--random-mm-base-items-per-request", str(items_per_request(calibration, limits))],
        ["--random-mm-limit-mm-per-prompt", json.dumps(limits)],
        ["--random-mm-bucket-config", str(rounded)],
    ]
    return " \\\n    ".join(map(shlex.join, options)) + "\n"


RENDERER = ConfigurationFormat(
    "bench.args",
    bench_text,
    use='eval "vllm bench serve --model MODEL $(cat {file})"',
    comments=False,
    variables=True,
)
