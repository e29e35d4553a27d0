"""`mmcalib validate` on the installed vLLM: each trap of a hand-written file has its finding."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from mmcalib.configs.read import read_configuration
from mmcalib.engine.host import EngineHost
from mmcalib.errors import UsageError
from mmcalib.models.gpus import resolve_gpu
from mmcalib.options.run import ProofOptions
from mmcalib.progress import Silent
from mmcalib.report.terminal_memory import print_validation
from mmcalib.results.plan import Validation
from mmcalib.workflows.validate.subject import ValidateJob
from mmcalib.workflows.validate.validate import validate_with as judge_file
from tests.bfloat16 import emulated
from tests.builders import some
from tests.e2e.command import QWEN, checks_of, mmcalib
from tests.e2e.media import photo, requests
from tests.report.golden import printed
from tests.schemas import fits

pytestmark = [pytest.mark.engine, pytest.mark.slow]
Judge = Callable[..., Validation]


@pytest.fixture
def judge(host: EngineHost, engine_cache: Path, tmp_path: Path, monkeypatch) -> Judge:
    """Judge these lines of YAML as far as the budget, in the session's engine process."""
    monkeypatch.setenv("MMCALIB_CACHE_DIR", str(engine_cache))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def validation(
        text: str, *flags: str, model: str | None = QWEN, beside: str | None = None, **asked: Any
    ) -> Validation:
        config = tmp_path / "c.yaml"
        config.write_text(f"model: {model}\n{text}" if model else text)
        written = read_configuration(config, flags, beside)
        proof = ProofOptions(validate="budget")
        return judge_file(ValidateJob(written, host, tmp_path, Silent(), proof=proof, **asked))

    return validation


def bad(found: Validation) -> set[str]:
    """The checks that do not pass, but for the reserve judged in tokens alone."""
    named = [check for check in found.checks if check.status in ("fail", "warn")]
    return {c.name for c in named if c.status == "fail" or "only tokens were" not in c.detail}


def test_tokens_alone_are_said_and_do_not_decide(judge: Judge) -> None:
    """Nobody named a GPU; then a setting that mmcalib cannot rehearse."""
    text = "limit-mm-per-prompt: {image: 1, video: 0}\n"
    for more, gpu, why in (
        ("", None, "--gpu was not given"),
        ("pipeline-parallel-size: 2\n", resolve_gpu("L4"), "rehearsals on L4 ended early"),
    ):
        found = judge(text + more, gpu=gpu)
        check = checks_of(found)["memory reserve"]
        assert (found.verdict, check.status) == ("pass", "warn")
        assert f"only tokens were compared, because {why}" in check.detail
        assert "c.yaml --gpu" in check.remedy


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("dtype: bfloat16\n", "Bfloat16 is only supported on GPUs with compute capability"),
        ("kv-cache-dtype: fp8\n", "FP8 KV cache is not supported by the Triton attention backend"),
    ],
)
def test_what_vllm_rejects_on_the_gpu_fails_with_its_reason(judge, text: str, why: str) -> None:
    found = judge(f"limit-mm-per-prompt: {{image: 1, video: 0}}\n{text}", gpu=resolve_gpu("T4"))
    check = checks_of(found)["memory on T4"]
    assert (found.verdict, check.status) == ("fail", "fail")
    assert check.detail.startswith(f"vLLM does not start: {why}")
    # `plan` would be rejected for the same reason.
    assert check.remedy == "change the setting that it names"


@pytest.mark.parametrize(
    "text",
    [
        "enable-sleep-mode: true\n",
        "tensor-parallel-size: 4\ndecode-context-parallel-size: 2\n",
        "data-parallel-size: 2\ndata-parallel-size-local: 1\n",
        "tensor-parallel-size: 2\nenable-expert-parallel: true\nenable-eplb: true\n",
    ],
)
def test_what_only_a_gpu_takes_is_not_rejected(judge: Judge, text: str) -> None:
    found = judge(f"limit-mm-per-prompt: {{image: 1, video: 0}}\n{text}")
    assert (found.verdict, bad(found)) == ("pass", set())


