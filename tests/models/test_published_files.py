"""Facts against the publisher's own files: the digest of a file is public where the file is not."""

import hashlib
import json
import math
from collections import Counter
from typing import Any

import pytest

from mmcalib.models.catalogue import Geometry, bundled_models, find_model
from tests.builders import some

# SHA-256 of config.json. Index ids 68330512500 (hub revision); Qwen3.6 54570418369, 70650232578;
# Gemma 4 69567555466, 70116951812, 57482229140; Qwen3-VL 68991165975, 70329412375.
CONFIGS = {
    "Qwen/Qwen3-VL-235B-A22B-Instruct": (
        "a9b0434bf1bb5de21786cb3dc3abf95e7254a1e131557c911d7271d2fb63e476"
    ),
    "Qwen/Qwen3-VL-32B-Instruct": (
        "d2dd0c60d01b9e195d9447c52da61c7302d28828524914c044d9c6e1b81d0427"
    ),
    "google/gemma-4-26B-A4B-it": "ed0c1eb3633de771906e9ba004a44cc5635bcc06ee2062077c3d2e88a50707d3",
    "google/gemma-4-31B-it": "e967dd38bc5cfd38bd09a995a7bf4a754075df2b46aba68f7fbb5a791e6d8dd1",
    "google/gemma-4-E2B-it": "1b28f3d2c3100f6c594754b81107428bd7b822a7f48272ca681dae9d2ec38330",
    "google/gemma-4-E4B-it": "33b10c02df3c2e8536cf323d29d53262aaa2f4d11dbe19bc729373fbe90295d4",
    "Qwen/Qwen3.5-0.8B": "b90b86f35c8e6925ef74ee04d0e758f0a845c83a42089ad82bbaa948de9b4204",
    "Qwen/Qwen3.5-2B": "ed1c1723241f23f7f4e23430759cbd7dcfb4103cbdfe052bfe7626b57c2615b4",
    "Qwen/Qwen3.5-4B": "ddc63e1c717afa86c865bb5e01313d89d72bb53b97ad4a8a03ba8510c0621670",
    "Qwen/Qwen3.5-9B": "d0883072e01861ed0b2d47be3c16c36a8e81c224c7ffaa310c6558fb3f932b05",
    "Qwen/Qwen3.5-27B": "f8d190c5b89c1521220f935d2567a587d6e291ed69066a45a106560b05a2174c",
    "Qwen/Qwen3.5-35B-A3B": "5e4d7f74fec2f360eb9cfbfcd6ec0c4c76e684d3a11caaed259d9fd9bfbc7944",
    "Qwen/Qwen3.6-27B": "69db4eb7196bc8190813231b3018ca05d8c2e3abc7b1af19d55c157af44a9d9c",
    "Qwen/Qwen3.6-35B-A3B": "93a4693fa9d8392fbfccd4b3c9873f4bfdcb14fdede978b123d07d19675efe99",
    "Qwen/Qwen3.8-27B": "191e0af232104ed8b65258cf3fb2b842e288008baca7633c11b82a1ac7203aab",
}
# Both preprocessor files of Qwen3.8-27B and its family.
QWEN_IMAGES = "27225450ac9c6529872ee1924fcb0962ff5634834f817040f444118116f4e516"
QWEN_VIDEOS = "7768af27c1fafa9cc9011c1dc20067e03f8915e03b63504550e11d5066986d13"
# The processor_config.json of Gemma 4.
GEMMA_PROCESSOR = "32bdf45d2ad4cc29a0822ddd157a182de76644f0419a6228d151495256e9813c"

# Of models whose architecture begins so.
PROCESSORS = (
    ("Qwen3_5", "preprocessor", QWEN_IMAGES),
    ("Qwen3_5", "video_preprocessor", QWEN_VIDEOS),
    ("Gemma4For", "processor", GEMMA_PROCESSOR),
)


def digest(geometry: Geometry, section: str) -> str:
    """Hash the section as the publisher writes the file: the same keys in the same order."""
    values = geometry.values(section)
    by_transformers = geometry.architecture.startswith(("Gemma4", "Qwen3VL"))
    text = json.dumps(values, indent=2) + "\n" if by_transformers else json.dumps(values, indent=4)
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("model_id", CONFIGS)
def test_the_config_is_the_published_one_byte_for_byte(model_id: str) -> None:
    [geometry] = [one for one in bundled_models() if one.id == model_id]
    assert digest(geometry, "config") == CONFIGS[model_id]


@pytest.mark.parametrize(
    ("architecture", "section", "known"), PROCESSORS, ids=["images", "videos", "Gemma 4"]
)
def test_the_processor_is_the_published_one_byte_for_byte(architecture, section, known) -> None:
    geometries = [one for one in bundled_models() if one.architecture.startswith(architecture)]
    assert {one.id: digest(one, section) for one in geometries} == {
        one.id: known for one in geometries
    }
    assert len(geometries) > 1


