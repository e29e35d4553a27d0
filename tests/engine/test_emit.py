"""Every form of a configuration as vLLM itself reads it, field by field."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mmcalib.admission.calibration import Calibration
from mmcalib.configs.read import read_configuration
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import ParseServeConfig
from mmcalib.report.configurations import CONFIGURATIONS
from tests.engine.conftest import QWEN, folder_of
from tests.programs import answer_of
from tests.report.test_emit import docker, shell
from tests.schemas import CALIBRATION

pytestmark = pytest.mark.engine

NASTY: dict[str, Any] = {
    "model": '/models/it\'s a "fine" $(HOME) ü/*',
    "limit_mm_per_prompt": {"image": {"count": 2, "width": 1316, "height": 756}, "video": 0},
    "mm_processor_kwargs": {
        "images_kwargs": {"size": {"longest_edge": 1003520, "shortest_edge": 3136}},
        "mode": "a 'b' \"c\" $$ ü",
        "do_pan_and_scan": False,
        "number_like": "1k",
        "fps": 0.5,
        "tiles": [1, 2],
        "nothing": None,
    },
    "media_io_kwargs": {"video": {"num_frames": -1, "fps": 2}},
    "max_model_len": 32768,
    "max_num_batched_tokens": 8192,
    "max_num_seqs": None,
    "gpu_memory_utilization": 0.85,
    "mm_processor_cache_gb": 0,
    "enable_prefix_caching": False,
    "enforce_eager": True,
    "kv_cache_dtype": "fp8",
    "kv_cache_memory_bytes": 9_123_659_776,
    "cudagraph_capture_sizes": [1, 2, 4, 8, 16],
}


def with_config(config: dict[str, Any]) -> Calibration:
    return Calibration.load(CALIBRATION).model_copy(update={"engine_config": config})


def read(host: EngineHost, words: Sequence[str], path: str = "") -> dict[str, Any]:
    return dict(host.ask(ParseServeConfig(path, tuple(words)), "parsing").engine_args)


def every_form(host: EngineHost, made: Calibration, folder: Path) -> dict[str, dict[str, Any]]:
    """Return what vLLM's parser reads in each form that a command line gives it."""
    files = {name: folder / form.file for name, form in CONFIGURATIONS.items()}
    for name, file in files.items():
        file.write_text(CONFIGURATIONS[name].render(made), encoding="utf-8")
    line = files["env"].read_text("utf-8").splitlines()[-1].removeprefix("ENGINE_ARGS=")
    words = docker(made)
    deployment = yaml.safe_load(files["k8s"].read_text("utf-8"))
    args = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    return {
        "yaml": read(host, (), str(files["yaml"])),
        "args": read(host, shell(f"eval \"words $(cat '{files['args']}')\"", PATH=os.defpath)),
        "env": read(host, shell('eval "words $ENGINE_ARGS"', ENGINE_ARGS=line)),
        "docker": read(host, words[words.index("serve") + 1 :]),
        "k8s": read(host, [word.replace("$$", "$") for word in args]),
        **{f"{file} by mmcalib": read_back(host, file) for file in files.values()},
    }


def read_back(host: EngineHost, file: Path) -> dict[str, Any]:
    """Let mmcalib read its own form, and return what vLLM reads in that."""
    written = read_configuration(file)
    assert [note for note in written.unread if "not LLM's" not in note.text] == []
    return dict(host.ask(written.parse_request, "parsing").engine_args)


def test_a_mode_of_two_modes_is_read_by_its_name(host: EngineHost) -> None:
    """`CUDAGraphMode.FULL_DECODE_ONLY` is a pair, and vLLM makes no mode of a pair in JSON."""
    said = {"cudagraph_mode": "FULL_DECODE_ONLY"}
    found = read(host, ("--model", "m", "--compilation-config", json.dumps(said)))
    assert found["compilation_config"] == said


@pytest.mark.parametrize(
    "config", [Calibration.load(CALIBRATION).engine_config, NASTY], ids=["example", "nasty"]
)
def test_vllm_reads_the_same_of_every_form(host: EngineHost, tmp_path: Path, config) -> None:
    # What is None is left to vLLM. All others differ from its defaults, which it does not list.
    meant = {name: value for name, value in config.items() if value is not None}
    for form, found in every_form(host, with_config(config), tmp_path).items():
        assert {name: found.get(name) for name in meant} == meant, form
        assert set(found) <= set(meant), form


def test_the_python_snippet_makes_the_engine_arguments(tmp_path: Path, engine_cache: Path) -> None:
    """vLLM's own EngineArgs, in a process of its own, as `LLM(...)` would build them."""
    made = with_config({**NASTY, "model": str(folder_of(QWEN, engine_cache / "it's a folder"))})
    (tmp_path / "engine.py").write_text(CONFIGURATIONS["python"].render(made), encoding="utf-8")
    code = (
        "import dataclasses, json, runpy, sys; from vllm import EngineArgs; "
        "found = EngineArgs(**runpy.run_path(sys.argv[1])['ENGINE_ARGS']); "
        "print(json.dumps({f.name: getattr(found, f.name) for f in dataclasses.fields(found)}, "
        "default=lambda one: getattr(one, '__dict__', None) or str(one)))"
    )
    found = answer_of("-c", code, tmp_path / "engine.py")
    meant = made.engine_args()
    for name in set(meant) - {"max_num_seqs", "limit_mm_per_prompt"}:
        assert found[name] == meant[name], name
    assert found["limit_mm_per_prompt"]["image"] == meant["limit_mm_per_prompt"]["image"]


def test_server_options_go_where_they_are_taken(tmp_path: Path) -> None:
    """Tools made ENGINE_ARGS a TypeError, and no container had the template's file."""
    template = tmp_path / "tools.jinja"
    server = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
    made = with_config({**NASTY, **server, "chat_template": str(template)})
    assert made.engine_args() == with_config(NASTY).engine_args()
    snippet = CONFIGURATIONS["python"].render(made)
    assert "options of the server: chat_template, enable_auto_tool_choice, tool_call" in snippet
    assert repr("hermes") not in snippet
    mount = f"type=bind,source={template},target={template},readonly"
    assert mount in docker(made)
    needs = "# The container needs the file {} of --chat-template"
    assert needs.format(template) in CONFIGURATIONS["k8s"].render(made)
    beside = with_config({**NASTY, "chat_template": "tools.jinja"})
    assert needs.format("tools.jinja") in CONFIGURATIONS["docker"].render(beside)
    written = with_config({**NASTY, "chat_template": "{{ messages }}"})
    assert "--chat-template:" not in CONFIGURATIONS["k8s"].render(written)


NAMES = st.from_regex(r"[a-z][a-z_.]{0,6}", fullmatch=True)
LEAVES = st.booleans() | st.integers(-9, 10**9) | st.text(max_size=6) | st.none()
KWARGS = st.dictionaries(
    NAMES, LEAVES | st.dictionaries(NAMES, LEAVES, max_size=3), min_size=1, max_size=4
)


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(KWARGS, st.booleans(), st.integers(1, 10**6))
def test_vllm_reads_any_kwargs_as_they_were_meant(host, tmp_path, kwargs, eager, length) -> None:
    plain = {"model": "org/model", "enforce_eager": eager, "max_model_len": length}
    config = {**plain, "mm_processor_kwargs": kwargs}
    for form, found in every_form(host, with_config(config), tmp_path).items():
        assert found["mm_processor_kwargs"] == kwargs, form
        assert found.get("enforce_eager", False) is eager, form
        assert found["max_model_len"] == length, form
