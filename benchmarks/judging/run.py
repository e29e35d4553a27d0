"""From a subject's key to its rows: calibrated, served, and asked everything."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path

from pydantic import TypeAdapter

from judging.calibrated import calibrated
from judging.composition import Composition, drawn
from judging.judge import Judge
from judging.page import Asked, asked
from judging.pool import Pool
from judging.request import Order, innocent, summary
from judging.results import Example, Result, Results, keep_example, kept_examples
from judging.subject import SUBJECTS, Subject, subject
from judging.templates import draw_habits
from mmcalib.errors import MmcalibError
from mmcalib.version import vllm_version

# In flight at once where order does not matter: one is decoded while another is computed.
_AT_ONCE = 4
# Of all requests about so many stand in an order of several.
_SHARE_IN_ORDER, _MEAN_ORDER = 0.1, 3
# And so many are every medium by itself, every field, and every part, message and URL.
_SHARE_OF_EACH = 0.15


@dataclass(frozen=True, slots=True)
class Hearing:
    """What all subjects share. `deadline` is of time.monotonic()."""

    folder: Path
    results: Path
    examples: Path
    requests: int
    seed: int
    deadline: float


@dataclass(slots=True)
class Heard:
    """One subject's last hearing, as it is kept in the folder; `note` is for the head of the page,
    `fields` are those of its schema, `late` orders were not answered in time.
    """

    key: str
    made_of: str = ""
    died: list[str] = field(default_factory=list)
    note: str = ""
    fields: list[str] = field(default_factory=list)
    late: int = 0

    def rows(self, hearing: Hearing) -> list[Asked]:
        results = Results(hearing.results, self.made_of)
        return list(asked(result for result in results if result.subject == self.key))


_HEARD: TypeAdapter[Heard] = TypeAdapter(Heard)


def versions() -> dict[str, str]:
    """Name what the page was made with."""
    vllm = vllm_version() or "?"
    return {"vllm": vllm, "machine": platform.machine(), "python": platform.python_version()}


def last_heard(hearing: Hearing) -> list[Heard]:
    """Read every subject's last hearing in this folder."""
    paths = (_kept(hearing, one.key) for one in SUBJECTS)
    return [_HEARD.validate_json(path.read_bytes()) for path in paths if path.exists()]


def _keep(heard: Heard, hearing: Hearing) -> None:
    _kept(hearing, heard.key).write_bytes(_HEARD.dump_json(heard))


def _kept(hearing: Hearing, key: str) -> Path:
    return hearing.folder / f"{key}.json"


def hear_one(key: str, hearing: Hearing, say: Callable[[str], None]) -> None:
    """A server that cannot be started, or that dies too often, is in `died`."""
    heard, one = Heard(key), subject(key)
    try:
        _hear(heard, one, hearing, say)
    except MmcalibError as error:
        heard.died.append(f"{key}: {error.message}")
    _keep(heard, hearing)


def _hear(heard: Heard, one: Subject, hearing: Hearing, say: Callable[[str], None]) -> None:
    """Fill in what is heard. Raises MmcalibError."""
    key, started = one.key, time.monotonic()
    habit = draw_habits([s.key for s in SUBJECTS if not s.transcribes], hearing.seed).get(key, "")
    pool = Pool(hearing.folder)
    say(f"{key}: calibrating with the template: {habit or 'its own'}")
    made = calibrated(one, pool, hearing.folder / "calibrated" / key, habit)
    heard.made_of = made.made_of
    say(f"{key}: {made.note or 'calibrated'}; starting its server")
    log = hearing.folder / f"{key}.log"
    log.unlink(missing_ok=True)
    with closing(Judge(one, made, pool, log)) as judge:
        up_s = time.monotonic() - started
        schema = made.calibration.costs.grammar.get("schema", {})
        heard.fields += sorted(schema.get("properties", {}))
        heard.note = (
            f"`{key}` is {one.model}{f' with the template *{habit}*' if habit else ''}, judged by "
            f"the sources of {made.commit}; up after {up_s:.0f} s"
            f"{f'; {made.note}' if made.note else ''}"
        )
        # A page may be made before the end.
        _keep(heard, hearing)
        trial = _Trial(one, judge, Results(hearing.results, made.made_of), hearing, heard, say)
        composition = Composition(one, pool, heard.fields)
        found = [one for series in _series(composition, one, hearing) for one in trial.ask(*series)]
        trial.keep_examples(found)
        heard.died += [f"{key}: after {summary(d.asked[0])}\n{d.log}" for d in judge.died]
    say(f"{heard.note}: {len(heard.rows(hearing))} requests")


