"""`engine.yaml` and the arguments of `vllm serve` for an engine config."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from mmcalib import text as wording
from mmcalib.results.calibration import CalibrationDocument, Evidence, group_evidence
from mmcalib.storage.tables import row_of
from mmcalib.text import serve_option


def serve_arguments(config: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield the model, then each option with its values, for `vllm serve`; skips None."""
    if config.get("model") is not None:
        yield [str(config["model"])]
    for name, value in config.items():
        if name != "model" and value is not None:
            yield serve_option(name, value)


def serve_words(config: Mapping[str, Any]) -> list[str]:
    """Return the arguments of `vllm serve` as one list."""
    return [word for option in serve_arguments(config) for word in option]


_WIDTH = 100


def engine_yaml(calibration: CalibrationDocument, serve_with: str) -> str:
    """Return the file's text: dashes in top keys, null left out, false written as `no-x: true`."""
    tool, corpus = calibration.tool, calibration.corpus
    head = (
        f"vLLM configuration for {calibration.model.id}, made by mmcalib {tool['mmcalib']}",
        f"for a corpus of {corpus.items:,} items, with vLLM {tool['vllm']} and transformers "
        f"{tool['transformers']}, {calibration.created_at}.",
        f"Serve with: {serve_with}",
        "Each setting below: why, (what set it), [how that is known].",
    )
    lines = [*(f"# {wording.printable(line)}" for line in head), ""]
    for key, value in calibration.engine_config.items():
        if value is not None:
            lines += _reasons(key, calibration.evidence)
            lines.append(yaml_entry(key, value))
    return "\n".join(lines)


class _OneLine(yaml.SafeDumper):
    """Writes a list on one line: there are about fifty CUDA graph sizes."""


_OneLine.add_representer(
    list, lambda dumper, items: dumper.represent_sequence("tag:yaml.org,2002:seq", items, True)
)


def yaml_key(key: str, value: Any) -> tuple[str, Any]:
    """Return a setting as `vllm serve --config` reads it."""
    name = key.replace("_", "-")
    return (f"no-{name}", True) if value is False else (name, value)


def yaml_entry(key: str, value: Any) -> str:
    """Return one setting as a line of the file, without its reason."""
    name, value = yaml_key(key, value)
    return visible_yaml(_OneLine, {name: value}, width=_WIDTH)


def visible_yaml(dumper: type[yaml.SafeDumper], document: Mapping[str, Any], *, width: int) -> str:
    """Return readable YAML; escape non-ASCII text if it has invisible or bidi characters."""
    for readable in (True, False):
        text = yaml.dump(
            document, Dumper=dumper, sort_keys=False, width=width, allow_unicode=readable
        )
        if all(line.isprintable() for line in text.split("\n")):
            break
    return text


def _reasons(key: str, evidence: Sequence[Evidence]) -> Iterator[str]:
    mine = [e for e in evidence if e.setting == key or e.setting.startswith(f"{key}.")]
    for settings, _, entry in group_evidence(mine):
        names = ", ".join(setting.removeprefix(f"{key}.") for setting in settings)
        # A name without folders: the file is passed on.
        by = f" ({os.path.basename(row_of(entry.exemplar))})" if entry.exemplar else ""
        # `plain` keeps line breaks of file names from ending the comment.
        yield from textwrap.wrap(
            wording.printable(f"{names}: {entry.reason}{by} [{entry.label}]"),
            _WIDTH,
            initial_indent="# ",
            subsequent_indent="#   ",
            break_long_words=False,
            break_on_hyphens=False,
        )
