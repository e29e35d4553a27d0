"""Files that hold other files, read in a process of their own where that is risky."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Literal, cast

from mmcalib.corpus.chat import PART_OF, ChatRequest, Prompt, UrlType, text_part, url_part
from mmcalib.corpus.rows import MOST_SENT_BYTES, guessed_modality
from mmcalib.corpus.source import Source, is_hidden
from mmcalib.domain.items import ByteSource, Item, Skipped
from mmcalib.errors import MmcalibError
from mmcalib.media.sniff import HEAD_BYTES, MEDIA_ENDINGS, is_media
from mmcalib.processes import Worker
from mmcalib.storage.archive import ARCHIVES, Archive, Member
from mmcalib.storage.location import NOT_REGULAR, allowed_hosts, inside, is_here
from mmcalib.storage.remote import plain_errors
from mmcalib.text import MIB

What = Literal["items", "prompts"]
Found = Item | Prompt | Skipped

# Above what the process needs itself. A row of a table is there three times over: unpacked from its
# page, as a value of the table, and as bytes of Python.
MEMORY_BYTES = 2 << 30

# The longest silence: of an archive on this machine, as long as an item may take; from elsewhere,
# as long as ten requests may take.
SILENCE_S = 30.0
REMOTE_SILENCE_S = 300.0


class Apart:
    """What `source`, the archive, table or data set at `path`, has to give. Where reading it ends
    early, the last that is given says so, `Skipped` under `path`. Raises what the source raises.
    """

    def __init__(
        self,
        source: Source,
        path: str,
        *,
        silence_s: float | None = None,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        self.source, self.path = source, path
        self._silence_s = silence_s or (SILENCE_S if is_here(path) else REMOTE_SILENCE_S)
        self._memory_bytes = memory_bytes

    def items(self) -> Iterator[Item | Skipped]:
        return cast("Iterator[Item | Skipped]", self._read("items"))

    def prompts(self) -> Iterator[Prompt | Skipped]:
        return cast("Iterator[Prompt | Skipped]", self._read("prompts"))

    def _read(self, what: What) -> Iterator[Found]:
        reader = _take_reader(self._memory_bytes)
        try:
            reader.send((self.source, what, allowed_hosts()))
            while isinstance(said := reader.receive(self._silence_s), list):
                yield from said
            if not said:
                _IDLE.append(reader)
        except TimeoutError:
            said = f"a decoder took more than {self._silence_s:g} s"
        except EOFError:
            said = f"a decoder {reader.how_it_ended()}"
        finally:
            if reader not in _IDLE:
                reader.close()
        if isinstance(said, MmcalibError):
            raise said
        if said:
            yield Skipped(self.path, said)


# A corpus of a thousand tables has them read by one process, one after the other.
_IDLE: list[_Reader] = []


class _Reader(Worker):
    """Reads one source after the other."""

    def __init__(self, memory_bytes: int) -> None:
        self.memory_bytes = memory_bytes
        super().__init__("mmcalib.corpus.reader", memory_bytes, send_s=SILENCE_S)


def _take_reader(memory_bytes: int) -> _Reader:
    """A reader that waits for work, or a new one."""
    for reader in [one for one in _IDLE if one.memory_bytes == memory_bytes]:
        _IDLE.remove(reader)
        if reader.exit_code() is None:
            return reader
        reader.close()
    return _Reader(memory_bytes)


def end_readers() -> None:
    """End those that wait for work."""
    while _IDLE:
        _IDLE.pop().close()


_KINDS: Mapping[str, str] = {
    **{ending: kind for kind, one in ARCHIVES.items() for ending in one.endings},
    ".parquet": "parquet",
}
# Of a million names few are an archive's: most are told by their last letter.
_LAST = frozenset(letter for ending in _KINDS for letter in (ending[-1], ending[-1].upper()))

# Endings of words as webdataset/autodecode.py (1.0) decodes them, and fields of JSON of which the
# first is the text where the sample has no other.
_WORDS = ("txt", "text", "caption", "transcript")
_JSON = ("json", "jsn")
_FIELDS = ("prompt", "question", "text", "caption")
# Of `tar_file_iterator` in webdataset/tariterators.py (1.0).
_META = re.compile(r"__[^/]*__($|/)")
# More text than this fits into no context.
_LONGEST_TEXT_BYTES = MIB

# Media hardly shrink. Beyond the first megabytes, more than this is a bomb.
_MOST_UNPACKED = 100
_FREELY_UNPACKED_BYTES = 1 << 26


def archive_at(path: str) -> Source | None:
    """What reads the archive at `path`, a file or a URL, apart; None by its name for others."""
    if path[-1:] not in _LAST and path.startswith("/"):
        return None
    name = path.lower() if path.startswith("/") else path.lower().partition("?")[0]
    kind = next((_KINDS[ending] for ending in _KINDS if name.endswith(ending)), None)
    if kind is None:
        return None
    if kind != "parquet":
        return Apart(ArchiveSource(kind, path), path)
    from mmcalib.corpus.tables import ParquetSource

    return Apart(ParquetSource(path), path)


class ArchiveSource:
    """The files in the archive of this kind, one of `ARCHIVES`, at `path` or a URL.

    In a tar, files that stand together and share the path up to the first dot of the name are one
    sample, as in WebDataset: of two files and more it is a prompt, its text from `.txt`, `.caption`
    or a field of `.json`. Hidden names and WebDataset's `__meta__` are left out. A damaged archive
    counts as far as it can be read, without its last sample as a prompt.
    """

    def __init__(self, kind: str, path: str) -> None:
        self.kind, self.path = kind, path

    def items(self) -> Iterator[Item | Skipped]:
        """Every file but the texts and labels of a sample that has media."""
        for found in self._samples():
            if isinstance(found, Skipped):
                yield found
            else:
                several = len(found.files) > 1
                yield from (file.item for file in (several and found.media) or found.files)

    def prompts(self) -> Iterator[Prompt | Skipped]:
        for found in self._samples() if self.kind == "tar" else ():
            if isinstance(found, _Sample) and found.whole and len(found.files) > 1 and found.media:
                yield found.prompt(f"{self.path}:{found.key}")

    def _samples(self) -> Iterator[_Sample | Skipped]:
        sample = None
        empty = True
        try:
            with ARCHIVES[self.kind](self.path) as archive:
                for found in self._files(archive):
                    empty = False
                    if isinstance(found, Skipped):
                        yield found
                    elif sample and found.key == sample.key:
                        sample.files.append(found)
                    else:
                        if sample:
                            yield sample
                        sample = _Sample(found.key, [found])
        except (OSError, ValueError) as error:
            # It imports Pillow, which only readers of media need.
            from mmcalib.media.failure import reason

            if sample:
                sample.whole = False
                yield sample
            yield Skipped(self.path, reason(error))
            return
        if sample:
            yield sample
        elif empty:
            yield Skipped(self.path, "archive without files")

    def _files(self, archive: Archive) -> Iterator[_File | Skipped]:
        """Raises OSError and ValueError where the archive cannot be read any further."""
        seen: set[str] = set()
        unpacked = 0
        most = _FREELY_UNPACKED_BYTES + _MOST_UNPACKED * archive.size_bytes
        for member in archive.members():
            name = member.name
            is_meta = self.kind == "tar" and _META.match(name)
            if is_meta or is_hidden(name) or member.is_folder:
                continue
            path = inside(self.kind, name, self.path)
            if not member.is_file:
                yield Skipped(path, NOT_REGULAR)
                continue
            if name in seen:
                yield Skipped(path, "another of this name comes before it")
                continue
            seen.add(name)
            unpacked += member.size_bytes
            if unpacked > most:
                raise ValueError(f"it unpacks to more than {_MOST_UNPACKED} times its size")
            yield self._file(archive, member, path)

    def _file(self, archive: Archive, member: Member, path: str) -> _File:
        size_bytes = member.size_bytes
        if self.kind != "tar":
            return _File(Item(path, held=ByteSource(archive.version, size_bytes)), member.name)
        key, ending = _key(member.name)
        head, data = b"", None
        with plain_errors():
            file = member.open()
            if archive.compressed and size_bytes <= MOST_SENT_BYTES:
                head = data = _read(file, size_bytes)
            elif ending in (*_WORDS, *_JSON):
                head = _read(file, min(size_bytes, _LONGEST_TEXT_BYTES))
            else:
                head = _read(file, min(size_bytes, HEAD_BYTES))
        held = ByteSource(archive.version, size_bytes, data)
        return _File(Item(path, held=held), key, ending, head)


@dataclass(frozen=True, slots=True)
class _File:
    """One member; `head` are its first bytes, or of text all that count."""

    item: Item
    key: str
    ending: str = ""
    head: bytes = field(default=b"", repr=False)

    @property
    def is_text(self) -> bool:
        return self.ending in _WORDS or self.ending in _JSON

    @property
    def is_media(self) -> bool:
        """By the ending, so that a damaged one is missed, or else by content."""
        return self.ending in MEDIA_ENDINGS or (not self.is_text and is_media(self.head))

    @property
    def part_type(self) -> UrlType:
        return PART_OF[guessed_modality(self.head, self.ending)]


@dataclass(slots=True)
class _Sample:
    """What stands together under one prefix. `whole`: nothing of it was lost."""

    key: str
    files: list[_File]
    whole: bool = True

    @property
    def media(self) -> list[_File]:
        return [file for file in self.files if file.is_media]

    def prompt(self, origin: str) -> Prompt | Skipped:
        texts = [file for file in self.files if file.is_text]
        if sum(file.item.held.size_bytes for file in texts if file.item.held) > _LONGEST_TEXT_BYTES:
            return Skipped(origin, f"text of more than {_LONGEST_TEXT_BYTES >> 20} MiB")
        plain = [file for file in texts if file.ending in _WORDS]
        words = (file.head.decode(errors="replace").strip() for file in plain)
        text = "\n".join(filter(None, words)) or "\n".join(filter(None, map(_field, texts)))
        media = self.media
        parts = [url_part(file.part_type, file.item.path) for file in media]
        if text:
            parts.append(text_part(text))
        items = tuple(file.item for file in media)
        return Prompt(origin, items, ChatRequest.of_user(parts))


def _read(file: IO[bytes] | None, size_bytes: int) -> bytes:
    data = file.read(size_bytes) if file else b""
    if len(data) < size_bytes:
        raise ValueError("it ends within a member")
    return data


def _key(name: str) -> tuple[str, str]:
    """The prefix and the last ending in small letters, as `base_plus_ext` of WebDataset splits."""
    folder, slash, base = name.rpartition("/")
    stem, _, endings = base.partition(".")
    return folder + slash + stem, endings.rpartition(".")[2].lower()


def _field(file: _File) -> str:
    try:
        data = json.loads(file.head) if file.ending in _JSON else None
    except (ValueError, RecursionError):
        return ""
    found = [data[name] for name in _FIELDS if name in data] if isinstance(data, dict) else []
    words = next((text for text in found if isinstance(text, str)), "")
    # Half of a surrogate pair is no text that can be sent.
    return words.encode(errors="replace").decode().strip()
