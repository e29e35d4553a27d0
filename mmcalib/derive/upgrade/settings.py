"""What the command lines of two releases make of a configuration, and of none."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from mmcalib.domain.release_figure import FigureValue, ReleaseFigure
from mmcalib.domain.release_view import ReleaseView, ServeArguments

HEEDED: Final = "changes the items"
UNHEEDED: Final = "no effect on them"

# Parts of the command itself, which are no settings of the engine.
_NO_SETTINGS = frozenset({"subparser", "dispatch_function", "model", "model_tag", "config"})


def settings(before: ReleaseView, after: ReleaseView) -> Iterator[ReleaseFigure]:
    """The configuration's options, what those of the processor do, and every default that moved."""
    for name in dict.fromkeys((*before.heeded, *after.heeded)):
        first, second = (_effect(one.heeded.get(name)) for one in (before, after))
        yield ReleaseFigure("effect", name, "", first, second, "measured")
    if before.serve is None or after.serve is None:
        return
    yield from _configured(before.serve, after.serve)
    yield from _defaults(before.serve, after.serve)
    yield from _options(before.serve, after.serve)


def _effect(heeded: bool | None) -> str | None:
    return None if heeded is None else HEEDED if heeded else UNHEEDED


def _configured(before: ServeArguments, after: ServeArguments) -> Iterator[ReleaseFigure]:
    """What the configuration sets, in either release, and what is refused of it."""
    for name in dict.fromkeys((*before.refused, *after.refused)):
        yield ReleaseFigure(
            "setting", name, "", _taken(before, name), _taken(after, name), "measured"
        )
    for name in dict.fromkeys((*_set(before), *_set(after))):
        first, second = (_written(one.values, name) for one in (before, after))
        yield ReleaseFigure("setting", name, "", first, second, "measured")


def _taken(serve: ServeArguments, option: str) -> str:
    if option in serve.refused:
        return f"refused: {serve.refused[option]}"
    argument = serve.arguments.get(option.replace("_", "-").partition(".")[0], "")
    return f"taken, as {argument}" if argument else "taken"


def _set(serve: ServeArguments) -> list[str]:
    return [
        name
        for name, value in serve.values.items()
        if name not in _NO_SETTINGS and serve.defaults.get(name) != value
    ]


def _defaults(before: ServeArguments, after: ServeArguments) -> Iterator[ReleaseFigure]:
    """Of what both have: the defaults that differ."""
    for name in before.defaults:
        if name in _NO_SETTINGS or name not in after.defaults:
            continue
        first, second = _written(before.defaults, name), _written(after.defaults, name)
        if first != second:
            yield ReleaseFigure("default", name, "", first, second, "measured")


def _options(before: ServeArguments, after: ServeArguments) -> Iterator[ReleaseFigure]:
    """Options that one of both lacks, with what they set by default. A new word for what could be
    set before is left out; one that is gone ends a start.
    """
    for name in sorted(before.arguments.keys() ^ after.arguments.keys()):
        new = name not in before.arguments
        if new and after.arguments[name] in before.arguments.values():
            continue
        if name.removeprefix("no-") != name and _twin(name, before, after):
            continue
        first, second = (_known(one, name) for one in (before, after))
        yield ReleaseFigure("option", name, "", first, second, "measured")


def _known(serve: ServeArguments, option: str) -> FigureValue:
    if option not in serve.arguments:
        return None
    return _written(serve.defaults, serve.arguments[option])


def _written(values: Mapping[str, Any], name: str) -> str | None:
    """As JSON; None where there is no such argument."""
    return json.dumps(values[name], sort_keys=True) if name in values else None


def _twin(option: str, *both: ServeArguments) -> bool:
    """Whether it is the other word of a switch that is told anyhow."""
    return any(option.removeprefix("no-") in serve.arguments for serve in both)
