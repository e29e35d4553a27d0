import copy
import json
from pathlib import Path
from typing import Any

import pytest

from mmcalib.errors import ModelError
from mmcalib.models.catalogue import Geometry, bundled_models, find_model
from mmcalib.models.checkpoint import materialise
from mmcalib.models.cut import cut_checkpoint, cut_depth, read_config, read_depths
from mmcalib.text import dotted
from tests.builders import some

each_model = pytest.mark.parametrize("geometry", bundled_models(), ids=lambda g: g.id)

# Of each architecture one.
TRUE_DEPTHS = {
    "AIDC-AI/Ovis2-8B": (28, 24),
    "baidu/Unlimited-OCR": (12, 0),
    # Its two encoders are no list of layers that a config could cut.
    "deepseek-ai/DeepSeek-OCR": (12, 0),
    "deepseek-ai/DeepSeek-OCR-2": (12, 0),
    "google/gemma-3-12b-it": (48, 27),
    "google/gemma-3n-E4B-it": (35, 12),
    "google/gemma-4-12B-it": (48, 0),
    "google/gemma-4-26B-A4B-it": (30, 27),
    "HuggingFaceM4/Idefics3-8B-Llama3": (32, 27),
    "HuggingFaceTB/SmolVLM2-2.2B-Instruct": (24, 27),
    "LiquidAI/LFM2-VL-450M": (16, 12),
    "llava-hf/llava-1.5-7b-hf": (32, 24),
    "llava-hf/llava-onevision-qwen2-0.5b-ov-hf": (24, 26),
    "llava-hf/llava-v1.6-mistral-7b-hf": (32, 24),
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": (48, 34),
    "MiniMaxAI/MiniMax-M3": (60, 32),
    "mistralai/Mistral-Small-3.1-24B-Instruct-2503": (40, 24),
    "nvidia/audio-flamingo-3-hf": (28, 32),
    "openai/whisper-large-v3": (32, 32),
    "openbmb/MiniCPM-V-4.6": (24, 27),
    "OpenGVLab/InternVL2-2B": (24, 24),
    "OpenGVLab/InternVL3_5-14B-HF": (40, 24),
    "PaddlePaddle/PaddleOCR-VL-1.5": (18, 27),
    "Qwen/Qwen2-Audio-7B-Instruct": (32, 32),
    "Qwen/Qwen2-VL-2B-Instruct": (28, 32),
    "Qwen/Qwen2.5-Omni-3B": (36, 32),
    "Qwen/Qwen2.5-VL-32B-Instruct": (64, 32),
    "Qwen/Qwen3-ASR-1.7B": (28, 24),
    "Qwen/Qwen3-Omni-30B-A3B-Instruct": (48, 32),
    "Qwen/Qwen3-VL-235B-A22B-Instruct": (94, 27),
    "Qwen/Qwen3-VL-2B-Instruct": (28, 24),
    "Qwen/Qwen3.5-0.8B": (24, 12),
    "Qwen/Qwen3.5-35B-A3B": (40, 27),
    "Qwen/Qwen3.8-Flash-Next": (48, 27),
    "zai-org/GLM-4.1V-9B-Thinking": (40, 24),
    "zai-org/GLM-4.5V": (46, 24),
    "zai-org/GLM-OCR": (16, 24),
}
# Three deepstack layers of the encoder feed the language model.
DEEPSTACK = ("Qwen3VLFor", "Qwen3VLMoeFor", "Qwen3OmniMoeFor")


def qwen() -> dict[str, Any]:
    return some(find_model("Qwen2.5-VL-3B-Instruct")).values("config")


def test_true_depths() -> None:
    known = {geometry.id: geometry for geometry in bundled_models()}
    found = {model_id: read_depths(known[model_id].values("config")) for model_id in TRUE_DEPTHS}
    assert found == TRUE_DEPTHS
    assert {known[i].architecture for i in known} == {known[i].architecture for i in TRUE_DEPTHS}


@each_model
def test_a_cut_changes_depths_and_nothing_wide(geometry: Geometry) -> None:
    config = geometry.values("config")
    untouched = copy.deepcopy(config)
    assert cut_depth(config, 999) == config, "is shallower already"
    cut = cut_depth(config, 2)
    assert config == untouched
    least = 3 if geometry.architecture.startswith(DEEPSTACK) else 2
    assert read_depths(cut).text_layers == 2
    assert read_depths(cut).encoder_layers == (least if read_depths(config).encoder_layers else 0)
    before = dict(dotted(config))
    changed = {name for name, value in dotted(cut) if before[name] != value}
    last = {name.rpartition(".")[2] for name in changed}
    assert last <= {
        *("num_hidden_layers", "conf_num_hidden_layers", "encoder_layers", "decoder_layers"),
        *("depth", "layer_types", "num_kv_shared_layers", "first_k_dense_replace"),
        *("activation_sparsity_pattern", "intermediate_size", "max_window_layers"),
        *("sliding_window_pattern", "full_attention_interval", "fullatt_block_indexes"),
        *("deepstack_visual_indexes", "moe_layer_freq"),
        *("sparse_attention_freq", "sparse_disable_index_value"),
    }


