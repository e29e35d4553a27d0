"""Compare published token counts with vLLM's own processor (others: `NOT_COMPARED`, `NOT_THAT`).

InternVL's, Mistral's and Llama 4's placeholders also hold tokens around the image: the facts count
image tokens, as the encoder cache does, so `embeds` is compared.
"""

from __future__ import annotations

import importlib.util
import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from mmcalib.domain.knobs import Setting
from mmcalib.domain.model import Cost
from mmcalib.domain.shapes import AudioShape, ImageShape, Modality, Shape, VideoShape
from mmcalib.engine.messages import Blank
from mmcalib.models.catalogue import bundled_models
from tests.engine.conftest import NEEDS, Lab

pytestmark = pytest.mark.engine

BUNDLED = {geometry.id for geometry in bundled_models()}

# The same processor with the same numbers, by the name it is bundled under.
ALIASES: Mapping[str, tuple[str, ...]] = {
    # A fact of the shared processor class, asserted with the tester's own pixel limits.
    "Qwen2-VL image processor (transformers)": ("Qwen/Qwen2-VL-2B-Instruct",),
    "Qwen2.5-VL-72B-Instruct-AWQ": ("Qwen/Qwen2.5-VL-72B-Instruct-AWQ",),
    "Qwen/Qwen2.5-VL-3B-Instruct-AWQ": ("Qwen/Qwen2.5-VL-3B-Instruct",),
    "Qwen/Qwen2-VL, Qwen2.5-VL": ("Qwen/Qwen2-VL-7B-Instruct", "Qwen/Qwen2.5-VL-32B-Instruct"),
    "Qwen/Qwen2.5-VL-7B-Instruct (0.23, max_model_len 128000)": ("Qwen/Qwen2.5-VL-7B-Instruct",),
    "Qwen/Qwen2.5-Omni-7B (0.10.2)": ("Qwen/Qwen2.5-Omni-7B",),
    "Qwen/Qwen3-VL-*": ("Qwen/Qwen3-VL-8B-Instruct",),
    "Qwen3.8-27B long-video recipe": ("Qwen/Qwen3.8-27B",),
    "Qwen3.5-122B-A10B-GPTQ-Int4": ("Qwen/Qwen3.5-122B-A10B",),
    "nvidia/Cosmos3-Nano (Qwen3-VL based)": ("Qwen/Qwen3-VL-8B-Instruct",),
    "openai/whisper-*": ("openai/whisper-large-v3",),
    "Mistral-Small-3.1-24B-Instruct-2503": ("mistralai/Mistral-Small-3.1-24B-Instruct-2503",),
    "google/gemma-4-*": ("google/gemma-4-26B-A4B-it", "google/gemma-4-31B-it"),
    # One processor of sound in both sizes.
    "google/gemma-3n-E2B-it": ("google/gemma-3n-E4B-it",),
    "MedGemma 4B": ("google/gemma-3-4b-it",),
    "AudioFlamingo3": ("nvidia/audio-flamingo-3-hf",),
    "AIDC-AI/Ovis2-8B-GPTQ-Int4": ("AIDC-AI/Ovis2-8B",),
    "OpenGVLab/InternVL3_5-14B-HF (max_model_len 28000)": ("OpenGVLab/InternVL3_5-14B-HF",),
    # Both have Llama 4's processor.
    "meta-llama/Llama-Guard-4-12B": ("meta-llama/Llama-4-Scout-17B-16E-Instruct",),
    # Tiles of 448 pixels and 256 tokens, by InternVL's rule.
    "nvidia/Llama-3.1-Nemotron-Nano-VL-8B-V1": ("OpenGVLab/InternVL2_5-8B",),
    "bairongz/QianfanOCR": ("OpenGVLab/InternVL2_5-8B",),
}

