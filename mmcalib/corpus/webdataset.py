"""Tar shards as the WebDataset library reads them: members of one prefix are one sample."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from tarfile import TarInfo

from mmcalib.corpus.content_parts import PART_OF, UrlType, text_part, url_part
from mmcalib.corpus.walk import is_hidden, why
from mmcalib.domain.items import ByteSource, Item, Prompt, Skipped
from mmcalib.locations.disk import NOT_REGULAR
from mmcalib.locations.location import inside
from mmcalib.locations.tarball import Damaged, Tar, is_file
from mmcalib.media.file_names import MEDIA_ENDINGS, SOUND_ENDINGS, VIDEO_ENDINGS
from mmcalib.media.sniff import HEAD_BYTES, is_media, sniff
from mmcalib.sizes import MIB
from mmcalib.wording import one_line

# Endings as webdataset/autodecode.py (1.0) decodes them, beside those of media.
_WORDS = {"txt", "text", "caption", "transcript"}
_JSON = {"json", "jsn"}
_TEXTS = _WORDS | _JSON
# Labels and tensors, whatever their bytes look like.
_VALUES = {
    *("cls", "cls2", "class", "count", "index", "inx", "id", "pyd", "pickle", "pkl", "ten", "tb"),
    *("mp", "msg", "npy", "npz", "cbor", "pth", "pt"),
}
# The first of these that a JSON member has is the text, where the sample has no other.
_FIELDS = ("prompt", "question", "text", "caption")

# Of `tar_file_iterator` in webdataset/tariterators.py (1.0).
_META = re.compile(r"__[^/]*__($|/)")

# More text than this fits into no context.
_LONGEST_TEXT_BYTES = MIB
# What stands in a compressed archive is read while it passes by, up to this, and up to so much of
# one sample.
_HELD_BYTES = 1 << 23
_HELD_OF_SAMPLE_BYTES = 1 << 26
# A sample of more than this is no prompt.
_MOST_MEMBERS = 1000


class WebDatasetSource:
    """The files in the tar archive at `path`, plain or gzipped.

    Consecutive files that share the path up to the first dot of the name are one sample: of two
    files and more it is a prompt, its media in the order of the archive, its text from `.txt`,
    `.caption` or a field of `.json`. A file by itself is an item and says nothing of requests.
    Names that begin with a dot and WebDataset's `__meta__` are left out. A damaged archive counts
    as far as it can be read, without its last, perhaps incomplete, sample as a prompt.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def items(self) -> Iterator[Item | Skipped]:
        """Every file but the texts and labels of a sample that has media."""
        for found in self._samples(with_text=False):
            if isinstance(found, Skipped):
                yield found
            else:
                yield from found.items()

    def prompts(self) -> Iterator[Prompt | Skipped]:
        for found in self._samples(with_text=True):
            if isinstance(found, _Sample) and found.is_prompt:
                yield found.prompt(f"{self.path}:{found.key}")

    def _samples(self, *, with_text: bool) -> Iterator[_Sample | Skipped]:
        empty = True
        try:
            with Tar(self.path) as tar:
                for found in _grouped(tar, with_text=with_text):
                    empty = False
                    yield found
        except ValueError as error:
            yield Skipped(self.path, one_line(str(error)))
        except OSError as error:
            yield Skipped(self.path, why(self.path, error))
        else:
            if empty:
                yield Skipped(self.path, "archive without files")


@dataclass(frozen=True, slots=True)
class _File:
    """One member; `head` are its first bytes, or of text all that count."""

    item: Item
    ending: str
    head: bytes

    @property
    def is_media(self) -> bool:
        """By the ending, so that a damaged one is missed, or else by content."""
        if self.ending in MEDIA_ENDINGS or self.ending in _TEXTS or self.ending in _VALUES:
            return self.ending in MEDIA_ENDINGS
        return is_media(self.head)

    @property
    def part_type(self) -> UrlType:
        kind = sniff(self.head[:HEAD_BYTES])
        sound = self.ending in SOUND_ENDINGS
        if kind == "audio" or (sound and kind != "image"):
            return PART_OF["audio"]
        return PART_OF["video" if kind == "container" or self.ending in VIDEO_ENDINGS else "image"]


