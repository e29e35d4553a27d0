"""Geometry against published numbers of parameters: arithmetic over a config, without a model."""

from __future__ import annotations

from typing import Any

import pytest

from mmcalib.models.catalogue import find

Config = dict[str, Any]


def qwen3_5(config: Config) -> int:
    """Gated DeltaNet and gated attention in turn, an encoder without deepstack, an MTP head."""
    text, vision = config["text_config"], config["vision_config"]
    hidden = text["hidden_size"]
    tables = 1 if config["tie_word_embeddings"] else 2
    kinds = [_delta_net if kind == "linear_attention" else _attention for kind in _kinds(text)]
    layers = sum(attention(text) + _feed_forward(text) + 2 * hidden for attention in kinds)
    return (
        tables * text["vocab_size"] * hidden
        + layers
        + hidden
        + text["mtp_num_hidden_layers"] * _drafter(text)
        + _qwen_encoder(vision)
    )


def _kinds(text: Config) -> list[str]:
    kinds: list[str] = text["layer_types"]
    assert len(kinds) == text["num_hidden_layers"]
    return kinds


def _drafter(text: Config) -> int:
    hidden = text["hidden_size"]
    block = _attention(text) + _feed_forward(text) + 2 * hidden
    return 2 * hidden * hidden + block + 3 * hidden


def _delta_net(text: Config) -> int:
    hidden, value_heads = text["hidden_size"], text["linear_num_value_heads"]
    keys = text["linear_num_key_heads"] * text["linear_key_head_dim"]
    values = value_heads * text["linear_value_head_dim"]
    inputs = hidden * (2 * keys + 2 * values + 2 * value_heads)
    convolution = text["linear_conv_kernel_dim"] * (2 * keys + values)
    return inputs + convolution + 2 * value_heads + text["linear_value_head_dim"] + values * hidden


def _attention(text: Config) -> int:
    hidden, head = text["hidden_size"], text["head_dim"]
    queries, keys = text["num_attention_heads"] * head, text["num_key_value_heads"] * head
    gate = queries if text["attn_output_gate"] else 0
    return hidden * (2 * queries + gate + 2 * keys) + 2 * head


def _feed_forward(text: Config) -> int:
    hidden = int(text["hidden_size"])
    if "num_experts" not in text:
        return 3 * hidden * int(text["intermediate_size"])
    widths = text["num_experts"] * text["moe_intermediate_size"]
    shared = text["shared_expert_intermediate_size"]
    return hidden * (3 * widths + text["num_experts"] + 3 * shared + 1)


def gemma4(config: Config) -> int:
    """Windows and whole attention in turn, the whole one with keys as values; experts or none."""
    text, vision = config["text_config"], config["vision_config"]
    hidden = text["hidden_size"]
    layers = sum(_gemma_attention(text, kind) + _gemma_feed_forward(text) for kind in _kinds(text))
    norms = text["num_hidden_layers"] * (4 * hidden + 1) + hidden
    return int(text["vocab_size"] * hidden + layers + norms + _gemma_encoder(vision, hidden))


def _gemma_attention(text: Config, kind: str) -> int:
    whole = kind == "full_attention"
    head = text["global_head_dim" if whole else "head_dim"]
    heads = text["num_global_key_value_heads" if whole else "num_key_value_heads"]
    projections = 1 if whole and text["attention_k_eq_v"] else 2
    width = 2 * text["num_attention_heads"] + projections * heads
    return int(text["hidden_size"] * width * head + 2 * head)


def _gemma_feed_forward(text: Config) -> int:
    hidden, dense = text["hidden_size"], 3 * text["hidden_size"] * text["intermediate_size"]
    if not text["enable_moe_block"]:
        return int(dense)
    experts = text["num_experts"]
    router = hidden * experts + hidden + experts
    norms = 3 * hidden
    return int(dense + router + norms + 3 * hidden * text["moe_intermediate_size"] * experts)


