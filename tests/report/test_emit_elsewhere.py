"""The configuration where others deploy: every word of it is there, and nothing that they do not
know. What Ray and vLLM read of theirs: tests/engine/test_emit_elsewhere.py.
"""

from __future__ import annotations

import ast
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from mmcalib.derive.load_buckets import SizedItems, buckets
from mmcalib.derive.needed_memory import needed_bytes
from mmcalib.domain.shapes import ImageShape
from mmcalib.errors import OutputError
from mmcalib.gpus import catalogue
from mmcalib.report.registry import CONFIGURATIONS
from mmcalib.result.memory import Memories, Memory
from mmcalib.result.serve_arguments import serve_arguments
from mmcalib.result.server import ServerPart
from mmcalib.workflows.gate.calibration import Calibration
from tests.report import published

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "example" / "calibration.json"
CONFIG = {
    "model": "org/model",
    "limit_mm_per_prompt": {"image": {"count": 4, "width": 1316, "height": 756}, "video": 0},
    "mm_processor_kwargs": {"mode": "a 'b' \"c\" $(HOME) $$ ü"},
    "media_io_kwargs": {"video": {"num_frames": 16}},
    "max_model_len": 32768,
    "max_num_batched_tokens": 8192,
    "max_num_seqs": 600,
    "gpu_memory_utilization": 0.85,
    "mm_processor_cache_gb": 0,
    "enable_prefix_caching": False,
    "kv_cache_dtype": "fp8",
    "tensor_parallel_size": 2,
    "seed": None,
}
SET = {name: value for name, value in CONFIG.items() if value is not None}
LIMIT = "VLLM_MAX_AUDIO_CLIP_FILESIZE_MB"


def made(**update: Any) -> Calibration:
    found = Calibration.load(EXAMPLE)
    return found.model_copy(update={"engine_config": CONFIG, **update})


def rendered(form: str, **update: Any) -> Any:
    return yaml.safe_load(CONFIGURATIONS[form].render(made(**update)))


def words(config: dict[str, Any]) -> list[str]:
    return [word for option in serve_arguments(config) for word in option]


def without(*names: str) -> dict[str, Any]:
    return {name: value for name, value in SET.items() if name not in names}


def meant(args: list[str]) -> list[str]:
    """As a container gets them."""
    return [word.replace("$$", "$") for word in args]


def module(form: str, **update: Any) -> dict[str, Any]:
    """Names of a Python form; what it imports is not there."""
    text = CONFIGURATIONS[form].render(made(**update))
    tree = ast.parse(text)
    tree.body = [node for node in tree.body if isinstance(node, ast.Assign)]
    names: dict[str, Any] = {"vLLMEngineProcessorConfig": dict}
    exec(compile(tree, form, "exec"), names)
    return names


@pytest.mark.parametrize(
    ("form", "schema"),
    [
        ("helm", published.HELM),
        ("recipes", published.RECIPE),
        ("kserve", published.KSERVE),
        ("dynamo", published.DYNAMO),
        ("skypilot", published.SKYPILOT),
        ("vllm-omni", published.OMNI),
    ],
)
def test_it_has_fields_that_are_published_and_no_others(form: str, schema: dict[str, Any]) -> None:
    server = ServerPart(limits={LIMIT: 41}, given=[LIMIT])
    for update in (
        {},
        {"server": server},
        {"memory": Memories(default=Memory(), calibrated=Memory())},
    ):
        Draft202012Validator(schema).validate(rendered(form, **update))


def test_helm_says_each_value_once() -> None:
    (model,) = rendered("helm")["servingEngineSpec"]["modelSpec"]
    own = dict(model["vllmConfig"])
    extra = meant(own.pop("extraArgs"))
    assert own == {
        "maxModelLen": 32768,
        "maxNumSeqs": 600,
        "gpuMemoryUtilization": 0.85,
        "tensorParallelSize": 2,
        "enablePrefixCaching": False,
    }
    assert extra == words(
        without(
            *("model", "max_model_len", "max_num_seqs", "gpu_memory_utilization"),
            *("tensor_parallel_size", "enable_prefix_caching"),
        )
    )
    assert (model["modelURL"], model["requestGPU"], model["tag"]) == ("org/model", 2, "v0.32.0")


