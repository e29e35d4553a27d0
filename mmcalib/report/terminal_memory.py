"""Rehearsals and traffic on the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mmcalib import text as wording
from mmcalib.domain.memory import LiveTensor, PhasePeak
from mmcalib.report import rows as words
from mmcalib.report.rows import tensor_cells
from mmcalib.results.memory import Memory, Rehearsal, ServedTraffic, TrafficFigures

# Rows of the listing of what lives at the peak: the rest is small.
_NAMED_TENSORS = 6


def comparison(found: Sequence[Rehearsal], console: Console) -> None:
    """Print one rehearsal, or several side by side."""
    first = found[0]
    size = wording.gib(first.memory.total_bytes)
    console.print()
    title = f"{first.model} on {first.gpu} ({size}), vLLM {first.vllm}, rehearsed"
    console.print(Text(wording.plain(title), style="bold"))
    console.print(Text(wording.plain(_engine(first)), style="dim"))
    console.print()
    console.print(_memory(found))
    for one in found:
        name = f" of {_name(one, found)}" if len(found) > 1 else ""
        highest = max(one.phases, key=lambda phase: phase.peak_bytes, default=None)
        if highest is not None:
            console.print()
            heading = f"Alive at the peak{name}: {highest.name}, {wording.gib(highest.peak_bytes)}"
            console.print(Text(wording.plain(heading), style="bold"))
            console.print(_peak(highest))
        if one.cross_check:
            console.print(Text(f"!! {wording.plain(one.cross_check)}", style="yellow"))
    console.print()
    console.print(Text("Assumed", style="bold"))
    for line in dict.fromkeys(line for one in found for line in one.assumptions):
        console.print(Text(f"- {wording.plain(line)}"))
    console.print()
    for one in found:
        console.print(_conclusion(one, _name(one, found)))


def _name(one: Rehearsal, found: Sequence[Rehearsal]) -> str:
    """The config's file name, with its folders where another has the same."""
    names = [Path(other.config).name for other in found]
    name = Path(one.config).name
    return wording.plain(name if names.count(name) == 1 else one.config)


def _engine(one: Rehearsal) -> str:
    ranks = one.tensor_parallel_size
    rank = f", one rank of {ranks}" if ranks > 1 else ""
    encoder = f", encoder {one.encoder_attention}" if one.encoder_attention else ""
    return (
        f"model runner {one.runner}, {one.dtype}, attention {one.attention}{encoder}, "
        f"sampler {one.sampler}{rank}"
    )


class MemoryRow(NamedTuple):
    """`left`: it is what the others leave, and what a reader looks for."""

    what: str
    size: str
    label: str
    left: bool = False


def memory_rows(memory: Memory) -> list[MemoryRow]:
    """From the whole to what is left."""
    label = memory.label or "measured"

    def row(name: str, field: str, *, minus: bool = False, left: bool = False) -> MemoryRow:
        value = getattr(memory, field)
        text = wording.gib(value)
        size = f"− {text}" if minus and value else text
        return MemoryRow(name, size, memory.labels.get(field, label), left)

    def counted(name: str, field: str, *, left: bool = False) -> MemoryRow:
        size = wording.number(getattr(memory, field))
        return MemoryRow(name, size, memory.labels.get(field, label), left)

    return [
        row("requested", "requested_bytes"),
        row("weights", "weights_bytes", minus=True),
        row("buffers", "buffers_bytes", minus=True),
        row("activation peak, highest of", "activation_peak_bytes", minus=True),
        *(MemoryRow(f"   {p}", wording.gib(n), label) for p, n in sorted(memory.phases.items())),
        row("outside torch", "non_torch_bytes", minus=True),
        row("CUDA graphs", "cudagraph_bytes", minus=True),
        row("KV cache", "kv_cache_bytes", left=True),
        counted("KV cache, tokens", "kv_cache_tokens", left=True),
        counted("requests of full length at once", "max_concurrency"),
    ]


def _memory(found: Sequence[Rehearsal]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=len(found) > 1)
    table.add_column("")
    for one in found:
        table.add_column(_name(one, found), justify="right")
    table.add_column("")
    columns = [memory_rows(one.memory) for one in found]
    for rows in zip(*columns, strict=False):
        first, cells = rows[0], [Text(row.size) for row in rows]
        label, style = Text(first.label, style="dim"), "bold" if first.left else ""
        table.add_row(Text(first.what), *cells, label, style=style)
    budgets = [one.budget for one in found]
    if any(budgets):
        said = [
            f"{wording.number(b.encoder_budget_tokens)} tokens, {words.profile(b)}" if b else "—"
            for b in budgets
        ]
        contexts = [wording.number(one.max_model_len) for one in found]
        table.add_row(Text("context, tokens"), *map(Text, contexts), Text("computed", "dim"))
        table.add_row(Text("encoder budget, profiled"), *map(Text, said), Text("computed", "dim"))
    return table


def _peak(phase: PhasePeak) -> Table:
    table = _tensors()
    if phase.scratch_bytes:
        own = f"{phase.scratch_operation}'s own scratch"
        table.add_row(wording.gib(phase.scratch_bytes), "", "", Text(own))
    return tensor_table(phase.largest, table)


def tensor_table(largest: Sequence[LiveTensor], table: Table | None = None) -> Table:
    """A row for each of the first, below those of `table`."""
    table = _tensors() if table is None else table
    for one in largest[:_NAMED_TENSORS]:
        table.add_row(*(Text(wording.plain(cell)) for cell in tensor_cells(one)))
    return table


