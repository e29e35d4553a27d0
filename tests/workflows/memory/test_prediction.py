"""Configurations on an imaginary GPU, with what stands for its process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from mmcalib.domain.memory import EncoderStep, RehearsedMemory
from mmcalib.domain.shapes import ImageShape
from mmcalib.errors import EngineDied, EngineError, VllmRefused
from mmcalib.memory.rehearse import MemoryPrediction
from mmcalib.models import gpus
from tests.workflows.rehearsals import rehearsed

STEPS = (EncoderStep(ImageShape(28, 28), 2),)


@dataclass
class Refusing:
    """Two sequences are refused, and three end it."""

    asked: list[Mapping[str, Any]] = field(default_factory=list)

    def rehearse(
        self, engine_args: Mapping[str, Any], steps: tuple[EncoderStep, ...] = ()
    ) -> RehearsedMemory:
        self.asked.append(engine_args)
        match engine_args.get("max_num_seqs"):
            case 2:
                raise VllmRefused("two are too many")
            case 3:
                raise EngineDied("it died")
        return rehearsed(encoder_tokens=len(steps))


def prediction(**how: Any) -> tuple[MemoryPrediction, Refusing]:
    process = Refusing()
    return MemoryPrediction(gpus.find_gpu("L4"), process, {"model": "/m"}, **how), process


def test_the_same_is_rehearsed_once_and_other_steps_are_not_the_same() -> None:
    at, process = prediction()
    with at:
        first, plain, again = (
            *at.rehearse_all([{"max_num_seqs": 1}, {}], STEPS),
            at.rehearse_or_none({"max_num_seqs": 1}),
        )
        at.start({"max_num_seqs": 1}, STEPS)
    assert [one and one.encoder_tokens for one in (first, plain, again)] == [1, 0, 0]
    with_model = {"model": "/m", "max_num_seqs": 1}
    assert process.asked == [with_model, {"model": "/m"}, with_model]
    assert at.count == 3


def test_the_first_failure_of_what_is_tried_is_kept() -> None:
    at, _ = prediction()
    with at:
        with pytest.raises(EngineError, match="two are too many"):
            at.rehearse({"max_num_seqs": 2})
        assert at.failure is None
        assert at.rehearse_all([{"max_num_seqs": 3}, {"max_num_seqs": 2}]) == [None, None]
    assert isinstance(at.failure, EngineDied)


def test_what_is_fatal_is_raised() -> None:
    at, _ = prediction(fatal=(EngineDied,))
    with at:
        assert at.rehearse_or_none({"max_num_seqs": 2}) is None
        with pytest.raises(EngineDied):
            at.rehearse_or_none({"max_num_seqs": 3})
