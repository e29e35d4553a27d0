"""Ten checkpoint folders of models that mmcalib does not bundle, as a user has them on disk.

Each has a bundled model's tokenizer, and a config of another size, layout, or architecture.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mmcalib.models.catalogue import find_model
from mmcalib.models.checkpoint import (
    chat_template,
    checkpoint_files,
    tokenizer_config,
    tokenizer_json,
    vocab_size,
)

Files = dict[str, Any]

CLIP_STATISTICS = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
PINPOINTS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]


def _like(model_id: str, **config: Any) -> Files:
    """The files of a bundled model, with these values of config.json; None drops one."""
    geometry = find_model(model_id)
    assert geometry is not None
    files = {name: json.loads(text) for name, text in checkpoint_files(geometry).items()}
    files["config.json"] = _merged(files["config.json"], config)
    return files


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**base}
    for name, value in over.items():
        nested = isinstance(value, dict) and isinstance(base.get(name), dict)
        merged[name] = _merged(base[name], value) if nested else value
    return {name: value for name, value in merged.items() if value is not None}


def _tokenizer(
    config: Mapping[str, Any], special: dict[str, int], chat: dict[str, str], image: dict[str, str]
) -> Files:
    """A tokenizer of bytes and these tokens, with a chat template."""
    template = chat_template(chat, image) if chat else None
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "pad_token": "</s>"}
    return {
        "config.json": config,
        "tokenizer.json": tokenizer_json(special, {}, vocab_size(dict(config))),
        "tokenizer_config.json": tokenizer_config(names, special, {}, template),
    }


def qwen2_vl() -> Files:
    """A small Qwen2-VL with a shallower and narrower encoder."""
    return _like(
        "Qwen/Qwen2-VL-2B-Instruct",
        _name_or_path="acme/docreader-1b",
        hidden_size=1024, intermediate_size=4096, num_hidden_layers=20,
        num_attention_heads=8, num_key_value_heads=2,
        rope_scaling={"type": "mrope", "mrope_section": [16, 24, 24]},
        vision_config={"depth": 24, "embed_dim": 1024, "hidden_size": 1024, "num_heads": 16},
    )  # fmt: skip


def qwen2_5_vl() -> Files:
    """A fine-tune of Qwen2.5-VL as transformers 5 saves it: nested, one file for all processors."""
    files = _like("Qwen/Qwen2.5-VL-3B-Instruct")
    flat = files["config.json"]
    top = ("architectures", "model_type", "vision_config", "tie_word_embeddings")
    tokens = {name: value for name, value in flat.items() if name.endswith("_token_id")}
    text = {name: flat[name] for name in flat.keys() - {*top, *tokens, "torch_dtype"}}
    text |= {"model_type": "qwen2_5_vl_text", "dtype": "bfloat16", "num_hidden_layers": 30}
    files["config.json"] = {
        **{name: flat[name] for name in top if name in flat},
        **tokens,
        "dtype": "bfloat16",
        "transformers_version": "5.2.0",
        "text_config": text,
    }
    image = files.pop("preprocessor_config.json")
    video = {**image, "video_processor_type": "Qwen2VLVideoProcessor"}
    video.pop("image_processor_type", None)
    files["processor_config.json"] = {
        "processor_class": "Qwen2_5_VLProcessor",
        "image_processor": {**image, "size": {"shortest_edge": 3136, "longest_edge": 2_007_040}},
        "video_processor": video,
    }
    return files


def qwen3_vl_moe() -> Files:
    """A Qwen3-VL of other experts, three taps, and a smaller encoder."""
    return _like(
        "Qwen/Qwen3-VL-30B-A3B-Instruct",
        text_config={
            "num_experts": 32, "num_experts_per_tok": 4, "num_hidden_layers": 24,
            "moe_intermediate_size": 1024, "max_position_embeddings": 131_072,
        },
        vision_config={
            "depth": 24, "hidden_size": 1024, "intermediate_size": 4096,
            "deepstack_visual_indexes": [5, 11, 17],
        },
    )  # fmt: skip


INTERNVL_CODE = '''\
"""The configuration as the publisher's, in fewer words."""

from transformers import AutoConfig, Qwen2Config
from transformers.configuration_utils import PretrainedConfig


