"""A model that the suite judges, and how its server is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Subject:
    """`key` names it on the command line; `corpus` lists the media of each request that it is
    calibrated for. `transcribes`: its server takes sounds at /v1/audio/transcriptions alone.
    """

    key: str
    model: str
    corpus: Sequence[Sequence[str]]
    transcribes: bool = False

    @property
    def kinds(self) -> list[str]:
        """The modalities that it is calibrated for."""
        return list(dict.fromkeys(_kind(name) for names in self.corpus for name in names))


def _kind(name: str) -> str:
    return name.split("-")[0]


# A picture that comes again and again beside new ones: a processor cache pays.
_LOGO = "image-448x448.jpg"
_PICTURES = (
    ("image-1024x1024.jpg", _LOGO),
    ("image-640x480.jpg", "image-481x641.jpg", _LOGO),
    ("image-1000x750.jpg", "image-224x224.png", _LOGO),
    ("image-same-0.jpg", _LOGO),
)
_CLIPS = (
    ("video-640x360.mp4",),
    ("video-h264.mp4", "image-28x28.png"),
)
_SOUNDS = (
    ("audio-30s.flac", "audio-1s.wav"),
    ("audio-5s.flac", "audio-1s.wav"),
    ("audio-29s.flac",),
)

SUBJECTS = (
    # Deepstack: what the encoder gives is four times as wide as the language model.
    Subject("qwen3-vl", "Qwen/Qwen3-VL-2B-Instruct", (*_PICTURES, *_CLIPS)),
    Subject("qwen2.5-vl", "Qwen/Qwen2.5-VL-3B-Instruct", (*_PICTURES, *_CLIPS)),
    # Tiles.
    Subject("internvl", "OpenGVLab/InternVL2-2B", _PICTURES),
    Subject("qwen2-audio", "Qwen/Qwen2-Audio-7B-Instruct", _SOUNDS),
    # Encoder and decoder.
    Subject("whisper", "openai/whisper-large-v3", (("audio-30s.flac",), ("audio-5s.flac",)), True),
)


def subject(key: str) -> Subject:
    """Raises KeyError."""
    return {one.key: one for one in SUBJECTS}[key]
