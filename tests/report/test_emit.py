"""Emitted forms, read by a real shell and foreign parsers; by vLLM in tests/engine/test_emit.py."""

import json
import re
import shlex
from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from mmcalib.admission.calibration import Calibration
from mmcalib.domain.model import Server
from mmcalib.errors import OutputError
from mmcalib.report.configurations import CONFIGURATIONS
from mmcalib.results.engine_yaml import engine_yaml, serve_words
from mmcalib.results.part import CheckResult
from tests.builders import some
from tests.programs import run_program
from tests.report.example import SERVE, calibration
from tests.report.golden import check_golden
from tests.report.hostile import NAMES, named

LIMIT = "VLLM_MAX_AUDIO_CLIP_FILESIZE_MB"
RAISED = Server(limits={LIMIT: 41}, given=(LIMIT,))


def emitted(form: str, **config: Any) -> str:
    made = calibration(engine_config={"model": "org/model", **config})
    return CONFIGURATIONS[form].render(made)


def shell(script: str, **variables: str) -> list[str]:
    """The words that a POSIX shell makes of `$SAID` behind a command."""
    script = f"words() {{ printf '%s\\0' \"$@\"; }}; {script}"
    return run_program("/bin/sh", "-c", script, env=variables, check=True).stdout.split("\0")[:-1]


def variable(text: str) -> str:
    """The value of ENGINE_ARGS as `docker run --env-file` reads it: the rest of the line."""
    (line,) = [line for line in text.splitlines() if not line.startswith("#")]
    name, _, value = line.partition("=")
    assert name == "ENGINE_ARGS"
    return value


def container(text: str) -> dict[str, Any]:
    """Of a Kubernetes manifest, which has one document."""
    (document,) = yaml.safe_load_all(text)
    (found,) = document["spec"]["template"]["spec"]["containers"]
    return found


def python(text: str) -> dict[str, Any]:
    """Run the snippet without vLLM, and return the arguments of LLM."""
    names: dict[str, Any] = {}
    exec(text.replace("from vllm import LLM\n", ""), names)
    return names["ENGINE_ARGS"]


@pytest.mark.parametrize("form", ["args", "docker", "env", "k8s", "python"])
def test_golden(form: str) -> None:
    check_golden(f"{CONFIGURATIONS[form].file}.txt", CONFIGURATIONS[form].render(calibration()))


def test_what_looks_like_an_option_is_tied_to_its_own() -> None:
    assert serve_words({"model": "m", "a_b": "-x.y", "n": -1}) == ["m", "--a-b=-x.y", "--n=-1"]


def docker(made: Calibration, *more: str) -> list[str]:
    """The words that the script hands to `docker`."""
    text = CONFIGURATIONS["docker"].render(made).replace("exec docker", "words docker")
    return shell(f"set -- {shlex.join(more)}; {text}", HOME="/home/me")


def test_docker_starts_vllm_with_the_same_words() -> None:
    words = docker(calibration(), "--port", "9000")
    at = words.index("serve")
    assert words[at - 3 : at] == ["--entrypoint", "vllm", "vllm/vllm-openai:v0.32.0"]
    assert words[at + 1 :] == [*serve_words(calibration().engine_config), "--port", "9000"]
    assert "/home/me/.cache/huggingface:/hub" in words


@pytest.mark.parametrize("value", ["it's", 'a "b"', "$(HOME) `id` $$ ü", "a\\b"])
def test_docker_mounts_a_folder_and_hides_nothing(value: str) -> None:
    config = {"model": f"/models/{value}", "a": value}
    words = docker(calibration(engine_config=config, server=RAISED))
    assert words[words.index("--env") + 1] == f"{LIMIT}=41"
    assert f"type=bind,source=/models/{value},target=/models/{value},readonly" in words
    assert words[words.index("serve") + 1] == f"/models/{value}"
    assert value in words[-1]


def test_a_container_has_room_for_a_cache_in_shared_memory() -> None:
    def sized(**config: Any) -> tuple[str, str]:
        text = emitted("docker", **config)
        size = some(re.search(r"--shm-size (\d+g)", text))
        held = some(re.search(r"may take ([\d.]+ GiB)", text))
        return size[1], held[1]

    assert sized() == ("8g", "8.00 GiB")
    assert sized(mm_processor_cache_gb=0.5) == ("8g", "1.00 GiB")
    assert sized(mm_processor_cache_gb=0.5, data_parallel_size=2) == ("8g", "2.00 GiB")
    assert sized(mm_processor_cache_gb=2.5, mm_processor_cache_type="shm") == ("11g", "0.00 GiB")


def test_no_word_of_a_release_reaches_the_shell() -> None:
    tool = {**calibration().tool, "vllm": "1; id"}
    words = docker(calibration(tool=tool))
    assert words[words.index("serve") - 1] == "vllm/vllm-openai:latest"


def test_a_line_break_is_refused_where_no_file_can_carry_it() -> None:
    with pytest.raises(OutputError, match="line break"):
        emitted("env", model="a\nLD_PRELOAD=x.so")


def test_kubernetes_takes_strings_only_and_has_no_names_to_replace() -> None:
    said = emitted("k8s", max_num_seqs=4, kv_cache_dtype="$(SECRET) $$")
    args = container(said)["args"]
    assert args[1:] == ["--max-num-seqs", "4", "--kv-cache-dtype", "$$(SECRET) $$$$"]


