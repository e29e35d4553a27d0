"""Whether a configuration can be said at all: a calibration may come from somebody else."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from mmcalib.engine.reaching import reaching
from mmcalib.errors import OutputError
from mmcalib.wording import plain

_NAME = re.compile(r"[a-z][a-z0-9_]*")


def check_sayable(config: Mapping[str, Any], *, in_yaml: bool) -> None:
    """Raise OutputError for settings that mmcalib never writes, and for words that vLLM's parser
    would take for options. Behind `--option=` it takes none for one, but there is no such thing
    `in_yaml`.
    """
    odd = [name for name in config if not _NAME.fullmatch(name) or name == "config"]
    far = [*odd, *reaching(config, {}, tuple(config))]
    if far:
        raise OutputError(
            f"not emitted: no calibration sets {', '.join(map(plain, far))}",
            hint="whoever gave you calibration.json wrote that; do not serve with it",
        )
    for name, word in _words(config, in_yaml):
        if word.startswith("-"):
            raise OutputError(
                f"not emitted: vLLM would take {name} {plain(word)} for an option",
                hint="a folder of that name is ./-NAME",
            )


def _words(config: Mapping[str, Any], in_yaml: bool) -> Iterator[tuple[str, str]]:
    """The strings that stand by themselves on vLLM's command line."""
    for name, value in config.items():
        if isinstance(value, list | tuple):
            yield from ((name, one) for one in value if isinstance(one, str))
        elif isinstance(value, str) and (in_yaml or name == "model"):
            yield name, value


def check_visible(line: str, form: str) -> None:
    """Raise OutputError where a form would hide a character, because it has no escape for it."""
    hidden = next((c for c in line if not c.isprintable() and c != "\n"), None)
    if hidden is not None:
        raise OutputError(
            f"--emit {form} has no escape for the character {plain(hidden)} of a value",
            hint="--emit yaml",
        )
