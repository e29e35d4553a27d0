"""Three requests as they were served, one of them refused."""

from dataclasses import replace

from mmcalib.domain.memory import LiveTensor
from mmcalib.domain.shapes import ImageShape
from mmcalib.domain.traffic import (
    HighestStep,
    Trace,
    Traffic,
    TrafficItem,
    TrafficRequest,
    TrafficStep,
)
from mmcalib.results.memory import TrafficFigures
from mmcalib.workflows.traffic.rehearse import traffic_figures
from tests.workflows.rehearsals import GIB, rehearsed

MIB = 1 << 20
STEPS = (
    TrafficStep(
        2, 2, 1, 0, 1, 2048, 3, 1500, 0, 0, 1500, 6 * MIB, 8 * MIB, 40, 700 * MIB, 20 * MIB
    ),
    TrafficStep(1, 3, 0, 1, 0, 700, 1, 500, 2, 2, 2000, 8 * MIB, 12 * MIB, 60, 300 * MIB, MIB),
)


def figures(peak_bytes: int = 700 * MIB, outside_bytes: int = GIB) -> TrafficFigures:
    tensor = LiveTensor(300 * MIB, "aten.addmm.default", (2048, 6840), "bfloat16", "visual.merger")
    highest = HighestStep(0, ("r.jsonl:1", "r.jsonl:2"), ("r.jsonl:2",), (tensor,), peak_bytes)
    items = (TrafficItem(ImageShape(8, 8), "a"),)
    requests = tuple(TrafficRequest(f"r.jsonl:{n}", 9, 9, items) for n in range(1, 4))
    steps = (replace(STEPS[0], peak_bytes=peak_bytes), STEPS[1])
    found = Traffic(steps, highest, (("r.jsonl:3", "too long"),), 99, 4096, 5, 64, GIB, 2.0)
    started = rehearsed(
        activation_peak_bytes=GIB, total_bytes=22 * GIB, requested_bytes=22 * GIB - outside_bytes
    )
    return traffic_figures(found, Trace(requests, ()), started)
