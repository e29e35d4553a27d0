"""A rehearsal on the terminal: where the memory goes, why so much, and what is assumed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mmcalib import wording
from mmcalib.report import words
from mmcalib.report.tensor_words import tensor_cells
from mmcalib.results.memory import Memory, PeakTensor, Phase, Rehearsal

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

    phases = [
        row(f"   {name}", field)
        for name, field in (
            ("encoder", "encoder_peak_bytes"),
            ("language model", "language_model_peak_bytes"),
            ("language model, served", "prefill_peak_bytes"),
            ("sampler", "sampler_peak_bytes"),
        )
        if getattr(memory, field) is not None
    ]
    return [
        row("requested", "requested_bytes"),
        row("weights", "weights_bytes", minus=True),
        row("buffers", "buffers_bytes", minus=True),
        row("activation peak, highest of", "activation_peak_bytes", minus=True),
        *phases,
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
        contexts = [wording.number(b.max_model_len if b else None) for b in budgets]
        table.add_row(Text("context, tokens"), *map(Text, contexts), Text("computed", "dim"))
        table.add_row(Text("encoder budget, profiled"), *map(Text, said), Text("computed", "dim"))
    return table


def _peak(phase: Phase) -> Table:
    table = _tensors()
    if phase.scratch_bytes:
        own = f"{phase.scratch_operation}'s own scratch"
        table.add_row(wording.gib(phase.scratch_bytes), "", "", Text(own))
    return tensor_table(phase.largest, table)


def tensor_table(largest: Sequence[PeakTensor], table: Table | None = None) -> Table:
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
