"""The configuration's memory on the GPU that will serve it, rehearsed, beside the default's."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from mmcalib.census.accesses import Accesses
from mmcalib.checks.check import Check, Figures
from mmcalib.checks.dialect import line
from mmcalib.checks.facts import Room
from mmcalib.checks.limits import LIMIT
from mmcalib.derive.demand import WorstStep
from mmcalib.domain.rehearsed import Rehearsed
from mmcalib.models import read_config, vocab_size
from mmcalib.progress import Progress
from mmcalib.sizes import GIB
from mmcalib.wording import gib
from mmcalib.workflows.memory.checks import (
    memory_checks,
    predicted_shortfall,
    reserved_check,
)
from mmcalib.workflows.memory.cured import Cured, cured, with_less_kv_cache
from mmcalib.workflows.memory.predicted import Predicted
from mmcalib.workflows.memory.prediction import MemoryPrediction
from mmcalib.workflows.memory.retained import views_check
from mmcalib.workflows.memory.tokens_alone import Unrehearsed, not_rehearsed
from mmcalib.workflows.memory.worst_steps import configurations, encoder_steps
from mmcalib.workflows.proof.startup import Started
from mmcalib.workflows.validate.subject import Subject

# Less than this is 0.00 GiB.
_SHOWN_BYTES: Final = round(0.005 * GIB)


@dataclass(frozen=True, slots=True)
class ServedMemory:
    """What was rehearsed of a configuration, and what rehearses more of it."""

    prediction: MemoryPrediction
    predicted: Predicted
    progress: Progress

    @property
    def config(self) -> Rehearsed | None:
        return self.predicted.calibrated

    def knowing(self, **found: Any) -> ServedMemory:
        """The same with these figures too."""
        failure = self.prediction.failure
        return replace(self, predicted=replace(self.predicted, **found, failure=failure))


def begun(
    prediction: MemoryPrediction, engine_args: Mapping[str, Any], progress: Progress
) -> ServedMemory:
    """The configuration rehearsed, and vLLM's defaults at the same context."""
    kept = {k: v for k, v in engine_args.items() if k == "max_model_len"}
    with progress.step(f"rehearsing on {prediction.gpu.name}"):
        config, default = prediction.every([engine_args, kept])
    predicted = Predicted(prediction.gpu, default, config, failure=prediction.failure)
    return ServedMemory(prediction, predicted, progress)


def with_worst_steps(memory: ServedMemory, subject: Subject) -> ServedMemory:
    """With the worst step of each modality."""
    every = list(configurations(subject))
    with memory.progress.step(f"rehearsing the worst steps on {memory.predicted.gpu.name}"):
        found = memory.prediction.every([args for _, args in every])
    steps = {m: step for (m, _), step in zip(every, found, strict=True) if step is not None}
    return memory.knowing(steps=steps)


def with_own_items(memory: ServedMemory, subject: Subject) -> ServedMemory:
    """With steps of the corpus' own items, where they take more than vLLM's dummies."""
    steps = encoder_steps(subject)
    if memory.config is None or not steps:
        return memory
    gpu = memory.predicted.gpu.name
    with memory.progress.step(f"rehearsing steps of the corpus' items on {gpu}"):
        found = memory.prediction.tried(subject.engine_args, steps)
    return memory.knowing(calibrated=found or memory.config)


def gain(memory: ServedMemory, subject: Subject) -> str:
    """What the KV cache gains if the modality that nobody limits and that sets the budget is not
    served.
    """
    worst, args = subject.budget.profiled_modality, subject.engine_args
    written = args.get(LIMIT) or {}
    if worst is None or worst in written or memory.config is None:
        return ""
    less = memory.prediction.tried({**args, LIMIT: {**written, worst: 0}})
    if less is None:
        return ""
    now, then = gib(memory.config.kv_cache_bytes), gib(less.kv_cache_bytes)
    return f" and a KV cache on {memory.predicted.gpu.name} of {then} instead of {now}"


def unrehearsed(memory: ServedMemory, config: str) -> Unrehearsed:
    """Why R4 is not known in bytes, of the file `config`."""
    command = shlex.join(["mmcalib", "rehearse", "--config", config])
    return not_rehearsed(memory.predicted, command)


def room(memory: ServedMemory, subject: Subject) -> Room | None:
    """The costliest step beside what is reserved, on the whole GPU; None where it is not known."""
    found = predicted_shortfall(memory.predicted, subject)
    config = memory.config
    if config is None or found is None:
        return None
    return Room(
        config.total_bytes, config.requested_bytes, found.worst.nbytes, found.reserved_bytes
    )


