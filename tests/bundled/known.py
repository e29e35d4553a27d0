"""Known failures of vLLM with bundled models. A line that starts to hold fails: delete it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import pytest

from mmcalib.domain.shapes import Modality
from mmcalib.models.catalogue import Geometry

# Those that every run of the tests has; `make models` has all.
SLICE = (
    "Qwen/Qwen2.5-VL-3B-Instruct",
    "OpenGVLab/InternVL2-2B",
    "openai/whisper-large-v3",
    "zai-org/GLM-OCR",
)
# A modality and an item, a GPU, or nothing more than the model.
Case = tuple[str, ...]


class Line(Enum):
    """A property that is tested for each model."""

    OPENS = "opens as its facts say"
    TAKES = "takes the item"
    COUNTS = "counts what its processor makes"
    WITHIN = "is within the budget"
    DUMMY = "has a dummy as large as its budget"
    KNOBS = "has knobs that move its items"
    ROUND_TRIP = "reads its configuration back"
    STARTS = "starts where there is memory enough"


@dataclass(frozen=True, slots=True)
class Known:
    """A line that does not hold for models whose names begin so, and why."""

    models: tuple[str, ...]
    line: Line
    modality: Modality | None
    items: tuple[str, ...]
    reason: str

    def of(self, geometry: Geometry, line: Line, case: Case) -> bool:
        modality, item = (*case, "", "")[:2]
        return (
            self.line is line
            and _name(geometry.id).startswith(tuple(map(_name, self.models)))
            and self.modality in (None, modality)
            and (not self.items or item in self.items)
        )


def _name(model_id: str) -> str:
    """Leave out the publisher: a quantised build behaves like its original."""
    return model_id.rpartition("/")[2].lower()


_QWEN2 = ("Qwen/Qwen2-VL", "Qwen/Qwen2.5-VL", "Qwen/Qwen2.5-Omni")
_OMNI3 = ("Qwen/Qwen3-Omni",)
_OMNI = ("Qwen/Qwen2.5-Omni", *_OMNI3)
_MINICPM = ("openbmb/MiniCPM-V-4.6",)
_FEW = ("1 frame", "2 frames", "3 frames", "7 frames", "10 frames of 4K")
_FACTOR = "must be larger than temporal_factor:2"
_NO_FRAME = "vLLM's loader samples none of a clip of one frame, and divides by their number"
_BOUNDS = "its dummy is within a video's bounds of pixels, the budget's count within an image's"
_NO_SOUND = "vLLM lets it in, as no token of sound between two that mark its ends"
_NOTHING = "vLLM lets it in: 188 tokens, and nothing for the encoder to make them of"
_SHORT = "vLLM reserves for 30 seconds of sound, and the processor cuts none off"
_GEMMA4 = ("google/gemma-4",)
_SMALL_DUMMY = "its dummy is of 224 pixels a side"
_GLM46V = ("zai-org/GLM-4.6V",)
_INTERNVL_HF = ("OpenGVLab/InternVL3_5-14B-HF",)
_UNEVEN = (
    "a till receipt",
    "48 megapixels",
    "an A4 page at 300 dpi",
    "a phone's photo",
    "odd sides",
)
_LARGE = (*_UNEVEN, "1 megapixel, square", "a screen")
_TILED = (*_LARGE, "a line down", "a line across", "a thumbnail")

KNOWN: tuple[Known, ...] = (
    Known((*_QWEN2, *_OMNI3), Line.TAKES, "video", ("1 frame",), _NO_FRAME),
    Known(_OMNI, Line.WITHIN, "audio", ("a minute", "10 minutes"), _SHORT),
    Known(
        ("Qwen/Qwen3-ASR",),
        Line.WITHIN,
        "audio",
        ("30.01 s", "a minute", "10 minutes"),
        "vLLM reserves for 30 seconds of sound",
    ),
    Known(_OMNI3, Line.DUMMY, "audio", (), "vLLM counts 25 tokens a second, its encoder makes 13"),
    Known(_OMNI, Line.DUMMY, "video", (), _BOUNDS),
    Known(_GLM46V, Line.DUMMY, "video", (), "its dummy is cut to the context, the count is not"),
    Known(_MINICPM, Line.DUMMY, "video", (), "vLLM makes no dummy of videos alone"),
    Known(_GEMMA4, Line.DUMMY, "image", (), _SMALL_DUMMY),
    Known(_GEMMA4, Line.DUMMY, "video", (), _SMALL_DUMMY),
    Known(("google/gemma-4-E",), Line.DUMMY, "audio", (), "its dummy is a 30th of a second"),
    Known(("google/gemma-4-E", "google/gemma-4-12B"), Line.TAKES, "audio", ("10 ms",), _NO_SOUND),
    Known(("google/gemma-3n",), Line.TAKES, "audio", ("10 ms",), _NOTHING),
    Known(
        ("deepseek-ai/DeepSeek-OCR",),
        Line.WITHIN,
        "image",
        _UNEVEN,
        "vLLM takes a square of 2 by 2 tiles for the largest; others are cut into 5 or 6",
    ),
    Known(
        ("LiquidAI/LFM2",),
        Line.WITHIN,
        "image",
        _LARGE,
        "vLLM takes an image of one tile for the largest; its processor cuts others into up to 10",
    ),
    Known(
        _INTERNVL_HF,
        Line.WITHIN,
        "image",
        _TILED,
        "vLLM takes an image of one tile for the largest; its processor cuts others into up to 12",
    ),
    Known(
        _INTERNVL_HF,
        Line.COUNTS,
        "image",
        _TILED,
        "vLLM counts one tile, by the checkpoint's crop_to_patches; the call's default cuts more",
    ),
)

# What a model's own rules refuse, with words of the refusal as the reason: nobody's fault.
REFUSED: tuple[Known, ...] = (
    Known(
        (*_QWEN2, "Qwen/Qwen3", "zai-org/GLM", "PaddlePaddle/PaddleOCR", "MiniMaxAI/MiniMax-M3"),
        Line.TAKES,
        "image",
        ("a line down", "a line across"),
        "absolute aspect ratio must be smaller than 200",
    ),
    Known(("Qwen/Qwen3-VL", "Qwen/Qwen3."), Line.TAKES, "video", ("1 frame",), _FACTOR),
    Known(("zai-org/GLM-4.1V", "zai-org/GLM-4.5V"), Line.TAKES, "video", _FEW, _FACTOR),
    Known(_GLM46V, Line.TAKES, "video", _FEW[:3], _FACTOR),
    Known(("Qwen/Qwen2-Audio", "Qwen/Qwen2.5-Omni"), Line.TAKES, "audio", ("10 ms",), "The audio "),
    Known(
        ("Qwen/Qwen3-ASR", *_OMNI3), Line.TAKES, "audio", ("10 ms",), "Padding size should be less"
    ),
    Known(("nvidia/audio-flamingo-3",), Line.TAKES, "audio", ("10 ms",), "Audio is too short"),
)

# Without a method of vLLM's that counts an image or a video by its size alone.
UNCOUNTED: dict[str, tuple[Modality, ...]] = {
    "Gemma4ForConditionalGeneration": ("image", "video"),
    "Gemma4UnifiedForConditionalGeneration": ("image", "video"),
    "Gemma3nForConditionalGeneration": ("image",),
    "Glm4vForConditionalGeneration": ("video",),
    "Glm4vMoeForConditionalGeneration": ("video",),
    "InternVLChatModel": ("video",),
    "InternVLForConditionalGeneration": ("video",),
    "Lfm2VlForConditionalGeneration": ("image",),
    "MiniCPMV4_6ForConditionalGeneration": ("image", "video"),
    "Ovis": ("image",),
    "Llama4ForConditionalGeneration": ("image",),
}


def rule(geometry: Geometry, modality: Modality, item: str) -> str:
    """Words of the rule by which the model refuses the item; "" where it has none."""
    case = (modality, item)
    return next((one.reason for one in REFUSED if one.of(geometry, Line.TAKES, case)), "")


def counts(geometry: Geometry, modality: Modality) -> bool:
    return modality not in UNCOUNTED.get(geometry.architecture, ())


def failing(geometry: Geometry, line: Line, case: Case) -> Iterator[pytest.MarkDecorator]:
    """That it fails here, and must."""
    for one in KNOWN:
        if one.of(geometry, line, case):
            yield pytest.mark.xfail(strict=True, reason=one.reason)


def marks(geometry: Geometry, line: Line, case: Case) -> Sequence[pytest.MarkDecorator]:
    """`failing`, the group of workers that share the model, and whether every run has the test."""
    found = [pytest.mark.xdist_group(geometry.id), *failing(geometry, line, case)]
    return found if geometry.id in SLICE else [*found, pytest.mark.models]
