"""A file for `vllm serve --config` that somebody else may have written, before anybody reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import yaml

from mmcalib.documents import read_document
from mmcalib.engine.messages import ServeConfig
from mmcalib.errors import UsageError
from mmcalib.wording import flag

# vLLM's parser wants a model; what it is called does not matter to it.
UNNAMED: Final = "unnamed"
# A configuration with every option of `vllm serve` has some 300 lines.
_MOST_BYTES: Final = 1 << 18
# Values, each alias counted as what it stands for: vLLM writes them all out.
_MOST_VALUES: Final = 100_000
_MOST_DEPTH: Final = 50


def read_config_text(path: Path) -> str:
    """The file's text. Raises UsageError where it is no text, or is not to be read to its end."""
    if not path.is_file():
        raise UsageError(
            f"--config {path}: no such file", hint="--config names what vllm serve reads"
        )
    try:
        text = read_document(path, _MOST_BYTES).decode()
        # Without tags, so that nothing is made of anything yet.
        _size(yaml.compose(text, yaml.SafeLoader), 0, {})
    except yaml.YAMLError:
        # Whoever parses it says what is wrong with it.
        return text
    except OSError as error:
        raise UsageError(f"--config {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"--config {path}: it is not UTF-8 text") from error
    except (RecursionError, _TooMuchError) as error:
        why = "it is nested too deeply, or its aliases stand for too much"
        raise UsageError(f"--config {path}: {why}", hint="write out what the aliases mean") from (
            error
        )
    return text


def trusted(parsed: ServeConfig, path: Path | None) -> ServeConfig:
    """The same. Raises UsageError where the file names what vLLM would import, run, write or
    connect to: flags of one's own may.
    """
    if parsed.reaching:
        raise UsageError(
            f"--config {path} names what vLLM would import, run, write or connect to: "
            f"{', '.join(parsed.reaching)}",
            hint="remove it, or say it yourself, as a flag of vllm serve: mmcalib ... -- "
            + " ".join(map(flag, parsed.reaching[:1])),
        )
    return parsed


class _TooMuchError(Exception):
    """It would not be a configuration."""


def _size(node: yaml.Node | None, depth: int, known: dict[int, int]) -> int:
    """How many values there are when no alias is left; 0 marks what is being counted."""
    if node is None:
        return 0
    if id(node) in known:
        if not known[id(node)]:
            raise _TooMuchError
        return known[id(node)]
    if depth > _MOST_DEPTH:
        raise _TooMuchError
    known[id(node)] = 0
    parts: list[yaml.Node] = []
    if isinstance(node, yaml.SequenceNode):
        parts = node.value
    elif isinstance(node, yaml.MappingNode):
        parts = [part for pair in node.value for part in pair]
    size = 1 + sum(_size(part, depth + 1, known) for part in parts)
    if size > _MOST_VALUES:
        raise _TooMuchError
    known[id(node)] = size
    return size
