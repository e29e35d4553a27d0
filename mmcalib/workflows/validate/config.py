"""The file as written and as vLLM reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from mmcalib.checks.catalogue import CONFIG_PARSING
from mmcalib.checks.check import Check
from mmcalib.checks.file import Written, file_findings
from mmcalib.engine.config_forms import UNNAMED, WrittenConfiguration, read_configuration, trusted
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import ListServeOptions, ServeConfig
from mmcalib.engine.vllm_config import refusal, refused_flags
from mmcalib.errors import UsageError, VllmRefused
from mmcalib.models.gpus import Gpu
from mmcalib.options.run import STARTUP_BUDGET_S, Depth
from mmcalib.progress import Progress
from mmcalib.text import one_line


@dataclass(frozen=True, slots=True)
class ValidateJob:
    """A configuration in a file, flags or both, what will be served, and how far to judge it."""

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
    """What every stage of a validation works with."""

    job: ValidateJob
    host: EngineHost
    scratch: Path
    progress: Progress


@dataclass(frozen=True, slots=True)
class ReadConfig:
    """Engine arguments as vLLM reads them, without the model; `served`, all arguments of `vllm
    serve`, is None where it cannot.
    """

    model: str
    checks: tuple[Check, ...]
    engine_args: dict[str, Any] = field(default_factory=dict)
    served: Mapping[str, Any] | None = None


def read_file(session: ValidateSession) -> ReadConfig:
    """The configuration of the job. Raises UsageError where nobody names a model."""
    job = session.job
    with session.progress.step("reading the configuration"):
        written = read_configuration(job.config, job.flags, job.model)
        found = read_config(session.host, written, session.scratch)
    if found.served is None or found.model:
        return found
    raise UsageError("no model is named", hint="--model MODEL, or `model:` in the file")


def read_config(host: EngineHost, configuration: WrittenConfiguration, scratch: Path) -> ReadConfig:
    """Parse it as `vllm serve` does; of a refused file what is left without the keys at fault.
    Raises UsageError for a file with what only flags may name, and for refused flags.
    """
    model, settings, twice = configuration.model or "", dict[str, Any](), list[str]()
    if configuration.config is not None:
        settings, twice, broken = _settings(configuration.text)
        if broken:
            remedy = "write one `option: value` on each line"
            return ReadConfig(model, (Check(CONFIG_PARSING, "fail", broken, remedy),))
    options = host.ask(ListServeOptions(), "listing the options of vllm serve")
    flags = (*configuration.written, *configuration.flags)
    written = Written(settings, twice, flags, options.arguments)
    parsed, refused = _parsed(host, configuration)
    bad: dict[str, str] = {}
    if parsed is None and (said := refused_flags(refused, flags, options.arguments)):
        raise said
    if parsed is None:
        # What vLLM reads without the keys at fault, if anything.
        rest = {k: v for k, v in written.settings.items() if k not in written.unusable()}
        usable, why = scratch / "usable.yaml", refused
        while parsed is None:
            key = written.at_fault(why)
            if key in rest:
                bad[key] = why
                del rest[key]
            usable.write_text(yaml.safe_dump(rest, sort_keys=False), encoding="utf-8")
            parsed, why = _parsed(host, replace(configuration, config=usable))
            if written.at_fault(why) not in rest:
                break
    values = None if parsed is None else parsed.values
    checks = tuple(file_findings(written, refused, values, bad))
    if parsed is None:
        return ReadConfig(model, checks)
    args = {name: value for name, value in parsed.engine_args.items() if name != "model"}
    name = str(parsed.engine_args.get("model") or "")
    return ReadConfig("" if name == UNNAMED else name, checks, args, parsed.values)


def _settings(text: str) -> tuple[dict[str, Any], list[str], str]:
    """(top-level keys and values, keys that are there twice, what is wrong with the YAML)."""
    try:
        node, settings = yaml.compose(text), yaml.safe_load(text)
    except yaml.YAMLError as error:
        words = " ".join(str(error).split()).replace('in "<unicode string>", ', "in ")
        return {}, [], f"it is not YAML: {words}"
    except (ValueError, OverflowError) as error:
        # Numbers and dates that cannot be meant.
        return {}, [], f"a value cannot be read: {one_line(str(error))}"
    if settings is None:
        return {}, [], "it is empty: vllm serve ends with an error"
    if not isinstance(settings, dict) or not isinstance(node, yaml.MappingNode):
        return {}, [], "not a YAML mapping: vllm serve ends with an error"
    odd = [key for key in settings if not isinstance(key, str)]
    if odd:
        return {}, [], f"the key {odd[0]!r} is no word: vllm serve ends with an error"
    named = Counter(key.value for key, _ in node.value)
    return settings, [key for key, times in named.items() if times > 1], ""


def _parsed(
    host: EngineHost, configuration: WrittenConfiguration
) -> tuple[ServeConfig | None, str]:
    """What vLLM's parser makes of it, or the words in which it refuses it."""
    try:
        parsed = host.ask(configuration.question, "reading the configuration")
    except VllmRefused as error:
        return None, refusal(error)
    return trusted(parsed, configuration.source), ""