def _tensors() -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    for justify in ("right", "left", "left", "left"):
        table.add_column("", justify=justify, overflow="fold")
    return table


def _conclusion(one: Rehearsal, name: str) -> Text:
    memory = one.memory
    name = f"{name}: " if name else ""
    if not one.starts:
        text = f"{name}it would not start: {memory.note}"
        return Text(wording.plain(text), style="bold red")
    text = (
        f"{name}KV cache {wording.gib(memory.kv_cache_bytes)}, "
        f"{wording.number(memory.kv_cache_tokens)} tokens, "
        f"{wording.number(memory.max_concurrency)} requests of full length at once"
    )
    return Text(wording.plain(text), style="bold green")


# Requests that are named of the highest step.
_NAMED = 4
# Of a timeline as a table.
HEAD: Final = ("step", "highest", "held", "encoder cache alive", "tokens", "running", "waiting")
_MOST_ROWS: Final = 60


def timeline_rows(found: TrafficFigures) -> Iterator[tuple[str, ...]]:
    """The timeline, thinned out for reading: every n-th of its points."""
    every = -(-len(found.timeline) // _MOST_ROWS) or 1
    for one in found.timeline[::every]:
        yield (
            wording.number(one.step),
            *(wording.gib(nbytes) for nbytes in (one.peak_bytes, one.held_bytes, one.alive_bytes)),
            *(wording.number(count) for count in (one.tokens, one.scheduled, one.waiting)),
        )


def traffic_rows(found: TrafficFigures) -> list[tuple[str, str, str]]:
    """(what, how much, more about it)."""
    gib, number = wording.gib, wording.number
    return [
        ("highest step", gib(found.peak_bytes), "rehearsed"),
        ("reserved at startup", gib(found.reserved_bytes), "rehearsed"),
        ("left outside", gib(found.outside_bytes), "by gpu_memory_utilization"),
        ("steps", number(found.steps), f"{number(found.concurrency)} requests at once at most"),
        (
            "KV blocks, most",
            f"{number(found.most_kv_blocks)} of {number(found.kv_blocks)}",
            f"{number(found.preemptions)} preempted",
        ),
        (
            "encoder cache, most",
            f"{number(found.most_cache_tokens)} of {number(found.cache_tokens)}",
            f"tokens: {gib(found.cache_logical_bytes)}, "
            f"and {gib(found.cache_alive_bytes)} kept alive",
        ),
        (
            "items encoded",
            number(found.encoded_items),
            f"{number(found.reused_items)} found in the cache, "
            f"{number(found.encoder_waits)} held up by the encoder",
        ),
        ("prompt tokens reused", number(found.cached_tokens), "prefix cache"),
    ]


def both(served: ServedTraffic) -> list[tuple[str, ...]]:
    """The rows of the calibrated configuration, with those of the default beside them."""
    rows: list[tuple[str, ...]] = list(traffic_rows(served.calibrated))
    if served.default is None:
        return rows
    return [
        (*row, *other[1:]) for row, other in zip(rows, traffic_rows(served.default), strict=True)
    ]


def highest_line(found: TrafficFigures) -> str:
    """What the highest step did, and for whom; empty where none was."""
    highest, steps = found.highest, {one.step: one for one in found.timeline}
    if highest is None or highest.number not in steps:
        return ""
    step = steps[highest.number]
    said = f"Step {wording.number(step.step)}: {wording.number(step.tokens)} tokens"
    if step.encoder_tokens:
        said += f", beside {wording.number(step.encoder_tokens)} that the encoder makes"
    named = highest.encoding or highest.origins
    more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    return f"{said}, for {', '.join(named[:_NAMED])}{more}"


def traffic_sentence(found: TrafficFigures) -> str:
    """The verdict as a sentence."""
    line = traffic_line(found)
    return f"{line[0].upper()}{line[1:]}."


def traffic_line(found: TrafficFigures) -> str:
    """The verdict in a line."""
    margin = found.margin
    left = wording.gib(abs(margin.nbytes))
    if found.status == "pass" and margin.nbytes >= 0:
        return f"every step stays within what startup reserved: {left} are never used"
    over = f"the highest step takes {left} more than startup reserved"
    if found.status == "pass":
        return f"{over}, within vLLM's own slack"
    if found.status == "warn":
        return f"{over}: it finds room in what gpu_memory_utilization leaves to others"
    cure = ""
    if margin.utilization is not None:
        cure = f"; gpu_memory_utilization {margin.utilization:g} would leave enough"
    return f"{over}, and that is more than is left on the GPU: out of memory{cure}"


# Refused requests that are shown.
_REFUSED = 4


def served(found: TrafficFigures, gpu: str, console: Console) -> None:
    """Print what serving took."""
    title = f"{wording.several(found.requests, 'request')} served on {gpu}, rehearsed"
    _figures(found, title, console)


def _figures(found: TrafficFigures, title: str, console: Console) -> None:
    console.print()
    console.print(Text(wording.plain(title), style="bold"))
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column("")
    table.add_column("", justify="right")
    table.add_column("", style="dim")
    for row in traffic_rows(found):
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
    for line in found.refused[:_REFUSED]:
        console.print(Text(f"!! refused: {wording.plain(line)}", style="yellow"))
    if found.highest is not None:
        console.print()
        console.print(Text(wording.plain(highest_line(found)), style="bold"))
        console.print(tensor_table(found.highest.largest))
    console.print()
    console.print(Text(traffic_line(found), style=words.STYLES[found.status]))
