"""Models and GPUs side by side on the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mmcalib import text
from mmcalib.results.comparison import ComparedRun, Comparison

_HEADS = ("starts", "KV tokens", "KV cache", "at once", "detail", "batch")
_NOTE = (
    "KV cache: rehearsed, what is left for it; at once: requests of full length; detail: tokens "
    "that items keep of those by default, on average; batch: max_num_batched_tokens"
)


def compared(found: Comparison, console: Console) -> None:
    """Print a row for each model on each GPU, then why some fail."""
    table = Table(box=None, pad_edge=False)
    table.add_column("model", overflow="ellipsis", min_width=12)
    table.add_column("GPU", no_wrap=True)
    for head in _HEADS:
        table.add_column(head, justify="right", no_wrap=True)
    for run in found.runs:
        name = text.plain(run.model.rpartition("/")[2])
        style = "" if run.verdict == "pass" else "red"
        table.add_row(name, text.plain(run.gpu or "—"), *_cells(run), style=style)
    console.print()
    console.print(table)
    console.print(Text(_NOTE, style="dim"))
    for run in found.runs:
        if run.verdict == "fail":
            said = f"{run.folder} fails: {run.problem}"
            console.print(Text(text.plain(said), style="red"), soft_wrap=True)
            if run.remedy:
                console.print(Text(text.plain(f"  try: {run.remedy}")), soft_wrap=True)


def _cells(run: ComparedRun) -> list[str]:
    return [
        "—" if run.starts is None else "yes" if run.starts else "no",
        text.number(run.kv_cache_tokens),
        text.gib(run.kv_cache_bytes),
        "—" if run.max_concurrency is None else f"{run.max_concurrency:.2f}",
        text.share(run.detail_kept),
        text.number(run.max_num_batched_tokens),
    ]
