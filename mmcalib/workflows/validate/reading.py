"""The file as its author wrote it, and as vLLM's own parser reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from mmcalib.checks.catalogue.file import ROUND_TRIP, Written, file_findings
from mmcalib.checks.check import Check
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import ListServeOptions, ParseServeConfig, ServeConfig
from mmcalib.errors import UsageError, VllmRefused
from mmcalib.wording import one_line
from mmcalib.workflows.config_file import UNNAMED, read_config_text, trusted
from mmcalib.workflows.refused import refusal
from mmcalib.workflows.serve_flags import model_beside, refused_flags
from mmcalib.workflows.validate.spec import ValidateSession


@dataclass(frozen=True, slots=True)
class ReadableConfig:
    """Engine arguments as far as vLLM could read them; the model's name is apart, empty where
    nobody names one. `served` are all arguments of `vllm serve`.
    """

    engine_args: dict[str, Any]
    model: str
    checks: tuple[Check, ...]
    served: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class UnreadableConfig:
    """What vLLM cannot read, and the model that was named beside it."""

    model: str
    checks: tuple[Check, ...]


def read_file(session: ValidateSession) -> ReadableConfig | UnreadableConfig:
    """The configuration of the job. Raises UsageError where nobody names a model."""
    job = session.job
    with session.progress.step("reading the configuration"):
        found = read_config(session.host, job.config, job.flags, job.model, session.scratch)
    if isinstance(found, UnreadableConfig) or found.model:
        return found
    if not job.model:
        raise UsageError("no model is named", hint="--model MODEL, or `model:` in the file")
    return replace(found, model=job.model)


def read_config(
    host: EngineHost, path: Path, flags: Sequence[str], model: str | None, scratch: Path
) -> ReadableConfig | UnreadableConfig:
    """Parse the file as `vllm serve --config` does. Where vLLM refuses it, what can be read without
    the keys at fault is judged on.

    Raises UsageError where there is no such file, where it names what only flags may, and where
    vLLM refuses the flags.
    """
    model, flags = model_beside(model, flags)
    text = read_config_text(path)
    settings, twice, broken = _settings(text)
    if broken:
        return UnreadableConfig(
            model or "",
            (Check(ROUND_TRIP, "fail", broken, "write one `option: value` on each line"),),
        )
    options = host.ask(ListServeOptions(), "listing the options of vllm serve")
    written = Written(settings, twice, tuple(flags), options.arguments)
    named = () if model is None and "model" in settings else (model or UNNAMED,)
    words = (*named, *flags)
    parsed, refused = _parsed(host, path, words)
    bad: dict[str, str] = {}
    if parsed is None and (said := refused_flags(refused, flags, options.arguments)):
        raise said
    if parsed is None:
        parsed, bad = _usable(host, written, refused, words, scratch)
    values = None if parsed is None else parsed.values
    checks = tuple(file_findings(written, refused, values, bad))
    if parsed is None:
        return UnreadableConfig(model or "", checks)
    args = {name: value for name, value in parsed.engine_args.items() if name != "model"}
    name = str(parsed.engine_args.get("model") or "")
    return ReadableConfig(args, "" if name == UNNAMED else name, checks, parsed.values)


def _usable(
    host: EngineHost, written: Written, refused: str, words: Sequence[str], scratch: Path
) -> tuple[ServeConfig | None, dict[str, str]]:
    """What vLLM reads without the keys at fault, None where that does not help; and why it refuses
    each of those that have a value.
    """
    rest = {k: v for k, v in written.settings.items() if k not in written.unusable()}
    usable, bad = scratch / "usable.yaml", dict[str, str]()
    while True:
        key = written.at_fault(refused)
        if key in rest:
            bad[key] = refused
            del rest[key]
        usable.write_text(yaml.safe_dump(rest, sort_keys=False), encoding="utf-8")
        parsed, refused = _parsed(host, usable, words)
        if parsed is not None or written.at_fault(refused) not in rest:
            return parsed, bad


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


def _parsed(host: EngineHost, path: Path, flags: Sequence[str]) -> tuple[ServeConfig | None, str]:
    """What vLLM's parser makes of the file, or the words in which it refuses it."""
    request = ParseServeConfig(str(path), tuple(flags))
    try:
        parsed = host.ask(request, "reading the configuration")
    except VllmRefused as error:
        return None, refusal(error)
    return trusted(parsed, path), ""
