"""A JSONL file of OpenAI chat requests whose media are files on this disk."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator
from pathlib import Path

from mmcalib.corpus.chat import MODALITY_OF, BadRequest, Message, UrlType, parse_line
from mmcalib.corpus.item import Item, Prompt, Skipped
from mmcalib.corpus.urls import (
    Outside,
    Unresolved,
    decode_data_url,
    is_inline,
    local_path,
    materialise,
)
from mmcalib.corpus.wording import one_line
from mmcalib.errors import CorpusError, UsageError


class RequestsSource:
    """Each line of the file at `path` is one request; blank lines do not count.

    Relative paths start at the file's own folder. Media must lie below `allowed_root` (default:
    that folder), links resolved; else UsageError. Inline media are written to `scratch` and are
    items like the others. Remote media are not fetched. `label` names the file in the origins of
    its requests (default: its name). The file is read line by line, once per call.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        allowed_root: str | Path | None = None,
        scratch: Path,
        label: str | None = None,
    ) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise CorpusError(
                f"no such requests file: {one_line(str(path))}",
                hint="--requests FILE names a JSONL file of chat requests",
            )
        self._folder = os.path.dirname(os.path.realpath(self.path))
        self._root = os.path.realpath(allowed_root) if allowed_root else self._folder
        self._scratch = scratch
        self._label = label or self.path.name

    def items(self) -> Iterator[Item | Skipped]:
        """Every file that a request names, once, even where the request is otherwise unusable."""
        seen: set[Item] = set()
        for origin, line in self._lines():
            try:
                messages, _ = parse_line(line)
            except BadRequest:
                continue
            for media in (media for message in messages for media in message.media if media):
                try:
                    item = self._item(media, origin)
                except Unresolved:
                    continue
                if item not in seen:
                    seen.add(item)
                    yield item if _exists(item) else Skipped(item.path, "no such file")

    def prompts(self) -> Iterator[Prompt | Skipped]:
        """Raise CorpusError, at the end, when no line was usable."""
        usable, first = 0, None
        for origin, line in self._lines():
            prompt = self._prompt(origin, line)
            if isinstance(prompt, Prompt):
                usable += 1
            elif first is None:
                first = prompt
            yield prompt
        if not usable:
            why = f"{first.path}: {first.reason}" if first else "the file is empty"
            raise CorpusError(
                f"no usable request in {one_line(str(self.path))}: {why}",
                hint='one per line: {"messages": [{"role": "user", "content": [...]}]}',
            )

    def _lines(self) -> Iterator[tuple[str, bytes]]:
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                text = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
                if text.strip():
                    yield f"{self._label}:{number}", text

    def _prompt(self, origin: str, line: bytes) -> Prompt | Skipped:
        items: list[Item] = []
        replayable: list[dict[str, object]] = []
        try:
            messages, written = parse_line(line)
            for message, raw in zip(messages, written, strict=True):
                named = [media and self._item(media, origin) for media in message.media]
                items += [item for item in named if item]
                replayable.append(_with_file_urls(message, raw, named))
        except (BadRequest, Unresolved) as error:
            return Skipped(origin, one_line(str(error)))
        for item in items:
            if not _exists(item):
                return Skipped(origin, one_line(f"names a missing file: {item.path}"))
        text = "\n".join(words for message in messages for words in message.words)
        return Prompt(origin, tuple(items), text, replayable)

    def _item(self, media: tuple[UrlType, str], origin: str) -> Item:
        part_type, url = media
        if is_inline(url):
            path = materialise(*decode_data_url(url), self._scratch)
        else:
            try:
                path = local_path(url, self._folder, self._root)
            except Outside as error:
                raise UsageError(
                    f"{origin}: {one_line(str(error))} is outside the allowed root {self._root}",
                    hint="--allowed-local-media-path DIR",
                ) from error
        return Item(path, MODALITY_OF[part_type])


def _exists(item: Item) -> bool:
    return os.path.exists(item.path)


def _with_file_urls(
    message: Message, written: dict[str, object], items: list[Item | None]
) -> dict[str, object]:
    """The message as written, but for its media parts; `items` has one entry per part."""
    raw = written.get("content")
    if not isinstance(raw, list):
        return written
    content: list[object] = [
        _file_part(media[0], item) if media and item else part
        for part, media, item in zip(raw, message.media, items, strict=True)
    ]
    return {**written, "content": content}


def _file_part(part_type: UrlType, item: Item) -> dict[str, object]:
    return {"type": part_type, part_type: {"url": Path(item.path).as_uri()}}