def _gemma_encoder(vision: Config, out: int) -> int:
    hidden, head = vision["hidden_size"], vision["head_dim"]
    heads = vision["num_attention_heads"] + vision["num_key_value_heads"]
    attention = 2 * hidden * heads * head + 2 * head
    block = attention + 3 * hidden * vision["intermediate_size"] + 4 * hidden
    patches = (3 * vision["patch_size"] ** 2 + 2 * vision["position_embedding_size"]) * hidden
    standardised = 2 * hidden if vision["standardize"] else 0
    return int(patches + vision["num_hidden_layers"] * block + standardised + hidden * out)


def glm_ocr(config: Config) -> int:
    """Whole attention with two norms beside it, and a drafter with tables of its own."""
    text, vision = config["text_config"], config["vision_config"]
    hidden, head = text["hidden_size"], text["head_dim"]
    width = 2 * text["num_attention_heads"] + 2 * text["num_key_value_heads"]
    block = hidden * width * head + 3 * hidden * text["intermediate_size"] + 4 * hidden
    tables = 2 * text["vocab_size"] * hidden
    drafter = tables + 2 * hidden * hidden + block + 3 * hidden
    layers = text["num_hidden_layers"] * block + hidden
    return int(tables + layers + text["num_nextn_predict_layers"] * drafter + _glm_encoder(vision))


def _glm_encoder(vision: Config) -> int:
    hidden, wide, out = (
        vision["hidden_size"],
        vision["intermediate_size"],
        vision["out_hidden_size"],
    )
    attention = 4 * hidden * (hidden + 1) + 2 * (hidden // vision["num_heads"])
    block = attention + 3 * hidden * wide + 2 * wide + 3 * hidden
    pixels = vision["in_channels"] * vision["temporal_patch_size"] * vision["patch_size"] ** 2
    merged = hidden * vision["spatial_merge_size"] ** 2
    merger = (merged + 1) * out + out * (out + 2) + 3 * out * out * vision["in_channels"]
    return int((pixels + 2) * hidden + vision["depth"] * block + merger)


def _qwen_encoder(vision: Config) -> int:
    hidden, wide = vision["hidden_size"], vision["intermediate_size"]
    pixels = vision["in_channels"] * vision["temporal_patch_size"] * vision["patch_size"] ** 2
    block = 4 * hidden * hidden + 2 * hidden * wide + 9 * hidden + wide
    merged = hidden * vision["spatial_merge_size"] ** 2
    merger = 2 * hidden + merged * (merged + 1) + (merged + 1) * vision["out_hidden_size"]
    patches = (pixels + 1 + vision["num_position_embeddings"]) * hidden
    return int(patches + vision["depth"] * block + merger)


COUNTS = {
    "Gemma4ForConditionalGeneration": gemma4,
    "GlmOcrForConditionalGeneration": glm_ocr,
    "Qwen3_5ForConditionalGeneration": qwen3_5,
    "Qwen3_5MoeForConditionalGeneration": qwen3_5,
}


# What the index of the published weights counts, in full where that is known and else in billions.
# Source: index id 68411029259, read on the hub on 2026-09-24; of Qwen3.6-27B index id 56148059805,
# of GLM-OCR index id 68508449768.
@pytest.mark.parametrize(
    ("model_id", "parameters"),
    [
        ("google/gemma-4-26B-A4B-it", "25.81 B"),
        ("google/gemma-4-31B-it", "31.27 B"),
        ("zai-org/GLM-OCR", "1,325,258,240"),
        ("Qwen/Qwen3.5-0.8B", "0.87 B"),
        ("Qwen/Qwen3.5-2B", "2.27 B"),
        ("Qwen/Qwen3.5-4B", "4.66 B"),
        ("Qwen/Qwen3.5-9B", "9.65 B"),
        ("Qwen/Qwen3.5-27B", "27,781,427,952"),
        ("Qwen/Qwen3.6-27B", "27,781,427,952"),
        ("Qwen/Qwen3.8-27B", "27,781,427,952"),
        ("Qwen/Qwen3.5-35B-A3B", "35.95 B"),
    ],
)
def test_the_geometry_has_the_published_number_of_parameters(
    model_id: str, parameters: str
) -> None:
    geometry = find(model_id)
    assert geometry is not None
    found = COUNTS[geometry.architecture](geometry.values("config"))
    assert parameters in (f"{found:,}", f"{found / 1e9:.2f} B")
