"""What plan proposes of each kind of knob, and in which words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mmcalib.derive.fixes import Facts, Fix, Goal, every_fix
from mmcalib.domain.knobs import (
    KNOBS,
    AreaCap,
    CropCap,
    EdgeCap,
    FrameSampling,
    Knob,
    TileCap,
    TokenCap,
)

IMAGES = ("images_kwargs", "size", "longest_edge")
# As the child finds them: Idefics3-8B, SmolVLM2-2.2B, Gemma 3 with pan-and-scan off and on,
# InternVL2-2B, Qwen2.5-VL-3B.
IDEFICS3 = EdgeCap(path=IMAGES, value=1456, steps=(364, 728, 1092, 1456))
SMOLVLM2 = EdgeCap(path=IMAGES, value=1536, steps=(384, 768, 1152, 1536))
CROPS = ("images_kwargs", "pan_and_scan_max_num_crops")
GEMMA3 = CropCap(path=CROPS, value=0, steps=(0, 2, 3, 4), switch="do_pan_and_scan")
GEMMA3_ON = replace(GEMMA3, value=4)
INTERNVL2 = TileCap(path=("images_kwargs", "max_dynamic_patch"), value=12)
QWEN = AreaCap(
    modality="image",
    path=IMAGES,
    value=12_845_056,
    token_px=784,
    least_name="shortest_edge",
    least_px=3136,
)
CLIP = AreaCap(
    modality="video",
    path=("videos_kwargs", "size", "longest_edge"),
    value=602_112,
    token_px=784,
    least_name="shortest_edge",
    least_px=100_352,
)
FPS = FrameSampling(path=("video", "fps"), value=2, steps=(0.5, 1, 2))
GEMMA4 = TokenCap(
    path=("images_kwargs", "max_soft_tokens"), value=280, steps=(70, 140, 280, 560, 1120)
)
FACTS = Facts(
    largest_items={"image": 16_384, "video": 114_688},
    knobs=(),
    chunks_mm_input=True,
    quantized=False,
    tensor_parallel_size=1,
    attention_heads=28,
    weights_bytes=1,
    total_bytes=2,
    max_model_len=128_000,
    max_num_seqs=256,
    max_num_batched_tokens=2048,
)


def caps(knob: Knob) -> list[Fix]:
    """The fixes of one knob, mildest first."""
    facts = replace(FACTS, knobs=(knob,))
    return [f for f in every_fix({}, facts, Goal()) if f.knob == knob.name]


def said(knob: Knob) -> dict[Any, str]:
    """The value of each fix, and its price."""
    found = {}
    for fix in caps(knob):
        value: Any = fix.changes["mm_processor_kwargs"]
        for key in knob.path:
            value = value[key]
        found[value] = fix.price
    return found


@pytest.mark.parametrize(
    ("knob", "values"),
    [(IDEFICS3, (728, 364)), (SMOLVLM2, (768, 384))],
    ids=("Idefics3", "SmolVLM2"),
)
def test_an_edge_is_in_pixels(knob: Knob, values: tuple[int, int]) -> None:
    """Finding §8 of the server conformance work: "cut into at most 728 tiles, not 1456"."""
    assert said(knob) == {
        value: f"images are made smaller, to {value:,} pixels at their longer edge, not "
        f"{knob.value:,}"
        for value in values
    }
    assert [fix.level for fix in caps(knob)] == [0, 1]


def test_one_crop_is_the_image_again() -> None:
    """Finding §8 of the server conformance work: Gemma 3 was proposed `max_num_crops: 1`."""
    assert caps(GEMMA3) == []
    assert said(GEMMA3_ON) == {
        2: "slim images have at most 2 crops beside the whole, not 4",
        0: "slim images have no crops beside the whole",
    }
    (_, off) = caps(GEMMA3_ON)
    assert off.changes["mm_processor_kwargs"] == {
        "images_kwargs": {"pan_and_scan_max_num_crops": 0, "do_pan_and_scan": False}
    }
    assert list(said(replace(GEMMA3_ON, value=2, steps=(0, 2)))) == [0]


def test_tiles_are_tiles() -> None:
    assert said(INTERNVL2) == {
        6: "an image is cut into at most 6 tiles, not 12",
        3: "an image is cut into at most 3 tiles, not 12",
    }


def test_a_cap_that_is_set_is_only_made_lower() -> None:
    facts = replace(FACTS, knobs=(QWEN,))
    size = {"longest_edge": 2_000_000, "shortest_edge": 3_136}
    args = {"mm_processor_kwargs": {"images_kwargs": {"size": size}}}
    found = [f for f in every_fix(args, facts, Goal()) if f.knob == QWEN.name]
    assert [f.name for f in found] == ["images_kwargs.size.longest_edge=1003520"]


def test_areas_are_megapixels_of_images_and_shares_of_videos() -> None:
    assert said(QWEN) == {
        3_211_264: "images above 3.2 megapixels are made smaller",
        1_003_520: "images above 1.0 megapixels are made smaller",
    }
    assert said(CLIP) == {150_528: "videos keep 1 pixel in 4 of what they may have now"}


def test_an_area_whose_tokens_are_not_known_is_a_share_of_its_own() -> None:
    unknown = replace(QWEN, token_px=None)
    assert list(said(unknown)) == [12_845_056 // 4, 12_845_056 // 16]
    assert all("megapixels" in price for price in said(unknown).values())


def test_what_the_loader_keeps_is_no_fix() -> None:
    assert caps(FPS) == []


def test_soft_tokens_are_tokens() -> None:
    assert said(GEMMA4) == {
        140: "an image takes at most 140 tokens, not 280",
        70: "an image takes at most 70 tokens, not 280",
    }


def test_every_kind_is_tried() -> None:
    assert {type(knob) for knob in (IDEFICS3, GEMMA3, INTERNVL2, QWEN, FPS, GEMMA4)} == set(KNOBS)