def test_containers_get_every_argument() -> None:
    expected = words(without("model"))
    model = rendered("kserve")["spec"]["predictor"]["model"]
    assert meant(model["args"]) == ["--model_name=vllm", "--model_id=org/model", *expected]
    assert model["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    worker = rendered("dynamo")["spec"]["services"]["VllmWorker"]
    container = worker["extraPodSpec"]["mainContainer"]
    assert container["command"] == ["python3", "-m", "dynamo.vllm"]
    assert meant(container["args"]) == ["--model", "org/model", *expected]
    assert worker["resources"]["limits"] == {"gpu": "2"}
    recipe = rendered("recipes")["variants"]["default"]
    assert recipe["extra_args"] == expected
    run = shlex.split(rendered("skypilot")["run"])
    assert run == ["vllm", "serve", *words(SET), "--port", "8000"]


def test_limits_that_were_raised_go_along() -> None:
    server = ServerPart(limits={LIMIT: 41}, given=[LIMIT])
    (model,) = rendered("helm", server=server)["servingEngineSpec"]["modelSpec"]
    entry = [{"name": LIMIT, "value": "41"}]
    assert model["env"] == entry
    assert rendered("kserve", server=server)["spec"]["predictor"]["model"]["env"] == entry
    worker = rendered("dynamo", server=server)["spec"]["services"]["VllmWorker"]
    assert worker["extraPodSpec"]["mainContainer"]["env"] == entry
    assert rendered("skypilot", server=server)["envs"] == {LIMIT: "41"}
    (application,) = rendered("ray-serve", server=server)["applications"]
    (served,) = application["args"]["llm_configs"]
    assert served["runtime_env"] == {"env_vars": {LIMIT: "41"}}


def test_a_stage_of_omni_and_what_is_of_all_stages() -> None:
    found = rendered("vllm-omni")
    assert found == {
        "enable_prefix_caching": False,
        "stages": [{"stage_id": 0, **without("model", "enable_prefix_caching")}],
    }


def test_curator_is_given_no_keyword_twice() -> None:
    names = module("curator")
    assert names["MODEL"] == "org/model"
    assert names["CREATE_VLLM_LLM"] == {"trust_remote_code": False, **without("model")}
    rest = names["QWEN_VL"]
    assert not rest.keys() & published.CURATOR_OWN
    assert rest == without(*published.CURATOR_OWN)


def test_ray_data_has_rows_for_all_sequences_and_tells_the_stage_that_loads() -> None:
    config = module("ray-data")["CONFIG"]
    assert config["model_source"] == "org/model"
    assert config["engine_kwargs"] == without("model")
    assert config["batch_size"] * 8 >= 600
    loading = config["prepare_multimodal_stage"]
    assert loading["model_config_kwargs"] == {"media_io_kwargs": {"video": {"num_frames": 16}}}
    media = {"allowed_local_media_path": "/data", "allowed_media_domains": ["example.com"]}
    allowed = module("ray-data", engine_config={**CONFIG, **media})["CONFIG"]
    assert media.items() <= allowed["prepare_multimodal_stage"]["model_config_kwargs"].items()
    fewer = module("ray-data", engine_config={**CONFIG, "max_num_seqs": 256})["CONFIG"]
    assert "batch_size" not in fewer


def memory(gpu: str | None = "L4") -> Memories:
    """20 GiB before the KV cache, which takes 4 GiB for a context of 32,768."""
    gib = 1 << 30
    found = Memory(
        total_bytes=40 * gib,
        requested_bytes=32 * gib,
        kv_cache_bytes=12 * gib,
        kv_bytes_per_token=4 * gib // 32768,
        label="rehearsed",
        gpu=gpu,
    )
    return Memories(default=Memory(), calibrated=found)


def test_the_memory_that_is_named_holds_one_context() -> None:
    needed = needed_bytes(
        before_kv_bytes=20 << 30,
        kv_bytes_per_token=1 << 17,
        max_model_len=32768,
        utilization=0.8,
    )
    assert needed == 30 << 30
    recipe = rendered("recipes", memory=memory())["variants"]["default"]
    assert recipe["vram_minimum_gb"] == 33
    named = rendered("skypilot", memory=memory())["resources"]["accelerators"]
    assert named == dict.fromkeys(
        ("A40", "L40", "L40S", "A100", "A100-80GB", "H100", "H200", "B200"), 2
    )


def test_nothing_is_named_that_nobody_looked_at() -> None:
    assert "vram_minimum_gb" not in rendered("recipes", memory=memory(None))["variants"]["default"]
    assert "accelerators" not in rendered("skypilot", memory=memory(None))["resources"]
    for form in ("recipes", "skypilot"):
        assert "mmcalib run --gpu NAME" in CONFIGURATIONS[form].render(made(memory=memory(None)))


def test_each_gpu_of_skypilot_is_one_that_is_known() -> None:
    from mmcalib.report.emit.skypilot import _NAMES

    assert all(catalogue.find(ours) for ours in _NAMES)


def guided(text: str) -> list[dict[str, Any]]:
    """The `--data` of each command, as its class would read it."""
    found = []
    for line in text.splitlines():
        if not line.startswith("#"):
            *command, data = shlex.split(line)
            assert command[:2] == ["guidellm", "run"]
            assert command[-1] == "--data"
            kind, *fields = [field.split("=") for field in data.split(",")]
            types = published.GUIDELLM[kind[1]]
            assert {name for name, _ in fields} == set(types)
            found.append({"kind": kind[1], **{name: types[name](v) for name, v in fields}})
    return found


def test_guidellm_gets_a_load_per_quantile_of_the_corpus() -> None:
    found = guided(CONFIGURATIONS["guidellm"].render(Calibration.load(EXAMPLE)))
    pictures = [one for one in found if one["kind"] == "synthetic_image"]
    # The largest of the example is 5400 × 2700, and it has 1.87 pictures in a request.
    assert (pictures[-1]["width"], pictures[-1]["height"]) == (5400, 2700)
    assert {one["images_per_request"] for one in pictures} == {2}
    assert len(pictures) == 3
    assert all(one["width"] % 2 == one["height"] % 2 == 0 for one in found)
    assert [one["frames"] for one in found if one["kind"] == "synthetic_video"] == [250, 132]


@pytest.mark.parametrize("form", ["bench", "guidellm"])
def test_of_sound_alone_no_load_is_made(form: str) -> None:
    found = Calibration.load(EXAMPLE)
    assert found.costs is not None
    deaf = found.model_copy(update={"costs": found.costs.model_copy(update={"modalities": {}})})
    with pytest.raises(OutputError, match="neither"):
        CONFIGURATIONS[form].render(deaf)


def sized(*tokens: int) -> list[SizedItems]:
    return [SizedItems(ImageShape(n, n), 1 + n % 3, n) for n in tokens]


def test_few_sizes_stay_as_they_are() -> None:
    assert list(buckets(sized(3, 1, 2))) == sized(1, 2, 3)
    assert list(buckets([])) == []
    assert list(buckets(sized(7))) == sized(7)


@pytest.mark.parametrize("count", [24, 25, 100, 1000])
def test_many_sizes_weigh_as_much_in_few(count: int) -> None:
    found = sized(*range(1, count + 1))
    made = list(buckets(found))
    assert len(made) <= 24
    assert sum(one.items for one in made) == sum(one.items for one in found)
    assert made[-1] == found[-1]
    weight, was = (sum(one.items * one.tokens for one in each) for each in (made, found))
    assert weight == pytest.approx(was, rel=0.02)


def test_the_load_has_each_share_of_the_corpus() -> None:
    said = shlex.split(
        CONFIGURATIONS["bench"].render(Calibration.load(EXAMPLE)).replace("\\\n", "")
    )
    options = dict(zip(said[::2], said[1::2], strict=True))
    shares = ast.literal_eval(options["--random-mm-bucket-config"])
    assert sum(shares.values()) == pytest.approx(1, abs=1e-4)
    # Two of 78 items have the largest shape.
    assert shares[(2700, 5400, 1)] == pytest.approx(2 / 78, abs=1e-6)
    assert json.loads(options["--random-mm-limit-mm-per-prompt"]) == {"image": 4, "video": 1}
