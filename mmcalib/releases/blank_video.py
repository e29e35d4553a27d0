"""Videos that are blank: vLLM's own loaders, with nothing to decode."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import cv2
import numpy as np
from vllm.multimodal import video as vllm_video
from vllm.multimodal.video import VideoSourceMetadata

from mmcalib.domain.shapes import VideoShape
from mmcalib.releases.release import VLLM_0_29

# Frames as loaded, made contiguous, resized and cut into patches, all at once at the worst.
_COPIES_OF_FRAMES = 4

Allow = Callable[[int], None]


@contextmanager
def blank_videos(shape: VideoShape, allow: Allow) -> Iterator[None]:
    """While open, every video that vLLM's loaders decode is a blank one of this shape; before 0.29
    those of OpenCV, which is the default.

    Only the decoder is replaced: which frames are sampled stays the loader's own decision.
    `allow` raises where so many bytes may not be taken.
    """
    if VLLM_0_29.reached:
        holder, stand_ins = vllm_video, _decoder(shape, allow)
    else:
        holder, stand_ins = vllm_video.OpenCVVideoBackendMixin, _capture(shape, allow)
    before = {name: vars(holder)[name] for name in stand_ins}
    for name, value in stand_ins.items():
        setattr(holder, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(holder, name, value)


def _source(shape: VideoShape) -> Any:
    duration_s = shape.num_frames / shape.fps if shape.fps > 0 else 0.0
    return VideoSourceMetadata(shape.num_frames, shape.fps, duration_s)


def _frames(shape: VideoShape, sampled: list[int], allow: Allow) -> Any:
    size = (len(sampled), shape.height_px, shape.width_px, 3)
    allow(math.prod(size) * _COPIES_OF_FRAMES)
    return np.zeros(size, dtype=np.uint8)


def _decoder(shape: VideoShape, allow: Allow) -> dict[str, Any]:
    """One function decodes, whatever with."""

    def decode(
        backend: str,
        loader: Any,
        data: bytes,
        target: Any,
        sampling_kwargs: dict[str, Any],
        backend_kwargs: dict[str, Any],
        *,
        frame_recovery: bool,
    ) -> Any:
        source = loader._prepare_source(_source(shape))
        sampled = loader.compute_frames_index_to_sample(
            source=source, target=target, **sampling_kwargs
        )
        return _frames(shape, sampled, allow), source, sampled, sampled

    return {"decode_video": decode}


def _capture(shape: VideoShape, allow: Allow) -> dict[str, Any]:
    """Before 0.29: a class that opens a clip, tells of it and reads its frames."""
    facts = {
        cv2.CAP_PROP_FRAME_WIDTH: shape.width_px,
        cv2.CAP_PROP_FRAME_HEIGHT: shape.height_px,
        cv2.CAP_PROP_FRAME_COUNT: shape.num_frames,
        cv2.CAP_PROP_FPS: shape.fps,
    }

    class Capture:
        def get(self, fact: int) -> float:
            return facts[fact]

    def read(
        cls: Any, /, cap: Any, frame_idx: list[int], total_frames_num: int, **kwargs: Any
    ) -> Any:
        return _frames(shape, frame_idx, allow), frame_idx

    return {
        "open_video_capture": classmethod(lambda cls, data: Capture()),
        "get_video_metadata": staticmethod(lambda cap: _source(shape)),
        "read_frames": classmethod(read),
    }
