"""Remove file names from a calibration, for reports that you share.

Fields hold the names: exemplars, the model, and `names` of a check. They are replaced there and in
every sentence that repeats them; a sentence that still names one of their folders is withheld.
"""

from __future__ import annotations

import os
from typing import get_args
from urllib.parse import quote

from mmcalib.domain.knobs import Label
from mmcalib.domain.shapes import Modality
from mmcalib.errors import UsageError
from mmcalib.gate.admission import ChatLimit
from mmcalib.media.sniff import MEDIA_EXTENSIONS, extension_of
from mmcalib.results.calibration import CalibrationDocument
from mmcalib.storage.location import Location
from mmcalib.text import map_strings, one_line, printable

WITHHELD = "(path withheld)"

_MOST_NAMES = 5_000
_ENDINGS = MEDIA_EXTENSIONS | {"jsonl"}
# The document's own words, which may also be the name of a file.
_FIXED = frozenset(
    {
        *(*get_args(Label), *get_args(Modality), *get_args(ChatLimit)),
        *("pass", "warn", "fail", "skip", "local", "hub", "bundled", "real", "blank"),
        *("chosen", "beaten", "open"),
    }
)
# Shorter names are replaced only where they are the whole text.
_SHORT = 4


def redacted(calibration: CalibrationDocument) -> tuple[CalibrationDocument, dict[str, str]]:
    """Return the calibration with file names replaced (`item-1.jpg`), and the alias of each path.
    Other foreign words are withheld. Raises UsageError for too many names.
    """
    names = _aliases(calibration)
    if len(names) > _MOST_NAMES:
        raise UsageError(
            f"the calibration names {len(names):,} files, too many to redact afterwards",
            hint="mmcalib run --redact-paths",
        )
    if calibration.yours is not None:
        # The user's file may name anything.
        yours = calibration.yours.model_copy(update={"file": "", "diff": ""})
        calibration = calibration.model_copy(update={"yours": yours})
    spoken, folders = _spoken(names), _folders(names)

    def hide(text: str) -> str:
        if text in _FIXED:
            return text
        if text in names:
            return names[text]
        for one, alias in spoken.items():
            if one in text:
                text = text.replace(one, alias)
        return WITHHELD if any(folder in text for folder in folders) else text

    # Costs are large, and reports show none of their names.
    clean = map_strings(calibration.model_dump(exclude={"costs"}), hide)
    return CalibrationDocument.model_validate({**clean, "costs": calibration.costs}), names


def _aliases(calibration: CalibrationDocument) -> dict[str, str]:
    """Map every name in a field of the calibration to its alias."""
    given = [m.exemplar for m in calibration.corpus.modalities.values()]
    given += [entry.exemplar for entry in calibration.evidence]
    parts = calibration.costs.modalities.values()
    given += [known.exemplar for part in parts for known in part.known]
    for chat in calibration.conversations.values():
        given += (chat.request, chat.typical.exemplar, chat.largest.exemplar)
    foreign = [name for check in calibration.checks for name in check.names]
    names: dict[str, str] = {}
    files: dict[str, str] = {}
    for name in dict.fromkeys(filter(None, given)):
        file, _, line = name.rpartition(":")
        if not (file and line.isdecimal()):
            file, line = name, ""
        ending = extension_of(file)
        shown = f".{ending}" if ending in _ENDINGS else ""
        kind = "requests" if line else "item"
        names[file] = files.setdefault(file, f"{kind}-{len(files) + 1}{shown}")
        names[name] = f"{names[file]}:{line}" if line else names[file]
    names |= {name: WITHHELD for name in foreign if name and name not in names}
    model = calibration.model
    models = (model.id, calibration.engine_config.get("model")) if model.source == "local" else ()

    def add_path(name: str) -> str:
        if name in models or name.startswith(("/", "~", ".")) or "\\" in name:
            names[name] = os.path.basename(name.rstrip("/\\").replace("\\", "/"))
        return name

    map_strings([model.id, calibration.engine_config], add_path)
    return names


def _spoken(names: dict[str, str]) -> dict[str, str]:
    """Map every form of a name in sentences to its alias, longest first."""
    spoken: dict[str, str] = {}
    for name in sorted(names, key=len, reverse=True):
        ways = {name, one_line(name), printable(name), repr(name)[1:-1], os.path.basename(name)}
        for one in sorted(ways, key=len, reverse=True):
            if len(one) >= _SHORT:
                spoken.setdefault(one, names[name])
    return spoken


def _folders(names: dict[str, str]) -> set[str]:
    """Return the folders of the files, plain and as in URLs."""
    files = [Location.of(name).archive or name for name in names]
    found = {os.path.dirname(file) for file in files}
    return {
        f"{way}/"
        for folder in found
        for way in (folder, quote(folder, errors="replace"))
        if len(way) >= _SHORT
    }
