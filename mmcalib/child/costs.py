"""What one item costs: vLLM's processor applied to it alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mmcalib.child.exception_words import refusal_of
from mmcalib.child.media import load
from mmcalib.child.processor import Processor
from mmcalib.child.sounds import resampled
from mmcalib.domain.model import Cost
from mmcalib.engine.messages import Blank, File, Measure, Measured
from mmcalib.releases import processors

if TYPE_CHECKING:
    from mmcalib.child.model import OpenedModel


def measure(model: OpenedModel, request: Measure) -> Iterator[Measured]:
    """Cost every subject in order; an item that vLLM refuses is answered with its reason."""
    under = model.under(request.setting)
    for index, subject in enumerate(request.subjects):
        try:
            found = cost(subject, under)
            yield Measured(index, found, resampled=resampled(subject, under))
        except MemoryError as error:
            yield Measured(index, None, refusal=refusal_of(error), refused_by="host_memory")
        except Exception as error:  # noqa: BLE001 - the refusal is the measurement
            yield Measured(index, None, refusal=refusal_of(error))


def cost(subject: Blank | File, under: Processor) -> Cost:
    started, spent = time.perf_counter(), time.process_time()
    media, sampled = load(subject, under)
    loaded = time.perf_counter()
    modality = subject.modality
    output = processors.apply_processor(
        under.processor, under.placeholder_ids(modality), {modality: [media]}
    )
    done, cpu_s = time.perf_counter(), time.process_time() - spent
    placeholders = output["mm_placeholders"][modality]
    return Cost(
        tokens=sum(p.length for p in placeholders),
        embeds=sum(p.get_num_embeds() for p in placeholders),
        tensor_bytes=sum(processors.item_bytes(item) for item in output["mm_kwargs"][modality]),
        load_s=loaded - started,
        process_s=done - loaded,
        sampled=sampled,
        cpu_s=cpu_s,
    )
