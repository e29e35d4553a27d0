"""JSONL files of requests, and the media that they name."""

from __future__ import annotations

import codecs
import json
import os
import re
import shlex
import sys
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from mmcalib.corpus import urls
from mmcalib.corpus.chat import MODALITY_OF, ChatRequest, Prompt, Text, UrlType
from mmcalib.corpus.given import read_distribution, read_given
from mmcalib.corpus.grammar import Grammar
from mmcalib.corpus.lines import LONGEST_LINE_BYTES, BadRequest, UnknownPart, parse_line, seconds_of
from mmcalib.domain.items import Item, Skipped
from mmcalib.domain.shapes import is_size, with_tag
from mmcalib.errors import CorpusError, UsageError
from mmcalib.files import cut_lines
from mmcalib.storage.location import Location, is_allowed, url_of
from mmcalib.text import NO_FILE, one_line

# How many resolved names to remember, at about 500 bytes each.
_MAX_NAMES = 1 << 15


@dataclass(frozen=True, slots=True)
class Reading:
    """How to read requests. Inline media become files in `scratch`.

    Media must be below `allowed_root` (default: the folder where relative paths start) after
    resolving links. Remote media are accepted if their hosts are allowed. With `at_rest`, files do
    not change while reading, so a name is resolved once. Requests that vLLM's `grammar` rejects are
    `Skipped`; with `urls_only`, so are those that name a path. With `as_sent`, a body's size is
    exact above `most_body_bytes` (0: no limit); else that of the largest is.
    """

    scratch: Path
    allowed_root: str | os.PathLike[str] | None = None
    grammar: Grammar | None = None
    at_rest: bool = False
    as_sent: bool = False
    urls_only: bool = False
    most_body_bytes: int = 0


class RequestLines:
    """Reads requests whose relative paths start at `folder`, a resolved path."""

    def __init__(self, folder: str, how: Reading) -> None:
        self._folder, self._how = folder, how
        # Hash of the medium last seen under each uuid; 0 after two different ones.
        self._hash_of_uuid: dict[str, int] = {}
        # Number of well-formed requests that vLLM rejects; the smallest body whose size matters.
        self.refused = 0
        unlimited = how.as_sent and how.most_body_bytes <= 0
        self._least_body_bytes = sys.maxsize if unlimited else how.most_body_bytes + 1
        self._root = os.path.realpath(how.allowed_root) if how.allowed_root else folder
        self._remember = lru_cache(_MAX_NAMES)(self._find) if how.at_rest else self._find

    def prompt(self, origin: str, line: bytes) -> Prompt | Skipped:
        """Parse a line; `Skipped` if unusable. For files outside the root raises UsageError, but
        with `as_sent` only that request is unusable.
        """
        grammar = self._how.grammar
        try:
            request, _ = parse_line(line, origin, as_sent=self._how.as_sent)
            try:
                doubt = grammar.find_doubt(request) if grammar else ""
                doubt = self._doubt_uuids(request) or doubt
                paths = request.row or not self._how.urls_only
                items = tuple(
                    self.find_item(one, origin, place, paths=paths)
                    for place, one in enumerate(request.media(), 1)
                )
            except BadRequest:
                self.refused += self._how.as_sent
                raise
        except BadRequest as error:
            if grammar and isinstance(error, UnknownPart):
                error = grammar.classify_part(error)
            return Skipped(origin, one_line(str(error)))
        for item in items:
            if not file_exists(item):
                return Skipped(origin, one_line(f"missing file: {item.path}"))
        # A line may wrap the body; a row has none.
        size = 0 if request.row else len(line.strip())
        if size >= self._least_body_bytes:
            body = {**request.fields, **request.others, "messages": request.messages}
            size = min(size, len(json.dumps(body)))
            if not self._how.as_sent:
                self._least_body_bytes = max(self._least_body_bytes, size)
        sent = request.replace_media(url_of(item.path) for item in items)
        by_path = not request.row and any(urls.is_path(url) for _, url in request.media())
        return Prompt(origin, items, sent, doubt, size, by_path)

    def _doubt_uuids(self, request: ChatRequest) -> str:
        """Accept a uuid that always came with the same medium so far, but not its first use."""
        pairs = [(uuid, hash(medium)) for uuid, medium in request.uuid_media()]
        hashes = self._hash_of_uuid
        known = all(hashes.get(uuid) == one for uuid, one in pairs)
        if len(hashes) > _MAX_NAMES:
            hashes.clear()
        for uuid, one in pairs:
            hashes[uuid] = one if hashes.get(uuid, one) == one else 0
        return "" if known else "a uuid may name other media in vLLM's cache"

    def find_item(
        self, medium: tuple[UrlType, str], origin: str, place: int, *, paths: bool = True
    ) -> Item:
        """Find the file that a part names; a size is another at each `place`. Raises `BadRequest`,
        UsageError and OutputError.
        """
        if is_size(medium[1]):
            path = with_tag(medium[1], f"{origin}.{place}")
            return Item(path, MODALITY_OF[medium[0]])
        try:
            # Inline data are too large to remember.
            return (self._find if urls.is_inline(medium[1]) else self._remember)(*medium, paths)
        except urls.OutsideRoot as error:
            path = one_line(str(error))
            if self._how.as_sent:
                raise BadRequest(f"{urls.OUTSIDE} {self._root}: {path}") from error
            said = f"{origin}: {path} is {urls.OUTSIDE} {self._root}"
            raise UsageError(said, hint="--allowed-local-media-path DIR") from error

    def _find(self, part_type: UrlType, url: str, paths: bool) -> Item:
        if urls.is_inline(url):
            path = urls.write_inline_file(part_type, url, self._how.scratch)
        elif (remote := urls.remote_url(url, urls.SERVED_SCHEMES)) and is_allowed(remote):
            path = remote
        else:
            path = urls.local_path(url, self._folder, self._root, paths=paths)
        return Item(path, MODALITY_OF[part_type])


