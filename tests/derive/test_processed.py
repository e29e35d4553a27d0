from __future__ import annotations

from dataclasses import replace

from mmcalib.derive.processed import differences
from mmcalib.domain.processed import Processed, TensorSpec

PIXELS = TensorSpec("pixel_values", "bfloat16", (400, 1176))
GRID = TensorSpec("image_grid_thw", "int64", (3,))
CPU = Processed(100, 100, (GRID, PIXELS), seconds=0.2, peak_bytes=None)


def test_time_and_memory_are_no_difference() -> None:
    assert differences(CPU, replace(CPU, seconds=0.01, peak_bytes=1 << 20), "cuda") == []


def test_tokens_and_embeds_that_differ_are_named_with_both_numbers() -> None:
    found = differences(CPU, replace(CPU, tokens=99, embeds=98), "cuda")
    assert found == ["100 tokens on the CPU, 99 on cuda", "100 embeds on the CPU, 98 on cuda"]


def test_a_shape_that_differs_is_named_with_its_field() -> None:
    other = replace(CPU, forms=(GRID, replace(PIXELS, shape=(396, 1176))))
    said = "pixel_values bfloat16 400×1176 on the CPU, bfloat16 396×1176 on cuda"
    assert differences(CPU, other, "cuda") == [said]


def test_a_type_that_differs_is_a_difference() -> None:
    other = replace(CPU, forms=(GRID, replace(PIXELS, dtype="uint8")))
    assert len(differences(CPU, other, "cuda")) == 1


def test_a_field_that_only_one_has_is_a_difference() -> None:
    more = replace(CPU, forms=(*CPU.forms, TensorSpec("timestamps", "list", (4,))))
    assert differences(CPU, more, "cuda") == ["timestamps is missing on the CPU, list 4 on cuda"]
    assert differences(more, CPU, "cuda") == ["timestamps list 4 on the CPU, is missing on cuda"]
