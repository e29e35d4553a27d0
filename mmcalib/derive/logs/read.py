"""Reading a log: one pass over its lines, a new start forgetting the one before."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from mmcalib.derive.logs.arguments import Value, all_arguments_in, arguments_in, config_in
from mmcalib.derive.logs.cause_messages import cause_in
from mmcalib.derive.logs.causes import Cause
from mmcalib.derive.logs.closure import Stated, closures
from mmcalib.derive.logs.facts import encoder_in, facts_in
from mmcalib.derive.logs.figures import Quantity, figures_in
from mmcalib.derive.logs.line import Line, read_lines
from mmcalib.derive.logs.line_numbers import RELEASES, releases_at
from mmcalib.derive.logs.log_release import LineVotes, reserves_no_graphs
from mmcalib.derive.logs.phases import (
    Phase,
    frame_in,
    milestone_in,
    phase_of_cause,
    phase_of_frames,
)
from mmcalib.derive.logs.retired import RetiredKnob, retired_among, retired_in
from mmcalib.derive.logs.startup_log import (
    LoggedBudget,
    ModelRunner,
    Reading,
    StartupLog,
    Trouble,
)

# Where one of these comes after a model was loaded or a start failed, a server starts again.
# "Initializing a": the engine's last words print its configuration too ("Dumping input data for V1
# LLM engine").
_STARTS = ("API server version", "non-default args: {", "Initializing a V", "Initializing an LLM")
# A traceback of a model is deep; of one that recurses only the innermost frames tell.
_MOST_FRAMES = 300
# Of arguments, figures, errors and processes: far more than a start of a thousand workers prints.
_MOST = 20_000
# What a row of evidence quotes, of lines that can be whole configurations.
_MOST_QUOTED, _QUOTED_CHARS = 60, 600


def read_log(lines: Iterable[str]) -> StartupLog:
    """What the lines of a log, or of a message cut from one, say. Raises nothing.

    Lines may carry the prefixes of vLLM's workers, Ray, Docker and Kubernetes, colours, and may be
    wrapped; of several starts in one text the last is reported.
    """
    draft = _Draft()
    starts = 0
    for line in read_lines(lines):
        if draft.is_over_at(line.text):
            starts += 1
            # A command with a retired knob stands before the first start.
            draft = _Draft(retired=draft.retired)
        draft.take(line)
    return draft.finished(starts + 1 if draft.told else starts)


@dataclass(slots=True)
class _Sighting:
    """A trouble, and whether its phase is known from itself or its traceback."""

    trouble: Trouble
    certain: bool


@dataclass(slots=True)
class _Draft:
    """What is known so far of one start."""

    facts: dict[str, Any] = field(default_factory=dict)
    engine_args: dict[str, Value] = field(default_factory=dict)
    engine_config: dict[str, Value] = field(default_factory=dict)
    readings: list[Reading] = field(default_factory=list)
    stated: set[tuple[Quantity, str | None]] = field(default_factory=set)
    quantities: set[Quantity] = field(default_factory=set)
    encoder: LoggedBudget | None = None
    sightings: dict[Cause, _Sighting] = field(default_factory=dict)
    retired: dict[RetiredKnob, None] = field(default_factory=dict)
    frames: dict[str | None, list[str]] = field(default_factory=dict)
    sources: LineVotes = field(default_factory=LineVotes)
    itemised: list[Stated] = field(default_factory=list)
    quote: dict[str, None] = field(default_factory=dict)
    phase: Phase | None = None
    runner: ModelRunner | None = None

    def is_over_at(self, text: str) -> bool:
        """Whether a line is of another start than this one."""
        if "Starting to load model" in text:
            return self._states("kv_cache")
        over = bool(self.sightings) or self._states("weights")
        return over and any(mark in text for mark in _STARTS)

    def _states(self, quantity: Quantity) -> bool:
        return quantity in self.quantities

    @property
    def told(self) -> bool:
        return bool(self.facts or self.engine_args or self.readings or self.sightings)

    def take(self, line: Line) -> None:
        self._arguments(line.text)
        self._source(line)
        facts = facts_in(line.text, line.place)
        for name, value in facts.items():
            self._fact(name, value)
        if facts.keys() & _QUOTED_FACTS:
            self._quote(line)
        self._figures(line)
        self._encoder(line)
        self.retired.update(dict.fromkeys(retired_in(line.text)))
        self.phase = self._milestone(line) or self.phase
        if line.place == "gpu_model_runner.py" and self.runner is None:
            self.runner = "V1"
        self._traceback(line)
        cause = cause_in(line)
        if cause is not None:
            self._cause(cause, line)

    def _arguments(self, text: str) -> None:
        given = arguments_in(text)
        if given is not None:
            if len(self.engine_args) < _MOST:
                self.engine_args.update(given)
            self.retired.update(dict.fromkeys(retired_among(given)))
        for found in (all_arguments_in(text), config_in(text)):
            for name, value in (found or {}).items() if len(self.engine_config) < _MOST else ():
                self.engine_config.setdefault(name, value)

    def _source(self, line: Line) -> None:
        releases = releases_at(line.place, line.place_line, line.text)
        if releases is not None and len(self.sources.found) < _MOST:
            self.sources.take(f"{line.place}:{line.place_line}", releases)

    def _quote(self, line: Line) -> None:
        if len(self.quote) < _MOST_QUOTED:
            self.quote[line.text[:_QUOTED_CHARS]] = None

    def _milestone(self, line: Line) -> Phase | None:
        found = milestone_in(line)
        # By 0.29 model runner V2 captures once to see what graphs take.
        profiled = found == "warm-up" and not self._states("kv_cache")
        return "cuda graphs" if profiled else found

    def _fact(self, name: str, value: Any) -> None:
        """The first statement holds; of workers that state a capacity, the smallest."""
        known = self.facts.get(name)
        if name == "fitted_max_model_len":
            self.facts["max_model_len"] = value
        elif name in {"kv_cache_tokens", "max_concurrency"} and known is not None:
            self.facts[name] = min(known, value)
        else:
            self.facts.setdefault(name, value)

    def _figures(self, line: Line) -> None:
        found = list(figures_in(line.text))
        if found:
            self._quote(line)
        for quantity, nbytes, summary in found:
            if quantity == "kv_cache" and "Available KV cache memory:" in line.text:
                self._forget_trial_capture(line.process)
            known = summary and (quantity, line.process) in self.stated
            if not known and len(self.readings) < _MOST:
                # Summaries of several workers, copied without their prefixes, all count.
                if not summary:
                    self.stated.add((quantity, line.process))
                self.quantities.add(quantity)
                self.readings.append(Reading(quantity, nbytes, line.process, line.number))
        figures = {quantity: nbytes for quantity, nbytes, _ in found}
        if {"requested", "activation_peak"} <= figures.keys() and len(self.itemised) < _MOST:
            self.itemised.append(Stated(figures, line.process, line.number))

    def _forget_trial_capture(self, process: str | None) -> None:
        """By 0.29 model runner V2 captures once before the KV cache is sized, and says so in the
        words of the capture that stays.
        """
        if ("cudagraph", process) in self.stated:
            self.stated.discard(("cudagraph", process))
            self.readings = [
                one
                for one in self.readings
                if (one.quantity, one.process) != ("cudagraph", process)
            ]

    def _encoder(self, line: Line) -> None:
        found = encoder_in(line)
        if found:
            self._quote(line)
        if found and (self.encoder is None or self.encoder.items is None):
            self.encoder = LoggedBudget(*found)

    def _traceback(self, line: Line) -> None:
        if "Traceback (most recent call last)" in line.text or line.level == "INFO":
            self.frames.pop(line.process, None)
        frame = frame_in(line.text)
        if frame is not None and (line.process in self.frames or len(self.frames) < _MOST):
            frames = self.frames.setdefault(line.process, [])
            frames.append(frame)
            del frames[:-_MOST_FRAMES]

    def _cause(self, cause: Cause, line: Line) -> None:
        self._quote(line)
        phase = phase_of_cause(cause) or self._phase_of_traceback(line)
        certain = phase is not None
        seen = self.sightings.get(cause)
        if seen is None and len(self.sightings) >= _MOST:
            return
        if seen is None:
            trouble = Trouble(cause, phase or self.phase, line.process, line.number, 1)
            self.sightings[cause] = _Sighting(trouble, certain)
            return
        old = seen.trouble
        better = certain and not seen.certain
        self.sightings[cause] = _Sighting(
            Trouble(cause, phase if better else old.phase, old.process, old.line, old.times + 1),
            seen.certain or certain,
        )

    def _phase_of_traceback(self, line: Line) -> Phase | None:
        if "Failed to load model" in line.text:
            return "weights"
        phase = phase_of_frames(self.frames.get(line.process, ()))
        # The engine's own frames say only that its workers profiled.
        if phase == "profile" and self.phase is not None and self.phase.startswith("profile:"):
            return self.phase
        return phase

    def finished(self, starts: int) -> StartupLog:
        facts = dict(self.facts)
        for name, values in _FROM_ARGUMENTS.items():
            for arguments in (self.engine_args, self.engine_config):
                value = arguments.get(name)
                if isinstance(value, values) and not isinstance(value, bool):
                    facts.setdefault(name, value)
        facts.setdefault("model_runner", self.runner)
        order = [name for names in RELEASES for name in names]
        counted = facts.pop("counts_graphs", False)
        if not counted and reserves_no_graphs(facts.get("vllm_version")):
            facts["leaves_out_graphs"] = True
        graphs = not facts.get("leaves_out_graphs", False)
        return StartupLog(
            **facts,
            engine_args=self.engine_args,
            engine_config=self.engine_config,
            readings=tuple(self.readings),
            encoder=self.encoder,
            troubles=tuple(sighting.trouble for sighting in self.sightings.values()),
            retired=tuple(self.retired),
            release=self.sources.release(facts.get("vllm_version"), order),
            closures=tuple(closures(self._itemised(), self._beside(), graphs=graphs)),
            quote=tuple(self.quote),
            serves=self.phase in {"serving", "serving: encoder"},
            starts=starts,
        )

    def _beside(self) -> dict[str | None, dict[Quantity, int]]:
        """What each worker says by itself: once, or nothing can be put beside it."""
        every: dict[str | None, dict[Quantity, set[int]]] = {}
        for one in self.readings:
            figures = every.setdefault(one.process, {})
            figures.setdefault(one.quantity, set()).add(one.nbytes)
        return {
            process: {name: min(values) for name, values in figures.items() if len(values) == 1}
            for process, figures in every.items()
        }

    def _itemised(self) -> list[Stated]:
        """The lines that itemise; V0 has one for each figure."""
        if self.itemised:
            return self.itemised
        lines = {one.process: one.line for one in self.readings}
        return [Stated({}, process, line) for process, line in lines.items()]


# Lines that say what a row of evidence is about.
_QUOTED_FACTS = {"kv_cache_tokens", "max_concurrency", "skips_mm_profiling", "leaves_out_graphs"}
# Fields that an argument states where no line of its own does.
_FROM_ARGUMENTS: dict[str, tuple[type, ...]] = {
    "model": (str,),
    "max_model_len": (int,),
    "max_num_batched_tokens": (int,),
    "gpu_memory_utilization": (int, float),
}
