"""The encoder's cost curve: items of many sizes through the started engine's own encoder."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mmcalib.checks.catalogue.engine import SWEEP
from mmcalib.checks.check import Check
from mmcalib.derive.encoder_curve import costlier_together
from mmcalib.derive.encoder_sizes import EncoderBatch, Sized, batches, candidates, sizes
from mmcalib.domain.encoder_run import EncoderRun
from mmcalib.domain.model import ModelInfo
from mmcalib.domain.shape_columns import Shapes
from mmcalib.domain.shapes import Modality, Shape
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import BatchEncoded, Blank, Encode, Measure
from mmcalib.errors import EngineError
from mmcalib.progress import Progress, Task
from mmcalib.workflows.decision.decision import Decision
from mmcalib.workflows.decision.stand_ins import count


@dataclass(frozen=True, slots=True)
class Swept:
    """One batch: its run, and the wall seconds of making, processing and encoding it."""

    batch: EncoderBatch
    run: EncoderRun
    wall_s: float


@dataclass(slots=True)
class Sweep:
    """Per modality what was encoded, fewest tokens first, what was left out for time, and what
    failed with which reason; `ended` says why the sweep broke off.
    """

    swept: dict[Modality, list[Swept]] = field(default_factory=dict)
    left_out: dict[Modality, list[EncoderBatch]] = field(default_factory=dict)
    failed: dict[Modality, list[tuple[EncoderBatch, str]]] = field(default_factory=dict)
    ended: str = ""


def sweep(
    host: EngineHost,
    opened: ModelInfo,
    decision: Decision,
    budget_s: float,
    progress: Progress,
) -> Sweep:
    """Encode sizes of every served modality in the engine that was started with this decision,
    within about `budget_s` seconds. An end of the engine ends the sweep, and not the job.
    """
    found = Sweep()
    with progress.step("sweeping the encoder") as task:
        try:
            _sweep(host, opened, decision, found, time.monotonic() + budget_s, task)
        except EngineError as error:
            found.ended = error.message
    return found


def _sweep(
    host: EngineHost,
    opened: ModelInfo,
    decision: Decision,
    found: Sweep,
    until_s: float,
    task: Task,
) -> None:
    served = [
        m
        for m, count in decision.counts.items()
        if count.value and decision.budget.max_tokens_per_item.get(m)
    ]
    planned = [(m, batch) for m in served for batch in _planned(host, opened, decision, m)]
    # What is cut off for time are then the largest of all.
    planned.sort(key=lambda pair: pair[1].tokens)
    task.total(len(planned))
    for modality, batch in planned:
        done = found.swept.setdefault(modality, [])
        per_token_s, per_token_bytes = _rates(done)
        if time.monotonic() + per_token_s * batch.tokens > until_s:
            found.left_out.setdefault(modality, []).append(batch)
        else:
            if not done:
                # The first run of a kind makes what later ones find made.
                _encode(host, decision, modality, batch, 0)
            started = time.monotonic()
            expected = round(per_token_bytes * batch.tokens)
            answer = _encode(host, decision, modality, batch, expected)
            if answer.run is None:
                found.failed.setdefault(modality, []).append((batch, answer.error))
            else:
                done.append(Swept(batch, answer.run, time.monotonic() - started))
        task.advance()


def _rates(done: Sequence[Swept]) -> tuple[float, float]:
    """Seconds and bytes per token, of the last that was encoded: the costliest so far."""
    if not done:
        return 0.0, 0.0
    last = done[-1]
    nbytes = last.run.peak_bytes + last.run.input_bytes
    return last.wall_s / last.batch.tokens, nbytes / last.batch.tokens


def _encode(
    host: EngineHost,
    decision: Decision,
    modality: Modality,
    batch: EncoderBatch,
    expected_bytes: int,
) -> BatchEncoded:
    request = Encode(decision.setting, modality, batch.sized.shape, batch.items, expected_bytes)
    return host.ask(request, "sweeping the encoder")


def cap_tokens(decision: Decision, modality: Modality) -> int:
    """The largest item that the configuration admits, as far as one step encodes it."""
    budget = decision.budget
    return min(budget.largest_item(modality), budget.encoder_budget_tokens)


def _planned(
    host: EngineHost, opened: ModelInfo, decision: Decision, modality: Modality
) -> list[EncoderBatch]:
    """Sizes up to the cap: of vLLM's own largest item, and the corpus' costliest."""
    cap, tried = cap_tokens(decision, modality), []
    if heaviest := decision.table.heaviest(modality):
        tried.append(Sized(heaviest.shape, heaviest.embeds))
    if dummy := decision.unhinted.dummies.get(modality):
        size = dict(dummy.size)
        if modality == "video":
            size["num_frames"] = math.ceil(size["num_frames"] * max(1.0, cap / dummy.embeds))
        rate, tiled = opened.audio_rate_hz, opened.tiles_images
        shapes = candidates(modality, size, audio_rate_hz=rate, tiled=tiled)
        # Of equal tokens, what vLLM itself makes is preferred.
        tried += _sized(host, decision, modality, shapes)
    return batches(sizes(tried, cap), decision.budget.encoder_budget_tokens)


def _sized(
    host: EngineHost, decision: Decision, modality: Modality, shapes: Sequence[Shape]
) -> list[Sized]:
    """By vLLM's own count, and processed where it has none; what is refused is left out."""
    every = Shapes.of(modality, shapes)
    counts = count(host, decision.setting, every)
    if counts and len(counts) == len(every):
        embeds = dict(zip(every, counts.embeds.tolist(), strict=True))
        return [Sized(shape, embeds[shape]) for shape in shapes if embeds[shape]]
    blanks = tuple(Blank(shape) for shape in shapes)
    answers = host.measure(Measure(decision.setting, blanks), "measuring sizes")
    found = zip(shapes, answers, strict=True)
    return [Sized(shape, one.cost.embeds) for shape, one in found if one.cost and one.cost.embeds]


