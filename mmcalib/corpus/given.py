"""Requests given by sizes: lines of a saved corpus, and distributions that draw such lines.

`{"sizes": ["size:640x480#1"], "text_bytes": 12, "answer_tokens": 9, "count": 2}` is two requests,
`{"loose": ["size:640x480"], "count": 40}` forty items that no request names.
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from mmcalib.corpus.chat import PART_OF, ChatRequest, text_part, url_part
from mmcalib.domain.items import RequestText
from mmcalib.domain.shapes import MODALITIES, parse_size, with_tag
from mmcalib.errors import CorpusError, UsageError, first_error
from mmcalib.text import MIB, one_line

T = TypeVar("T")
_MOST: Final = 1 << 24  # Words of a longer text would fill the memory.
Share = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Some = Field(min_length=1)
Number = Annotated[int, Field(ge=0, le=_MOST)]
Count = Annotated[int, Field(ge=1, le=10_000_000)]

PROFILE: Final = "profile:"
_FOLDER: Final = Path(str(files("mmcalib.corpus"))) / "profiles"
_WORD: Final = " word"  # For most tokenizers a token.
# Control characters instead of hexadecimal digits: each is a byte, and for most tokenizers a token.
_SIGNS: Final = dict(zip(map(ord, "0123456789abcdef"), (*range(1, 9), *range(14, 22)), strict=True))


@dataclass(frozen=True)
class Given(RequestText):
    """The sizes of a request or of loose items, and the length of its text."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    sizes: list[str] = field(default_factory=list)
    loose: list[str] = field(default_factory=list)
    count: Count = 1
    timestamp: float | str | None = None


_LINE = TypeAdapter(Given)
_PLAIN: Final = asdict(RequestText())


@lru_cache(maxsize=1)  # Each request of a line asks again.
def read_given(text: bytes) -> Given | None:
    """Read a line of sizes; None for another line. Raises ValueError for a wrong one."""
    try:
        may_be = len(text) < MIB and (b'"sizes"' in text or b'"loose"' in text)
        line = json.loads(text.decode()) if may_be else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(line, dict) or not line.keys() & {"sizes", "loose"} or "messages" in line:
        return None
    try:
        return _LINE.validate_python(line)
    except ValidationError as error:
        raise ValueError(f"not a line of sizes: {first_error(error)}") from error


def format_text(asked: RequestText) -> dict[str, Any]:
    """Return the fields of a line that give the text of a request."""
    return {n: v for n, v in asdict(replace(asked, given=False)).items() if v != _PLAIN[n]}