def test_a_deployment_is_complete_and_names_nothing_of_this_machine() -> None:
    local = calibration().model.model_copy(update={"source": "local"})
    config = {"model": "/home/me/qwen", "tensor_parallel_size": 2, "max_num_seqs": 4}
    text = CONFIGURATIONS["k8s"].render(calibration(engine_config=config, model=local))
    found = yaml.safe_load(text)
    assert (found["apiVersion"], found["kind"]) == ("apps/v1", "Deployment")
    labels = found["spec"]["template"]["metadata"]["labels"]
    assert found["spec"]["selector"]["matchLabels"] == labels
    started = container(text)
    assert started["image"] == "vllm/vllm-openai:v0.32.0"
    assert started["args"][0] == "/models/qwen"
    assert started["resources"] == {"limits": {"nvidia.com/gpu": "2"}}
    volumes = {one["name"] for one in found["spec"]["template"]["spec"]["volumes"]}
    assert volumes == {one["name"] for one in started["volumeMounts"]} == {"shm", "models"}
    assert "/home" not in text
    exemplars = [entry.exemplar for entry in calibration().evidence if entry.exemplar]
    assert exemplars
    whole = CONFIGURATIONS["k8s"].render(calibration())
    assert not [name for name in exemplars if name in whole]


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("form", CONFIGURATIONS)
def test_hostile_names_stay_inside_comments(form: str, name: str) -> None:
    usual = CONFIGURATIONS[form].render(calibration())
    text = CONFIGURATIONS[form].render(named(name), f"vllm serve --config {name}")
    text.encode("utf-8", errors="strict")
    assert all(char.isprintable() for line in text.split("\n") for char in line)
    if form == "yaml":
        assert yaml.safe_load(text) == yaml.safe_load(usual)
    if form == "python":
        assert python(text) == calibration().engine_args()
    if form == "env":
        assert variable(text) == variable(usual)


def test_one_that_failed_says_so_on_top() -> None:
    check = CheckResult(name="memory on L4", status="fail", detail="would\nnot start")
    failed = calibration(verdict="fail", checks=[check])
    for form in CONFIGURATIONS.values():
        first = form.render(failed).splitlines()[0]
        assert not form.comments or first.startswith("# The verdict is fail: memory on L4: would")


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=6
)
WRITABLE = st.text(st.characters(codec="utf-8"), min_size=1).filter(str.isprintable)


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.text(), VALUES, max_size=4), WRITABLE.filter(lambda m: m[0] != "-"))
def test_any_mapping_comes_through_every_form(kwargs: dict[str, Any], model: str) -> None:
    made = calibration(engine_config={"model": model, "mm_processor_kwargs": kwargs})
    words = serve_words(made.engine_config)
    assert words[0] == model
    assert json.loads(words[2]) == kwargs
    assert shell(f"words {CONFIGURATIONS['args'].render(made)}") == words
    args = container(CONFIGURATIONS["k8s"].render(made))["args"]
    assert [word.replace("$$", "$") for word in args] == words
    assert python(CONFIGURATIONS["python"].render(made)) == made.engine_args()
    shell('eval "words $SAID"', SAID=variable(CONFIGURATIONS["env"].render(made)))


def test_limits_that_were_raised_for_the_corpus_are_emitted() -> None:
    """Without them the server refuses the items."""
    made = calibration(server=replace(RAISED, given=(LIMIT, "LD_PRELOAD")))
    lines = CONFIGURATIONS["env"].render(made).splitlines()
    assert lines[-1] == f"{LIMIT}=41"
    started = container(CONFIGURATIONS["k8s"].render(made))
    assert started["env"] == [{"name": LIMIT, "value": "41"}]


@pytest.mark.parametrize("form", ["env", "k8s"])
def test_limits_that_would_admit_more_are_named_and_not_set(form: str) -> None:
    plain = calibration(server=replace(RAISED, given=()))
    needed = {"VLLM_MAX_AUDIO_DECODE_DURATION_S": 900, "LD_PRELOAD": 1}
    said = CONFIGURATIONS[form].render(plain.model_copy(update={"needed": needed}))
    assert "\n# VLLM_MAX_AUDIO_DECODE_DURATION_S=900\n" in said
    assert "derived without" in said
    assert "Run mmcalib again" in said
    assert "\nVLLM" not in said
    assert "LD_PRELOAD" not in said
    whole = (said, CONFIGURATIONS[form].render(plain))
    code = [[x for x in text.splitlines() if not x.startswith("#")] for text in whole]
    assert code[0] == code[1]


def test_golden_engine_yaml() -> None:
    check_golden("engine.yaml", engine_yaml(calibration(), SERVE))


@pytest.mark.parametrize(
    "model", ["yes", "1e3", "a: b", "#x", "-", "ü/ö", "0x10", "~", "a" * 300, "x y", "'", "1:30"]
)
def test_a_model_name_stays_a_string(model: str) -> None:
    made = calibration(engine_config={"model": model})
    assert yaml.safe_load(engine_yaml(made, SERVE)) == {"model": model}


def test_every_value_has_its_reason_right_above() -> None:
    blocks = engine_yaml(calibration(), SERVE).split("\n\n")
    by_key = {
        next(line for line in block.splitlines() if not line.startswith("#")).split(":")[0]: block
        for block in blocks[1:]
        if block.strip()
    }
    for entry in calibration().evidence:
        key, _, inner = entry.setting.partition(".")
        block = by_key[key.replace("_", "-")].replace("\n#  ", "")
        assert (inner or key) in block
        assert entry.reason in block
        assert f"[{entry.label}]" in block
        assert entry.exemplar.rpartition("/")[2] in block
