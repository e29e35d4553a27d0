"""Archives as sources of items and prompts, read in a child process."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Literal, cast

from mmcalib.corpus.chat import PART_OF, ChatRequest, Prompt, Source, text_part, url_part
from mmcalib.corpus.tables import MOST_SENT_BYTES, TEXT_COLUMNS, ParquetSource, guess_modality
from mmcalib.domain.items import ByteSource, Item, Skipped
from mmcalib.errors import MmcalibError
from mmcalib.media.failure import error_reason
from mmcalib.media.sniff import HEAD_BYTES, MEDIA_EXTENSIONS, is_media
from mmcalib.processes import Worker, WorkerFailed
from mmcalib.storage.archive import ARCHIVES, Archive, Member
from mmcalib.storage.location import NOT_REGULAR, allowed_hosts, is_local, member_path
from mmcalib.storage.remote import translate_errors
from mmcalib.text import MIB

RecordKind = Literal["items", "prompts"]
Record = Item | Prompt | Skipped

# Beyond the process's own need. A table row exists three times: in its page, unpacked, as bytes.
MEMORY_BYTES = 2 << 30

# Longest wait for the next records: one item's limit locally, that of ten requests remotely.
SILENCE_S = 30.0
REMOTE_SILENCE_S = 300.0


class SubprocessSource:
    """Reads `source`, the archive, table or data set at `path`, in a child process. If that stops
    early, the last record is a `Skipped` for `path`. Raises what `source` raises.
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
        self._silence_s = silence_s or (SILENCE_S if is_local(path) else REMOTE_SILENCE_S)
        self._memory_bytes = memory_bytes

    def items(self) -> Iterator[Item | Skipped]:
        return cast("Iterator[Item | Skipped]", self._read("items"))

    def prompts(self) -> Iterator[Prompt | Skipped]:
        return cast("Iterator[Prompt | Skipped]", self._read("prompts"))

    def _read(self, what: RecordKind) -> Iterator[Record]:
        reader = _take_reader(self._memory_bytes)
        try:
            reader.send((self.source, what, allowed_hosts()))
            while isinstance(message := reader.receive(self._silence_s), list):
                yield from message
            if not message:
                _IDLE.setdefault(self._memory_bytes, reader)
        except WorkerFailed as error:
            message = f"the decoder {error}"
        finally:
            if _IDLE.get(self._memory_bytes) is not reader:
                reader.close()
        if isinstance(message, MmcalibError):
            raise message
        if message:
            yield Skipped(self.path, message)


# An idle process for each limit: a thousand tables need only one, which reads them in turn.
_IDLE: dict[int, Worker] = {}


def _take_reader(memory_bytes: int) -> Worker:
    """Return an idle reader, or start one."""
    reader = _IDLE.pop(memory_bytes, None)
    if reader is not None and reader.exit_code() is not None:
        reader.close()
        reader = None
    return reader or Worker("mmcalib.corpus.reader", memory_bytes, send_s=SILENCE_S)


def stop_readers() -> None:
    while _IDLE:
        _IDLE.popitem()[1].close()


_KINDS: Mapping[str, str] = {
    **{ending: kind for kind, one in ARCHIVES.items() for ending in one.extensions},
    ".parquet": "parquet",
}

# Extensions that webdataset/autodecode.py (1.0) decodes as text. A sample without them takes its
# text from the first of `TEXT_COLUMNS` in its JSON.
_TEXT_EXTENSIONS = ("txt", "text", "caption", "transcript")
_JSON_EXTENSIONS = ("json", "jsn")
# As in `tar_file_iterator`, webdataset/tariterators.py (1.0).
_META_NAME = re.compile(r"__[^/]*__($|/)")
# No context fits more text than this.
_MAX_TEXT_BYTES = MIB

# Media hardly compress: a higher ratio beyond the first megabytes means a decompression bomb.
_MAX_UNPACK_RATIO = 100
_FREE_UNPACKED_BYTES = 1 << 26


def archive_source(path: str) -> Source | None:
    """Return a source for the archive at `path` (file or URL); None for other names."""
    name = path.lower() if path.startswith("/") else path.lower().partition("?")[0]
    kind = next((_KINDS[ending] for ending in _KINDS if name.endswith(ending)), None)
    if kind is None:
        return None
    source = ParquetSource(path) if kind == "parquet" else ArchiveSource(kind, path)
    return SubprocessSource(source, path)


