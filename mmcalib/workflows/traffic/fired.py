"""A sequence of requests as JSONL, to be fired at a real server."""

from __future__ import annotations

import base64
import io
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from PIL import Image

from mmcalib.corpus.content_parts import PART_OF, text_part, url_part
from mmcalib.domain.shapes import ImageShape
from mmcalib.domain.traffic import TrafficItem, TrafficRequest

_COLOURS: Final = 1 << 24
# Some 0.618 of them, so that neighbours in number are far apart in colour.
_SPREAD: Final = 10_368_889


def fired(requests: Sequence[TrafficRequest]) -> Iterator[str]:
    """A line for each, a chat request: `custom_id` says in which group it comes, and that the next
    group comes when this one has its answers. Images are blanks of their sizes, each of a colour of
    its own; clips and sounds are the files themselves. Where there are none of these the line has
    `content`, too, as `vllm bench serve --dataset-name custom_image` reads it.
    """
    numbers: dict[str, int] = {}
    places: Counter[int] = Counter()
    for request in requests:
        parts = [
            _part(item, numbers.setdefault(item.content, len(numbers))) for item in request.items
        ]
        content = [*parts, text_part("word " * request.text_tokens)]
        places[request.group] += 1
        line: dict[str, Any] = {
            "custom_id": f"group-{request.group}-{places[request.group]}",
            "messages": [{"role": "user", "content": content}],
            "max_tokens": request.answer_tokens,
            "ignore_eos": True,
        }
        if all(isinstance(item.shape, ImageShape) for item in request.items):
            line["content"] = content
        yield json.dumps(line)


def _part(item: TrafficItem, number: int) -> dict[str, object]:
    if not isinstance(item.shape, ImageShape):
        url = item.content.rpartition("~")[0] or item.content
        return url_part(PART_OF[item.shape.modality], url)
    size = item.shape.width_px, item.shape.height_px
    page = io.BytesIO()
    Image.new("RGB", size, _colour(number)).save(page, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(page.getvalue()).decode()}"
    return url_part(PART_OF["image"], url)


def _colour(number: int) -> tuple[int, int, int]:
    """No two of 2**24 are alike: an odd multiplier permutes them."""
    code = number * _SPREAD % _COLOURS
    return code >> 16, code >> 8 & 255, code & 255
