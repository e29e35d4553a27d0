"""Which rates are promised: on a GPU at its whole depth, and nowhere else."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from mmcalib.derive.costs import CostTable
from mmcalib.derive.encoder_sizes import EncoderBatch, Sized
from mmcalib.domain.encoder_run import EncoderRun
from mmcalib.domain.shapes import ImageShape, Shape
from mmcalib.engine.messages import EngineStarted
from mmcalib.workflows.calibration.throughput import throughput
from mmcalib.workflows.proof.startup import Started
from mmcalib.workflows.proof.sweep import Sweep, Swept
from tests.derive.costed import table_of
from tests.workflows.corpora import corpus, decide

PAGE = ImageShape(2800, 2240)  # 8,000 tokens
CPU_S, ENCODER_S = 0.5, 0.02


def table() -> CostTable:
    """One page, by its real file."""
    found = decide(corpus([PAGE])).table
    real = {s: replace(c, basis="real", cpu_s=CPU_S) for s, c in found.costs.items()}
    return table_of(found.setting, real)


def swept(shape: Shape = PAGE) -> Sweep:
    def one(items: int, seconds: float) -> Swept:
        batch = EncoderBatch(Sized(shape, 8000), items)
        return Swept(batch, EncoderRun(8000, 1, 1, 1, seconds), seconds)

    return Sweep(swept={"image": [one(1, ENCODER_S), one(2, ENCODER_S)]})


def started(device: str, depth: int, true_depth: int) -> Started:
    none: dict[str, Any] = {figure.name: 0 for figure in fields(EngineStarted)}
    figures = EngineStarted(**{**none, "device": device})
    return Started(figures, (2, depth), (36, true_depth))


def test_a_gpu_s_items_per_second_are_those_of_its_fastest_batch() -> None:
    found = throughput(table(), swept(), started("cuda", 32, 32))
    assert found is not None
    image = found.modalities["image"]
    assert image.encoder_s == pytest.approx(ENCODER_S)
    assert image.encoder_least_s == pytest.approx(ENCODER_S / 2)
    assert image.items_per_s == pytest.approx(100)
    assert image.cores == pytest.approx(50)
    assert found.mix is None


@pytest.mark.parametrize("start", [started("cpu", 2, 32), started("cpu", 32, 32)])
def test_a_cpu_promises_nothing_of_a_gpu(start: Started) -> None:
    found = throughput(table(), swept(), start)
    assert found is not None
    image = found.modalities["image"]
    assert (image.items_per_s, image.cores) == (None, None)
    assert image.encoder_s == pytest.approx(ENCODER_S)
    assert image.cores_per_100_items_s == pytest.approx(50)
    assert (found.device, found.depth) == ("cpu", start.depths[1])


def test_a_cut_encoder_on_a_gpu_is_not_scaled_up() -> None:
    found = throughput(table(), swept(), started("cuda", 2, 32))
    assert found is not None
    assert found.modalities["image"].items_per_s is None


def test_without_a_sweep_the_processor_s_half_is_there() -> None:
    found = throughput(table(), None, None)
    assert found is not None
    assert found.modalities["image"].cpu_s == pytest.approx(CPU_S)
    assert (found.device, found.depth, found.modalities["image"].encoder_s) == (None, None, None)


def test_without_a_measured_file_there_is_nothing() -> None:
    assert throughput(decide(corpus([PAGE])).table, swept(), started("cpu", 2, 32)) is None