@pytest.mark.parametrize(("layers", "full"), [(1, []), (8, [7]), (10, [7]), (32, [7, 15, 23, 31])])
def test_a_cut_encoder_is_the_head_of_the_true_one(layers: int, full: list[int]) -> None:
    vision = cut_depth(qwen(), layers)["vision_config"]
    assert (vision["depth"], vision["fullatt_block_indexes"]) == (layers, full)


def test_the_window_start_never_exceeds_the_depth() -> None:
    assert cut_depth(qwen(), 2)["max_window_layers"] == 2
    window = {"num_hidden_layers": 28, "max_window_layers": 20}
    assert cut_depth(window, 2)["max_window_layers"] == 1


def test_each_kind_of_layer_is_kept() -> None:
    kinds = (["sliding_attention"] * 5 + ["full_attention"]) * 2
    text = {"num_hidden_layers": 12, "layer_types": kinds, "sliding_window_pattern": 6}
    cut = cut_depth({"text_config": text}, 2)["text_config"]
    assert cut["layer_types"] == ["sliding_attention", "full_attention"]
    assert cut["sliding_window_pattern"] == 2
    one = cut_depth({"text_config": text}, 1)["text_config"]
    assert one["layer_types"] == ["sliding_attention"]


def test_experts_and_named_layers_stay_within_the_depth() -> None:
    text = {
        "num_hidden_layers": 8,
        "first_k_dense_replace": 3,
        "cross_attention_layers": [1, 3, 5],
        "eos_token_id": [1, 2, 3, 4, 5, 6, 7, 8],
    }
    cut = cut_depth({"text_config": text}, 2)["text_config"]
    assert cut["first_k_dense_replace"] == 1
    assert cut["cross_attention_layers"] == [1]
    assert cut["eos_token_id"] == text["eos_token_id"]


@pytest.mark.parametrize(("layers", "shared"), [(2, 0), (24, 0), (30, 6), (42, 18)])
def test_layers_that_share_a_cache_are_the_last(layers: int, shared: int) -> None:
    text = {"num_hidden_layers": 42, "num_kv_shared_layers": 18}
    assert cut_depth({"text_config": text}, layers)["text_config"] == {
        "num_hidden_layers": layers,
        "num_kv_shared_layers": shared,
    }


@pytest.mark.parametrize(("feature_layer", "least"), [(-2, 2), (-1, 1), ([3, -1], 4)])
def test_feature_layers_keep_their_encoder(feature_layer: object, least: int) -> None:
    config = {
        "vision_feature_layer": feature_layer,
        "text_config": {"num_hidden_layers": 32},
        "vision_config": {"num_hidden_layers": 24},
    }
    assert cut_depth(config, 1)["vision_config"]["num_hidden_layers"] == least


def test_deepstack_keeps_its_number_of_taps() -> None:
    vision = {"depth": 27, "deepstack_visual_indexes": [8, 16, 24]}
    config = {"text_config": {"num_hidden_layers": 36}, "vision_config": vision}
    cut = cut_depth(config, 2)["vision_config"]
    assert cut == {"depth": 3, "deepstack_visual_indexes": [0, 1, 2]}


def test_a_sparse_config_has_its_class_depth() -> None:
    sparse = {"text_config": {"model_type": "qwen2"}, "audio_config": {"encoder_layers": 32}}
    assert read_depths(sparse, class_layers=32).text_layers == 32
    assert cut_depth(sparse, 2)["text_config"]["num_hidden_layers"] == 2


def test_an_unknown_depth_is_an_error() -> None:
    with pytest.raises(ModelError, match="number of layers"):
        cut_depth({"model_type": "novel"}, 2)


def test_cut_checkpoint_leaves_weights_behind(tmp_path: Path) -> None:
    source = materialise(some(find_model("Qwen2.5-VL-7B-Instruct")), tmp_path / "source")
    (source / "model-00001-of-00002.safetensors").write_bytes(b"weights")
    (source / "model.safetensors.index.json").write_text("{}")
    (source / "modeling").mkdir()
    (source / "modeling" / "code.py").write_text("x = 1")
    before = (source / "config.json").read_bytes()
    cut = cut_checkpoint(source, tmp_path / "cut", 2)
    assert read_depths(read_config(cut)) == (2, 2)
    assert json.loads((cut / "config.json").read_text())["num_hidden_layers"] == 2
    assert (source / "config.json").read_bytes() == before
    names = {str(p.relative_to(cut)) for p in cut.rglob("*") if p.is_file()}
    assert names == {
        "config.json",
        "modeling/code.py",
        "preprocessor_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }


@pytest.mark.parametrize("content", [None, "", "[]"])
def test_a_folder_without_a_usable_config(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelError, match=r"config\.json"):
        cut_checkpoint(tmp_path, tmp_path / "cut", 1)