def test_glm_ocr_has_the_published_number_of_parameters() -> None:
    """The index of its weights has it; no digest of its config is public. It has whole attention
    with two norms beside it, and a drafter with tables of its own.
    """
    config = some(find_model("zai-org/GLM-OCR")).values("config")
    text, vision = config["text_config"], config["vision_config"]
    hidden, head = text["hidden_size"], text["head_dim"]
    width = 2 * text["num_attention_heads"] + 2 * text["num_key_value_heads"]
    block = hidden * width * head + 3 * hidden * text["intermediate_size"] + 4 * hidden
    tables = 2 * text["vocab_size"] * hidden
    drafter = tables + 2 * hidden * hidden + block + 3 * hidden
    layers = text["num_hidden_layers"] * block + hidden
    drafters = text["num_nextn_predict_layers"] * drafter
    assert tables + layers + drafters + _glm_encoder(vision) == 1_325_258_240


def _glm_encoder(vision: dict[str, Any]) -> int:
    hidden, wide = vision["hidden_size"], vision["intermediate_size"]
    out = vision["out_hidden_size"]
    attention = 4 * hidden * (hidden + 1) + 2 * (hidden // vision["num_heads"])
    block = attention + 3 * hidden * wide + 2 * wide + 3 * hidden
    pixels = vision["in_channels"] * vision["temporal_patch_size"] * vision["patch_size"] ** 2
    merged = hidden * vision["spatial_merge_size"] ** 2
    merger = (merged + 1) * out + out * (out + 2) + 3 * out * out * vision["in_channels"]
    return int((pixels + 2) * hidden + vision["depth"] * block + merger)


def test_qwen3_6_27b_fp8_has_the_published_number_of_fp8_elements() -> None:
    """The headers of its weights have it: the projections of 64 layers and of the drafter's one,
    but not those of a linear layer that make its gates.
    """
    text = some(find_model("Qwen/Qwen3.6-27B-FP8")).values("config")["text_config"]
    hidden, head, heads = text["hidden_size"], text["head_dim"], text["num_attention_heads"]
    values = text["linear_num_value_heads"] * text["linear_value_head_dim"]
    linear = hidden * (2 * text["linear_num_key_heads"] * text["linear_key_head_dim"] + 3 * values)
    full = hidden * head * (3 * heads + 2 * text["num_key_value_heads"])
    counts = Counter(text["layer_types"])
    blocks = text["num_hidden_layers"] + text["mtp_num_hidden_layers"]
    found = counts["linear_attention"] * linear + (counts["full_attention"] + 1) * full
    assert found + blocks * 3 * hidden * text["intermediate_size"] == 24_699_207_680


def test_qwen3_8_flash_next_has_the_published_number_of_parameters() -> None:
    """The headers of its weights have it; no digest of its config is public. It has four residual
    streams, an n-gram table of one layer, and a drafter of one whole layer.
    """
    config = some(find_model("Qwen/Qwen3.8-Flash-Next")).values("config")
    text, hidden = config["text_config"], config["text_config"]["hidden_size"]
    head, heads, kv = text["head_dim"], text["num_attention_heads"], text["num_key_value_heads"]
    index = text["indexer_head_dim"] * (text["indexer_n_heads"] + 1)
    full = hidden * (head * (3 * heads + 2 * kv) + index) + 2 * (head + text["indexer_head_dim"])
    value_heads, value = text["linear_num_value_heads"], text["linear_value_head_dim"]
    mixed = 2 * text["linear_num_key_heads"] * text["linear_key_head_dim"] + value_heads * value
    linear = hidden * (mixed + 2 * value_heads * (value + 1)) + value + 2 * value_heads
    linear += mixed * text["linear_conv_kernel_dim"]
    experts = text["num_experts"] * (3 * text["moe_intermediate_size"] + 1)
    mlp = hidden * (experts + 3 * text["shared_expert_intermediate_size"] + 1)
    streams = text["hc_count"] * hidden
    mixer = streams * (1 + 2 * text["hc_lowrank"])
    block = mlp + 2 * (mixer + text["hc_count"] * streams)
    counts = Counter(text["layer_types"])
    layers = counts["linear_attention"] * linear + counts["full_attention"] * full
    layers += text["num_hidden_layers"] * block
    tables = (text["ngram_size"] - 1) * text["heads_per_ngram"]
    step = text["make_ngram_vocab_size_divisible_by"]
    rows = -(-sum(_primes(text["ngram_vocab_size_base"], tables)) // step) * step
    grams = rows * text["ple_embed_dim"] // tables + (streams + hidden) * text["ple_embed_dim"]
    grams += streams * (3 + text["ple_conv_kernel_size"])
    drafter = full + block + mixer + 2 * hidden * hidden + streams + hidden
    language = 2 * text["vocab_size"] * hidden + layers + mixer + grams + drafter
    assert language + _qwen3_encoder(config) == 179_999_981_424


def _primes(above: int, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        above += 1
        if all(above % divisor for divisor in range(2, math.isqrt(above) + 1)):
            found.append(above)
    return found


def _qwen3_encoder(config: dict[str, Any]) -> int:
    vision = config["vision_config"]
    hidden, wide, out = (vision[k] for k in ("hidden_size", "intermediate_size", "out_hidden_size"))
    block = 4 * hidden * (hidden + 1) + 2 * hidden * wide + wide + 5 * hidden
    pixels = vision["in_channels"] * vision["temporal_patch_size"] * vision["patch_size"] ** 2
    merged = hidden * vision["spatial_merge_size"] ** 2
    merger = 2 * hidden + merged * (merged + 1) + out * (merged + 1)
    patches = (pixels + 1 + vision["num_position_embeddings"]) * hidden
    return int(patches + vision["depth"] * block + merger)