@pytest.mark.parametrize(
    "limits",
    [
        "{image: {count: 1, width: 512, height: 512}, video: 0}",
        # Numbers in quotes are numbers.
        "{image: {count: '1', width: '512', height: 512}, video: '0'}",
    ],
)
def test_a_size_hint_smaller_than_the_cap(judge: Judge, limits: str) -> None:
    found = judge(f"limit-mm-per-prompt: {limits}\n")
    named = checks_of(found)
    assert bad(found) == {"image size hint", "memory reserve"}
    said = "shrinks to 324 tokens, but vLLM still admits 16,384"
    assert said in named["image size hint"].detail
    assert named["memory reserve"].detail.startswith("under-reserved: ")
    harmless, cap = named["memory reserve"].remedies
    assert yaml.safe_load(harmless) == {"limit-mm-per-prompt": {"image": 1, "video": 0}}
    assert "images_kwargs: {size: {longest_edge: 261856, shortest_edge: 3136}}" in cap
    assert "shrinks image items above 334 tokens" in cap
    budget = some(found.budget).config
    assert (budget.profiled_tokens, budget.worst_step_tokens) == (324, 16_384)


def test_the_harmless_remedy_of_a_hint_comes_first_and_each_has_a_price(judge, tmp_path) -> None:
    photo(tmp_path / "media/large.jpg", 1400, 1050)
    photo(tmp_path / "media/small.jpg", 200, 200)
    hinted = "limit-mm-per-prompt:\n  image: {count: 2, width: 512, height: 512}\n  video: 0\n"
    asked = {"gpu": resolve_gpu("L4"), "data": (tmp_path / "media",)}
    found = judge(f"{hinted}max-model-len: 8192\n", **asked)
    reserved = checks_of(found)["memory reserve"]
    assert reserved.status == "fail"
    assert checks_of(found)["image size hint"].remedy == reserved.remedy
    harmless, cap = reserved.remedies
    assert yaml.safe_load(harmless) == {"limit-mm-per-prompt": {"image": 2, "video": 0}}
    assert harmless.endswith("of KV cache; shrinks no item")
    assert cap.endswith("shrinks 1 of 2 images")
    then = judge(f"{harmless}\nmax-model-len: 8192\n", gpu=resolve_gpu("L4"))
    assert checks_of(then)["memory reserve"].status == "pass"
    before, after = (some(some(one.memory).config).kv_cache_bytes for one in (found, then))
    lost = some(before) - some(after)
    assert f"costs {lost / (1 << 30):.2f} GiB of KV cache" in harmless


def test_a_remedy_that_would_not_start_is_left_to_plan(judge: Judge) -> None:
    """The profile of the largest image leaves 1.55 GiB, and 32,768 tokens need 1.75."""
    hinted = "limit-mm-per-prompt:\n  image: {count: 2, width: 512, height: 512}\n  video: 0\n"
    model = "Qwen/Qwen2.5-VL-7B-Instruct"
    found = judge(f"{hinted}max-model-len: 32768\n", model=model, gpu=resolve_gpu("L4"))
    command, cap = checks_of(found)["memory reserve"].remedies
    assert command.startswith("mmcalib plan --config ")
    assert "--gpu L4  # limit-mm-per-prompt: {image: 2, video: 0} alone would not start" in command
    assert "longest_edge: 261856" in cap


def test_what_is_proposed_for_that_hint_passes(judge: Judge) -> None:
    found = judge(
        "limit-mm-per-prompt: {image: 1, video: 0}\nmm-processor-kwargs: {images_kwargs: "
        "{size: {shortest_edge: 3136, longest_edge: 261856}}}\n"
    )
    assert bad(found) == set()
    assert found.verdict == "pass"


def test_a_hint_above_the_maximum(judge: Judge) -> None:
    hint = "{count: 1, width: 5000, height: 4000}"
    found = judge(f"limit-mm-per-prompt: {{image: {hint}, video: 0}}\n")
    assert bad(found) == {"image size hint maximum"}
    check = checks_of(found)["image size hint maximum"]
    assert "width 3,584, height 3,584" in check.detail
    assert check.remedy == "limit-mm-per-prompt: {image: 1, video: 0}"


