"""Items that stand for a corpus which nobody gave: the largest that vLLM admits, and smaller ones.

They are blank, each of its own colour or tone, because equal items are encoded once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from mmcalib.corpus.content_parts import PART_OF, text_part, url_part
from mmcalib.derive.policy import TEXT_RESERVE_TOKENS
from mmcalib.domain.budget import Dummy
from mmcalib.domain.cost import Cost
from mmcalib.domain.setting import Setting
from mmcalib.domain.shapes import AudioShape, ImageShape, Modality, Shape, VideoShape
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import Blank, Measure
from mmcalib.media.blank import write_blank
from mmcalib.workflows.validate.subject import Subject

# Side lengths as shares of the largest: machines without a GPU cannot afford the whole.
_SHARES: Final = (1, 2, 4)
# Items of one size, and items in one prompt: enough to fill a step of large ones.
_MOST: Final = 24
_MOST_IN_PROMPT: Final = 8
_FPS: Final = 2


def write_requests(subject: Subject, host: EngineHost, folder: Path) -> Path | None:
    """A file of chat requests over made-up media in `folder`: per served modality as many of the
    largest admitted items as limits and context allow; None where nothing is served.
    """
    folder.mkdir(parents=True, exist_ok=True)
    requests = [r for m in subject.counts for r in _of_modality(m, subject, host, folder)]
    if not requests:
        return None
    path = folder / "requests.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in requests), encoding="utf-8")
    return path


def _of_modality(
    modality: Modality, subject: Subject, host: EngineHost, folder: Path
) -> Iterator[dict[str, Any]]:
    dummy, count = subject.plain.dummies.get(modality), subject.counts[modality].value
    if dummy is None or not count:
        return
    shapes = list(_shapes(modality, dummy, subject.opened.audio_rate_hz))
    blanks = tuple(Blank(shape) for shape in shapes)
    answers = host.measure(Measure(subject.setting, blanks), "measuring made-up items")
    step = subject.budget.encoder_budget_tokens
    room = subject.budget.max_model_len - TEXT_RESERVE_TOKENS
    for shape, answer in zip(shapes, answers, strict=True):
        cost = answer.cost
        if cost is None or not 0 < cost.embeds <= step or cost.tokens > room:
            continue
        together = min(count, _MOST_IN_PROMPT, room // cost.tokens)
        items = min(_MOST, math.ceil(step / cost.embeds))
        paths = [write_blank(shape, n, folder) for n in range(max(items, together))]
        for start in range(0, len(paths), together):
            yield _request(modality, paths[start : start + together], start)


def _request(modality: Modality, paths: Sequence[Path], number: int) -> dict[str, Any]:
    """Texts differ in length, so that each request counts as one of its own."""
    content: list[dict[str, Any]] = [text_part("Describe this." + "." * number)]
    content += [url_part(PART_OF[modality], path.resolve().as_uri()) for path in paths]
    return {"messages": [{"role": "user", "content": content}]}


def _shapes(modality: Modality, dummy: Dummy, rate_hz: int | None) -> Iterator[Shape]:
    """The shape of the largest item, and smaller ones."""
    size = dummy.size
    for share in _SHARES:
        if modality == "audio":
            rate = rate_hz or 16_000
            yield AudioShape(max(1, size["length"] // share), rate)
            continue
        width, height = _even(size["width"] // share), _even(size["height"] // share)
        if modality == "image":
            yield ImageShape(width, height)
            continue
        frames = size["num_frames"]
        yield VideoShape(frames, float(_FPS), frames / _FPS, width, height)


def _even(pixels: int) -> int:
    return max(56, pixels - pixels % 2)


def minute_of_video(setting: Setting, host: EngineHost) -> Cost | None:
    """What a minute of 720p video costs as a server with this setting samples it; None where it
    cannot be had.
    """
    request = Measure(setting, (Blank(VideoShape(1800, 30.0, 60.0, 1280, 720)),))
    (answer,) = host.measure(request, "measuring a minute of video")
    return answer.cost
