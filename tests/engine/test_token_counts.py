"""Token counts that are asserted in public tests, for every bundled model. No exceptions but these:

- facts without a number (a metadata value, a media file of unknown size) say nothing to compare;
- InternVL's placeholder also holds `<img>` and `</img>`: the facts count image tokens, as the
  encoder cache does, so `embeds` is compared.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mmcalib.domain.shapes import ImageShape, VideoShape
from mmcalib.engine.messages import Blank
from mmcalib.models import bundled
from tests.engine.conftest import Lab

pytestmark = pytest.mark.engine

BUNDLED = {geometry.id for geometry in bundled()}
# A fact of the shared processor class, asserted with the tester's own pixel limits.
ALIASES = {"Qwen2-VL image processor (transformers)": "Qwen/Qwen2-VL-2B-Instruct"}


def facts(shared: Path) -> list[dict[str, Any]]:
    """The asserted ones (equalities and inequalities) of bundled models that name a number."""
    lines = (shared / "facts/token_counts.jsonl").read_text(encoding="utf-8").splitlines()
    known = [json.loads(line) for line in lines]
    return [
        {**fact, "model": ALIASES.get(fact["model"], fact["model"])}
        for fact in known
        if ALIASES.get(fact["model"], fact["model"]) in BUNDLED
        and fact["confidence"].startswith("asserted")
        and (fact["expected_tokens"] is not None)
    ]


def test_every_matching_fact_holds(lab: Callable[[str], Lab], shared: Path) -> None:
    matching = facts(shared)
    assert len(matching) >= 11
    wrong = []
    for fact in sorted(matching, key=lambda f: f["model"]):
        found = _measured(lab(fact["model"]), fact)
        if not _agrees(found, fact["expected_tokens"]):
            wrong.append((fact["model"], fact["media"], fact["mm_processor_kwargs"], found))
    assert not wrong


def test_asserted_tensor_shapes_hold(lab: Callable[[str], Lab], shared: Path) -> None:
    """`pixel_values` of N patches by 1176 values of one byte, and a grid of three integers."""
    checked = 0
    for fact in facts(shared):
        shape = (fact["expected_tensor_shape"] or {}).get("pixel_values")
        if shape is None:
            continue
        cost = lab(fact["model"]).cost(_blank(fact), mm_processor_kwargs=_kwargs(fact))
        assert cost.tensor_bytes == shape[0] * shape[1] + 3 * 8, fact
        checked += 1
    assert checked >= 3


# What published startup logs say of the largest item: exactly, or between the two counts that give
# the logged number of profiled items. Not here: Gemma 3's 257 to 264, of versions that counted the
# tokens around the 256 embeddings too, and Qwen3-VL's video of 0.11, which had another formula.
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
def test_the_largest_item_is_what_startup_logs_say(
    lab: Callable[[str], Lab],
    model_id: str,
    modality: str,
    kwargs: dict[str, Any],
    bounds: tuple[int, int],
) -> None:
    budget = lab(model_id).budget(build_dummy=False, mm_processor_kwargs=kwargs)
    assert bounds[0] <= budget.max_tokens_per_item[modality] <= bounds[1]


def test_a_video_of_llava_onevision_is_196_tokens_a_frame(lab: Callable[[str], Lab]) -> None:
    """As vLLM's own test of the 0.5B asserts: 32 frames and one token more, whatever the size."""
    onevision = lab("llava-hf/llava-onevision-qwen2-7b-ov-hf")
    for shape in (VideoShape(100, 25.0, 4.0, 1280, 720), VideoShape(120, 30.0, 4.0, 176, 144)):
        cost = onevision.cost(Blank(shape))
        assert (cost.sampled[0], cost.embeds) == (32, 32 * 196 + 1)


# vLLM's dummy for Gemma 4 is 224 pixels wide and high, whatever the budget says.
GEMMA4 = sorted(i for i in BUNDLED if i.startswith("google/gemma-4"))
OTHER_THAN_QWEN = sorted(BUNDLED - {i for i in BUNDLED if i.startswith("Qwen/")} - set(GEMMA4))


@pytest.mark.parametrize("model_id", OTHER_THAN_QWEN)
def test_a_dummy_item_is_as_large_as_the_budget(lab: Callable[[str], Lab], model_id: str) -> None:
    """Proves that the bundled processor numbers and special tokens fit each other."""
    budget = lab(model_id).budget(limit_mm_per_prompt={"video": 0})
    found = {modality: dummy.embeds for modality, dummy in budget.dummies.items()}
    assert found
    assert found == {modality: budget.max_tokens_per_item[modality] for modality in found}


@pytest.mark.parametrize("model_id", GEMMA4)
def test_gemma4_s_dummies_are_smaller_than_its_budget(
    lab: Callable[[str], Lab], model_id: str
) -> None:
    budget = lab(model_id).budget()
    assert {"image": 280, "video": 2496}.items() <= budget.max_tokens_per_item.items()
    # 32 frames of 8 by 8 tokens, where a frame may have 70.
    assert budget.dummies["video"].embeds == 32 * 64


def _measured(lab: Lab, fact: dict[str, Any]) -> int:
    if fact["media"]["width"] is None:
        budget = lab.budget(
            build_dummy=False,
            mm_processor_kwargs=_kwargs(fact),
            limit_mm_per_prompt={"image": 1, "video": 0},
        )
        return budget.max_tokens_per_item["image"]
    return lab.cost(_blank(fact), mm_processor_kwargs=_kwargs(fact)).embeds


def _blank(fact: dict[str, Any]) -> Blank:
    return Blank(ImageShape(fact["media"]["width"], fact["media"]["height"]))


def _kwargs(fact: dict[str, Any]) -> dict[str, Any]:
    if "tester defaults" in fact["confidence"]:
        return {"min_pixels": 56 * 56, "max_pixels": 28 * 28 * 1280}
    return dict(fact["mm_processor_kwargs"] or {})


def _agrees(found: int, expected: int | str) -> bool:
    if isinstance(expected, int):
        return found == expected
    bound = re.match(r"<= (\d+)", expected)
    assert bound, expected
    # "and > every test asset": the largest of them, 1300×876, takes 1426 tokens uncapped, less
    # than these caps admit; a cap that gave far less than its bound would be no maximum.
    return int(bound[1]) - 3 <= found <= int(bound[1])
