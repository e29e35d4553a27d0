"""Published startup logs, joined with what is needed to rehearse them."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Engine arguments that a log names in its own words, or that only say how it was found.
_NOT_ARGUMENTS = {"quantization", "speculative"}
GIB = 2**30
COMPONENTS = (
    "weights",
    "activation peak",
    "activations and graphs",
    "cuda graphs",
    "non-torch",
    "consumed",
    "kv pool",
)


@dataclass(frozen=True, slots=True)
class Published:
    """The figures of one log; bytes, None where it prints none."""

    components: dict[str, int | None]
    kv_cache_tokens: int | None
    max_concurrency: float | None
    budget: tuple[int, int, str] | None

    @property
    def kv_bytes_per_token(self) -> float | None:
        """The pool divided by its tokens: as exact as the two printed figures."""
        pool = self.components["kv pool"]
        return pool / self.kv_cache_tokens if pool and self.kv_cache_tokens else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One log that can be rehearsed: with which geometry, GPU, release and arguments, and why.

    `total_gib` is what the log prints where the catalogue's card has another total; `environment`
    are the variables that the server was started with, as far as a rehearsal heeds them. `drafter`
    is the geometry of the model that drafts, where that is one of its own. `free_gib` is what vLLM
    found free, where other processes used the card; `status` is how the start ended. A mistake was
    repaired by the error of a `fitted` case.
    """

    id: str
    model: str
    logged_release: str
    geometry: str
    gpu: str
    total: str
    total_gib: float | None = None
    release: str
    group: str
    why: str
    engine_args: dict[str, Any]
    environment: dict[str, str] = field(default_factory=dict)
    drafter: str | None = None
    assumed: tuple[str, ...]
    scored: frozenset[str]
    published: Published
    free_gib: float | None = None
    status: str = ""
    fitted: bool = False


@dataclass(frozen=True, slots=True)
class Excluded:
    """A log that cannot be rehearsed, with the reason."""

    id: str
    model: str
    release: str
    why: str


def load(logs: Sequence[Path], table: Path) -> tuple[list[Case], list[Excluded]]:
    """Return every log of the files as a case or as excluded, in the files' order."""
    document = tomllib.loads(table.read_text(encoding="utf-8"))
    entries = {entry["log"]: entry for entry in document["case"]}
    reasons = {entry["log"]: entry["why"] for entry in document["excluded"]}
    cases, excluded = [], []
    lines = (line for path in logs for line in path.read_text(encoding="utf-8").splitlines())
    for line in lines:
        log = json.loads(line)
        if entry := entries.get(log["id"]):
            cases.append(_case(log, entry))
        else:
            why = reasons.get(log["id"], f"no entry in {table.name}")
            release = log["vllm_version"] or "not said"
            excluded.append(Excluded(log["id"], log["model"], release, why))
    return cases, excluded


def _case(log: dict[str, Any], entry: dict[str, Any]) -> Case:
    given = {
        key: value
        for key, value in log["engine_args"].items()
        if value is not None and key not in _NOT_ARGUMENTS
    }
    everything = (*COMPONENTS, "kv bytes per token", "budget", "concurrency")
    changed = {
        "engine_args": {**given, **entry.get("engine_args", {})},
        "assumed": tuple(entry["assumed"]),
        "scored": frozenset(entry.get("scored", everything)),
    }
    return Case(
        id=log["id"],
        model=log["model"],
        logged_release=log["vllm_version"],
        published=_published(log["figures"]),
        status=log.get("status", ""),
        **{name: value for name, value in {**entry, **changed}.items() if name != "log"},
    )


def _published(figures: dict[str, Any]) -> Published:
    def of(name: str) -> int | None:
        value = figures.get(name)
        return None if value is None else round(value * GIB)

    graphs = "cudagraph_estimate_gib"
    consumed = of("consumed_gib")
    # Who prints what was consumed prints activations with the estimate of graphs among them.
    peak = "activation peak" if consumed is None else "activations and graphs"
    tokens, items = figures["encoder_budget_tokens"], figures["profiled_items"]
    return Published(
        components={
            **dict.fromkeys(COMPONENTS),
            "weights": of("weights_gib"),
            peak: of("activation_peak_gib"),
            # What startup subtracted, which is nothing before 0.21, whatever the graphs then took.
            "cuda graphs": of(graphs),
            "non-torch": of("non_torch_gib"),
            "consumed": consumed,
            "kv pool": of("kv_cache_gib"),
        },
        kv_cache_tokens=figures["kv_cache_tokens"],
        max_concurrency=figures["max_concurrency"],
        budget=(tokens, items, figures["profiled_modality"]) if tokens and items else None,
    )