def _series(
    composition: Composition, subject: Subject, hearing: Hearing
) -> Iterator[tuple[str, Sequence[Order], int]]:
    """Name each series, with its orders and how many of them may be on their way at once."""
    seed = hearing.seed + sum(subject.key.encode())
    share = round(hearing.requests * _SHARE_OF_EACH)
    listed: dict[str, list[Order]] = {
        "tables": [(request,) for request in composition.tables(share, seed)],
        "fields": [(request,) for request in composition.fields(share, seed)],
        "each": [(request,) for request in composition.each(share, seed)],
    }
    in_order = round(hearing.requests * _SHARE_IN_ORDER / _MEAN_ORDER)
    alone = hearing.requests - in_order * _MEAN_ORDER - sum(map(len, listed.values()))
    kept = [one.order for one in kept_examples(hearing.examples) if one.subject == subject.key]
    yield "kept", kept, 1
    drawn_alone = drawn(composition.alone(), max(1, alone), seed)
    yield (
        f"alone-{hearing.seed}",
        [one for one in drawn_alone if one not in listed["each"]],
        _AT_ONCE,
    )
    for name, orders in listed.items():
        yield f"{name}-{hearing.seed}", orders, _AT_ONCE
    yield f"order-{hearing.seed}", drawn(composition.orders(), max(1, in_order), seed), 1


@dataclass(frozen=True, slots=True)
class _Trial:
    subject: Subject
    judge: Judge
    results: Results
    hearing: Hearing
    heard: Heard
    say: Callable[[str], None]

    def ask(self, series: str, orders: Sequence[Order], at_once: int) -> list[Result]:
        """First what `check` lets in, as a server behind it has it; then the rest, one at a time
        and each of a fresh server, since what vLLM refuses leaves its caches unlike each other.
        """
        missing = [pair for pair in enumerate(orders) if self._known(series, *pair) is None]
        with ThreadPoolExecutor(at_once) as threads:
            let_in = list(compress(missing, threads.map(self._lets_in, missing)))
            self.judge.forget()
            fresh = at_once == 1
            self._keep(threads.map(lambda pair: self._one(series, pair, fresh), let_in))
        self._keep(self._one(series, pair, True) for pair in missing if pair not in let_in)
        return [one for pair in enumerate(orders) if (one := self._known(series, *pair))]

    def keep_examples(self, found: Iterable[Result]) -> None:
        """Keep the shortest order of each new cause that is met again when asked alone."""
        shortest = sorted(found, key=lambda one: len(" ".join(map(summary, one.order))))
        first = {one.cause: one for one in reversed(shortest) if one.cause}
        for cause, one in first.items():
            if one.series == "kept" or time.monotonic() > self.hearing.deadline:
                continue
            self.judge.forget()
            if all(verdict.cause != cause for verdict in self.judge.in_order(one.order)):
                self.say(f"{self.subject.key}: not so when asked again, alone: {cause}")
            elif keep_example(self.hearing.examples, Example(one.subject, cause, one.order)):
                self.say(f"{one.subject}: kept: {' → '.join(map(summary, one.order))}")

    def _known(self, series: str, number: int, order: Order) -> Result | None:
        return self.results.get(self.subject.key, series, number, order)

    def _lets_in(self, numbered: tuple[int, Order]) -> bool:
        return time.monotonic() < self.hearing.deadline and self.judge.lets_in(numbered[1])

    def _one(self, series: str, numbered: tuple[int, Order], fresh: bool) -> Result | None:
        """What a server refuses and `check` does not is followed by a plain request with the same
        medium.
        """
        (number, order), started = numbered, time.monotonic()
        if started > self.hearing.deadline:
            return None
        if fresh:
            self.judge.forget()
        verdicts = self.judge.in_order(order)
        last, next_one = verdicts[-1], innocent(order[-1])
        if last.status != 200 and last.answer != "no" and next_one:
            order = (*order, next_one)
            verdicts.append(self.judge.after(order))
        seconds = round(time.monotonic() - started, 3)
        key, made_of = self.subject.key, self.results.made_of
        return Result(key, series, number, made_of, order, tuple(verdicts), seconds)

    def _keep(self, results: Iterable[Result | None]) -> None:
        for result in filter(None, results):
            if result.timed_out:
                self.heard.late += 1
                continue
            self.results.add(result)
            for request, verdict in zip(result.order, result.verdicts, strict=True):
                if verdict.disagrees:
                    self.say(f"{self.subject.key}: {verdict.kind}: {summary(request)}")