def checks(
    memory: ServedMemory,
    subject: Subject,
    started: Started | None,
    config: str,
    accesses: Accesses,
) -> Iterator[Check]:
    """R4 in bytes where it could be rehearsed, what cached items keep beyond it, and whether the
    engine starts on that GPU.
    """
    predicted = memory.predicted
    reserved = reserved_check(predicted, subject, allow_under_reserve=False)
    if reserved is not None:
        fails = reserved.status == "fail"
        yield replace(reserved, remedy=_remedy(memory, subject)) if fails else reserved
    kept = views_check(predicted, subject, accesses)
    if kept is not None:
        yield kept
    for check in memory_checks(predicted, started, subject.resolved.path):
        fails = check.status == "fail"
        yield replace(check, remedy=plan_command(memory, config)) if fails else check


def plan_command(memory: ServedMemory, config: str) -> str:
    """What finds other settings for the file `config`."""
    return f"{shlex.join(['mmcalib', 'plan', '--config', config])} {memory.predicted.gpu.flags}"


def _remedy(memory: ServedMemory, subject: Subject) -> str:
    """Settings that were rehearsed, where any does; else room beside what is reserved."""
    found = predicted_shortfall(memory.predicted, subject)
    before, every = memory.predicted.calibrated, memory.prediction.every
    if found is None or before is None:
        return _leave_room(memory, subject)
    with memory.progress.step(f"rehearsing what would do on {memory.predicted.gpu.name}"):
        # What fails in tokens has cures of its own, that shrink the item.
        cures = list(cured(found, subject, every)) if subject.adequacy.passes else []
        less = None if cures else with_less_kv_cache(found, before, subject, every)
    cures.sort(key=lambda cure: -cure.rehearsed.kv_cache_bytes)
    return "\n".join(_lines(cure, before) for cure in cures) or _leave_room(memory, subject, less)


def _lines(cure: Cured, before: Rehearsed) -> str:
    lines = " and ".join(line(name, value) for name, value in cure.engine.values.items())
    return f"{lines}  # {kv_cache_words(before, cure.rehearsed)}"


def kv_cache_words(before: Rehearsed, after: Rehearsed) -> str:
    """What a remedy does to the KV cache."""
    if after.kv_cache_tokens is None:
        return f"would not start: KV cache {gib(after.kv_cache_bytes)}"
    lost = before.kv_cache_bytes - after.kv_cache_bytes
    if abs(lost) < _SHOWN_BYTES:
        return "costs no KV cache"
    return f"costs {gib(lost)} of KV cache" if lost > 0 else f"brings {gib(-lost)} of KV cache"


def _leave_room(memory: ServedMemory, subject: Subject, less: Cured | None = None) -> str:
    """What helps where the profile reserves its own modality in full, and another one's step takes
    more: `less` KV cache, or where that does not, less of the GPU.
    """
    args = subject.engine_args
    found, left = predicted_shortfall(memory.predicted, subject), room(memory, subject)
    before = memory.config
    if found is None or left is None or before is None:
        return ""
    remedies = []
    worst = found.worst.modality if isinstance(found.worst, WorstStep) else None
    if worst is not None and worst != subject.budget.profiled_modality:
        others = {m: count for m, count in (args.get(LIMIT) or {}).items() if m != worst}
        remedies.append(f"{line(LIMIT, {**others, worst: 0})}  # where no {worst} is served")
    lower = line("gpu_memory_utilization", left.utilization)
    lost = gib(left.requested_bytes - round(left.utilization * left.total_bytes))
    unreserved = f"{lower}  # costs {lost} of KV cache; leaves the room without reserving it"
    remedies.append(_lines(less, before) if less is not None else unreserved)
    return "\n".join(remedies)


def figures(subject: Subject, memory: ServedMemory | None) -> Figures:
    """What traps of options are computed from."""
    known = Figures(
        budget=subject.budget,
        counts={m: count.value for m, count in subject.counts.items()},
        vocab_size=vocab_size(read_config(Path(subject.resolved.path))),
    )
    config = memory.config if memory else None
    if memory is None or config is None:
        return known
    steps = {m: _encoder_peak(step) for m, step in memory.predicted.steps.items()}
    return replace(
        known,
        encoder_peak_bytes=_encoder_peak(config),
        encoder_tokens=config.encoder_tokens,
        step_bytes={m: peak for m, peak in steps.items() if peak is not None},
        encoder_cache_bytes=config.encoder_cache_bytes,
        activation_peak_bytes=config.activation_peak_bytes,
        runner=config.runner,
    )


def _encoder_peak(found: Rehearsed) -> int | None:
    return next((phase.peak_bytes for phase in found.phases if phase.name == "encoder"), None)
