"""One screen about a census: what there is, what was left out and why, what comes next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mmcalib import wording
from mmcalib.census.census import Census
from mmcalib.domain.items import Skipped
from mmcalib.domain.shapes import AudioShape, ImageShape, Shape
from mmcalib.result.census import ScannedCorpus

TOP_REASONS = 5


def show_scanned(
    corpus: ScannedCorpus, census: Census, skipped: Sequence[Skipped], console: Console
) -> None:
    """Print the summary; plain text where the console has no colours."""
    requests = f" in {wording.several(corpus.prompts, 'request')}" if corpus.prompts else ""
    items = wording.several(corpus.items, "item") + requests
    counts = f"{items}, {wording.several(corpus.files, 'file')}"
    console.print()
    console.print(Text(counts, style="bold"))
    if corpus.items:
        console.print(_table(census))
    if corpus.distinct is not None:
        again = 1 - corpus.distinct / corpus.items
        said = f"{wording.number(corpus.distinct)} distinct in content: {again:.1%} are repeats"
        console.print(Text(said))
    if skipped:
        console.print(Text(f"{wording.number(len(skipped))} skipped:", style="yellow"))
    for reason, count in _reasons(skipped):
        console.print(Text(f"  {wording.number(count)} × {wording.plain(reason)}"), soft_wrap=True)


def _table(census: Census) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("", "items", "shapes", "most frequent", "largest"):
        numeric = name in ("items", "shapes")
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for modality in census.modalities():
        entries = census.counts(modality)
        frequent = max(entries, key=lambda entry: entry.count)
        times = f" ({wording.number(frequent.count)} times)" if frequent.count > 1 else ""
        largest = max(entries, key=lambda entry: _size(entry.shape))
        table.add_row(
            modality,
            wording.number(census.items(modality)),
            wording.number(len(entries)),
            Text(f"{frequent.shape}{times}"),
            Text(str(largest.shape)),
        )
    return table


def _size(shape: Shape) -> float:
    """Pixels, of all frames, or seconds."""
    if isinstance(shape, AudioShape):
        return shape.duration_s
    frames = 1 if isinstance(shape, ImageShape) else shape.num_frames
    return frames * shape.width_px * shape.height_px


def _reasons(skipped: Sequence[Skipped]) -> list[tuple[str, int]]:
    """The most frequent ones, without what each says of its own file."""
    counts = Counter(wording.without_particulars(entry.reason) for entry in skipped)
    ordered = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
    others = sum(count for _, count in ordered[TOP_REASONS:])
    return [*ordered[:TOP_REASONS], *([("other reasons", others)] if others else [])]
