"""Twelve items per modality, from a device's smallest to more than any processor keeps."""

from collections.abc import Mapping

from mmcalib.domain.shapes import AudioShape, ImageShape, Modality, Shape, VideoShape


def _clip(frames: int, fps: float, width: int, height: int) -> VideoShape:
    return VideoShape(frames, fps, frames / fps, width, height)


def _sound(seconds: float, rate_hz: int = 16_000) -> AudioShape:
    return AudioShape(round(seconds * rate_hz), rate_hz)


SHAPES: Mapping[Modality, Mapping[str, Shape]] = {
    "image": {
        "1×1": ImageShape(1, 1),
        "a line down": ImageShape(1, 300),
        "a line across": ImageShape(300, 1),
        "a till receipt": ImageShape(600, 4000),
        "48 megapixels": ImageShape(8000, 6000),
        "1 megapixel, square": ImageShape(1024, 1024),
        "an A4 page at 300 dpi": ImageShape(2480, 3508),
        "a phone's photo": ImageShape(4032, 3024),
        "a screen": ImageShape(1920, 1080),
        "a thumbnail": ImageShape(640, 480),
        "odd sides": ImageShape(1301, 877),
        "an icon": ImageShape(64, 64),
    },
    "video": {
        "1 frame": _clip(1, 25.0, 64, 64),
        "2 frames": _clip(2, 25.0, 64, 64),
        "3 frames": _clip(3, 25.0, 640, 360),
        "7 frames": _clip(7, 25.0, 640, 360),
        "33 frames, upright": _clip(33, 30.0, 360, 640),
        "15 frames at 1 fps": _clip(15, 1.0, 640, 360),
        "a slide show": _clip(10, 0.5, 640, 480),
        "10 frames of 4K": _clip(10, 30.0, 3840, 2160),
        "a minute": _clip(1800, 30.0, 640, 360),
        "an hour": _clip(108_000, 30.0, 64, 64),
        "29.97 fps": _clip(301, 29.97, 320, 240),
        "frames of 16 pixels": _clip(90, 30.0, 16, 16),
    },
    "audio": {
        "10 ms": _sound(0.01),
        "0.1 s": _sound(0.1),
        "1 s": _sound(1),
        "5 s": _sound(5),
        "29.99 s": _sound(29.99),
        "30 s": _sound(30),
        "30.01 s": _sound(30.01),
        "a minute": _sound(60),
        "7.3 s at 44.1 kHz": _sound(7.3, 44_100),
        "12 s at 8 kHz": _sound(12, 8_000),
        "30 s at 48 kHz": _sound(30, 48_000),
        "10 minutes": _sound(600),
    },
}

# What a configuration is made for: an item of each modality that a model takes.
CORPUS: Mapping[Modality, Shape] = {
    "image": ImageShape(1024, 1024),
    "video": _clip(20, 10.0, 320, 240),
    "audio": _sound(3),
}

# Those that a knob has to move, as far as it is for their modality.
PROBES: Mapping[Modality, tuple[str, ...]] = {
    "image": ("a phone's photo", "a till receipt"),
    "video": ("a minute",),
    "audio": ("30 s",),
}
