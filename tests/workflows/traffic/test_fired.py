"""A sequence as a file that a server takes."""

from __future__ import annotations

import base64
import io
import json

from PIL import Image

from mmcalib.domain.shapes import AudioShape, ImageShape
from mmcalib.domain.traffic import TrafficItem, TrafficRequest
from mmcalib.workflows.traffic.fired import fired


def picture(content: str) -> TrafficItem:
    return TrafficItem(ImageShape(9, 7), content)


def image_of(line: dict[str, object], place: int = 0) -> bytes:
    messages = line["messages"]
    assert isinstance(messages, list)
    url: str = messages[0]["content"][place]["image_url"]["url"]
    return base64.b64decode(url.partition(",")[2])


def test_equal_items_are_equal_files_and_no_others() -> None:
    requests = [
        TrafficRequest("a", 3, 2, (picture("a"), picture("b"))),
        TrafficRequest("b", 3, 2, (picture("a"),), group=1),
        *(TrafficRequest(f"n{n}", 1, 1, (picture(f"n{n}"),), group=2) for n in range(300)),
    ]
    lines = [json.loads(line) for line in fired(requests)]
    assert [line["custom_id"] for line in lines[:3]] == ["group-0-1", "group-1-1", "group-2-1"]
    assert lines[0]["max_tokens"] == 2
    assert image_of(lines[0]) == image_of(lines[1]) != image_of(lines[0], 1)
    assert len({image_of(line) for line in lines}) == 301
    assert Image.open(io.BytesIO(image_of(lines[0]))).size == (9, 7)


def test_other_media_are_the_files_themselves() -> None:
    item = TrafficItem(AudioShape(16_000, 16_000), "/data/a.wav~3")
    (line,) = map(json.loads, fired([TrafficRequest("a", 3, 2, (item,))]))
    assert line["messages"][0]["content"][0] == {
        "type": "audio_url",
        "audio_url": {"url": "/data/a.wav"},
    }
