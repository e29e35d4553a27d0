"""A calibration without the names of files, for reports that leave the house."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any, get_args

from mmcalib import wording
from mmcalib.domain.label import Label
from mmcalib.domain.shapes import Modality
from mmcalib.errors import UsageError
from mmcalib.media.file_names import MEDIA_ENDINGS
from mmcalib.result.calibration import CalibrationDocument
from mmcalib.wording import one_line

WITHHELD = "(path withheld)"

# Endings of what a corpus, a list of requests or an archive is kept in, and of drawings, which no
# model takes.
_ENDINGS = "|".join(
    (
        *sorted(MEDIA_ENDINGS),
        *("svg", "jsonl?", "csv", "tsv", "txt", "ya?ml", "pdf"),
        *("tar", "tgz", "gz", "zip", "parquet", "arrow"),
    )
)
_END = rf"\.(?:{_ENDINGS})(?:[?#]\S*)?(?::\d+)?(?![\w])"
_START = r"(?:(?<=[\s(\[\"'`=,;<{|])|^)"
# What our own sentences name.
_OURS = r"(?!https?://docs\.|https://huggingface\.co(?:[\s,;]|$))"
# In this order: from the first slash to the last ending, whatever lies between; what our sentences
# name as an example; a rooted path without ending, which ends where a sentence goes on; a line of a
# file; one word with an ending.
_PATHS = (
    re.compile(rf"{_START}{_OURS}\S*[/\\].*{_END}", re.I | re.S),
    re.compile(r"(?<=such as )(?!\0\d+\0)(?!\(path).+?(?=: |\0|$)", re.S),
    re.compile(
        rf"{_START}{_OURS}(?:/|~\w*/|\\+\w|[a-z]:\\|data:|[a-z][a-z0-9+.-]*://)(?=\S)"
        r".+?(?=: |\0|$)",
        re.I | re.S,
    ),
    re.compile(rf"{_START}\S+:\d+(?=: )"),
    re.compile(rf"{_START}[^\s/]+{_END}", re.I),
)
# Sentences are shorter. Patterns and names take time that grows with the square of a text.
_MOST_CHARS = 5_000
_MOST_NAMES = 5_000
_LINE = re.compile(r"^(?P<file>.*):(?P<line>\d+)$", re.S)
# Words of the document itself, of which it knows no others; a file may have their name.
_FIXED = frozenset(
    {
        *(*get_args(Label), *get_args(Modality)),
        *("pass", "warn", "fail", "skip", "local", "hub", "bundled", "real", "blank"),
    }
)
# Names shorter than this are replaced where they stand alone, not inside of sentences.
_SHORT = 4


def redacted(calibration: CalibrationDocument) -> tuple[CalibrationDocument, dict[str, str]]:
    """The calibration with every file's name replaced, and the name that each
    path has got.

    Known names become `item-1.jpg` and the like; whatever else looks like a path is withheld.
    Raises UsageError where so many are named that no run wrote it.
    """
    names = _aliases(calibration)
    if len(names) > _MOST_NAMES:
        raise UsageError(
            f"a calibration does not name {len(names):,} files: their names cannot be withheld",
            hint="mmcalib run --redact-paths",
        )
    if calibration.yours is not None:
        # Its lines are of a file of the user's, whatever they name.
        yours = calibration.yours.model_copy(update={"file": "", "diff": ""})
        calibration = calibration.model_copy(update={"yours": yours})
    spoken = _spoken(names)
    local = calibration.model.source == "local"
    model = _model(calibration.model.id, local=local)
    model_arg = _model(str(calibration.engine_config.get("model")), local=local)
    document = calibration.model_dump(exclude={"costs", "model"})
    clean = CalibrationDocument.model_validate(
        {
            **_walk(document, lambda text: _hide(text, names, spoken)),
            "model": {
                **calibration.model.model_dump(),
                "id": model,
                "doubts": [_hide(doubt, names, spoken) for doubt in calibration.model.doubts],
            },
        }
    )
    config = {**clean.engine_config, "model": model_arg}
    kept = clean.model_copy(update={"costs": calibration.costs, "engine_config": config})
    return kept, names


def _aliases(calibration: CalibrationDocument) -> dict[str, str]:
    """Every name that a field of the calibration gives → what takes its place."""
    given = [m.tokens.exemplar for m in calibration.corpus.modalities.values()]
    given += [entry.exemplar for entry in calibration.limits.evidence]
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


def _spoken(names: dict[str, str]) -> dict[str, str]:
    """Every way in which sentences hold names, the longest first → what takes its place: as they
    are, in one line, with escapes; and what none of them may be without.
    """
    spoken: dict[str, str] = {}
    for name in sorted(names, key=len, reverse=True):
        ways = {name, one_line(name), wording.plain(name), repr(name)[1:-1], os.path.basename(name)}
        for one in sorted(ways, key=len, reverse=True):
            if len(one) >= _SHORT:
                spoken.setdefault(one, names[name])
    return spoken


def _hide(text: str, names: dict[str, str], spoken: dict[str, str]) -> str:
    if text in _FIXED:
        return text
    if text in names:
        return names[text]
    if len(text) > _MOST_CHARS:
        return WITHHELD
    for one, alias in spoken.items():
        if one in text:
            text = text.replace(one, alias)
    known = {f"\0{place}\0": alias for place, alias in enumerate(dict.fromkeys(names.values()))}
    for mark, alias in known.items():
        text = text.replace(alias, mark)
    for pattern in _PATHS:
        text = pattern.sub(WITHHELD, text)
    for mark, alias in known.items():
        text = text.replace(mark, alias)
    return text


def _model(name: str, *, local: bool) -> str:
    """A hub id as it is; of a folder its last part."""
    rooted = local or name.startswith(("/", "~", ".")) or "\\" in name or name.count("/") > 1
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
