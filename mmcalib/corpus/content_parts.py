"""The parts of a chat message, as OpenAI writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from mmcalib.domain.shapes import Modality

# Sound has a second type, `input_audio`, which holds the bytes and no URL.
UrlType = Literal["image_url", "video_url", "audio_url"]
PART_OF: Mapping[Modality, UrlType] = {
    "image": "image_url",
    "video": "video_url",
    "audio": "audio_url",
}
MODALITY_OF: Mapping[str, Modality] = {part: modality for modality, part in PART_OF.items()}


def text_part(words: str) -> dict[str, object]:
    """Words."""
    return {"type": "text", "text": words}


def url_part(part_type: UrlType, url: str) -> dict[str, object]:
    """A medium by its URL, or a path."""
    return {"type": part_type, part_type: {"url": url}}