class ArchiveSource:
    """The files in the archive at `path`, a file or a URL; `kind` is a key of `ARCHIVES`.

    As in WebDataset, adjacent files of a tar that share the path up to the name's first dot form
    one sample. A sample of two or more files is a prompt; its text comes from `.txt`, `.caption` or
    a field of `.json`. Hidden names and WebDataset's `__meta__` are ignored. A damaged archive
    counts up to the damage, but its last sample is not a prompt.
    """

    def __init__(self, kind: str, path: str) -> None:
        self.kind, self.path = kind, path

    def items(self) -> Iterator[Item | Skipped]:
        """Yield every file, except the texts and labels of a sample that has media."""
        for sample in self._samples():
            if isinstance(sample, Skipped):
                yield sample
            else:
                several = len(sample.files) > 1
                yield from (file.item for file in (several and sample.media) or sample.files)

    def prompts(self) -> Iterator[Prompt | Skipped]:
        for one in self._samples() if self.kind == "tar" else ():
            if isinstance(one, _Sample) and one.is_whole and len(one.files) > 1 and one.media:
                yield one.prompt(f"{self.path}:{one.key}")

    def _samples(self) -> Iterator[_Sample | Skipped]:
        sample = None
        empty = True
        try:
            with ARCHIVES[self.kind](self.path) as archive:
                for file in self._files(archive):
                    empty = False
                    if isinstance(file, Skipped):
                        yield file
                    elif sample and file.key == sample.key:
                        sample.files.append(file)
                    else:
                        if sample:
                            yield sample
                        sample = _Sample(file.key, [file])
        except (OSError, ValueError) as error:
            if sample:
                sample.is_whole = False
                yield sample
            yield Skipped(self.path, error_reason(error))
            return
        if sample:
            yield sample
        elif empty:
            yield Skipped(self.path, "the archive is empty")

    def _files(self, archive: Archive) -> Iterator[_File | Skipped]:
        """Raises OSError and ValueError when the rest of the archive cannot be read."""
        seen: set[str] = set()
        unpacked = 0
        most = _FREE_UNPACKED_BYTES + _MAX_UNPACK_RATIO * archive.size_bytes
        for member in archive.members():
            name = member.name
            is_meta = self.kind == "tar" and _META_NAME.match(name)
            steps = (step for step in name.split("/") if step not in (".", ".."))
            if is_meta or member.is_folder or any(step.startswith(".") for step in steps):
                continue
            path = member_path(self.kind, name, self.path)
            if not member.is_file:
                yield Skipped(path, NOT_REGULAR)
                continue
            if name in seen:
                yield Skipped(path, "duplicate name in the archive")
                continue
            seen.add(name)
            unpacked += member.size_bytes
            if unpacked > most:
                raise ValueError(f"unpacks to more than {_MAX_UNPACK_RATIO} times its size")
            yield self._file(archive, member, path)

    def _file(self, archive: Archive, member: Member, path: str) -> _File:
        size_bytes = member.size_bytes
        if self.kind != "tar":
            item = Item(path, byte_source=ByteSource(archive.version, size_bytes))
            return _File(item, member.name)
        key, ending = _split_name(member.name)
        head, data = b"", None
        with translate_errors():
            file = member.open()
            if archive.compressed and size_bytes <= MOST_SENT_BYTES:
                head = data = _read(file, size_bytes)
            else:
                is_text = ending in (*_TEXT_EXTENSIONS, *_JSON_EXTENSIONS)
                head = _read(file, min(size_bytes, _MAX_TEXT_BYTES if is_text else HEAD_BYTES))
        source = ByteSource(archive.version, size_bytes, data)
        return _File(Item(path, byte_source=source), key, ending, head)


@dataclass(frozen=True, slots=True)
class _File:
    """A member of an archive; `head` is its first bytes, or the whole text of a text file."""

    item: Item
    key: str
    ending: str = ""
    head: bytes = field(default=b"", repr=False)

    @property
    def is_text(self) -> bool:
        return self.ending in _TEXT_EXTENSIONS or self.ending in _JSON_EXTENSIONS

    @property
    def is_media(self) -> bool:
        """Decide by extension first, so that damaged media count too, then by content."""
        return self.ending in MEDIA_EXTENSIONS or (not self.is_text and is_media(self.head))


@dataclass(slots=True)
class _Sample:
    """Adjacent files with the same prefix; not `is_whole` if the archive broke off inside."""

    key: str
    files: list[_File]
    is_whole: bool = True

    @property
    def media(self) -> list[_File]:
        return [file for file in self.files if file.is_media]

    def prompt(self, origin: str) -> Prompt | Skipped:
        texts = [file for file in self.files if file.is_text]
        sizes = (file.item.byte_source.size_bytes for file in texts if file.item.byte_source)
        if sum(sizes) > _MAX_TEXT_BYTES:
            return Skipped(origin, f"text is longer than {_MAX_TEXT_BYTES >> 20} MiB")
        plain = [file for file in texts if file.ending in _TEXT_EXTENSIONS]
        words = (file.head.decode(errors="replace").strip() for file in plain)
        text = "\n".join(filter(None, words)) or "\n".join(filter(None, map(_text_of_json, texts)))
        media = self.media
        parts = [url_part(PART_OF[guess_modality(f.head, f.ending)], f.item.path) for f in media]
        if text:
            parts.append(text_part(text))
        return Prompt(origin, tuple(file.item for file in media), ChatRequest.of_user(parts))


def _read(file: IO[bytes] | None, size_bytes: int) -> bytes:
    data = file.read(size_bytes) if file else b""
    if len(data) < size_bytes:
        raise ValueError("archive is truncated inside a member")
    return data


def _split_name(name: str) -> tuple[str, str]:
    """Split a name into prefix and last extension, as WebDataset's `base_plus_ext` does."""
    folder, slash, base = name.rpartition("/")
    stem, _, endings = base.partition(".")
    return folder + slash + stem, endings.rpartition(".")[2].lower()


def _text_of_json(file: _File) -> str:
    try:
        data = json.loads(file.head) if file.ending in _JSON_EXTENSIONS else None
    except (ValueError, RecursionError):
        return ""
    values = [data[name] for name in TEXT_COLUMNS if name in data] if isinstance(data, dict) else []
    words = next((text for text in values if isinstance(text, str)), "")
    # A lone surrogate cannot be encoded as UTF-8.
    return words.encode(errors="replace").decode().strip()
