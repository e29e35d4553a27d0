"""JSONL of requests and the files they name."""

from __future__ import annotations

import codecs
import itertools
import os
import re
import shlex
from array import array
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Required, TypedDict, Unpack

from mmcalib.corpus.chat import MODALITY_OF, ChatRequest, Prompt, Text, UrlType
from mmcalib.corpus.grammar import Grammar
from mmcalib.corpus.lines import LONGEST_LINE_BYTES, BadRequest, UnknownPart, parse_line
from mmcalib.corpus.urls import (
    SERVED_SCHEMES,
    Outside,
    Unresolved,
    inline_file,
    is_inline,
    local_path,
    remote_url,
)
from mmcalib.domain.items import Item, Skipped
from mmcalib.errors import CorpusError, UsageError
from mmcalib.storage.location import Location, is_allowed, url_of
from mmcalib.text import one_line

# Names of which it is remembered what they lead to, where nothing changes: some 500 bytes each.
_MOST_NAMES = 1 << 15


@dataclass(frozen=True, slots=True)
class _Medium:
    """What a part names: the item, the URL that a replay names it by, and whether it is there."""

    item: Item
    url: str
    there: bool


class Reading(TypedDict, total=False):
    """How `RequestLines` reads."""

    allowed_root: str | os.PathLike[str] | None
    scratch: Required[Path]
    at_rest: bool
    grammar: Grammar | None
    as_sent: bool


class RequestLines:
    """Reads requests whose relative paths start at `folder`, a resolved path.

    Media must lie below `allowed_root` (default: that folder), links resolved. Inline media are
    written to `scratch` and are items like the others. Remote media are items by their URLs where
    their hosts are allowed, and otherwise refused. With `at_rest` files do not come or go
    meanwhile: one that is named often is looked for once. What vLLM's `grammar` refuses is no
    request; nor, `as_sent`, is one that names a path, which stands for a URL elsewhere.
    """

    def __init__(
        self,
        folder: str,
        *,
        allowed_root: str | os.PathLike[str] | None = None,
        scratch: Path,
        at_rest: bool = False,
        grammar: Grammar | None = None,
        as_sent: bool = False,
    ) -> None:
        self._folder, self._grammar, self._as_sent = folder, grammar, as_sent
        # What uuids stand for.
        self._held: dict[str, int] = {}
        # Requests that are well-formed, and that vLLM would refuse.
        self.refused = 0
        self._root = os.path.realpath(allowed_root) if allowed_root else folder
        self._scratch = scratch
        self._remember = lru_cache(_MOST_NAMES)(self._find) if at_rest else self._find

    def prompt(self, origin: str, line: bytes) -> Prompt | Skipped:
        """The request, or why it is none. Raises UsageError for a file outside the root."""
        try:
            request, _ = parse_line(line)
            try:
                doubt = self._grammar.doubt(request) if self._grammar else ""
                doubt = self._doubt_names(request) or doubt
                paths = request.row or not self._as_sent
                found = [self.find_medium(one, origin, paths=paths) for one in request.media()]
            except (BadRequest, Unresolved):
                self.refused += self._as_sent
                raise
        except (BadRequest, Unresolved) as error:
            if self._grammar and isinstance(error, UnknownPart):
                error = self._grammar.judge(error)
            return Skipped(origin, one_line(str(error)))
        for one in found:
            if not one.there:
                return Skipped(origin, one_line(f"names a missing file: {one.item.path}"))
        items = tuple(one.item for one in found)
        return Prompt(origin, items, request.replace_media(one.url for one in found), doubt)

    def _doubt_names(self, request: ChatRequest) -> str:
        """Media with a uuid are known once they came under it before, and no others did."""
        named = [(uuid, hash(medium)) for uuid, medium in request.named_media()]
        known = all(self._held.get(uuid) == one for uuid, one in named)
        if len(self._held) > _MOST_NAMES:
            self._held.clear()
        for uuid, one in named:
            self._held[uuid] = one if self._held.get(uuid, one) == one else 0
        return "" if known else "a uuid: vLLM serves what its cache holds under that name"

    def find_medium(
        self, medium: tuple[UrlType, str], origin: str, *, paths: bool = True
    ) -> _Medium:
        """The file that one part names. Raises `Unresolved`, UsageError and OutputError."""
        try:
            # What carries its bytes is no name to remember.
            return (self._find if is_inline(medium[1]) else self._remember)(*medium, paths)
        except Outside as error:
            raise UsageError(
                f"{origin}: {one_line(str(error))} is outside the allowed root {self._root}",
                hint="--allowed-local-media-path DIR",
            ) from error

    def _find(self, part_type: UrlType, url: str, paths: bool) -> _Medium:
        if is_inline(url):
            path = inline_file(part_type, url, self._scratch)
        elif (remote := remote_url(url, SERVED_SCHEMES)) and is_allowed(remote):
            path = remote
        else:
            path = local_path(url, self._folder, self._root, paths=paths)
        item = Item(path, MODALITY_OF[part_type])
        return _Medium(item, url_of(path), exists(item))


def exists(item: Item) -> bool:
    """Whether there is such a file; of a remote one only the probe can tell."""
    return not Location.of(item.path).is_file or os.path.exists(item.path)