def make_request(given: Given, origin: str) -> ChatRequest:
    """Return the request at `origin`, whose own words are as long as given. Raises ValueError."""
    fields = {name: getattr(given, name) for name in _PLAIN} | {"given": True}
    if any(not 0 <= number <= _MOST for number in fields.values() if number is not None):
        raise ValueError(f"not a line of sizes: a number is not from 0 to {_MOST:,}")
    media = [(parse_size(one).modality, one) for one in given.loose or given.sizes]
    parts = [url_part(PART_OF[modality], one) for modality, one in media]
    name = f"{zlib.crc32(origin.encode()):08x}".translate(_SIGNS)
    words = (name * (given.text_tokens // len(name) + 1))[: given.text_tokens]
    words += (name + _WORD * (given.text_bytes // len(_WORD)))[: given.text_bytes]
    parts += [text_part(words)] if words else []
    body = {"max_tokens": given.answer_tokens, "min_tokens": given.least_answer_tokens or None}
    request = ChatRequest.of_body({**body, "messages": ChatRequest.of_user(parts).messages})
    return replace(request, row=True, given=RequestText(**fields), loose=bool(given.loose))


@dataclass(frozen=True)
class Distribution:
    """What users send, each value with its share of all; shares are relative to their sum.

    `items` has requests as `2 images, 1 video` or `none`, `sizes` those of each modality, `repeats`
    the share of items that an earlier request sent. Equal seeds draw equal requests.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    items: Annotated[dict[str, Share], _Some]
    sizes: dict[str, Share] = field(default_factory=dict)
    text_tokens: Annotated[dict[Number, Share], _Some] = field(default_factory=lambda: {0: 1.0})
    answer_tokens: dict[Number, Share] = field(default_factory=dict)
    repeats: Annotated[float, Field(ge=0, lt=1)] = 0.0
    requests: Count = 10_000
    seed: int = 0
    about: str = ""
    source: str = ""

    def lines(self) -> Iterator[bytes]:
        """Yield each request as a line. Raises ValueError for a wrong size or item."""
        drawn = random.Random(self.seed)  # noqa: S311 - reproducible, not secret
        kinds = {kind: _read_items(kind) for kind in self.items}
        every = _draw(self.items, self.requests, drawn)
        sizes: dict[str, Iterator[str]] = {}
        for modality in MODALITIES:
            shares = {s: n for s, n in self.sizes.items() if parse_size(s).modality == modality}
            if bool(shares) != any(kind.get(modality) for kind in kinds.values()):
                raise ValueError(f"{modality}: items and sizes must both name it, or neither")
            many = sum(kinds[kind].get(modality, 0) for kind in every)
            sizes[modality] = self._repeat(_draw(shares, many, drawn), drawn)
        texts = _draw(self.text_tokens, self.requests, drawn)
        answers = iter(_draw(self.answer_tokens, self.requests, drawn))
        for kind, text in zip(every, texts, strict=True):
            own = [next(sizes[m]) for m, count in kinds[kind].items() for _ in range(count)]
            line = {"sizes": own, "text_tokens": text, "answer_tokens": next(answers, None)}
            yield json.dumps(line).encode()

    def _repeat(self, sizes: list[str], drawn: random.Random) -> Iterator[str]:
        sizes = [with_tag(size, str(n)) for n, size in enumerate(sizes)] if self.repeats else sizes
        for place in range(1, len(sizes) if self.repeats else 0):
            if drawn.random() < self.repeats:
                sizes[place] = sizes[drawn.randrange(place)]
        return iter(sizes)


def _draw(shares: Mapping[T, float], count: int, drawn: random.Random) -> list[T]:
    """Return `count` values, each as often as its share says, in random order."""
    total, so_far, values = sum(shares.values()), 0.0, list[T]()
    for value, share in shares.items():
        so_far += share
        values += [value] * (round(count * so_far / total) - len(values))
    drawn.shuffle(values)
    return values


def _read_items(kind: str) -> dict[str, int]:
    """Parse `2 images, 1 video`. Raises ValueError."""
    pairs = [one.partition(" ")[::2] for one in kind.split(", ")] if kind != "none" else []
    counts = {noun.removesuffix("s"): int(n) for n, noun in pairs if n.isdecimal()}
    if len(counts) < len(pairs) or counts.keys() - MODALITIES:
        raise ValueError(f"items: {kind!r} is not like 2 images, 1 video, or none")
    return counts


def profile_names() -> list[str]:
    """Return the names of the profiles of real traffic that mmcalib brings."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def read_distribution(path: Path) -> Distribution | None:
    """Read a YAML or a profile; None for another file. Raises CorpusError and UsageError."""
    name = str(path)
    if not name.startswith(PROFILE) and path.suffix not in (".yaml", ".yml"):
        return None
    import yaml

    if name.startswith(PROFILE):
        if name.removeprefix(PROFILE) not in profile_names():
            raise UsageError(f"there is no {one_line(name)}", hint="mmcalib list profiles")
        path = _FOLDER / f"{name.removeprefix(PROFILE)}.yaml"
    try:
        found = TypeAdapter(Distribution).validate_python(yaml.safe_load(path.read_text("utf-8")))
        next(replace(found, requests=1).lines())
    except (OSError, ValueError, yaml.YAMLError) as error:
        why = first_error(error) if isinstance(error, ValidationError) else error
        hint = "mmcalib list profiles --json shows some"
        raise CorpusError(one_line(f"{name}: {why}"), hint=hint) from error
    return found
