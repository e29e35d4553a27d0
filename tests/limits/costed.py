"""Knobs, counts, and cost tables made of costs, for tests."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from mmcalib.domain.knobs import DEFAULT, CropCap, FrameSampling, Setting, TileCap
from mmcalib.domain.shape_columns import Shapes
from mmcalib.domain.shapes import MODALITIES, ImageShape, Shape
from mmcalib.limits.costs import CostColumns, CostTable, ItemCost
from mmcalib.limits.counting import VllmCount, VllmCounts
from tests.builders import area_cap

UNIT = 28 * 28
AREA = area_cap()
TILES = TileCap(path=("max_dynamic_patch",), value=12)
FRAMES = FrameSampling(path=("video", "fps"), value=2, steps=(0.25, 0.5, 1, 2))
CROPS = CropCap(
    path=("images_kwargs", "pan_and_scan_max_num_crops"),
    value=0,
    steps=(0, 2, 3, 4),
    switch="do_pan_and_scan",
)

EDGES = st.integers(1, 6000)
SHAPES = st.lists(st.tuples(EDGES, EDGES), min_size=1, max_size=12, unique=True)
CAPS = st.none() | st.integers(1, 40_000)


def cost(shape: Shape, tokens: int, count: int = 1, **changes: Any) -> ItemCost:
    plain = ItemCost(shape, count, f"{shape}.jpg", tokens, tokens, 0, 0.0, (), "blank")
    return replace(plain, **changes)


def table_of(setting: Setting, costs: Mapping[Shape, ItemCost]) -> CostTable:
    every = list(costs.values())
    return CostTable(
        setting,
        {
            modality: CostColumns.from_costs(modality, mine)
            for modality in MODALITIES
            if (mine := [cost for cost in every if cost.shape.modality == modality])
        },
    )


def table(*costs: ItemCost, setting: Setting = DEFAULT) -> CostTable:
    return table_of(setting, {c.shape: c for c in costs})


def sized(sizes: list[tuple[int, int]]) -> CostTable:
    return table(*(cost(ImageShape(w, h), min(16384, max(1, w * h // UNIT))) for w, h in sizes))


def counts_of(images: Mapping[Shape, VllmCount]) -> VllmCounts:
    """These, in whatever order they come."""
    shapes = Shapes.from_shapes("image", images)
    rows = [images[shape] for shape in shapes]
    embeds, sampled = [one.embeds for one in rows], [one.sampled for one in rows]
    return VllmCounts.from_columns(shapes, embeds, sampled, [one.parts for one in rows])