NOT_BUNDLED = "not bundled"
REMOTE_CODE = "its config or processor is remote code"
OLDER = "of a release with another formula"
NOT_COMPARED = {
    "(asset)": "names an image, no model",
    "microsoft/Phi-3.5-vision-instruct": REMOTE_CODE,
    "TIGER-Lab/VLM2Vec-Full (Phi-3.5-V)": REMOTE_CODE,
    "microsoft/Phi-4-multimodal-instruct": REMOTE_CODE,
    "h2oai/h2ovl-mississippi-2b": NOT_BUNDLED,
    "Molmo2 / MolmoWeb": NOT_BUNDLED,
    "moonshotai/Kimi-K2.5": NOT_BUNDLED,
    "moonshotai/Kimi-K2.x (vision_chunk)": NOT_BUNDLED,
    "zai-org/GLM-5.3-Flash": "vLLM 0.32 refuses its config on a CPU: MLA beside linear layers",
    "nvidia/LocateAnything-3B": "vLLM 0.32 does not serve it",
    "nano-nemotron-vl": REMOTE_CODE,
    "Qwen/Qwen2.5-VL (V0/0.9)": OLDER,
    "Qwen/Qwen3-VL-* (0.11.0)": OLDER,
}
# Rows of bundled models, by what they expect.
NOT_THAT = {
    "MiniMaxAI/MiniMax-M3": {"refused: ValueError max_total_pixels": "no number of tokens"},
    "Qwen/Qwen2.5-VL-7B-Instruct": {"16601-token prompt": "images of unknown size, and their text"},
    "Qwen/Qwen3-VL-4B-Instruct": {
        "< full (64); compute_retained_tokens_count(64,0.5)": "vLLM 0.32 has no image_pruning_rate"
    },
    "zai-org/GLM-OCR": {"6042": "a page of unknown size"},
    "google/gemma-4-26B-A4B-it": {"1064": "an image of unknown size"},
}
# Rows that a test of their own compares, by what they expect.
FORMULAS = {
    "patches_per_image * tokens_per_tile + tile separators": "test_tiles_of_llama_4",
    "chunks*tokens_per_patch + num_tiles + 3": "test_tiles_of_llama_4",
}
# Tensors that say what rows without a number of tokens assert: (model, tensor's name).
TENSORS = {("deepseek-ai/DeepSeek-OCR", "images_crop"), ("AudioFlamingo3", "chunk_counts")}
# From logs of releases that counted the text around the embeddings as well: what it was.
AROUND = {
    # The markers and line breaks around an image.
    "257..264": 4,
    "257..292": 4,
    # Of 108 frames eight each: "Frame", its number, ":", a blank, two markers, a line break, and a
    # digit more; without the last break.
    "28511": 108 * 8 - 1,
}
# The log speaks of a video whose number is that of an image.
OF_AN_IMAGE = {("zai-org/GLM-OCR", "6084")}

COMPARED = 70

# What rows name in words.
NAMED: Mapping[str, Shape] = {
    # 299 tokens of 28 × 28 px are 23 × 13: 640 × 360 px; 5 pairs of frames at 1/s are ten seconds.
    "baby_reading (sample_demo_1.mp4)": VideoShape(300, 30.0, 10.0, 640, 360),
    # Two windows of 30 s, of which the second lacks the two frames that the mask leaves out.
    "mask 2999+2999 of 3000": AudioShape(959_680, 16_000),
    "30 s @16 kHz": AudioShape(480_000, 16_000),
    # Whatever its length.
    "": AudioShape(160_000, 16_000),
    "any, no pan-and-scan": ImageShape(1300, 876),
    "30 s window": AudioShape(480_000, 16_000),
    "BigBuckBunny.mp4 and 3 others": VideoShape(1440, 24.0, 60.0, 640, 360),
}
LARGEST = ("max-size item", "size with most features", "item with most features")


