"""A calibration without the names of files, for reports that leave the house."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

from mmcalib.corpus.wording import one_line
from mmcalib.report import words
from mmcalib.report.calibration import Calibration

WITHHELD = "(path withheld)"

# Endings of what a corpus, a list of requests or an archive is kept in.
_ENDINGS = (
    "jpe?g|jp2|png|webp|gif|bmp|tiff?|avif|hei[cf]|ico|ppm|psd|svg|mp4|m4v|mov|mkv|webm|avi|mpe?g|"
    "mts|ts|flv|wmv|og[gv]|3gp|wav|mp3|flac|opus|m4a|aac|aiff?|wma|jsonl?|csv|tsv|txt|ya?ml|pdf|"
    "tar|tgz|gz|zip|parquet|arrow"
)
_END = rf"\.(?:{_ENDINGS})(?::\d+)?(?![\w])"
_START = r"(?:(?<=[\s(\[\"'`=])|^)"
# In this order: from the first slash to the last ending, whatever lies between; a rooted path
# without ending; one word with an ending.
_PATHS = (
    re.compile(rf"{_START}(?!https?://docs\.)\S*[/\\].*{_END}", re.I | re.S),
    re.compile(rf"{_START}(?:/|~/|[A-Za-z]:\\|(?!https?:)[a-z][a-z0-9+.-]*://)[^\s:,;)]+"),
    re.compile(rf"{_START}[^\s/]+{_END}", re.I),
)
_LINE = re.compile(r"^(?P<file>.*):(?P<line>\d+)$", re.S)
# Names shorter than this are replaced where they stand alone, not inside of sentences.
_SHORT = 4


def redacted(calibration: Calibration) -> tuple[Calibration, dict[str, str]]:
    """The calibration with every file's name replaced, and the name that each
    path has got.

    Known names become `item-1.jpg` and the like; whatever else looks like a path is withheld.
    """
    names = _aliases(calibration)
    document = calibration.model_dump(exclude={"costs", "model"})
    clean = Calibration.model_validate(
        {
            **_walk(document, lambda text: _hide(text, names)),
            "model": {
                **calibration.model.model_dump(),
                "id": _model(calibration.model.id),
                "doubts": [_hide(doubt, names) for doubt in calibration.model.doubts],
            },
        }
    )
    config = {**clean.engine_config, "model": _model(str(calibration.engine_config.get("model")))}
    kept = clean.model_copy(update={"costs": calibration.costs, "engine_config": config})
    return kept, names


def _aliases(calibration: Calibration) -> dict[str, str]:
    """Every name that a field of the calibration gives → what takes its place."""
    given = [m.tokens.exemplar for m in calibration.corpus.modalities.values()]
    given += [entry.exemplar for entry in calibration.limits.evidence]
    if calibration.throughput:
        given += [m.costliest.exemplar for m in calibration.throughput.modalities.values()]
    parts = calibration.costs.modalities.values() if calibration.costs else ()
    given += [known.exemplar for part in parts for known in part.known]
    names: dict[str, str] = {}
    files: dict[str, str] = {}
    for name in dict.fromkeys(filter(None, given)):
        line = _LINE.match(name)
        file = line["file"] if line else name
        ending = re.search(rf"\.(?:{_ENDINGS})$", file, re.I)
        kind = "requests" if line else "item"
        alias = files.setdefault(
            file, f"{kind}-{len(files) + 1}{ending[0].lower() if ending else ''}"
        )
        names[name] = f"{alias}:{line['line']}" if line else alias
        names.setdefault(file, alias)
    return names


def _hide(text: str, names: dict[str, str]) -> str:
    if text in names:
        return names[text]
    for name in sorted(names, key=len, reverse=True):
        # Sentences hold names as they are, in one line, or with escapes.
        spoken = {name, one_line(name), words.plain(name), os.path.basename(name)}
        for one in sorted(spoken, key=len, reverse=True):
            if len(one) >= _SHORT and one in text:
                text = text.replace(one, names[name])
    known = {f"\0{place}\0": alias for place, alias in enumerate(dict.fromkeys(names.values()))}
    for mark, alias in known.items():
        text = text.replace(alias, mark)
    for pattern in _PATHS:
        text = pattern.sub(WITHHELD, text)
    for mark, alias in known.items():
        text = text.replace(mark, alias)
    return text


def _model(name: str) -> str:
    """A hub id as it is; of a folder its last part."""
    rooted = name.startswith(("/", "~", ".")) or "\\" in name or name.count("/") > 1
    return os.path.basename(name.rstrip("/\\").replace("\\", "/")) if rooted else name


def _walk(value: Any, change: Callable[[str], str]) -> Any:
    match value:
        case str():
            return change(value)
        case dict():
            return {key: _walk(one, change) for key, one in value.items()}
        case list() | tuple():
            return [_walk(one, change) for one in value]
        case _:
            return value
