"""What a corpus yields: items, prompts made of items, and what had to be left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from mmcalib.domain.asked import Asked
from mmcalib.domain.shapes import Modality


@dataclass(frozen=True, slots=True)
class ByteSource:
    """What a source knows of bytes that are no file of their own.

    `version` changes when the bytes do (size and time of the archive, an ETag); `data` are the
    bytes themselves, where getting at them again takes long.
    """

    version: str
    size_bytes: int
    data: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Item:
    """One medium; `declared` is the modality a request gave it, if any.

    `path` is the absolute path of a file, or a URL in fsspec's spelling: `s3://bucket/cat.jpg`, and
    with the archive behind the member, `tar://cat.jpg::/data/0001.tar`. Then `held` saves a look.
    """

    path: str
    declared: Modality | None = None
    held: ByteSource | None = field(default=None, compare=False, repr=False)


def carried_bytes(item: Item) -> int:
    """How many bytes of the medium are in memory with it."""
    return len(item.held.data) if item.held and item.held.data else 0


def without_data(item: Item) -> Item:
    """The item to remember: the bytes themselves would fill the memory."""
    if item.held is None or item.held.data is None:
        return item
    return replace(item, held=replace(item.held, data=None))


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request: its items in order and the number of text characters around them.

    `origin` says where it stands (`requests.jsonl:7`); `messages` is the request as written, with
    every media URL made one of `file://` or of the item's own, so that it can be replayed. `fields`
    are its other fields that bear on its length, `asked` what it asks of the context.
    """

    origin: str
    items: tuple[Item, ...]
    text: str
    messages: list[dict[str, object]] = field(compare=False, default_factory=list)
    fields: dict[str, object] = field(compare=False, default_factory=dict)
    asked: Asked | None = field(compare=False, default=None)


@dataclass(frozen=True, slots=True)
class Text:
    """A request without its media: what it asks of the context, how many items of each modality it
    carries, and its messages with a name in place of each. `origin` is that of its prompt, `sent_s`
    the time in seconds at which it was sent, None where it does not say.
    """

    asked: Asked
    items: Mapping[Modality, int]
    messages: list[dict[str, object]]
    fields: dict[str, object]
    origin: str = ""
    sent_s: float | None = None


@dataclass(frozen=True, slots=True)
class Skipped:
    """Something that could not be read as media, and why. Counted and listed, never dropped.

    `no_media`: it is a file of another kind, as folders have them, or a folder that was read
    already, rather than a broken file. Only who looked knows; it is not kept. `out_of_reach`: its
    bytes could not be had at all, which says nothing of them.
    """

    path: str
    reason: str
    no_media: bool = field(default=False, compare=False, repr=False)
    out_of_reach: bool = field(default=False, compare=False, repr=False)