@dataclass(slots=True)
class _Sample:
    """What stands together under one prefix. `whole`: nothing of it was lost."""

    key: str
    files: list[_File] = field(default_factory=list)
    whole: bool = True
    held_bytes: int = 0

    @property
    def media(self) -> list[_File]:
        return [file for file in self.files if file.is_media]

    @property
    def is_prompt(self) -> bool:
        return self.whole and len(self.files) > 1 and bool(self.media)

    def items(self) -> Iterator[Item]:
        """The media; where there are none the files, of which the probe says what they are."""
        several = len(self.files) > 1
        yield from (file.item for file in (several and self.media) or self.files)

    def prompt(self, origin: str) -> Prompt | Skipped:
        texts = [file for file in self.files if file.ending in _TEXTS]
        if sum(len(file.head) for file in texts) > _LONGEST_TEXT_BYTES:
            return Skipped(origin, f"text of more than {_LONGEST_TEXT_BYTES >> 20} MiB")
        text = "\n".join(words for file in texts if (words := _plain(file))) or "\n".join(
            words for file in texts if (words := _field(file))
        )
        media = self.media
        parts = [url_part(file.part_type, file.item.path) for file in media]
        if text:
            parts.append(text_part(text))
        items = tuple(file.item for file in media)
        return Prompt(origin, items, text, [{"role": "user", "content": parts}])


def _grouped(tar: Tar, *, with_text: bool) -> Iterator[_Sample | Skipped]:
    """Raises Damaged, behind the sample that was being read."""
    sample: _Sample | None = None
    seen: set[int] = set()
    try:
        for number, member in enumerate(tar.members(), start=1):
            name = member.name
            if _is_left_out(name) or member.isdir():
                continue
            if not is_file(member):
                yield Skipped(inside("tar", name, tar.path), _unreadable(member))
                continue
            known = hash(name)
            if known in seen:
                path = f"{inside('tar', name, tar.path)} (member {number})"
                yield Skipped(path, "another of this name comes before it")
                continue
            seen.add(known)
            key, ending = _key(name)
            if sample and sample.key == key and len(sample.files) == _MOST_MEMBERS:
                sample.whole = False
                yield sample
                sample = _Sample(key, whole=False)
            elif sample and sample.key != key:
                yield sample
                sample = None
            sample = sample or _Sample(key)
            sample.files.append(_file(tar, member, ending, sample, with_text=with_text))
    except Damaged:
        if sample:
            sample.whole = False
            yield sample
        raise
    if sample:
        yield sample


def _file(tar: Tar, member: TarInfo, ending: str, sample: _Sample, *, with_text: bool) -> _File:
    """Raises Damaged."""
    size_bytes, data = member.size, None
    head = tar.read(member, _wanted_bytes(tar, member, ending, sample, with_text=with_text))
    if tar.compressed and len(head) == size_bytes:
        data = head
        sample.held_bytes += size_bytes
    offset = None if tar.compressed else member.offset_data
    held = ByteSource(tar.version, size_bytes, offset, data)
    return _File(Item(inside("tar", member.name, tar.path), held=held), ending, head)


def _wanted_bytes(
    tar: Tar, member: TarInfo, ending: str, sample: _Sample, *, with_text: bool
) -> int:
    if tar.compressed:
        room = min(_HELD_BYTES, _HELD_OF_SAMPLE_BYTES - sample.held_bytes)
        return _HELD_BYTES if member.size <= room else HEAD_BYTES
    if ending in _TEXTS:
        read = sum(len(file.head) for file in sample.files if file.ending in _TEXTS)
        return max(0, _LONGEST_TEXT_BYTES + 1 - read) if with_text else 0
    known = ending in _VALUES or (ending in MEDIA_ENDINGS and not with_text)
    return 0 if known else HEAD_BYTES


def _key(name: str) -> tuple[str, str]:
    """The prefix and the last ending in small letters, as `base_plus_ext` of WebDataset splits."""
    folder, slash, base = name.rpartition("/")
    stem, _, endings = base.partition(".")
    return folder + slash + stem, endings.rpartition(".")[2].lower()


def _is_left_out(name: str) -> bool:
    if name.startswith("__"):
        return _META.match(name) is not None
    return is_hidden(name)


def _unreadable(member: TarInfo) -> str:
    if member.issym() or member.islnk():
        return "link within an archive"
    return "sparse file within an archive" if member.issparse() else NOT_REGULAR


def _plain(file: _File) -> str:
    return file.head.decode(errors="replace").strip() if file.ending in _WORDS else ""


def _field(file: _File) -> str:
    try:
        data = json.loads(file.head) if file.ending in _JSON else None
    except (ValueError, RecursionError):
        return ""
    found = [data[name] for name in _FIELDS if name in data] if isinstance(data, dict) else []
    words = next((text for text in found if isinstance(text, str)), "")
    # Half of a surrogate pair is no text that can be sent.
    return words.encode(errors="replace").decode().strip()