def test_a_flat_cap_bleeds_into_videos_and_a_video_exceeds_the_cache(judge: Judge) -> None:
    found = judge(
        "limit-mm-per-prompt: {image: 1, video: 1}\nmm-processor-kwargs: {max_pixels: 262144}\n"
    )
    assert bad(found) == {"scope of max_pixels", "items admitted"}
    scope, admitted = checks_of(found)["scope of max_pixels"], checks_of(found)["items admitted"]
    assert "changes image and video" in scope.detail
    assert yaml.safe_load(scope.remedies[0]) == {
        "mm-processor-kwargs": {"images_kwargs": {"max_pixels": 262144}}
    }
    assert "a minute of 720p video takes 18,720 tokens" in admitted.detail
    assert yaml.safe_load(admitted.remedies[0]) == {"max-num-batched-tokens": 18_720}
    assert admitted.remedies[1].startswith("media-io-kwargs:")


def test_images_limited_and_videos_not(judge: Judge) -> None:
    found = judge("limit-mm-per-prompt: {image: 2}\n", gpu=resolve_gpu("L4"))
    check = checks_of(found)["unlimited modalities"]
    assert "video sets the encoder budget of 114,688 tokens, 16,384 with video: 0" in check.detail
    assert "KV cache on L4 of" in check.detail
    assert check.remedy.startswith("limit-mm-per-prompt: {image: 2, video: 0}")
    memory = checks_of(found)["memory on L4"]
    assert memory.status == "fail"
    assert memory.remedy.startswith("mmcalib plan --config")


@pytest.mark.parametrize(
    ("model", "text", "number"),
    [
        ("google/gemma-3-4b-it", "max-num-batched-tokens: 128\nmax-num-seqs: 64\n", 256),
        (
            QWEN,
            "disable-chunked-mm-input: true\nlimit-mm-per-prompt: {image: 1, video: 0}\n",
            16384,
        ),
    ],
)
def test_a_batch_that_cannot_hold_an_item(judge: Judge, model: str, text: str, number: int) -> None:
    check = checks_of(judge(text, model=model))["batch size for one item"]
    assert check.status == "fail"
    assert "Chunked MM input disabled but max_tokens_per_mm_item" in check.detail
    assert check.remedy == f"max-num-batched-tokens: {number}, or more"


def test_a_skipped_profile_with_what_it_takes_on_a_gpu(judge: Judge) -> None:
    text = "skip-mm-profiling: true\nlimit-mm-per-prompt: {image: 1, video: 0}\n"
    found = judge(text, gpu=resolve_gpu("L4"))
    check = checks_of(found)["encoder memory reserve"]
    assert check.status == "fail"
    assert "16,384 tokens and take 2.14 GiB" in check.detail
    assert check.remedy.startswith("remove skip-mm-profiling, or gpu-memory-utilization: 0.8")
    reserved = checks_of(found)["memory reserve"]
    assert reserved.status == "fail"
    assert "under-reserved by 1.9" in reserved.detail
    assert some(found.budget).config.profiled_tokens == 0
    assert [check.name for check in found.checks].count("encoder memory reserve") == 1


def test_the_file_itself(judge: Judge) -> None:
    """False, empty, unknown, retired, repeated, and flags that win; the rest is judged too."""
    found = judge(
        "enable-prefix-caching: false\nmax-num-seqs:\nmax-pixels: 1003520\nswap-space: 4\n"
        "max-model-len: 9000\nmax-model-len: 8192\n"
        "limit-mm-per-prompt: {images: 1, audio: 2, video: 0}\n"
        "mm-processor-kwargs: {num_crops: 4}\n",
        "--max-model-len", "16384",
    )  # fmt: skip
    named = checks_of(found)
    assert bad(found) == {
        "unknown key max-pixels",
        "unknown key swap-space",
        "empty key max-num-seqs",
        "false value of enable-prefix-caching",
        "config parsing",
        "repeated key max-model-len",
        "flag over max-model-len",
        "limit of images",
        "limit of audio",
        "unlimited modalities",
        "effect of mm_processor_kwargs.num_crops",
    }
    assert named["false value of enable-prefix-caching"].remedy == "no-enable-prefix-caching: true"
    assert named["unknown key max-pixels"].remedy == "mm-processor-kwargs: {max_pixels: 1003520}"
    assert "max-num-seqs: invalid int value: 'None'" in named["config parsing"].detail
    assert some(found.engine_config)["max_model_len"] == 16_384


