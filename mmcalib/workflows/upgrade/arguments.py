"""What the command line of another release makes of a configuration that was written for one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import yaml

from mmcalib.checks.catalogue.file import Written
from mmcalib.domain.release_view import ServeArguments
from mmcalib.errors import VllmRefused
from mmcalib.scratch import Scratch
from mmcalib.workflows.config_file import UNNAMED, WrittenConfiguration
from mmcalib.workflows.memory.rehearse import Rehearsals
from mmcalib.workflows.refused import refusal

_NO_OPTION = "no such option"


def serve_arguments(
    rehearsals: Rehearsals, configuration: WrittenConfiguration
) -> tuple[ServeArguments, dict[str, Any]]:
    """What that release takes, and the engine arguments that it makes of it, the model's name among
    them. Options that it refuses are left out. Raises EngineError where it refuses the rest, too.
    """
    options = rehearsals.options()
    defaults = rehearsals.parsed(WrittenConfiguration()).values
    flags = (*configuration.written, *configuration.flags)
    written = Written(configuration.settings, (), flags, options)
    refused = {key: _NO_OPTION for key in configuration.settings if written.argument(key) is None}
    configuration = replace(
        configuration,
        written=tuple(_known(configuration.written, written, refused)),
        flags=tuple(_known(configuration.flags, written, refused)),
    )
    rest = {k: v for k, v in configuration.settings.items() if k not in refused}
    with Scratch() as scratch:
        while True:
            file = configuration.config
            if file is not None and len(rest) < len(written.settings):
                file = scratch.path / file.name
                file.write_text(yaml.safe_dump(rest, sort_keys=False), encoding="utf-8")
            try:
                parsed = rehearsals.parsed(replace(configuration, config=file, settings=rest))
                break
            except VllmRefused as error:
                said = refusal(error)
                key = written.at_fault(said)
                if key is None or key not in rest:
                    raise
                refused[key] = said
                del rest[key]
    args = {**parsed.engine_args}
    if args.get("model") == UNNAMED:
        del args["model"]
    return ServeArguments(options, defaults, parsed.values, refused), args


def _known(flags: Sequence[str], written: Written, refused: dict[str, str]) -> Iterator[str]:
    """The flags that are options there, with their values; the others are noted."""
    kept = True
    for word in flags:
        if word.startswith("--"):
            name = word[2:].partition("=")[0]
            kept = written.argument(name) is not None
            if not kept:
                refused[name] = _NO_OPTION
        if kept:
            yield word
