"""`mmcalib models`: what can be calibrated without a hub and without weights."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated

import typer

from mmcalib.cli.choices import none_of
from mmcalib.cli.document import print_json
from mmcalib.cli.options import Capability, GpuMemory
from mmcalib.domain.shapes import MODALITIES, Modality
from mmcalib.errors import UsageError
from mmcalib.options.completion import gpu_names, one_of
from mmcalib.sizes import GIB

if TYPE_CHECKING:
    from mmcalib.result.bundled_model import BundledModel

_HEADS = ("model", "image", "video", "sound", "weights", "smallest GPU")
_NOTE = """\
tokens of a 1-megapixel image, a minute of video, a minute of sound; weights in
GiB; smallest GPU on which it starts when calibrated for one such image
(rehearsed). More of one: mmcalib models NAME; all of it as JSON: --json"""


def models(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[WORD]...", help="Parts of its name, such as qwen3 or ocr."),
    ] = None,
    search: Annotated[
        list[str] | None,
        typer.Option(metavar="WORD", help="The same as a WORD; may be repeated."),
    ] = None,
    modality: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODALITY",
            help="Only models that take it: image, video or audio; may be repeated.",
            autocompletion=one_of(*MODALITIES),
        ),
    ] = None,
    max_weights: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Only models whose weights take no more, as 16GiB."),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Only models that start on this GPU with a calibrated configuration.",
            autocompletion=gpu_names,
        ),
    ] = None,
    gpu_memory: GpuMemory = None,
    capability: Capability = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
) -> None:
    """List models that calibrate offline and without weights; a whole name shows that one.

    Example: mmcalib models qwen3 --modality video --gpu L4

    Example: mmcalib models Qwen/Qwen2.5-VL-3B-Instruct
    """
    from mmcalib.cli.gpu import gpu_named
    from mmcalib.models import bundled
    from mmcalib.models.figures import kept
    from mmcalib.models.wanted_models import WantedModels
    from mmcalib.result.bundled_model import BundledModel
    from mmcalib.workflows.memory.rehearse import gpu_of

    where = gpu_named(gpu, gpu_memory, capability)
    wanted = WantedModels(
        (*(words or ()), *(search or ())),
        tuple(map(_modality, modality or ())),
        _bytes(max_weights),
        gpu_of(where) if isinstance(where, str) else where,
    )
    pairs = ((geometry, kept().get(geometry.id)) for geometry in bundled())
    found = [BundledModel.of(*pair) for pair in pairs if wanted.fits(*pair)]
    if as_json:
        print_json(found)
        return
    if not found:
        print("no bundled model matches: mmcalib models lists all", file=sys.stderr)
        return
    whole = [model for model in found if [model.id.lower()] == [w.lower() for w in words or ()]]
    if whole:
        _show(whole[0])
        return
    _print(found)


def _show(model: BundledModel) -> None:
    """All that is known of one."""
    from mmcalib import wording

    figures = model.figures
    rows = [("model", model.id), ("architecture", model.architecture)]
    rows.append(("takes", ", ".join(model.modalities)))
    if figures:
        whole = {
            "image": "a 1-megapixel image",
            "video": "a minute of video",
            "audio": "a minute of sound",
        }
        for modality, tokens in figures.tokens.items():
            rows.append((whole[modality], f"{tokens:,} tokens [measured, vLLM {figures.vllm}]"))
        rows.append(("weights", f"{wording.gib(figures.weights_bytes)} [rehearsed]"))
        rows.append(("starts on", f"{figures.default_gpu or 'no single GPU'} [rehearsed]"))
        rows.append(("calibrated on", f"{figures.calibrated_gpu or 'no single GPU'} [rehearsed]"))
        rows.append(("knobs", ", ".join(figures.knobs) or "none"))
    rows.append(("facts", ", ".join(f"{count} {status}" for status, count in model.facts.items())))
    rows += [("cannot promise", one) for one in model.cannot_promise]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")
    print(f"calibrate it: mmcalib run --model {model.id} --data DIR", file=sys.stderr)


def _modality(word: str) -> Modality:
    for modality in MODALITIES:
        if word == modality:
            return modality
    raise UsageError(f"--modality {word}: {none_of(MODALITIES)}", hint="--modality video")


def _bytes(size: str | None) -> int | None:
    from mmcalib.sizes import size_bytes

    if size is None:
        return None
    found = size_bytes(size)
    if found is None:
        raise UsageError(
            f"--max-weights {size}: not a size", hint="--max-weights 16GiB, or MiB, GB, MB"
        )
    return found


def _print(found: Sequence[BundledModel]) -> None:
    """Models on standard output, what their columns are on standard error; cut to the terminal."""
    rows = [_HEADS, *map(tuple, map(_cells, found))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    excess = sum(widths) + 2 * (len(widths) - 1) - get_terminal_size().columns
    # First the GPU, whose head is as wide as most names of one; then the model.
    for column in (-1, 0):
        cut = max(0, min(excess, widths[column] - len(_HEADS[-1])))
        widths[column], excess = widths[column] - cut, excess - cut
    for number, row in enumerate(rows):
        cells = (
            _cut(cell, width).rjust(width) if 0 < index < 5 else _cut(cell, width).ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        stream = sys.stdout if number else sys.stderr
        print("  ".join(cells).rstrip(), file=stream, flush=True)
    print(_NOTE, file=sys.stderr)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _cells(model: BundledModel) -> Iterator[str]:
    yield model.id
    figures = model.figures
    for modality in MODALITIES:
        tokens = figures.tokens.get(modality) if figures else None
        unknown = "?" if modality in model.modalities else "-"
        yield unknown if tokens is None else f"{tokens:,}"
    weights = figures.weights_bytes if figures else None
    yield "—" if weights is None else f"{weights / GIB:.1f}"
    yield (figures.calibrated_gpu if figures else None) or "—"