def test_a_model_beside_a_file_that_names_none(judge: Judge) -> None:
    text = "limit-mm-per-prompt: {image: 1, video: 0}\n"
    found = judge(text, "--max-num-seqs", "64", model=None, beside=QWEN)
    assert (found.verdict, found.model) == ("pass", QWEN)
    limits = {"image": 1, "video": 0}
    assert found.engine_config == {"limit_mm_per_prompt": limits, "max_num_seqs": 64}
    with pytest.raises(UsageError, match="no model given"):
        judge(text, model=None)


def test_values_that_vllm_refuses_are_named_and_the_rest_is_judged(judge: Judge) -> None:
    found = judge("limit-mm-per-prompt: image=2\nmax-num-seqs: many\nmax-model-len: 8192\n")
    named = checks_of(found)
    assert named["value of limit-mm-per-prompt"].remedy == "limit-mm-per-prompt: {image: 2}"
    assert named["value of max-num-seqs"].status == "fail"
    assert named["unlimited modalities"].status == "warn"
    assert found.engine_config == {"max_model_len": 8192}


def test_clips_are_no_part_of_the_context_of_an_encoder_decoder(judge: Judge) -> None:
    found = judge("limit-mm-per-prompt: {audio: 1}\n", model="openai/whisper-large-v3")
    assert "prompt length" not in checks_of(found)
    remedy = checks_of(found)["memory reserve"].remedy
    assert yaml.safe_load(remedy) == {"max-num-batched-tokens": 1500}


def test_the_cure_of_a_hint_may_need_a_batch_of_whole_items(judge: Judge) -> None:
    text = "limit-mm-per-prompt: {audio: {count: 1, length: 16000}}\n"
    found = judge(text, model="Qwen/Qwen2-Audio-7B-Instruct")
    assert checks_of(found)["audio size hint"].remedy == (
        "limit-mm-per-prompt: {audio: 1} and max-num-batched-tokens: 1500  # shrinks no item"
    )


def test_another_modality_that_takes_more_than_the_profiled_one(judge: Judge) -> None:
    text, llava = "limit-mm-per-prompt: {image: 2}\n", "llava-hf/llava-onevision-qwen2-7b-ov-hf"
    gpu = resolve_gpu("A100-40G")
    check = checks_of(judge(text, model=llava, gpu=gpu))["memory reserve"]
    assert check.status == "warn"
    assert "8,748 tokens of video" in check.detail
    full = f"{text}gpu-memory-utilization: 0.99\n"
    check = checks_of(judge(full, model=llava, gpu=gpu))["memory reserve"]
    assert check.status == "fail"
    without, *others = check.remedies
    assert yaml.safe_load(without) == {"limit-mm-per-prompt": {"image": 2, "video": 0}}
    (lower,) = [one for one in others if one.startswith("gpu-memory-utilization: ")]
    check = checks_of(judge(f"{text}{lower}\n", model=llava, gpu=gpu))["memory reserve"]
    assert check.status == "warn"


def test_what_vllm_refuses_is_a_finding(judge: Judge) -> None:
    found = judge("max-model-len: 99999999\n")
    assert found.verdict == "fail"
    failed = [check.detail for check in found.checks if check.status == "fail"]
    assert any("greater than the derived" in detail for detail in failed)


def test_with_a_corpus_its_own_items_decide(judge: Judge, tmp_path: Path) -> None:
    photo(tmp_path / "media/a.jpg", 1400, 1050)
    item = ("image", "media/a.jpg")
    asked = requests(tmp_path / "asked.jsonl", [item] * 3, [item] * 2)
    text = (
        "max-model-len: 1200\nlimit-mm-per-prompt: {image: 2, video: 0}\n"
        "mm-processor-kwargs: {images_kwargs: {size: {shortest_edge: 3136, longest_edge: 501760}}}"
    )
    found = judge(f"{text}\n", requests=(asked,))
    named = checks_of(found)
    assert (found.items, named["items admitted"].status) == ("corpus", "pass")
    # What they cost under the file is said.
    corpus = some(found.corpus)
    assert (corpus.items, corpus.prompts) == (5, 2)
    assert corpus.modalities["image"].tokens["max"] == 609
    said = printed(partial(print_validation, found), width=100)
    assert "Your data: 5 items in 2 requests: " in said
    assert "max 609 tokens" in said
    assert named["requests admitted"].remedy == "limit-mm-per-prompt: {image: 3, video: 0}"
    assert named["prompt length"].status == "fail"
    assert named["prompt length"].remedy.startswith("max-model-len: ")


