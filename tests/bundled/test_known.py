"""The table of what vLLM does not do for bundled models."""

import pytest

from mmcalib.models.catalogue import bundled_models
from tests.bundled.known import KNOWN, REFUSED, SLICE, Known
from tests.bundled.shapes import PROBES, SHAPES


@pytest.mark.parametrize("known", [*KNOWN, *REFUSED], ids=lambda known: known.reason)
def test_each_line_is_of_bundled_models_and_of_items_that_are_tried(known: Known) -> None:
    ids = [geometry.id for geometry in bundled_models()]
    for beginning in known.models:
        assert any(model_id.startswith(beginning) for model_id in ids), beginning
    if known.modality is not None:
        assert set(known.items) <= set(SHAPES[known.modality])


def test_twelve_items_of_each_modality() -> None:
    assert [len(shapes) for shapes in SHAPES.values()] == [12] * 3
    assert all(set(names) <= set(SHAPES[modality]) for modality, names in PROBES.items())


def test_every_run_has_models_that_are_bundled() -> None:
    assert set(SLICE) <= {geometry.id for geometry in bundled_models()}