_BLOCK_BYTES = 1 << 16
# A list of objects, behind what some editors put before it.
_LIST = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[\s*\{")
# What packed files begin with, and the command of that name that unpacks them.
_PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of the file, and where it stands there."""

    number: int
    offset: int
    text: bytes


def labels(paths: Sequence[Path]) -> list[str]:
    """How origins name these files: by name, and two of one name by their paths."""
    names = Counter(path.name for path in paths)
    return [path.name if names[path.name] == 1 else str(path) for path in paths]


class RequestsSource:
    """Each line of the file at `path` is one request; blank lines do not count.

    Relative paths start at the file's own folder. `label` names the file in the origins of its
    requests (default: its name). The file is read line by line, once per call. With `at_rest`
    neither it nor the media change meanwhile: then `items` behind `prompts` gives what was met
    there, and reads unusable lines only.
    """

    def __init__(
        self, path: str | Path, *, label: str | None = None, **reading: Unpack[Reading]
    ) -> None:
        self.path = Path(path)
        if self.path.is_dir():
            raise CorpusError(
                f"not a requests file but a folder: {one_line(str(path))}",
                hint="--data names a folder of media, --requests a JSONL file of chat requests",
            )
        if not self.path.is_file():
            raise CorpusError(
                f"no such requests file: {one_line(str(path))}",
                hint="--requests FILE names a JSONL file of chat requests",
            )
        _refuse_other_forms(self.path)
        folder = os.path.dirname(os.path.realpath(self.path))
        self._reader = RequestLines(folder, **reading)
        self._label = label or self.path.name
        self._at_rest = reading.get("at_rest", False)
        # What the lines named, in their order: the items of usable ones, and of each unusable one
        # three numbers: how many items come before it, the number of the line, and its offset.
        self._named: tuple[dict[Item, None], array[int]] | None = None

    def items(self) -> Iterator[Item | Skipped]:
        """Every file that a request names, once, even where the request is otherwise unusable."""
        seen: set[Item] = set()
        named = self._named
        for item in self._items_again(*named) if named else self._items_of(self._lines()):
            if item not in seen:
                seen.add(item)
                yield item if exists(item) else Skipped(item.path, "no such file")

    def _items_again(self, usable: Iterable[Item], unusable: Iterable[int]) -> Iterator[Item]:
        items, numbers, given = iter(usable), iter(unusable), 0
        with self.path.open("rb") as file:
            for before, number, offset in zip(numbers, numbers, numbers, strict=True):
                yield from itertools.islice(items, before - given)
                given = before
                file.seek(offset)
                text = _without_mark(number, file.readline(LONGEST_LINE_BYTES + 1))
                yield from self._items_of([_Line(number, offset, text)])
        yield from items

    def _items_of(self, lines: Iterable[_Line]) -> Iterator[Item]:
        for line in lines:
            try:
                request, _ = parse_line(line.text)
            except BadRequest:
                continue
            for medium in request.media():
                try:
                    yield self._reader.find_medium(medium, self._origin(line)).item
                except Unresolved:
                    continue

    def prompts(self) -> Iterator[Prompt | Skipped]:
        """Raise CorpusError, at the end, when no line was usable."""
        usable, first = 0, None
        items: dict[Item, None] = {}
        unusable = array("Q")
        for line in self._lines():
            prompt = self._reader.prompt(self._origin(line), line.text)
            if isinstance(prompt, Prompt):
                usable += 1
                if self._at_rest:
                    items.update(dict.fromkeys(prompt.items))
            else:
                first = first or prompt
                if self._at_rest:
                    unusable.extend((len(items), line.number, line.offset))
            yield prompt
        if not usable and not self._reader.refused:
            why = f"{first.path}: {first.reason}" if first else "the file is empty"
            raise CorpusError(
                f"no usable request in {one_line(str(self.path))}: {why}",
                hint='one per line: {"messages": [{"role": "user", "content": [...]}]}',
            )
        self._named = (items, unusable) if self._at_rest else None

    def texts(self, origins: Container[str] | None = None) -> Iterator[Text]:
        """What the usable lines, or those of these origins, ask of the context, without looking for
        their media.
        """
        for line in self._lines():
            origin = self._origin(line)
            if origins is not None and origin not in origins:
                continue
            try:
                request, sent_s = parse_line(line.text)
            except BadRequest:
                continue
            yield Text(request.bare(), origin, sent_s)

    def _origin(self, line: _Line) -> str:
        return f"{self._label}:{line.number}"

    def _lines(self) -> Iterator[_Line]:
        offset = 0
        with self.path.open("rb") as file:
            for number in itertools.count(1):
                text = file.readline(LONGEST_LINE_BYTES + 1)
                if not text:
                    return
                start, offset = offset, offset + len(text)
                # `parse_line` refuses what is too long; the rest of it need not be kept.
                end = text
                while end and not end.endswith(b"\n"):
                    end = file.readline(_BLOCK_BYTES)
                    offset += len(end)
                text = _without_mark(number, text)
                if text and not text.isspace():
                    yield _Line(number, start, text)


def _refuse_other_forms(path: Path) -> None:
    """Raises CorpusError for what is packed or one JSON list: none of its lines is a request."""
    try:
        with path.open("rb") as file:
            head = file.read(_BLOCK_BYTES)
    except OSError:
        return
    name = shlex.quote(str(path))
    for magic, command in _PACKED.items():
        if head.startswith(magic):
            raise CorpusError(
                f"{one_line(str(path))} is packed by {command}: unpack it first",
                hint=f"{command} -dc {name} > requests.jsonl",
            )
    if _LIST.match(head):
        raise CorpusError(
            f"{one_line(str(path))} is a JSON list, not one request per line",
            hint=f"jq -c '.[]' {name} > requests.jsonl",
        )


def _without_mark(number: int, text: bytes) -> bytes:
    return text.removeprefix(codecs.BOM_UTF8) if number == 1 else text
