"""Open a configuration: find its model at once, then let vLLM's own parser read it."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from mmcalib.configs.read import WrittenConfiguration
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import ListServeOptions, ServeConfig
from mmcalib.engine.vllm_config import refusal_text, rejected_flags_error
from mmcalib.errors import ModelError, UsageError, VllmRefused
from mmcalib.models.resolve import ResolvedModel, cache_dir, resolve
from mmcalib.progress import Progress
from mmcalib.results.engine_yaml import serve_option
from mmcalib.text import one_line


@dataclass(frozen=True, slots=True)
class FoundConfiguration:
    """A configuration as written, its model, and what mmcalib says of it."""

    written: WrittenConfiguration
    resolved: ResolvedModel
    notes: tuple[str, ...]


def find_configuration(
    written: WrittenConfiguration,
    progress: Progress,
    log: tuple[str | None, str | None] | None = None,
) -> FoundConfiguration:
    """Say what mmcalib does not use, and find the model, before vLLM starts. A `log` has the model
    of a configuration without one, and its architecture. Raises UsageError and ModelError.
    """
    notes = tuple(written.notes(os.environ))
    for note in notes:
        progress.note(note)
    logged, architecture = log or (None, None)
    name = written.model_name or logged
    if not name:
        where = ", and the log names none" if log else ""
        raise UsageError(f"no model given{where}", hint="--model MODEL, or `model:` in --config")
    is_logged = name == logged
    try:
        with progress.step("finding the model"):
            its = architecture if is_logged else None
            resolved = resolve(name, cache_dir=cache_dir(), architecture=its)
    except ModelError as error:
        what = "cannot find the log's model: " if is_logged else ""
        raise ModelError(f"{what}{error.message}", hint=error.hint) from None
    return FoundConfiguration(written, resolved, notes)


def parse_configuration(host: EngineHost, written: WrittenConfiguration) -> ServeConfig:
    """Let vLLM read it, with the values of all arguments. Raises UsageError if vLLM rejects it."""
    try:
        parsed = host.ask(written.parse_request, "reading the configuration")
    except VllmRefused as error:
        why = refusal_text(error)
        known = host.ask(ListServeOptions(), "listing the options of vllm serve").arguments
        if flags_error := rejected_flags_error(why, written.every_flag, known):
            raise flags_error from error
        file = written.config and shlex.join(["mmcalib", "validate", str(written.config)])
        raise UsageError(
            f"vLLM rejects {written.config or 'these flags'}: {one_line(why)}",
            hint=file or error.hint or "vllm serve --help=all lists them",
        ) from error
    return reject_unsafe_settings(parsed, written.source)


def reject_unsafe_settings(parsed: ServeConfig, path: Path | None) -> ServeConfig:
    """Return it unchanged. Raises UsageError if the file could make vLLM run or write something."""
    if parsed.unsafe_settings:
        name = parsed.unsafe_settings[0].partition(".")[0]
        raise UsageError(
            f"--config {path} has settings that make vLLM import, run, write or connect: "
            f"{', '.join(parsed.unsafe_settings)}",
            hint="remove them, or pass them yourself as flags: mmcalib ... -- "
            + shlex.join(serve_option(name, parsed.values[name])),
        )
    return parsed
