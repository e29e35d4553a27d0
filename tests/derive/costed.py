"""Knobs, and cost tables made of them, for tests of the frontier."""

from __future__ import annotations

from hypothesis import strategies as st

from mmcalib.derive.costs import CostTable, ItemCost
from mmcalib.domain.knobs import Knob
from mmcalib.domain.setting import DEFAULT, Setting
from mmcalib.domain.shapes import ImageShape, Shape

UNIT = 28 * 28
AREA = Knob(
    "images_kwargs.size.longest_edge",
    "image",
    ("images_kwargs", "size", "longest_edge"),
    16384 * UNIT,
    UNIT,
    {"shortest_edge": 4 * UNIT},
    kind="area",
)
TILES = Knob("max_dynamic_patch", "image", ("max_dynamic_patch",), 12, None, kind="tiles")
FRAMES = Knob(
    "video.fps",
    "video",
    ("video", "fps"),
    2,
    None,
    argument="media_io_kwargs",
    steps=(0.25, 0.5, 1, 2),
    kind="frames",
)
CROPS = Knob(
    "images_kwargs.pan_and_scan_max_num_crops",
    "image",
    ("images_kwargs", "pan_and_scan_max_num_crops"),
    0,
    None,
    steps=(0, 2, 3, 4),
    switch="do_pan_and_scan",
    kind="crops",
)

EDGES = st.integers(1, 6000)
SHAPES = st.lists(st.tuples(EDGES, EDGES), min_size=1, max_size=12, unique=True)
CAPS = st.none() | st.integers(1, 40_000)


def cost(shape: Shape, tokens: int, count: int = 1) -> ItemCost:
    return ItemCost(shape, count, f"{shape}.jpg", tokens, tokens, 0, 0.0, (), "blank")


def table(*costs: ItemCost, setting: Setting = DEFAULT) -> CostTable:
    return CostTable(setting, {c.shape: c for c in costs})


def sized(sizes: list[tuple[int, int]]) -> CostTable:
    return table(*(cost(ImageShape(w, h), min(16384, max(1, w * h // UNIT))) for w, h in sizes))