class InternVisionConfig(PretrainedConfig):
    model_type = "intern_vit_6b"


class InternVLChatConfig(PretrainedConfig):
    model_type = "internvl_chat"
    is_composition = True

    def __init__(self, vision_config=None, llm_config=None, **more):
        super().__init__(**more)
        self.vision_config = InternVisionConfig(**(vision_config or {}))
        self.llm_config = Qwen2Config(**(llm_config or {}))
        self.text_config = self.llm_config
'''


def internvl() -> Files:
    """An InternVL as published: `llm_config`, and a configuration that is remote code."""
    files = _like(
        "OpenGVLab/InternVL3-2B",
        model_type="internvl_chat",
        auto_map={"AutoConfig": "configuration_internvl_chat.InternVLChatConfig"},
        image_token_id=None,
        max_dynamic_patch=6,
    )
    config = files["config.json"]
    small = {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24}
    config["llm_config"] = {**config.pop("text_config"), **small, "num_attention_heads": 14}
    files["configuration_internvl_chat.py"] = INTERNVL_CODE
    return files


def llava_next_video() -> Files:
    """LLaVA-NeXT-Video on Mistral 7B, as its processor saves it: tiles of 336 pixels, and clips."""
    config = {
        "architectures": ["LlavaNextVideoForConditionalGeneration"],
        "model_type": "llava_next_video",
        "image_grid_pinpoints": PINPOINTS,
        "image_seq_length": 576, "video_seq_length": 288,
        "image_token_index": 32_001, "video_token_index": 32_000,
        "projector_hidden_act": "gelu", "multimodal_projector_bias": True,
        "spatial_pool_mode": "average", "spatial_pool_out_channels": 1024,
        "spatial_pool_stride": 2, "use_image_newline_parameter": True,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        "vision_feature_layer": -2, "vision_feature_select_strategy": "default",
        "text_config": {
            "architectures": ["MistralForCausalLM"], "model_type": "mistral",
            "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14_336,
            "max_position_embeddings": 32_768, "num_attention_heads": 32,
            "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
            "rope_theta": 1_000_000.0, "sliding_window": None, "vocab_size": 32_064,
        },
        "vision_config": {
            "model_type": "clip_vision_model", "hidden_act": "quick_gelu", "hidden_size": 1024,
            "image_size": 336, "intermediate_size": 4096, "num_attention_heads": 16,
            "num_hidden_layers": 24, "patch_size": 14, "projection_dim": 768,
        },
    }  # fmt: skip
    special = {"<unk>": 0, "<s>": 1, "</s>": 2, "<video>": 32_000, "<image>": 32_001}
    chat = {
        "content": "openai", "start": "<s>", "turn_start": "{role}: ", "turn_end": "\n",
        "assistant_start": "ASSISTANT:",
    }  # fmt: skip
    tiles = {
        "crop_size": {"height": 336, "width": 336}, "size": {"shortest_edge": 336},
        "do_center_crop": True, "do_pad": True, "image_grid_pinpoints": PINPOINTS,
        "processor_class": "LlavaNextVideoProcessor", "resample": 3, **CLIP_STATISTICS,
    }  # fmt: skip
    return {
        **_tokenizer(config, special, chat, {"image": "<image>\n", "video": "<video>\n"}),
        "preprocessor_config.json": {
            **tiles, "image_processor_type": "LlavaNextImageProcessorFast"
        },
        "video_preprocessor_config.json": {
            **tiles, "do_sample_frames": False,
            "video_processor_type": "LlavaNextVideoVideoProcessor",
        },
        "processor_config.json": {
            "image_token": "<image>", "video_token": "<video>", "patch_size": 14,
            "num_additional_image_tokens": 1, "vision_feature_select_strategy": "default",
            "processor_class": "LlavaNextVideoProcessor",
        },
    }  # fmt: skip


def gemma3() -> Files:
    """A Gemma 3 that nobody published: 20 layers, pictures of 448 pixels in 64 tokens."""
    files = _like(
        "google/gemma-3-4b-it",
        mm_tokens_per_image=64,
        text_config={"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 20},
        vision_config={"image_size": 448, "num_hidden_layers": 18},
    )
    size = {"height": 448, "width": 448}
    files["preprocessor_config.json"] |= {"size": size, "image_seq_length": 64}
    files["processor_config.json"] |= {"image_seq_length": 64}
    return files


def idefics3() -> Files:
    """SmolVLM-256M, whose architecture is Idefics 3's: tiles of 512 pixels in 64 tokens."""
    files = _like(
        "HuggingFaceM4/Idefics3-8B-Llama3",
        scale_factor=4,
        text_config={
            "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
            "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64,
            "max_position_embeddings": 8192, "rope_theta": 100_000.0, "rope_scaling": None,
        },
        vision_config={
            "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
            "num_attention_heads": 12, "image_size": 512, "patch_size": 16,
        },
    )  # fmt: skip
    files["preprocessor_config.json"] |= {
        "max_image_size": {"longest_edge": 512}, "size": {"longest_edge": 2048}
    }  # fmt: skip
    files["processor_config.json"]["image_seq_len"] = 64
    return files


def mistral3() -> Files:
    """A Mistral 3 of 3 billion parameters with a narrower language model."""
    return _like(
        "mistralai/Mistral-Small-3.1-24B-Instruct-2503",
        text_config={
            "hidden_size": 3072, "intermediate_size": 9216, "num_hidden_layers": 26,
            "tie_word_embeddings": True,
        },
    )  # fmt: skip


def qwen2_audio() -> Files:
    """A Qwen2-Audio with a smaller encoder, whose text section leaves its sizes to the class."""
    files = _like(
        "Qwen/Qwen2-Audio-7B-Instruct",
        audio_config={"d_model": 1024, "encoder_layers": 24, "encoder_attention_heads": 16,
                      "encoder_ffn_dim": 4096},
    )  # fmt: skip
    text = files["config.json"]["text_config"]
    kept = ("model_type", "max_position_embeddings", "intermediate_size", "vocab_size")
    files["config.json"]["text_config"] = {name: text[name] for name in kept}
    return files


def minicpm_v() -> Files:
    """A MiniCPM-V 2.6 of another language model, without the publisher's code."""
    config = {
        "architectures": ["MiniCPMV"], "model_type": "minicpmv", "version": 2.6,
        "auto_map": {"AutoConfig": "configuration_minicpm.MiniCPMVConfig"},
        "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 20,
        "num_attention_heads": 12, "num_key_value_heads": 2, "vocab_size": 32_064,
        "max_position_embeddings": 32_768, "image_size": 448, "patch_size": 14,
        "query_num": 64, "slice_mode": True, "torch_dtype": "bfloat16",
        "slice_config": {"max_slice_nums": 9, "patch_size": 14, "model_type": "minicpmv"},
        "vision_config": {
            "model_type": "siglip", "hidden_size": 1152, "image_size": 980,
            "intermediate_size": 4304, "num_attention_heads": 16, "num_hidden_layers": 27,
            "patch_size": 14,
        },
    }  # fmt: skip
    special = {"<unk>": 0, "<s>": 1, "</s>": 2, "<image>": 3, "</image>": 4}
    chat = {"content": "string", "turn_start": "{role}: ", "turn_end": "</s>"}
    return {
        **_tokenizer(config, special, chat, {}),
        "preprocessor_config.json": {
            "image_processor_type": "MiniCPMVImageProcessor",
            "processor_class": "MiniCPMVProcessor",
            "auto_map": {"AutoProcessor": "processing_minicpmv.MiniCPMVProcessor"},
            "max_slice_nums": 9, "scale_resolution": 448, "patch_size": 14,
            "image_feature_size": 64, "slice_mode": True, "version": 2.6,
        },
    }  # fmt: skip


UNBUNDLED: tuple[Callable[[], Files], ...] = (
    *(qwen2_vl, qwen2_5_vl, qwen3_vl_moe, internvl, llava_next_video),
    *(gemma3, idefics3, mistral3, qwen2_audio, minicpm_v),
)


def write(make: Callable[[], Files], root: Path) -> Path:
    folder = root / make.__name__.replace("_", "-")
    folder.mkdir(parents=True)
    for name, content in make().items():
        text = content if isinstance(content, str) else json.dumps(content, indent=1)
        (folder / name).write_text(text)
    return folder
