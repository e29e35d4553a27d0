"""A model that the suite judges, and how its server is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Subject:
    """`key` names it on the command line; `corpus` lists the media of each request that it is
    calibrated for. `narrow` are numbers of its config.json that make each layer small: what is
    refused does not depend on them. `transcribes`: its server takes sounds at
    /v1/audio/transcriptions alone.
    """

    key: str
    model: str
    corpus: Sequence[Sequence[str]]
    narrow: Mapping[str, int]
    transcribes: bool = False
    max_model_len: str = "fit"

    @property
    def kinds(self) -> list[str]:
        """The modalities that it is calibrated for."""
        return list(dict.fromkeys(_kind(name) for names in self.corpus for name in names))


def _kind(name: str) -> str:
    return name.split("-")[0]


# A picture that comes again and again beside new ones: a processor cache pays.
_LOGO = "image-448x448.jpg"
_PICTURES = (
    ("image-640x480.jpg", _LOGO),
    ("image-481x641.jpg", "image-336x672.jpg", _LOGO),
    ("image-224x224.png", _LOGO),
    ("image-same-0.jpg", _LOGO),
)
_CLIPS = (
    ("video-320x240.mp4",),
    ("video-h264.mp4", "image-28x28.png"),
)
_SOUNDS = (
    ("audio-30s.flac", "audio-1s.wav"),
    ("audio-5s.flac", "audio-1s.wav"),
    # As long as a server decodes, so that what is known reaches to there.
    ("audio-599s.flac",),
)

# Numbers that make each layer small, by the section of config.json that they stand in.
_WIDTHS = {"hidden_size": 256, "intermediate_size": 256}
_TEXT = {**_WIDTHS, "num_attention_heads": 2, "num_key_value_heads": 2}
_NARROW = {"hidden_size": 128, "intermediate_size": 128}
_VISION = {**_NARROW, "num_attention_heads": 2}
_QWEN_VISION = {**_NARROW, "num_heads": 2, "out_hidden_size": 256}
_AUDIO = {"d_model": 128, "encoder_attention_heads": 2, "encoder_ffn_dim": 128}


def _narrow(sections: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    return {
        f"{section}.{name}".lstrip("."): number
        for section, numbers in sections.items()
        for name, number in numbers.items()
    }


SUBJECTS = (
    # Deepstack: what the encoder gives is four times as wide as the language model. Its largest
    # pictures fill a processor cache, and the context has room for as many as the limit.
    Subject(
        "qwen3-vl",
        "Qwen/Qwen3-VL-2B-Instruct",
        (("image-1024x1024.jpg", _LOGO), *_PICTURES, *_CLIPS),
        _narrow({"text_config": _TEXT, "vision_config": _QWEN_VISION}),
        max_model_len="4608",
    ),
    Subject(
        "qwen2.5-vl",
        "Qwen/Qwen2.5-VL-3B-Instruct",
        (*_PICTURES, *_CLIPS),
        _narrow({"": _TEXT, "vision_config": _QWEN_VISION}),
    ),
    # Tiles.
    Subject(
        "internvl",
        "OpenGVLab/InternVL2-2B",
        _PICTURES,
        _narrow({"text_config": _TEXT, "vision_config": _VISION}),
        # Room for as many as the limit, of each of which no more is known than the most.
        max_model_len="16384",
    ),
    Subject(
        "gemma",
        "google/gemma-3-4b-it",
        _PICTURES,
        _narrow({"text_config": {**_TEXT, "head_dim": 128}, "vision_config": _VISION}),
    ),
    Subject(
        "omni",
        "Qwen/Qwen2.5-Omni-3B",
        (*_PICTURES, *_CLIPS, *_SOUNDS),
        _narrow(
            {
                "thinker_config.text_config": _TEXT,
                "thinker_config.vision_config": _QWEN_VISION,
                "thinker_config.audio_config": {**_AUDIO, "output_dim": 256},
            }
        ),
    ),
    Subject(
        "qwen2-audio",
        "Qwen/Qwen2-Audio-7B-Instruct",
        _SOUNDS,
        _narrow({"text_config": _TEXT, "audio_config": _AUDIO}),
    ),
    Subject(
        "qwen3-asr",
        "Qwen/Qwen3-ASR-0.6B",
        _SOUNDS,
        _narrow(
            {
                "thinker_config.text_config": _TEXT,
                "thinker_config.audio_config": {**_AUDIO, "output_dim": 256},
            }
        ),
    ),
    # Encoder and decoder.
    Subject(
        "whisper",
        "openai/whisper-large-v3",
        (("audio-30s.flac",), ("audio-5s.flac",)),
        _narrow({"": {**_AUDIO, "decoder_attention_heads": 2, "decoder_ffn_dim": 128}}),
        transcribes=True,
    ),
)


def subject(key: str) -> Subject:
    """Raises KeyError."""
    return {one.key: one for one in SUBJECTS}[key]