def sweep_check(found: Sweep) -> Check:
    """Whether every size was encoded, and memory goes by tokens. It cannot fail: what is missing is
    only not known.
    """
    done = [
        f"{len(swept)} {modality} batches of up to {swept[-1].batch.tokens:,} tokens"
        for modality, swept in found.swept.items()
        if swept
    ]
    detail = f"encoded {' and '.join(done) or 'nothing'}"
    missing = [
        f"left out for time, {m}: {_tokens(several)}" for m, several in found.left_out.items()
    ]
    for modality, failed in found.failed.items():
        said = _tokens([batch for batch, _ in failed])
        missing.append(f"failed, {modality}: {said}: {failed[0][1]}")
    if found.ended:
        missing.append(f"broke off: {found.ended}")
    each = [said for m, swept in found.swept.items() for said in _by_items(m, swept)]
    if missing or each:
        remedies = ["--startup-budget SECONDS allows more"] if found.left_out else []
        remedies += ["--max-num-seqs N bounds the items of a step"] if each else []
        missing, remedy = [*missing, *each], "; ".join(remedies)
        return Check(SWEEP, "warn", "; ".join([detail, *missing]), remedy)
    return Check(SWEEP, "pass", detail)


def _by_items(modality: Modality, swept: Sequence[Swept]) -> Iterator[str]:
    """vLLM counts a step's tokens, so that many small items may take more than its profile did."""
    points = [(one.batch.items, (one.batch.tokens, one.run.peak_bytes)) for one in swept]
    single = [point for items, point in points if items == 1]
    several = [point for items, point in points if items > 1]
    if worst := costlier_together(single, several):
        tokens, times = worst
        yield (
            f"{modality} items take memory each, whatever their tokens: several with {tokens:,} "
            f"together {times:.1f} times what one of as many takes, so that a step full of small "
            "ones may take more than vLLM profiles"
        )


def _tokens(several: Sequence[EncoderBatch]) -> str:
    return ", ".join(f"{b.items} × {b.sized.embeds:,}" for b in several) + " tokens"
