"""The report in Markdown: scores in, one page out, by the template beside this file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pages import page

from memory.allowances import OUTSIDE, Allowances
from memory.cases import COMPONENTS, GIB, Case, Excluded
from memory.measured import Start
from memory.scores import Row, Score, mean_absolute, per_token_is_exact, with_pool
from mmcalib.models import gpus

# What the page has to show: rows, mean error in percent of the card, GiB promised too much.
_AIM = {"rows": 30, "share": 0.3, "promised": 0.3}
# Rows that are promised too much and nobody knows why; the page has a section on them.
_NOT_KNOWN = "q36-35b-nvfp4-5090-wsl"
_GROUPS = {
    "same": "published logs",
    "control": "text-only controls",
    "cold": "text-only controls, compiled cold",
    "drift": "drift",
}
_MOST_CELL_CHARS = 300


class _Pool(NamedTuple):
    """The error of one KV pool, of two predictions that need no vLLM, and the card; bytes."""

    error: float
    weights_only: float
    constant: float
    total_bytes: int
    unified: bool = False


def render(
    scores: Sequence[Score],
    failed: Sequence[tuple[Case, str]],
    excluded: Sequence[Excluded],
    allowances: Allowances,
    starts: Sequence[Start],
) -> str:
    """Return the whole page."""
    published = [one for one in scores if one.case.group == "same" and _with_own_release(one)]
    known = [one for one in published if not one.case.id.startswith(_NOT_KNOWN)]
    measured = [_Pool(one.error, *one.baseline_errors, one.total_bytes) for one in starts]
    held_out = [_Pool(one.held_out_error, *one.baseline_errors, one.total_bytes) for one in starts]
    own = _pools(published, "same")
    budgets = [one for one in scores if "budget" in one.case.scored and one.case.published.budget]
    pairs = [(row, one.case) for one in scores if (row := one.row("kv bytes per token"))]
    given = {"scores": scores, "failed": failed, "excluded": excluded, "starts": starts}
    values: dict[str, Any] = {
        "allowances": allowances,
        "groups": _GROUPS,
        "aim": _AIM,
        "fitted": allowances.fit(),
        "summary": [
            *((title, _pools(scores, group)) for group, title in _GROUPS.items()),
            *(
                (f"published logs, {known}", _pools(those, "same"))
                for known in ("fitted on", "left out", "never seen")
                if (those := [s for s in scores if allowances.knowledge_of(s.case) == known])
            ),
            ("measured by us, fitted on", measured),
            ("measured by us, the model left out", held_out),
            ("**logs of the rehearsed release, and measured**", own + measured),
            ("**the same, measured models left out**", own + held_out),
        ],
        "own": published,
        "known": known,
        "own_release": sum(map(_with_own_release, scores)),
        "all_pools": own + measured,
        "known_pools": _pools(known, "same") + measured,
        "figures": [
            (figure, [row for one in scores if (row := one.row(figure))])
            for figure in COMPONENTS[:-1]
        ],
        "exact": [per_token_is_exact(*pair) for pair in pairs],
        "right": [one.budget == one.case.published.budget for one in budgets],
        "outside": {kind: f"{allowances.outside_bytes(kind) / GIB:.2f}" for kind in OUTSIDE},
        "convolution": f"{allowances.convolution_bytes() / GIB:.2f}",
        "leave_one_out": list(leave_one_out(allowances)),
        "anchored": list(_anchored(scores)),
    }
    filters: dict[str, Callable[..., str]] = {
        "gib": lambda nbytes: f"{nbytes / GIB:.2f}",
        "off": lambda nbytes: f"{nbytes / GIB:+.2f}",
        "cell": lambda text: text.replace("|", "\\|").replace("\n", " ")[:_MOST_CELL_CHARS],
        "budget": lambda line: f"{line[0]:,} tokens, {line[1]} {line[2]}" if line else "none",
        "figures": _row,
        "mean_error": _mean_error,
        "mean_gib": _mean_gib,
        "share": _share,
        "promised": lambda pools: f"{max(0.0, *(one.error for one in pools)) / GIB:.2f}",
        "worst": _worst,
    }
    return page(Path(__file__).with_name("page.md.j2"), filters, **given, **values)


def _with_own_release(one: Score) -> bool:
    # A log that says no release may be known by its line numbers, in brackets behind it.
    return one.case.logged_release.split(" ")[0] == one.answer.vllm


def _pools(scores: Sequence[Score], group: str) -> list[_Pool]:
    return [
        _Pool(
            *(_error(one, "kv pool"), *one.baseline_errors, one.answer.total_bytes),
            unified=gpus.find_gpu(one.case.gpu).unified,
        )
        for one in with_pool(scores, group)
    ]


def _anchored(scores: Iterable[Score]) -> Iterator[tuple[Case, float, Case, float]]:
    """Each log's error of the KV pool, with the first log of its machine and that one's error."""
    machines: dict[tuple[object, ...], list[tuple[Case, float]]] = {}
    for one in scores:
        case, pool = one.case, one.case.published.components["kv pool"]
        if pool is not None:
            machine = (case.geometry, case.gpu, case.total_gib, case.logged_release)
            machines.setdefault(machine, []).append((case, one.answer.kv_cache_bytes - pool))
    for first, *others in machines.values():
        yield from ((*other, *first) for other in others)


def _mean_gib(pools: Sequence[_Pool], of: str = "error") -> str:
    return f"{mean_absolute(getattr(one, of) for one in pools) / GIB:.2f}"


def _share(pools: Sequence[_Pool]) -> str:
    return f"{100 * mean_absolute(one.error / one.total_bytes for one in pools):.2f}"


def _worst(pools: Sequence[_Pool]) -> str:
    return f"{max(one.error for one in pools if not one.unified) / GIB:.2f}"


def _mean_error(rows: Sequence[Row]) -> str:
    share = 100 * mean_absolute(row.error / row.published for row in rows)
    return f"{mean_absolute(row.error for row in rows) / GIB:.4f} GiB, {share:.2f} %"


def _error(one: Score, figure: str) -> float:
    row = one.row(figure)
    assert row is not None
    return row.error


def _row(row: Row, one: Score) -> str:
    if row.figure == "kv bytes per token":
        exact = "exact" if per_token_is_exact(row, one.case) else f"{row.error:+,.0f}"
        return f"{row.predicted:,.0f} | {row.published:,.0f} | {exact} |"
    if row.figure == "concurrency":
        return f"{row.predicted:.2f} | {row.published:.2f} | {row.error:+.2f} |"
    figures = f"{row.predicted / GIB:.4f} | {row.published / GIB:.4f} | {row.error / GIB:+.4f}"
    return f"{figures} | {100 * row.error / one.answer.total_bytes:+.2f} %"


def leave_one_out(allowances: Allowances) -> Iterator[str]:
    """A table of errors by kind, each figure predicted without itself."""
    by_kind: dict[str, list[float]] = {}
    for kind, _, error in allowances.errors():
        by_kind.setdefault(kind, []).append(error / GIB)
    yield "| kind | figures | mean absolute error | largest |\n|---|---|---|---|"
    for kind, found in by_kind.items():
        largest = max(found, key=abs)
        yield f"| {kind} | {len(found)} | {mean_absolute(found):.2f} | {largest:+.2f} |"


def worst(scores: Sequence[Score]) -> Mapping[str, float]:
    """Each group's largest error of the KV pool in GiB, for the terminal."""
    return {
        group: max(
            (abs(_error(one, "kv pool")) / GIB for one in with_pool(scores, group)), default=0.0
        )
        for group in _GROUPS
    }
