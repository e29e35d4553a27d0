"""What a program asks `Calibration.admits` about, as what decides whether it fits."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mmcalib.corpus.asking import asked_by, digest
from mmcalib.corpus.urls import REMOTE
from mmcalib.derive.admission import Admission, Gate, admit, admit_prompt, text_decides
from mmcalib.derive.remedies import with_prompt_remedy, with_remedy
from mmcalib.derive.request import Between
from mmcalib.domain.encoding import Encoded, Encoding
from mmcalib.domain.items import ByteSource, Item, Prompt, Skipped
from mmcalib.domain.shapes import AudioShape, ImageShape, VideoShape
from mmcalib.texts.counting import Counting

if TYPE_CHECKING:
    import numpy as np

TAKEN = (
    "a path, bytes, a binary file, a PIL.Image, a numpy array (an image of height × width, with or "
    "without channels behind; frames of number × height × width × channels), sound as (array, rate "
    "in Hz), a chat request as a dict, or a shape"
)
# A place that no file has: where its bytes stand does not matter.
_NOWHERE = "memory://item"
_CHANNELS = (1, 3, 4)
_FRAMES_PER_S = 1.0


def admitted(
    gate: Gate,
    item: Any,
    root: str | os.PathLike[str] | None = None,
    counting: Counting | None = None,
) -> Admission:
    """Whether it fits, with a remedy where not; `root` as `RequestLines` takes it, `counting` as
    `admitted_prompt` does.

    Raises TypeError for what is none of `TAKEN`, and UsageError for a request that leads outside
    its root.
    """
    if isinstance(item, Mapping):
        return _request(gate, item, root, counting)
    file = _presented(item)
    if isinstance(file, Skipped):
        return unreadable(file.reason)
    return with_remedy(gate, file, admit(gate, file))


def admitted_prompt(
    gate: Gate, prompt: Prompt, counting: Counting | None
) -> tuple[tuple[Encoded, ...], Admission]:
    """What its items are, none where one cannot be read, and whether it fits. A text that its bound
    does not settle is counted, where that is possible.
    """
    from mmcalib.media.ending import examine_whole

    files: list[Encoded] = []
    for item in prompt.items:
        seen = examine_whole(item)
        if isinstance(seen, Skipped):
            return (), unreadable(f"{seen.path}: {seen.reason}")
        files.append(seen)
    wants = asked_by(prompt)
    text = _counted(gate, prompt)
    answer = admit_prompt(gate, files, wants, text)
    if counting and text is None and text_decides(gate, files, answer):
        items = Counter(file.modality for file in files)
        tokens = counting.tokens(prompt.messages, prompt.fields, items)
        if tokens is not None:
            text = Between.exactly(tokens)
            answer = admit_prompt(gate, files, wants, text)
    return tuple(files), with_prompt_remedy(gate, files, wants, answer, text)


def _counted(gate: Gate, prompt: Prompt) -> Between | None:
    """What the calibration counted this very text to take."""
    tokens = gate.counted.get(digest(prompt.messages, prompt.fields)) if gate.counted else None
    return None if tokens is None else Between.exactly(tokens)


def unreadable(reason: str) -> Admission:
    """Of what cannot be read nothing is served; of what is elsewhere nothing is known."""
    if reason == REMOTE:
        return Admission("unknown", None, None, False, "none", reason, "check a local copy")
    return Admission("no", None, None, True, "none", reason)


def _presented(item: Any) -> Encoded | Skipped:
    if isinstance(item, Encoded):
        return item
    if isinstance(item, ImageShape | VideoShape | AudioShape):
        return Encoded(item)
    if isinstance(item, str | os.PathLike):
        return _examined(Item(os.path.abspath(item)))
    if isinstance(item, bytes | bytearray | memoryview):
        return _bytes(bytes(item))
    if hasattr(item, "read"):
        data = item.read()
        if isinstance(data, bytes):
            return _bytes(data)
    if _is_picture(item):
        return Encoded(ImageShape(*item.size))
    if isinstance(item, tuple) and len(item) == 2 and _is_array(item[0]):
        return _sound(*item)
    if _is_array(item):
        return _pixels(item)
    raise TypeError(f"admits takes {TAKEN}; this is {_named(item)}")


def _examined(item: Item) -> Encoded | Skipped:
    from mmcalib.media.ending import examine_whole

    return examine_whole(item)


def _bytes(data: bytes) -> Encoded | Skipped:
    return _examined(Item(_NOWHERE, held=ByteSource("", len(data), data=data)))


def _is_picture(item: Any) -> bool:
    from PIL import Image

    return isinstance(item, Image.Image)


def _is_array(item: Any) -> bool:
    """Whether it is one of numpy: then somebody has imported that."""
    return type(item).__module__.partition(".")[0] == "numpy" and hasattr(item, "ndim")


def _pixels(array: np.ndarray[Any, Any]) -> Encoded:
    shape = array.shape
    if 0 not in shape:
        if array.ndim == 2 or (array.ndim == 3 and shape[2] in _CHANNELS):
            return Encoded(ImageShape(shape[1], shape[0]))
        if array.ndim == 3 and shape[0] in _CHANNELS:
            return Encoded(ImageShape(shape[2], shape[1]))
        if array.ndim == 4 and shape[3] in _CHANNELS:
            frames = VideoShape(shape[0], _FRAMES_PER_S, float(shape[0]), shape[2], shape[1])
            return Encoded(frames, Encoding(sent_frames=True))
    raise TypeError(f"admits takes {TAKEN}; this is {_named(array)}")


def _sound(array: np.ndarray[Any, Any], rate_hz: Any) -> Encoded:
    if array.ndim not in (1, 2) or 0 in array.shape or not 0 < rate_hz == int(rate_hz):
        raise TypeError(f"admits takes {TAKEN}; this is ({_named(array)}, {rate_hz!r})")
    samples, channels = max(array.shape), min(array.shape) if array.ndim == 2 else 1
    return Encoded(AudioShape(samples, int(rate_hz)), Encoding(channels=channels))


def _named(item: Any) -> str:
    kind = type(item)
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    return f"{name} of shape {item.shape}" if _is_array(item) else name


def _request(
    gate: Gate,
    request: Mapping[str, Any],
    root: str | os.PathLike[str] | None,
    counting: Counting | None,
) -> Admission:
    from pathlib import Path

    from mmcalib.corpus.request_line import RequestLines
    from mmcalib.scratch import Scratch

    with Scratch() as scratch:
        allowed = Path(root) if root is not None else None
        reader = RequestLines(os.getcwd(), allowed_root=allowed, scratch=scratch.path)
        prompt = reader.prompt("the request", json.dumps(request).encode())
        if isinstance(prompt, Skipped):
            return unreadable(prompt.reason)
        return admitted_prompt(gate, prompt, counting)[1]
