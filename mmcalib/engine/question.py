"""What an answer of vLLM depends on, as one digest."""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from mmcalib.engine.messages import Message, encode
from mmcalib.locations.disk import version_of

# What decides an answer: their files, edited in place or not. Of all else the version tells.
_PACKAGES = ("mmcalib", "vllm", "transformers")
_VARIABLES = ("VLLM_", "HF_", "TRANSFORMERS_", "TORCH", "CUDA_", "OMP_", "MMCALIB_CARD")
# Longer files are weights, which no answer depends on, and go by size and time.
_READ_BYTES = 1 << 25
# As a message writes a path.
_TEXT = TypeAdapter(str)


def digest(request: Message, before: str) -> str:
    """Of the request to a child that was brought into its state by what has the digest `before`.
    Files and checkpoints that it names count by what they hold.
    """
    asked = encode(request)
    for path in sorted(_paths(request), key=len, reverse=True):
        asked = asked.replace(_TEXT.dump_json(path)[1:-1], _content(Path(path)).encode())
    return _of([_made_by(), before, asked.hex()])


def _paths(request: Message) -> set[str]:
    named = [getattr(request, "path", None), getattr(request, "engine_args", None)]
    return {text for text in _texts(named) if os.path.isabs(text) and _is_read(Path(text))}


def _is_read(path: Path) -> bool:
    """A folder may also be one of media, which is nothing to be read through."""
    return path.is_file() or (path / "config.json").is_file()


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for one in value.values():
                yield from _texts(one)
        case list() | tuple():
            for one in value:
                yield from _texts(one)


def _content(path: Path) -> str:
    """Of a file, or of all files of a checkpoint."""
    if path.is_file():
        return _file(path)
    inside = sorted(one for one in path.rglob("*") if one.is_file())
    return _of(f"{one.relative_to(path)} {_file(one)}" for one in inside)


def _file(path: Path) -> str:
    status = path.stat()
    if status.st_size > _READ_BYTES:
        return version_of(status)
    return _read(path, version_of(status))


@lru_cache(maxsize=1024)
def _read(path: Path, _version: str) -> str:
    return blake2b(path.read_bytes(), digest_size=16).hexdigest()


@cache
def _made_by() -> str:
    """The code, the machine and the environment in which a child of this process answers."""
    return _of([*_installed(), *_machine(), *_variables()])


def _installed() -> Iterator[str]:
    yield sys.version
    for folder in filter(os.path.isdir, sys.path):
        yield from sorted(n for n in os.listdir(folder) if n.endswith((".dist-info", ".egg-link")))
    for name in _PACKAGES:
        found = importlib.util.find_spec(name)
        for folder in (found and found.submodule_search_locations) or ():
            for path in sorted(Path(folder).rglob("*.py")):
                yield f"{path} {version_of(path.stat())}"


def _machine() -> Iterator[str]:
    yield platform.platform()
    yield f"{len(os.sched_getaffinity(0))} {os.sysconf('SC_PHYS_PAGES')}"
    yield from sorted(n for n in os.listdir("/dev") if n.startswith("nvidia"))


def _variables() -> Iterator[str]:
    for name, value in sorted(os.environ.items()):
        if name.startswith(_VARIABLES):
            yield f"{name}={value}"


def _of(parts: Iterable[str]) -> str:
    return blake2b("\0".join(parts).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
