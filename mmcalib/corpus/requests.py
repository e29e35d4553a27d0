"""A JSONL file of OpenAI chat requests whose media are files on this disk."""

from __future__ import annotations

import codecs
import itertools
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from mmcalib.corpus.asking import asked, bare
from mmcalib.corpus.chat import LONGEST_LINE_BYTES, MODALITY_OF, BadRequest, parse_line
from mmcalib.corpus.request_line import RequestLines, exists
from mmcalib.corpus.urls import Unresolved
from mmcalib.domain.items import Item, Prompt, Skipped, Text
from mmcalib.errors import CorpusError
from mmcalib.wording import one_line

_BLOCK_BYTES = 1 << 16


class RequestsSource:
    """Each line of the file at `path` is one request; blank lines do not count.

    Relative paths start at the file's own folder. Media must lie below `allowed_root` (default:
    that folder), links resolved; else UsageError. Inline media are written to `scratch` and are
    items like the others. Remote media are items by their URLs with `allow_url`, and otherwise
    refused. `label` names the file in the origins of its requests (default: its name). The file is
    read line by line, once per call.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        allowed_root: str | Path | None = None,
        scratch: Path,
        label: str | None = None,
        allow_url: bool = False,
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
        folder = os.path.dirname(os.path.realpath(self.path))
        self._reader = RequestLines(
            folder, allowed_root=allowed_root, scratch=scratch, allow_url=allow_url
        )
        self._label = label or self.path.name

    def items(self) -> Iterator[Item | Skipped]:
        """Every file that a request names, once, even where the request is otherwise unusable."""
        seen: set[Item] = set()
        for origin, line in self._lines():
            try:
                messages = parse_line(line).messages
            except BadRequest:
                continue
            for media in (media for message in messages for media in message.media if media):
                try:
                    item = self._reader.item(media, origin)
                except Unresolved:
                    continue
                if item not in seen:
                    seen.add(item)
                    yield item if exists(item) else Skipped(item.path, "no such file")

    def prompts(self) -> Iterator[Prompt | Skipped]:
        """Raise CorpusError, at the end, when no line was usable."""
        usable, first = 0, None
        for origin, line in self._lines():
            prompt = self._reader.prompt(origin, line)
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

    def texts(self) -> Iterator[Text]:
        """What the usable lines ask of the context, without looking for their media."""
        for origin, line in self._lines():
            try:
                request = parse_line(line)
            except BadRequest:
                continue
            kinds = Counter(
                MODALITY_OF[media[0]]
                for message in request.messages
                for media in message.media
                if media
            )
            found = asked(request.written, request.fields)
            written = bare(request.written)
            yield Text(found, kinds, written, request.fields, origin, request.sent_s)

    def _lines(self) -> Iterator[tuple[str, bytes]]:
        with self.path.open("rb") as file:
            for number in itertools.count(1):
                line = file.readline(LONGEST_LINE_BYTES + 1)
                if not line:
                    return
                # `parse_line` refuses what is too long; the rest of it need not be kept.
                end = line
                while end and not end.endswith(b"\n"):
                    end = file.readline(_BLOCK_BYTES)
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                if line and not line.isspace():
                    yield f"{self._label}:{number}", line