@pytest.mark.parametrize(("context", "status"), [(2048, "warn"), (384, "fail")])
def test_without_requests_the_largest_items_decide(judge, tmp_path, context, status: str) -> None:
    photo(tmp_path / "media/a.jpg", 560, 560)
    text = f"max-model-len: {context}\nlimit-mm-per-prompt: {{image: 4, video: 0}}\n"
    found = judge(text, data=(tmp_path / "media",))
    check = checks_of(found)["prompt length"]
    assert check.status == status
    assert "4 × image of 400 tokens, the largest of yours, takes 1,600" in check.detail
    assert "max-model-len: 2624" in check.remedy


def test_the_command_says_no_with_exit_3(engine_cache: Path, tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(f"model: {QWEN}\nenable-prefix-caching: false\n")
    words = ("--config", config, "--validate", "budget", "--json", "--quiet")
    ended = mmcalib(engine_cache, "validate", *words, code=3)
    fits("validate", ended.stdout)
    found = Validation.model_validate_json(ended.stdout)
    assert found.verdict == "fail"
    assert bad(found) == {"false value of enable-prefix-caching", "unlimited modalities"}
    error, hint = ended.stderr.splitlines()
    assert error.startswith("error: failed at MM083 ")
    assert hint == "  try: no-enable-prefix-caching: true"


def test_the_engine_starts_and_answers_made_up_items(engine_cache: Path, tmp_path: Path) -> None:
    """A file that `mmcalib run` could have written, proven by the engine."""
    config = tmp_path / "engine.yaml"
    config.write_text(
        f"model: {QWEN}\nmax-model-len: 8192\nlimit-mm-per-prompt: {{image: 4, video: 0}}\n"
        "mm-processor-kwargs: {images_kwargs: {size: {longest_edge: 250880, "
        "shortest_edge: 3136}}}\nmax-num-batched-tokens: 1280\n"
    )
    ended = mmcalib(engine_cache, "validate", "--config", config, "--json")
    fits("validate", ended.stdout)
    found = json.loads(ended.stdout)
    assert (found["verdict"], found["items"]) == ("pass", "made up")
    named = {check["name"]: check for check in found["checks"]}
    assert named["engine start"]["status"] == "pass"
    # The peak of an engine that computes in float32 is not the model's.
    assert named["memory profile"]["status"] == ("skip" if emulated() else "pass")
    assert named["request replay"]["status"] == "pass", named["request replay"]
    replay = found["startup"]["replay"]
    assert replay["rejected"] == replay["token_mismatches"] == 0
    assert replay["largest_encoder_step_tokens"] > 0
    assert "PASS" in ended.stderr


def test_options_whose_memory_or_caps_no_profile_shows(judge: Judge) -> None:
    """vLLM takes every one of them under these names."""
    found = judge(
        "limit-mm-per-prompt: {image: 2, video: 1}\nvideo-pruning-rate: 0.5\n"
        "mm-ipc-gpu-memory-gb: 2\ntrust-request-mm-kwargs: true\nenable-mm-embeds: true\n"
        "max-logprobs: 50\nmm-encoder-tp-mode: data\ntensor-parallel-size: 2\n"
        "mm-processor-cache-gb: 0.3\n"
        "compilation-config: {cudagraph_mm_encoder: true}\n"
    )
    named = checks_of(found)
    assert named["config parsing"].status == "pass"
    assert {
        "memory for video pruning",
        "memory of the API server",
        "per-request processor options",
        "embeddings from clients",
        "memory for prompt_logprobs",
        "memory for encoder CUDA graphs",
        "processor cache for one request",
    } <= bad(found)
    assert "151,936 each" in named["memory for prompt_logprobs"].detail
    assert "largest item on one rank" in named
    assert [one.what for one in some(found.memory).options] == [
        "logits of prompt_logprobs",
        "of buffers: video decoding by the API server",
    ]
