"""Read a configuration as it is written and as vLLM parses it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from mmcalib.checks.catalogue import CONFIG_PARSING
from mmcalib.checks.check import Check
from mmcalib.checks.file import WrittenFile, check_file
from mmcalib.engine.config_forms import (
    PLACEHOLDER_MODEL,
    WrittenConfiguration,
    read_configuration,
    reject_unsafe_settings,
)
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import ListServeOptions, ServeConfig
from mmcalib.engine.vllm_config import refusal_text, rejected_flags_error
from mmcalib.errors import UsageError, VllmRefused
from mmcalib.models.gpus import Gpu
from mmcalib.options.run import STARTUP_BUDGET_S, Depth
from mmcalib.progress import Progress
from mmcalib.text import one_line


@dataclass(frozen=True, slots=True)
class ValidateJob:
    """A configuration in a file, flags or both, the media to serve, and the depth of the checks."""

    config: Path | None
    flags: tuple[str, ...] = ()
    model: str | None = None
    data: Sequence[Path] = ()
    requests: Sequence[Path] = ()
    allowed_root: Path | None = None
    gpu: Gpu | None = None
    depth: Depth = "replay"
    startup_budget_s: float = STARTUP_BUDGET_S


@dataclass(frozen=True, slots=True)
class ValidateSession:
    """The job, engine process, scratch folder and progress that all stages of a validation use."""

    job: ValidateJob
    host: EngineHost
    scratch: Path
    progress: Progress


@dataclass(frozen=True, slots=True)
class ParsedConfig:
    """Engine arguments as vLLM parses them, without the model; `serve_args` has all arguments of
    `vllm serve`, or is None if vLLM cannot parse the configuration.
    """

    model: str
    checks: tuple[Check, ...]
    engine_args: dict[str, Any] = field(default_factory=dict)
    serve_args: Mapping[str, Any] | None = None


def read_file(session: ValidateSession) -> ParsedConfig:
    """Read the job's configuration. Raises UsageError if it names no model."""
    job = session.job
    with session.progress.step("reading the configuration"):
        written = read_configuration(job.config, job.flags, job.model)
        config = read_config(session.host, written, session.scratch)
    if config.serve_args is None or config.model:
        return config
    raise UsageError("no model given", hint="--model MODEL, or `model:` in the file")


def read_config(
    host: EngineHost, configuration: WrittenConfiguration, scratch: Path
) -> ParsedConfig:
    """Parse as `vllm serve` does, else without keys at fault. Raises UsageError for bad flags."""
    model, settings, duplicates = configuration.model or "", dict[str, Any](), list[str]()
    if configuration.config is not None:
        settings, duplicates, broken = _settings(configuration.text)
        if broken:
            remedy = "write one `option: value` on each line"
            return ParsedConfig(model, (Check(CONFIG_PARSING, "fail", broken, remedy),))
    options = host.ask(ListServeOptions(), "listing the options of vllm serve")
    flags = (*configuration.file_flags, *configuration.flags)
    written = WrittenFile(settings, duplicates, flags, options.arguments)
    parsed, refused = _parse(host, configuration)
    bad: dict[str, str] = {}
    if parsed is None and (flags_error := rejected_flags_error(refused, flags, options.arguments)):
        raise flags_error
    if parsed is None:
        rest = {k: v for k, v in written.settings.items() if k not in written.unusable_keys()}
        usable, why = scratch / "usable.yaml", refused
        while parsed is None:
            key = written.key_at_fault(why)
            if key in rest:
                bad[key] = why
                del rest[key]
            usable.write_text(yaml.safe_dump(rest, sort_keys=False), encoding="utf-8")
            parsed, why = _parse(host, replace(configuration, config=usable))
            if written.key_at_fault(why) not in rest:
                break
    values = None if parsed is None else parsed.values
    checks = tuple(check_file(written, refused, values, bad))
    if parsed is None:
        return ParsedConfig(model, checks)
    args = {name: value for name, value in parsed.engine_args.items() if name != "model"}
    name = str(parsed.engine_args.get("model") or "")
    return ParsedConfig("" if name == PLACEHOLDER_MODEL else name, checks, args, parsed.values)


def _settings(text: str) -> tuple[dict[str, Any], list[str], str]:
    """Return top-level keys and values, duplicate keys, and the error if it is not usable YAML."""
    try:
        node, settings = yaml.compose(text), yaml.safe_load(text)
    except yaml.YAMLError as error:
        words = " ".join(str(error).split()).replace('in "<unicode string>", ', "in ")
        return {}, [], f"it is not YAML: {words}"
    except (ValueError, OverflowError) as error:
        # Impossible dates, and numbers out of range.
        return {}, [], f"a value cannot be read: {one_line(str(error))}"
    if settings is None:
        return {}, [], "the file is empty: vllm serve fails"
    if not isinstance(settings, dict) or not isinstance(node, yaml.MappingNode):
        return {}, [], "not a YAML mapping: vllm serve fails"
    bad_keys = [key for key in settings if not isinstance(key, str)]
    if bad_keys:
        return {}, [], f"the key {bad_keys[0]!r} is not a string: vllm serve fails"
    keys = Counter(key.value for key, _ in node.value)
    return settings, [key for key, times in keys.items() if times > 1], ""


def _parse(host: EngineHost, configuration: WrittenConfiguration) -> tuple[ServeConfig | None, str]:
    """Return vLLM's parsed configuration, or the words in which vLLM rejects it."""
    try:
        parsed = host.ask(configuration.parse_request, "reading the configuration")
    except VllmRefused as error:
        return None, "; try ".join(filter(None, (refusal_text(error), error.hint)))
    return reject_unsafe_settings(parsed, configuration.source), ""
