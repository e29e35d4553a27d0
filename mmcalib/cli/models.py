"""`mmcalib models`: what can be calibrated without a hub and without weights."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from mmcalib.cli.choices import none_of
from mmcalib.cli.document import print_json
from mmcalib.domain.shapes import MODALITIES, Modality
from mmcalib.errors import UsageError
from mmcalib.options.completion import gpu_names, one_of

if TYPE_CHECKING:
    from mmcalib.result.bundled_model import BundledModel

_HEADS = (
    "model",
    "image",
    "video",
    "sound",
    "weights",
    "starts on",
    "calibrated",
    "facts",
    "knobs",
)


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
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
) -> None:
    """List models that calibrate offline and without weights; a whole name shows that one.

    Example: mmcalib models qwen3 --modality video --gpu L4

    Example: mmcalib models Qwen/Qwen2.5-VL-3B-Instruct
    """
    from mmcalib.models import bundled
    from mmcalib.models.figures import kept
    from mmcalib.models.wanted_models import WantedModels
    from mmcalib.result.bundled_model import BundledModel
    from mmcalib.workflows.memory.rehearse import gpu_of

    wanted = WantedModels(
        (*(words or ()), *(search or ())),
        tuple(map(_modality, modality or ())),
        _bytes(max_weights),
        gpu_of(gpu) if gpu is not None else None,
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
    """Models on standard output, what their columns are on standard error."""
    rows = [_HEADS, *map(tuple, map(_cells, found))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for number, row in enumerate(rows):
        cells = (
            cell.rjust(width) if 0 < index < 5 else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        stream = sys.stdout if number else sys.stderr
        print("  ".join(cells).rstrip(), file=stream, flush=True)
    print(
        "tokens of a 1-megapixel image, a minute of video, a minute of sound; the smallest GPU on "
        "which it starts by vLLM's defaults, and calibrated for one such image (rehearsed); facts "
        "that were found; all of it: mmcalib models --json",
        file=sys.stderr,
    )


def _cells(model: BundledModel) -> Iterator[str]:
    from mmcalib import wording

    yield model.id
    figures = model.figures
    for modality in MODALITIES:
        tokens = figures.tokens.get(modality) if figures else None
        unknown = "?" if modality in model.modalities else "-"
        yield unknown if tokens is None else f"{tokens:,}"
    yield wording.gib(figures.weights_bytes if figures else None)
    for gpu in (figures.default_gpu, figures.calibrated_gpu) if figures else (None, None):
        yield gpu or wording.gib(None)
    yield wording.share(model.facts.get("found", 0) / sum(model.facts.values()))
    yield ", ".join(figures.knobs) if figures else ""
