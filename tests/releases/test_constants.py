"""Numbers taken over from vLLM are those of the vLLM that is installed."""

import inspect
import re
from typing import Any

import pytest

from mmcalib.releases import constants
from mmcalib.releases.release import REHEARSED_RELEASES, VLLM_0_30
from mmcalib.version import vllm_version
from tests.programs import answer_of
from tests.upstream import before
from tests.workflows.rehearsals import LATE

# In a child, as vLLM is never imported in the process of the tests.
READ = """
import inspect, json
from dataclasses import fields
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize
from vllm.config import CacheConfig, MultiModalConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.multimodal.media.video import VideoMediaIO
from vllm.multimodal.video import VIDEO_LOADER_REGISTRY

# Where this release has it.
def found(name, *modules):
    for module in modules:
        try:
            return getattr(import_module("vllm." + module), name)
        except (ImportError, AttributeError):
            pass

# Of modules that want a GPU.
def text(module):
    return Path(find_spec("vllm." + module).origin).read_text()

backend = "PYNVVIDEOCODEC_VIDEO_BACKEND"
collected = ("renderers.chat_utils.item_tracker", "renderers.chat_utils", "entrypoints.chat_utils")
loaders = {n: VIDEO_LOADER_REGISTRY.name2class[n] for n in ("qwen2_vl", "qwen3_vl", "opencv")}
source = inspect.getsource
print(json.dumps({
    "gpu_memory_utilization": CacheConfig().gpu_memory_utilization,
    "block_tokens": CacheConfig.DEFAULT_BLOCK_SIZE,
    "unsaid_limit": MultiModalConfig().get_limit_per_prompt("image"),
    "processor_cache_gib": MultiModalConfig().mm_processor_cache_gb,
    "arguments": [field.name for field in fields(EngineArgs)],
    "gpu_video_backend": found(backend, "multimodal.video_decoders.base", "multimodal.video"),
    "video_frames": inspect.signature(VideoMediaIO.__init__).parameters["num_frames"].default,
    "most_frames": [getattr(loaders[n], "_MAX_FRAMES", None) for n in ("qwen2_vl", "qwen3_vl")],
    "most_fps": [getattr(loaders[n], "_MAX_FPS", None) for n in ("qwen2_vl", "qwen3_vl")],
    "sources": {
        "sides": source(smart_resize),
        "loaders": "".join(source(one) for one in loaders.values()),
        "arguments": source(EngineArgs),
        "collected": source(found("_resolve_items", *collected)),
        "prompt": text("v1.engine.input_processor"),
        "no_room": text("v1.worker.utils"),
        "chat": text("renderers.hf"),
        "worker": text("v1.worker.gpu_worker"),
        "logprobs": text("v1.sample.sampler"),
        "prompt_logprobs": text("v1.worker.gpu.sample.prompt_logprob"),
    },
}))
"""


@pytest.fixture(scope="module")
def vllm(with_vllm: None) -> dict[str, Any]:
    found: dict[str, Any] = answer_of("-P", "-c", READ)
    return found


def test_the_last_release_that_was_tried_is_a_tested_one() -> None:
    assert REHEARSED_RELEASES[-1] in constants.TESTED


def test_every_constant_says_its_source() -> None:
    """A comment with a file of vLLM and a release above each, or above the first of its group."""
    groups = inspect.getsource(constants).split("\n\n")
    bare = [one for one in groups if ": Final" in one and not re.search(r" of\s(# )?0\.\d+", one)]
    assert [one for one in bare if "TESTED" not in one] == []


def test_a_release_divides_the_gpu_as_the_last_change_before_it() -> None:
    found = [constants.divide(release) for release in ("0.19.2rc1", "0.20.0", "0.29")]
    runners = [(0.9, ()), (0.92, ("V1",)), (0.92, ("V1", "V2"))]
    assert [(one.utilization, one.estimates_graphs) for one in found] == runners
    assert constants.divide("unknown") == constants.divide("0.99.1") == found[-1]


def test_a_release_with_an_extensible_kv_cache_has_both_ways(monkeypatch) -> None:
    monkeypatch.setattr(constants, "DIVISIONS", (((0, 34), LATE), *constants.DIVISIONS))
    before = constants.divide("0.33.0")
    assert constants.divide("0.34.0") == constants.divide("") == LATE
    assert constants.divide("0.34.0", {"enable_extensible_kv_cache": True}) == LATE
    for off in ({"kv_cache_memory_bytes": 1 << 30}, {"enable_extensible_kv_cache": False}):
        assert constants.divide("0.34.0", off) == before


@pytest.mark.engine
def test_the_installed_vllm_is_a_tested_one() -> None:
    major, minor, *_ = str(vllm_version()).split(".")
    assert f"{major}.{minor}" in constants.TESTED


@pytest.mark.engine
def test_defaults_are_those_of_the_installed_vllm(vllm: dict[str, Any]) -> None:
    assert vllm["gpu_memory_utilization"] == constants.divide("").utilization
    assert vllm["block_tokens"] == constants.BLOCK_TOKENS
    assert vllm["unsaid_limit"] == constants.DEFAULT_ITEM_LIMIT
    assert vllm["processor_cache_gib"] == constants.PROCESSOR_CACHE_GIB
    assert vllm["video_frames"] == constants.VIDEO_FRAMES
    assert vllm["gpu_video_backend"] == constants.GPU_VIDEO_BACKEND
    option = constants.PROCESSOR_DEVICE_OPTION.removeprefix("--").replace("-", "_")
    assert option in vllm["arguments"]


@pytest.mark.engine
@before(VLLM_0_30, "its loaders have their bounds as defaults of a call")
def test_bounds_of_its_loaders(vllm: dict[str, Any]) -> None:
    assert vllm["most_frames"] == [constants.BY_RATE_MAX_FRAMES] * 2
    assert vllm["most_fps"] == [constants.BY_RATE_MAX_FPS] * 2


@pytest.mark.engine
@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("sides", f"min(height, width) > {constants.MAX_ASPECT:g}:"),
        ("loaders", f'"min_frames", {constants.BY_RATE_MIN_FRAMES})'),
        ("loaders", f'"temporal_patch_size", {constants.BY_RATE_FRAMES_PER_PATCH})'),
        ("loaders", f"fps: int = {constants.VIDEO_FPS},"),
        ("arguments", f"UsageContext.OPENAI_API_SERVER: {constants.SMALL_GPU_BATCHED_TOKENS},"),
        ("worker", f"redundancy_buffer_memory = {constants.VLLM_SLACK_BYTES >> 20} * (1 << 20)"),
        ("prompt", "elif prompt_len == max_prompt_len"),
        ("logprobs", "logits.log_softmax(dim=-1, dtype=torch.float32)"),
        ("prompt_logprobs", f"CHUNK_SIZE = {constants.V2_LOGPROBS_TOKENS}\n"),
        ("chat", constants.NO_CHAT_TEMPLATE),
        ("no_room", "is less than desired GPU memory utilization "),
    ],
)
def test_rules_stand_in_its_source(vllm: dict[str, Any], source: str, line: str) -> None:
    assert line in vllm["sources"][source]


@pytest.mark.engine
def test_items_are_collected_in_that_order(vllm: dict[str, Any]) -> None:
    places = [vllm["sources"]["collected"].index(f'mm_data["{m}"] =') for m in constants.ITEM_ORDER]
    assert places == sorted(places)
