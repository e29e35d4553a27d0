"""What a corpus yields: items, prompts made of items, and what had to be left out."""

from __future__ import annotations

from dataclasses import dataclass, field

from mmcalib.census.shapes import Modality


@dataclass(frozen=True, slots=True)
class Item:
    """One media file by absolute path; `declared` is the modality a request gave it, if any."""

    path: str
    declared: Modality | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request: its items in order and the number of text characters around them.

    `origin` says where it stands (`requests.jsonl:7`); `messages` is the request as written, with
    every media URL made an absolute `file://` URL, so that it can be replayed.
    """

    origin: str
    items: tuple[Item, ...]
    text: str
    messages: list[dict[str, object]] = field(compare=False, default_factory=list)


@dataclass(frozen=True, slots=True)
class Skipped:
    """Something that could not be read as media, and why. Counted and listed, never dropped."""

    path: str
    reason: str
