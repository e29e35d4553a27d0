"""Compare published token counts with vLLM's own processors.

InternVL's, Mistral's and Llama 4's placeholders also hold tokens around the image: the sources
count image tokens, as the encoder cache does, so `embeds` is compared.
"""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from mmcalib.domain.knobs import Setting
from mmcalib.domain.model import Cost
from mmcalib.domain.shapes import AudioShape, ImageShape, Modality, VideoShape
from mmcalib.engine.messages import Blank
from mmcalib.models.catalogue import bundled_models
from tests.builders import expect
from tests.conftest import ROOT
from tests.engine.conftest import NEEDS, Lab

pytestmark = pytest.mark.engine
SHAPES: dict[Modality, type[Any]] = {"image": ImageShape, "video": VideoShape, "audio": AudioShape}
# A row has the largest item of a startup log or an item's shape, and the least and most tokens.
PUBLISHED = (ROOT / "tests" / "data" / "token_counts.jsonl").read_text("utf-8").splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("row", map(json.loads, PUBLISHED), ids=lambda row: row["model"])
def test_a_published_count_is_what_vllm_counts(lab, row: dict[str, Any]) -> None:
    if row["model"] in NEEDS:
        pytest.importorskip(NEEDS[row["model"]])
    model, setting = lab(row["model"]), row.get("setting", {})
    least, most = row["tokens"]
    if "largest" in row:
        budget = model.budget(build_dummy=False, **setting)
        assert least <= budget.max_tokens_per_item[row["largest"]] <= most
        return
    (shape,) = (kind(*row[name]) for name, kind in SHAPES.items() if name in row)
    cost = model.cost(Blank(shape), **setting)
    assert least <= cost.embeds <= most
    assert cost.tensor_bytes == row.get("tensor_bytes", cost.tensor_bytes)


def test_tiles_of_llama_4(lab: Callable[[str], Lab]) -> None:
    """144 a tile, the whole as one more where there are several, their separators, and 3 around."""
    scout = lab("meta-llama/Llama-4-Scout-17B-16E-Instruct")
    one, four = (scout.cost(Blank(ImageShape(side, side))) for side in (336, 672))
    assert (one.embeds, one.tokens) == (144, 147)
    assert (four.embeds, four.tokens) == (5 * 144, 727)
    assert scout.budget(build_dummy=False).max_tokens_per_item == {"image": 17 * 144}


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


def test_minimax_m3_refuses_images_above_3584_pixels_squared(lab: Callable[[str], Lab]) -> None:
    """The long side alone decides a size: 4004 × 3500 are more than 12,845,056 pixels."""
    by_side = Setting(mm_processor_kwargs={"max_long_side_pixel": 5000})
    m3 = lab("MiniMaxAI/MiniMax-M3")
    sizes = Blank(ImageShape(3584, 3584)), Blank(ImageShape(4000, 3500))
    taken, refused = m3.costs(*sizes, setting=by_side)
    assert expect(Cost, taken).embeds == 128 * 128
    assert refused == "image area 14014000 exceeds max_total_pixels 12845056 after resizing"


def test_a_video_of_llava_onevision_is_196_tokens_a_frame(lab: Callable[[str], Lab]) -> None:
    """vLLM's test of the 0.5B asserts 32 frames and one token more, whatever the size."""
    onevision = lab("llava-hf/llava-onevision-qwen2-7b-ov-hf")
    for shape in (VideoShape(100, 25.0, 4.0, 1280, 720), VideoShape(120, 30.0, 4.0, 176, 144)):
        cost = onevision.cost(Blank(shape))
        assert (cost.sampled[0], cost.embeds) == (32, 32 * 196 + 1)


# vLLM's dummy for Gemma 4 is 224 pixels wide and high, whatever the budget says.
GEMMA4 = re.compile(r"google/gemma-4-[E23](?!.*qat)")


@pytest.mark.parametrize(
    "model_id", sorted(one.id for one in bundled_models() if GEMMA4.match(one.id))
)
def test_gemma4_s_dummies_are_smaller_than_its_budget(lab, model_id: str) -> None:
    budget = lab(model_id).budget()
    assert {"image": 280, "video": 2496}.items() <= budget.max_tokens_per_item.items()
    # 32 frames of 8 by 8 tokens, where a frame may have 70.
    assert budget.dummies["video"].embeds == 32 * 64