def rows(shared: Path) -> list[dict[str, Any]]:
    files = sorted((shared / "facts").glob("token_counts*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines()]


def why_not(row: dict[str, Any]) -> str | None:
    model, expected = row["model"], row["expected_tokens"]
    if model not in BUNDLED and model not in ALIASES:
        return NOT_COMPARED[model]
    if expected is None and not _of_tensors(row):
        return "no number of tokens"
    return NOT_THAT.get(model, {}).get(str(expected))


def _of_tensors(row: dict[str, Any]) -> bool:
    return any((row["model"], name) in TENSORS for name in row["expected_tensor_shape"] or {})


def facts(shared: Path) -> list[dict[str, Any]]:
    """The rows that are compared here, for every bundled model of theirs that opens here."""
    return [
        {**row, "model": model, "said_of": row["model"]}
        for row in rows(shared)
        if why_not(row) is None and str(row["expected_tokens"]) not in FORMULAS
        for model in ALIASES.get(row["model"], (row["model"],))
        if model not in NEEDS or importlib.util.find_spec(NEEDS[model]) is not None
    ]


def test_every_row_is_compared_or_has_its_reason(shared: Path) -> None:
    reasons = [why_not(row) for row in rows(shared)]
    assert len(reasons) == 98
    assert reasons.count(None) >= COMPARED
    told = {row["model"] for row in rows(shared)}
    assert told >= set(ALIASES) | set(NOT_COMPARED) | set(NOT_THAT)


@pytest.mark.slow
def test_every_matching_fact_holds(lab: Callable[[str], Lab], shared: Path) -> None:
    wrong = []
    counted = (fact for fact in facts(shared) if fact["expected_tokens"] is not None)
    for fact in sorted(counted, key=lambda f: f["model"]):
        around = AROUND.get(str(fact["expected_tokens"]), 0)
        found = _measured(lab(fact["model"]), fact) + around
        if not _agrees(found, fact["expected_tokens"]):
            wrong.append((fact["model"], fact["media"], fact["mm_processor_kwargs"], found))
    assert not wrong


def test_tiles_of_llama_4(lab: Callable[[str], Lab]) -> None:
    """144 a tile, separators, 3 around: 147 and 727, as a server's tests (index id 60675768427)."""
    scout = lab("meta-llama/Llama-4-Scout-17B-16E-Instruct")
    for tiles, shape in ((1, ImageShape(336, 336)), (4, ImageShape(672, 672))):
        cost = scout.cost(Blank(shape))
        several = tiles if tiles > 1 else 0
        assert (cost.embeds, cost.tokens) == (
            (several + 1) * 144,
            (several + 1) * 144 + several + 3,
        )
    largest = scout.budget(build_dummy=False).max_tokens_per_item
    assert largest == {"image": (16 + 1) * 144}


def test_asserted_tensor_shapes_hold(lab: Callable[[str], Lab], shared: Path) -> None:
    """`pixel_values` of N patches by 1176 values of one byte, and a grid of three integers."""
    checked = 0
    for fact in facts(shared):
        shape = (fact["expected_tensor_shape"] or {}).get("pixel_values")
        if shape is None or fact["expected_tokens"] is None:
            continue
        cost = lab(fact["model"]).cost(Blank(_shape(fact)), mm_processor_kwargs=_kwargs(fact))
        assert cost.tensor_bytes == shape[0] * shape[1] + 3 * 8, fact
        checked += 1
    assert checked >= 3


def test_a_small_page_of_deepseek_ocr_is_one_view(lab: Callable[[str], Lab]) -> None:
    """`pixel_values` of 1 × 3 × 1024 × 1024 numbers of two bytes, no crop, and two integers."""
    cost = lab("deepseek-ai/DeepSeek-OCR").cost(Blank(ImageShape(100, 100)))
    assert cost.tensor_bytes == 3 * 1024 * 1024 * 2 + 2 * 8


def test_half_a_minute_of_audio_flamingo_is_one_chunk(lab: Callable[[str], Lab]) -> None:
    """128 bands of 3000 frames in two bytes, a mask of them in four, and the count of chunks."""
    flamingo = lab("nvidia/audio-flamingo-3-hf")
    chunk = 128 * 3000 * 2 + 3000 * 4
    half = Blank(AudioShape(480_000, 16_000))
    cost = flamingo.cost(half, mm_processor_kwargs={"max_audio_len": 60})
    assert cost.tensor_bytes == chunk + 8
    assert flamingo.cost(Blank(AudioShape(480_160, 16_000))).tensor_bytes == 2 * chunk + 8


# The largest item of published startup logs, or the range that the number of profiled items gives.
# Not Gemma 3's 257 to 264 (with tokens around the 256), nor Qwen3-VL's video of 0.11's formula.
LOGGED = [
    ("Qwen/Qwen2.5-VL-72B-Instruct", "image", {}, (16_384, 16_384)),
    ("Qwen/Qwen2.5-VL-72B-Instruct", "video", {}, (114_688, 114_688)),
    ("Qwen/Qwen3-VL-8B-Instruct", "image", {}, (16_384, 16_384)),
    ("Qwen/Qwen3-VL-8B-Instruct", "image", {"max_pixels": 1_003_520}, (980, 980)),
    ("Qwen/Qwen3.8-27B", "image", {}, (16_384, 16_384)),
    ("zai-org/GLM-OCR", "image", {}, (6084, 6084)),
    ("google/gemma-4-26B-A4B-it", "image", {}, (280, 280)),
    ("google/gemma-4-26B-A4B-it", "video", {}, (2496, 2496)),
    ("llava-hf/llava-v1.6-mistral-7b-hf", "image", {}, (2731, 3276)),
    ("openai/whisper-large-v3", "audio", {}, (1500, 1500)),
]


@pytest.mark.parametrize(("model_id", "modality", "kwargs", "bounds"), LOGGED)
@pytest.mark.slow
def test_the_largest_item_is_what_startup_logs_say(
    lab: Callable[[str], Lab],
    model_id: str,
    modality: Modality,
    kwargs: dict[str, Any],
    bounds: tuple[int, int],
) -> None:
    budget = lab(model_id).budget(build_dummy=False, mm_processor_kwargs=kwargs)
    assert bounds[0] <= budget.max_tokens_per_item[modality] <= bounds[1]


def test_minimax_m3_refuses_images_above_3584_pixels_squared(lab: Callable[[str], Lab]) -> None:
    """The long side alone decides a size: 4004 × 3500 are more than 12,845,056 pixels."""
    by_side = Setting(mm_processor_kwargs={"max_long_side_pixel": 5000})
    m3 = lab("MiniMaxAI/MiniMax-M3")
    taken, refused = m3.costs(
        Blank(ImageShape(3584, 3584)), Blank(ImageShape(4000, 3500)), setting=by_side
    )
    assert isinstance(taken, Cost)
    assert taken.embeds == 128 * 128
    assert refused == "image area 14014000 exceeds max_total_pixels 12845056 after resizing"


def test_a_video_of_llava_onevision_is_196_tokens_a_frame(lab: Callable[[str], Lab]) -> None:
    """As vLLM's own test of the 0.5B asserts: 32 frames and one token more, whatever the size."""
    onevision = lab("llava-hf/llava-onevision-qwen2-7b-ov-hf")
    for shape in (VideoShape(100, 25.0, 4.0, 1280, 720), VideoShape(120, 30.0, 4.0, 176, 144)):
        cost = onevision.cost(Blank(shape))
        assert (cost.sampled[0], cost.embeds) == (32, 32 * 196 + 1)


# vLLM's dummy for Gemma 4 is 224 pixels wide and high, whatever the budget says.
GEMMA4 = sorted(i for i in BUNDLED if re.match(r"google/gemma-4-[E23](?!.*qat)", i))


@pytest.mark.parametrize("model_id", GEMMA4)
def test_gemma4_s_dummies_are_smaller_than_its_budget(
    lab: Callable[[str], Lab], model_id: str
) -> None:
    budget = lab(model_id).budget()
    assert {"image": 280, "video": 2496}.items() <= budget.max_tokens_per_item.items()
    # 32 frames of 8 by 8 tokens, where a frame may have 70.
    assert budget.dummies["video"].embeds == 32 * 64


def _measured(lab: Lab, fact: dict[str, Any]) -> int:
    media = fact["media"]
    modality = media["modality"]
    if (fact["model"], str(fact["expected_tokens"])) in OF_AN_IMAGE:
        modality = "image"
    if fact["model"].startswith("LiquidAI/LFM2-VL"):
        return _lfm2(lab, fact["expected_tokens"])
    unsized = (media["name"] or media["width"]) is None and modality != "audio"
    if media["name"] in LARGEST or unsized:
        hint = {k.rpartition(".")[2]: v for k, v in _given(fact).items() if _is_hint(k)}
        if media["name"] in LARGEST and media["frames"]:
            hint["num_frames"] = media["frames"]
        limits: dict[str, Any] = {}
        if hint:
            limits["limit_mm_per_prompt"] = {modality: {"count": 1, **hint}}
        if length := re.search(r"max_model_len (\d+)", fact["said_of"]):
            limits["max_model_len"] = int(length[1])
        budget = lab.budget(build_dummy=False, mm_processor_kwargs=_kwargs(fact), **limits)
        return budget.max_tokens_per_item[modality]
    given, loaded = _kwargs(fact), {}
    if "fps" in given:
        # Today the loader decides how many frames there are, and its option is another.
        loaded = {"media_io_kwargs": {"video": {"fps": given.pop("fps")}}}
    return lab.cost(Blank(_shape(fact)), mm_processor_kwargs=given, **loaded).embeds


def _lfm2(lab: Lab, tokens: int) -> int:
    """A square of so many tokens; its encoder takes 1,024 patches of 16 px for 256, and for one."""
    side = 32 * math.isqrt(tokens)
    fewest = {"min_image_tokens": 1} if tokens < 64 else {}
    cost = lab.cost(Blank(ImageShape(side, side)), mm_processor_kwargs=fewest)
    assert cost.tensor_bytes == 1024 * 3 * 16 * 16 * 2 + 3 * 8
    return cost.embeds


def _shape(fact: dict[str, Any]) -> Shape:
    media = fact["media"]
    for name in (media["name"], media["length"]):
        if name in NAMED:
            return NAMED[name]
    if media["modality"] == "audio":
        return NAMED[""]
    if media["modality"] == "video":
        seconds, *fps = map(float, re.findall(r"[\d.]+", str(media["length"])))
        fps = fps or [media["frames"] / seconds]
        return VideoShape(media["frames"], fps[0], seconds, media["width"], media["height"])
    return ImageShape(media["width"], media["height"])


def _kwargs(fact: dict[str, Any]) -> dict[str, Any]:
    if "tester defaults" in fact["confidence"]:
        return {"min_pixels": 56 * 56, "max_pixels": 28 * 28 * 1280}
    if fact["media"]["name"] == "car-detection.mp4":
        # Reported beside a cap of a frame's pixels that Qwen3-VL's processor takes for another.
        return {}
    given = {k: v for k, v in _given(fact).items() if not _is_hint(k) and k != "limit image"}
    size = given.get("size")
    if isinstance(size, dict) and fact["media"]["modality"] == "video":
        return {**given, "size": {"shortest_edge": 4096, **size}}
    return given


def _given(fact: dict[str, Any]) -> dict[str, Any]:
    return dict(fact["mm_processor_kwargs"] or {})


def _is_hint(name: str) -> bool:
    """`limit_mm_per_prompt.video.num_frames`: no argument of a processor, but of the engine."""
    return name.startswith("limit_mm_per_prompt.")


def _agrees(found: int, expected: int | str) -> bool:
    if isinstance(expected, int):
        return found == expected
    if between := re.match(r"(\d+)(?:\.\.|-)(\d+)", expected):
        return int(between[1]) <= found <= int(between[2])
    bound = re.match(r"<= (\d+)", expected)
    assert bound, expected
    # "and > every test asset": the largest, 1300×876, takes 1426 tokens, below these caps' bound.
    least = int(bound[1]) - 3 if "every test asset" in expected else 1
    return least <= found <= int(bound[1])
