"""What follows `vllm serve` on a command line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from mmcalib.wording import flag


def serve_arguments(config: Mapping[str, Any]) -> Iterator[list[str]]:
    """The words that follow `vllm serve`, an option and its values at a time, the model first.

    Mappings are JSON, a false is `--no-x`, and what is None is left to vLLM.
    """
    if config.get("model") is not None:
        yield [str(config["model"])]
    for name, value in config.items():
        if name != "model" and value is not None:
            yield serve_option(name, value)


def serve_words(config: Mapping[str, Any]) -> list[str]:
    """The same, word for word."""
    return [word for option in serve_arguments(config) for word in option]


def serve_option(name: str, value: Any) -> list[str]:
    """One option and its values."""
    option = flag(name)
    match value:
        case True:
            return [option]
        case False:
            return [f"--no-{option[2:]}"]
        case list() | tuple():
            return [option, *map(plain, value)]
    said = plain(value)
    # Behind a space, a parser would take it for an option of its own.
    return [f"{option}={said}"] if said.startswith("-") else [option, said]


def plain(value: Any) -> str:
    """A string as it is, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value)
