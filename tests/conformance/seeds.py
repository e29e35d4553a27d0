"""Requests of every kind, few enough to be asked at each check of the project."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from judging.request import Item, Order, Request, Room, Turn, Via

from mmcalib.releases.release import VLLM_0_29, VLLM_0_30, VLLM_0_31

# `MODEL: NAME` of a seed, or `MODEL: CAUSE` of a kept example → why `check` and server differ.
# A line fails once they agree: delete it.
_BEFORE_0_31 = "before 0.31 any request may bring media_io_kwargs"
NOT_CURED: dict[str, str] = {}
if not VLLM_0_31.is_reached:
    NOT_CURED["qwen2.5-vl: more frames, by the request"] = _BEFORE_0_31
    NOT_CURED["qwen3-vl: more frames, by the request"] = _BEFORE_0_31
if VLLM_0_29.is_reached and not VLLM_0_30.is_reached:
    _NO_FRAME = "0.29 answers 500 where its loader finds no frame"
    NOT_CURED["qwen2.5-vl: a transport stream"] = _NO_FRAME


def one(*names: str, **more: Any) -> Order:
    """One request of one message."""
    return (user(*names, **more),)


def user(*names: str, **more: Any) -> Request:
    return Request((Turn(items=tuple(map(Item, names))),), **more)


def sent(via: Via, name: str, words: int = 8) -> Order:
    """One request of one item."""
    return (Request((Turn(words=words, items=(Item(name, via),)),)),)


def turn(*parts: str, **more: Any) -> Order:
    """One request of words, beside these parts."""
    return (Request((Turn(parts=parts),), **more),)


LOGO = "image-448x448.jpg"
_TALK = (Turn("system", 40), Turn(), Turn("assistant", 0, calls=2), Turn("tool", 60), Turn())

PICTURES: Mapping[str, Order] = {
    "text alone": one(),
    "the corpus' largest": one("image-640x480.jpg"),
    "larger than the cap": one("image-3000x2000.jpg"),
    "as many as the limit": one("image-28x28.png", "image-1x1.png", "image-RGBA.webp"),
    "more than the limit": one(*["image-28x28.png"] * 4),
    "twice the same": one(LOGO, LOGO),
    "one pixel high": one("image-200x1.png"),
    "too slim": one("image-1x201.png"),
    "tall": one("image-60x12000.jpg"),
    "CMYK": one("image-CMYK.jpg"),
    "16 bits": one("image-I_16.png"),
    "floats": one("image-F.tif"),
    "palette": one("image-P.gif"),
    "rotated": one("image-exif-rotated.jpg"),
    "animated": one("image-animated.webp"),
    "AVIF": one("image-RGB.avif"),
    "PCX": one("image-RGB.pcx"),
    "TGA": one("image-RGB.tga"),
    "cut short": one("image-truncated.jpg"),
    "no picture": one("image-text.png"),
    "more pixels than vLLM opens": one("image-bomb.png"),
    "inline": sent("data", "image-RGB.png"),
    "inline, percent-encoded": sent("percent", "image-RGB.png"),
    "an address elsewhere": sent("http", "image-RGB.png"),
    "a clip": one("video-h264.mp4"),
    "a clip and a picture": one("video-h264.mp4", "image-28x28.png"),
    "two clips": one("video-h264.mp4", "video-2-frames.mp4"),
    "a transport stream": one("video-h264.ts"),
    "a clip cut short": one("video-truncated.mkv"),
    "AV1 in MP4": one("video-av1.mp4"),
    "AV1 in Matroska": one("video-av1.mkv"),
    "one frame, its rate not declared": one("video-1-frame-undeclared.mkv"),
    "variable rate, declared": one("video-variable-large.mkv"),
    "variable rate, not declared": one("video-variable-undeclared.mkv"),
    "GIF as a clip": one("video.gif"),
    "frames that the client cut": one("video-4.frames"),
    "sound without pictures": one("video-heard-only.mp4"),
    "text that fills the context": one(room=Room("text", 0)),
    "text one token longer": one(room=Room("text", 1)),
    "text one token shorter": one(room=Room("text", -1)),
    "text beside a picture": one(LOGO, room=Room("text", 1)),
    "an answer that fills the context": one(LOGO, room=Room("max_tokens", 0)),
    "an answer one token longer": one(LOGO, room=Room("max_completion_tokens", 1)),
    "an answer beyond the context": one(answer=100_000),
    "no answer named": one(answer=None),
    "an answer of no tokens": one(answer=0),
    "an answer shorter than it must be": one(answer=29, extra="at least 30 tokens"),
    "an answer as short as it may be": one(answer=30, extra="at least 30 tokens"),
    "no room for what an answer must have": one(
        answer=None, room=Room("text", 0), extra="at least 30 tokens"
    ),
    "more frames, by the request": one(extra="30 frames a second"),
    "fewer tokens than the clip, by the request": one("video-320x240.mp4", extra="truncated"),
    "many messages that say nothing": ((Request((Turn(words=0),) * 1000)),),
    "fields of the wrong kind": turn(fields='{"temperature": 3}'),
    "JSON by a schema": turn(fields='{"response_format": {"type": "json_object"}}'),
    "tools that nobody parses": one(choice="without a choice"),
    "tools that are not to be called": one(LOGO, choice="none"),
    "calls with their answers": one(before="call"),
    "a part without a type": turn("image_url untyped, text"),
    "a part of words with a uuid": turn("text with uuid"),
    "a fragment in a URL": sent("fragment", "image-RGB.png"),
    "a path": sent("bare", "image-RGB.png"),
    "base64 with too much padding": sent("overpadded", "image-RGB.png"),
    "a thumbnail's end": one("image-thumbnail-cut.jpg"),
    "the same under a uuid": turn("image_url with uuid") * 2,
    "tools and their calls": ((Request(_TALK, tools=3)),),
    "a cached picture beside new ones": (
        user("image-1024x1024.jpg"),
        user("image-same-1.jpg", "image-same-2.jpg", "image-1024x1024.jpg"),
        user("image-1024x1024.jpg", "image-same-3.jpg", "image-same-1.jpg"),
    ),
}

SOUNDS: Mapping[str, Order] = {
    "text alone": one(),
    "the corpus' longest": one("audio-30s.flac"),
    "longer than the model hears": one("audio-61s.flac"),
    "two": one("audio-1s.wav", "audio-5s.flac"),
    "three": one("audio-1s.wav", "audio-1s.wav", "audio-1s.wav"),
    "inline": sent("input_audio", "audio-1s.wav"),
    "as a data URL": sent("data", "audio-2s.mp3"),
    "inline alone, neither WAV nor MP3": sent("input_audio", "audio-2s.flac", words=0),
    "inline beside text, neither WAV nor MP3": sent("input_audio", "audio-2s.flac"),
    "8 kHz": one("audio-8000.wav"),
    "eight channels": one("audio-8-channels.wav"),
    "10 ms": one("audio-10ms.flac"),
    "no samples": one("audio-0-samples.wav"),
    "one sample": one("audio-1-samples.wav"),
    "W64": one("audio-2s.w64"),
    "Opus": one("audio-2s.opus"),
    "M4A": one("audio-2s.m4a"),
    "above 600 s": one("audio-601s.flac"),
    "above 25 MiB": one("audio-above-25-mib.wav"),
    "above 256 MiB decoded": one("audio-190s-8-channels.flac"),
    "no sound": one("audio-text.wav"),
}

SEEDS: Mapping[str, Mapping[str, Order]] = {
    "qwen3-vl": PICTURES,
    "qwen2.5-vl": PICTURES,
    "qwen2-audio": SOUNDS,
}
