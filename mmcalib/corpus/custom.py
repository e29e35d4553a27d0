"""Requests as vLLM's benchmarks read them: `vllm bench serve --dataset-name custom_image`.

A line has a `prompt`, with `image_files` or `audio`, or the `content` of one message
(`CustomDataset` and its kin in vllm/benchmarks/datasets/datasets.py, 0.32).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic import BaseModel, Field

from mmcalib.corpus.content_parts import PART_OF, text_part, url_part


class _Image(BaseModel):
    type: Literal["image"]
    image: str


class _Content(BaseModel):
    content: list[dict[str, Any]] = Field(min_length=1)

    def parts(self) -> Iterable[dict[str, object]]:
        for part in self.content:
            if part.get("type") == "image":
                yield url_part(PART_OF["image"], _Image.model_validate(part).image)
            else:
                yield part


class _Images(BaseModel):
    prompt: str
    image_files: list[str] = Field(min_length=1)

    def parts(self) -> Iterable[dict[str, object]]:
        return [
            text_part(self.prompt),
            *(url_part(PART_OF["image"], file) for file in self.image_files),
        ]


class _Audio(BaseModel):
    prompt: str = ""
    audio: str

    def parts(self) -> Iterable[dict[str, object]]:
        return [text_part(self.prompt), url_part(PART_OF["audio"], self.audio)]


class _Words(BaseModel):
    prompt: str

    def parts(self) -> Iterable[dict[str, object]]:
        return [text_part(self.prompt)]


# A line is the first of these whose field it has.
_BY_FIELD: Mapping[str, type[_Content | _Images | _Audio | _Words]] = {
    "content": _Content,
    "image_files": _Images,
    "audio": _Audio,
    "prompt": _Words,
}


def is_custom(line: Mapping[str, object]) -> bool:
    """Whether it has a field of theirs, and none of a chat request."""
    return not line.keys() & {"messages", "body"} and bool(line.keys() & _BY_FIELD.keys())


def messages_of(line: Mapping[str, object]) -> list[dict[str, object]]:
    """The chat that vLLM makes of it: text first, then the media. Raises pydantic's errors."""
    kind = next(kind for field, kind in _BY_FIELD.items() if field in line)
    return [{"role": "user", "content": list(kind.model_validate(line).parts())}]
