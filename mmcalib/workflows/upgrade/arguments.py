"""What the command line of another release makes of a configuration that was written for one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from mmcalib.checks.catalogue.file import Written
from mmcalib.domain.release_view import ServeArguments
from mmcalib.errors import UsageError, VllmRefused
from mmcalib.scratch import Scratch
from mmcalib.workflows.config_file import UNNAMED, read_config_text
from mmcalib.workflows.memory.rehearse import Rehearsals
from mmcalib.workflows.refused import refusal
from mmcalib.workflows.serve_flags import model_beside

_NO_OPTION = "no such option"


@dataclass(frozen=True, slots=True)
class WrittenConfiguration:
    """A file for `vllm serve --config` and flags, before any release reads them. `model` is the one
    that was named beside them.
    """

    config: Path | None
    flags: tuple[str, ...]
    model: str | None
    settings: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, config: Path | None, flags: Sequence[str], model: str | None
    ) -> WrittenConfiguration:
        """Raises UsageError where the file cannot be read, or is not a YAML mapping."""
        model, flags = model_beside(model, flags)
        if config is None:
            return cls(None, tuple(flags), model)
        try:
            settings = yaml.safe_load(read_config_text(config))
        except (yaml.YAMLError, ValueError, OverflowError) as error:
            raise UsageError(f"--config {config}: it is not YAML") from error
        if not isinstance(settings, dict):
            raise UsageError(f"--config {config}: not a YAML mapping")
        return cls(config, tuple(flags), model, {str(k): v for k, v in settings.items()})


def serve_arguments(
    rehearsals: Rehearsals, configuration: WrittenConfiguration
) -> tuple[ServeArguments, dict[str, Any]]:
    """What that release takes, and the engine arguments that it makes of it, the model's name among
    them. Options that it refuses are left out. Raises EngineError where it refuses the rest, too.
    """
    options = rehearsals.options()
    defaults = rehearsals.parsed(None, (UNNAMED,)).values
    written = Written(configuration.settings, (), configuration.flags, options)
    refused = {key: _NO_OPTION for key in configuration.settings if written.argument(key) is None}
    flags = tuple(_known(configuration.flags, written, refused))
    rest = {k: v for k, v in configuration.settings.items() if k not in refused}
    named = () if configuration.model is None and "model" in rest else (configuration.model,)
    words = (*(name or UNNAMED for name in named), *flags)
    with Scratch() as scratch:
        while True:
            file = configuration.config
            if file is not None and len(rest) < len(configuration.settings):
                file = scratch.path / file.name
                file.write_text(yaml.safe_dump(rest, sort_keys=False), encoding="utf-8")
            try:
                parsed = rehearsals.parsed(file, words)
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
