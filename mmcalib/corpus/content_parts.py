"""The parts of a chat message, as OpenAI writes them."""

from __future__ import annotations


def text_part(words: str) -> dict[str, object]:
    """Words."""
    return {"type": "text", "text": words}


def url_part(part_type: str, url: str) -> dict[str, object]:
    """A medium by its URL, or a path; `part_type` is `image_url` or one of its kin."""
    return {"type": part_type, part_type: {"url": url}}
