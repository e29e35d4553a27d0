import hashlib
import json
from pathlib import Path
from typing import Any

import jinja2
import pytest

from mmcalib.corpus.chat import text_part
from mmcalib.errors import OutputError
from mmcalib.models.catalogue import Geometry, bundled_models, find_model
from mmcalib.models.checkpoint import byte_alphabet, materialise, vocabulary
from tests.builders import some

one_of_each = {geometry.architecture: geometry for geometry in bundled_models()}.values()
each_architecture = pytest.mark.parametrize("geometry", one_of_each, ids=lambda g: g.id)


def read(folder: Path, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / name).read_text(encoding="utf-8"))
    return content


def digests(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}


@each_architecture
def test_the_same_bytes_twice_and_an_unchanged_folder_is_left_alone(geometry, tmp_path) -> None:
    first = materialise(geometry, tmp_path / "a")
    before = first.stat().st_ino
    assert materialise(geometry, first).stat().st_ino == before
    second = materialise(geometry, tmp_path / "b")
    assert digests(first) == digests(second)
    assert {p.name for p in tmp_path.iterdir()} == {"a", "b"}


# InternVL's processor reads config.json. No Qwen2(.5) repository has a file for videos: the video
# processor, and with it vLLM's video loader, follows from preprocessor_config.json.
IMAGES, VIDEOS = "preprocessor_config.json", "video_preprocessor_config.json"
PROCESSOR = "processor_config.json"
_BOTH = (
    "Gemma3 Idefics3 SmolVLM Gemma3n Lfm2Vl AudioFlamingo3 Llama4 Llava Mistral3 LlavaNext "
    "LlavaOnevision"
)
_VIDEOS = "Glm4v Glm4vMoe Qwen3_5 Qwen3_5Moe Qwen3VL Qwen3VLMoe Qwen4Exp"
MORE_FILES: dict[str, set[str]] = {
    "InternVLChatModel": set(),
    **{
        f"{name}ForCausalLM": {PROCESSOR}
        for name in ("DeepseekOCR", "DeepseekOCR2", "UnlimitedOCR")
    },
    **{f"{name}ForConditionalGeneration": {PROCESSOR} for name in ("Gemma4", "Gemma4Unified")},
    "InternVLForConditionalGeneration": {IMAGES, PROCESSOR, VIDEOS},
    **{f"{name}ForConditionalGeneration": {IMAGES, PROCESSOR} for name in _BOTH.split()},
    **{f"{name}ForConditionalGeneration": {IMAGES, VIDEOS} for name in _VIDEOS.split()},
}


@each_architecture
def test_the_files_of_the_real_repository(geometry: Geometry, tmp_path: Path) -> None:
    names = {p.name for p in materialise(geometry, tmp_path / "m").iterdir()}
    own = {"config.json", "tokenizer.json", "tokenizer_config.json"}
    more: set[str] = MORE_FILES.get(geometry.architecture, {IMAGES})
    assert names == own | more


def test_another_folder_is_replaced_whole(tmp_path: Path) -> None:
    geometry = bundled_models()[0]
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "stale.json").write_text("{}")
    materialise(geometry, folder)
    assert not (folder / "stale.json").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


def test_an_unwritable_place_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError):
        materialise(bundled_models()[0], tmp_path / "file" / "m")


@each_architecture
def test_special_tokens_have_their_true_ids(geometry: Geometry, tmp_path: Path) -> None:
    tokenizer = read(materialise(geometry, tmp_path / "m"), "tokenizer.json")
    added = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    special = {t["content"]: t["id"] for t in tokenizer["added_tokens"] if t["special"]}
    assert special == geometry.values("tokens")
    assert added == {**special, **geometry.values("words")}
    vocab = tokenizer["model"]["vocab"]
    assert added.items() <= vocab.items()
    assert sorted(vocab.values()) == list(range(len(vocab)))
    assert set(byte_alphabet()) <= vocab.keys()
    assert tokenizer["model"]["merges"] == []


@pytest.mark.parametrize(
    ("model_id", "token", "token_id"),
    [
        ("Qwen2.5-VL-3B-Instruct", "<|image_pad|>", 151655),
        ("Qwen2-Audio-7B-Instruct", "<|AUDIO|>", 151646),
        ("InternVL2-2B", "<IMG_CONTEXT>", 92546),
        ("gemma-3-4b-it", "<image_soft_token>", 262144),
        ("llava-onevision-qwen2-7b-ov-hf", "<video>", 151647),
        ("whisper-large-v3", "<|startoftranscript|>", 50258),
    ],
)
def test_placeholder_ids(model_id: str, token: str, token_id: int) -> None:
    assert some(find_model(model_id)).values("tokens")[token] == token_id


def test_a_vocabulary_fills_every_id() -> None:
    vocab = vocabulary({"<a>": 3, "<b>": 300}, 310)
    assert len(vocab) == 310
    assert (vocab["<a>"], vocab["<b>"]) == (3, 300)


def made(folder: Path, model_id: str) -> Path:
    return materialise(some(find_model(model_id)), folder / "m")


IMAGE, CLIP = {"type": "image"}, "<|audio_bos|><|AUDIO|><|audio_eos|>"


@pytest.mark.parametrize(
    ("model_id", "turns", "text"),
    [
        (
            "Qwen2.5-VL-3B-Instruct",
            [("system", "Short."), ("user", [IMAGE, {"type": "video"}, text_part("Which?")])],
            "<|im_start|>system\nShort.<|im_end|>\n"
            "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>"
            "<|vision_start|><|video_pad|><|vision_end|>Which?<|im_end|>\n"
            "<|im_start|>assistant\n",
        ),
        (
            "Qwen2-Audio-7B-Instruct",
            [("user", [{"type": "audio_url", "audio_url": "a"}, {"type": "audio"}])],
            f"<|im_start|>user\nAudio 1: {CLIP}Audio 2: {CLIP}<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            "gemma-3-4b-it",
            [("user", [IMAGE, text_part("Q?")]), ("assistant", "A"), ("user", "B")],
            "<bos><start_of_turn>user\n<start_of_image>Q?<end_of_turn>\n"
            "<start_of_turn>model\nA<end_of_turn>\n"
            "<start_of_turn>user\nB<end_of_turn>\n<start_of_turn>model\n",
        ),
    ],
    ids=["strings and parts", "items are counted", "the assistant is called model"],
)
def test_the_template(tmp_path: Path, model_id: str, turns, text: str) -> None:
    # As transformers renders chat templates.
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, autoescape=False)
    config = read(made(tmp_path, model_id), "tokenizer_config.json")
    messages = [{"role": role, "content": content} for role, content in turns]
    template = environment.from_string(config["chat_template"])
    assert template.render(messages=messages, add_generation_prompt=True) == text


def test_a_model_that_does_not_chat_has_no_template(tmp_path: Path) -> None:
    config = read(made(tmp_path, "whisper-large-v3"), "tokenizer_config.json")
    assert "chat_template" not in config