def file_exists(item: Item) -> bool:
    """True if the file exists or is remote; only the probe can tell for remote ones."""
    return not Location.of(item.path).is_file or os.path.exists(item.path)


_BLOCK_BYTES = 1 << 16
# How other files begin, what they are, and the command that makes lines of them.
_OTHERS = (
    (rb"\x1f\x8b", "compressed with gzip", "gzip -dc"),
    (rb"BZh", "compressed with bzip2", "bzip2 -dc"),
    (rb"\xfd7zXZ", "compressed with xz", "xz -dc"),
    (rb"\x28\xb5\x2f\xfd", "compressed with zstd", "zstd -dc"),
    (
        rb'\s*\{\s*"data"\s*:\s*\[\s*\{[^[]*"payloads"\s*:',
        "AIPerf's inputs.json",
        "jq -c '.data[].payloads[]'",
    ),
    (rb"(?:\xef\xbb\xbf)?\s*\[\s*\{", "a JSON list", "jq -c '.[]'"),
    (rb"(?:\xef\xbb\xbf)?\s*\{\s*\n", "indented JSON", "jq -c ."),
)


# A line's origin (the file's label, the number from 1, `#1` if it counts again), and its text.
_Line = tuple[str, bytes]


class RequestsSource:
    """The requests in the file at `path`, one per line; blank lines are ignored. A distribution or
    profile draws them.

    Relative paths start at the file's own folder. `label` names the file in the origins of its
    requests (default: its name). Each call reads the file once, line by line; if it is `at_rest`,
    `items` reads none after `prompts`.
    """

    def __init__(self, path: str | Path, how: Reading, *, label: str | None = None) -> None:
        self.path = Path(path)
        self._drawn = read_distribution(self.path)
        if self.path.is_dir():
            raise CorpusError(
                f"the requests file is a folder: {one_line(str(path))}",
                hint="--data takes a folder of media, --requests a JSONL file of chat requests",
            )
        if not self._drawn and not self.path.is_file():
            raise CorpusError(
                f"requests file not found: {one_line(str(path))}",
                hint="--requests FILE takes a JSONL file of chat requests",
            )
        if not self._drawn:
            _reject_other_formats(self.path)
        self._reader = RequestLines(os.path.dirname(os.path.realpath(self.path)), how)
        self._label = label or self.path.name
        self._at_rest = how.at_rest
        # The items of all lines, once `prompts` has read a file at rest.
        self._items_read: dict[Item, None] = {}

    def items(self) -> Iterator[Item | Skipped]:
        """Yield every file that a request names, once, including unusable requests."""
        for item in self._items_read or dict.fromkeys(self._items_of(self._lines())):
            yield item if file_exists(item) else Skipped(item.path, NO_FILE)

    def _items_of(self, lines: Iterable[_Line]) -> Iterator[Item]:
        for origin, request, _ in self._parse(lines):
            for place, medium in enumerate(request.media(), 1):
                with suppress(BadRequest):
                    yield self._reader.find_item(medium, origin, place)

    def prompts(self) -> Iterator[Prompt | Skipped]:
        """Yield every request. Raises CorpusError at the end if none was usable."""
        usable, first = 0, None
        items: dict[Item, None] = {}
        for line in self._lines():
            prompt = self._reader.prompt(*line)
            loose = isinstance(prompt, Prompt) and prompt.request.loose
            if self._at_rest:
                its = prompt.items if isinstance(prompt, Prompt) else self._items_of([line])
                items.update(dict.fromkeys(its))
            usable += isinstance(prompt, Prompt)
            first = first or (prompt if isinstance(prompt, Skipped) else None)
            if not loose:
                yield prompt
        if not usable and not self._reader.refused:
            why = f"{first.path}: {first.reason}" if first else "the file is empty"
            raise CorpusError(
                f"no usable request in {one_line(str(self.path))}: {why}",
                hint='write one per line: {"messages": [{"role": "user", "content": [...]}]}',
            )
        self._items_read = items

    def texts(self, origins: Container[str] | None = None) -> Iterator[Text]:
        """Yield usable requests (only those of `origins`, if set) without locating their media.

        Sessions without times start together; each next request follows after its delay.
        """
        clocks: dict[str, float] = {}
        for origin, request, sent_s in self._parse(self._lines(), origins):
            if sent_s is None and (session := request.others.get("session_id")):
                delay_s = (seconds_of(request.others.get("delay")) or 0.0) / 1000
                sent_s = clocks[str(session)] = clocks.get(str(session), -delay_s) + delay_s
            yield Text(request.strip_media(), origin, sent_s)

    def _parse(
        self, lines: Iterable[_Line], origins: Container[str] | None = None
    ) -> Iterator[tuple[str, ChatRequest, float | None]]:
        """Yield usable requests (only those of `origins`, if set), and when each was sent."""
        for origin, text in lines:
            if origins is None or origin in origins:
                with suppress(BadRequest):
                    yield origin, *parse_line(text, origin)

    def _lines(self) -> Iterator[_Line]:
        if self._drawn:
            for number, text in enumerate(self._drawn.lines(), 1):
                yield f"{self._label}:{number}", text
            return
        with self.path.open("rb") as file:
            # `parse_line` rejects a line that is too long.
            for number, text in enumerate(cut_lines(file, LONGEST_LINE_BYTES), 1):
                text = text.removeprefix(codecs.BOM_UTF8) if number == 1 else text
                if text and not text.isspace():
                    many = 1  # Also for a wrong line.
                    with suppress(ValueError):
                        many = getattr(read_given(text), "count", 1)
                    origin = f"{self._label}:{number}"
                    yield from ((f"{origin}#{n}" if n else origin, text) for n in range(many))


def open_requests(paths: Sequence[Path], how: Reading) -> list[RequestsSource]:
    """Open these files; origins name those of the same name by their paths. Raises CorpusError."""
    names = Counter(path.name for path in paths)
    labels = (path.name if names[path.name] == 1 else str(path) for path in paths)
    return [RequestsSource(path, how, label=one) for path, one in zip(paths, labels, strict=True)]


def _reject_other_formats(path: Path) -> None:
    """Raises CorpusError for a compressed file or a single JSON list."""
    try:
        with path.open("rb") as file:
            head = file.read(_BLOCK_BYTES)
    except OSError as error:
        said = f"cannot read {one_line(str(path))}: {error.strerror}"
        raise CorpusError(said, hint=f"ls -l {shlex.quote(str(path))}") from error
    for begins, what, command in _OTHERS:
        if re.match(begins, head):
            why = what if command.endswith("-dc") else f"{what}, not one request per line"
            raise CorpusError(
                f"{one_line(str(path))} is {why}",
                hint=f"{command} {shlex.quote(str(path))} > requests.jsonl",
            )
