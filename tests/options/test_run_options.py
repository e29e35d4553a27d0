"""Each option once, on the command line and in the library, beside vLLM's own arguments."""

import logging
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from pydantic import TypeAdapter

import mmcalib
from mmcalib.errors import ModelError, UsageError
from mmcalib.limits.policy import Policy
from mmcalib.options.option import iter_options, make_options
from mmcalib.options.run import (
    ProbeOptions,
    ProofOptions,
    RunOptions,
    build_policy,
    policy_options,
    reject_derived_flags,
)
from mmcalib.progress import StepLog
from mmcalib.workflows.run.session import Job


def test_every_rule_of_a_policy_is_an_option_or_a_flag_of_vllm() -> None:
    rules = {rule.name for rule in fields(Policy)}
    behind = {"max_num_seqs", "gpu_memory_utilization"}
    left = rules - {field.name for field in iter_options(RunOptions)}
    assert left == {"ram_budget_bytes", *behind}


@pytest.mark.parametrize("kind", [RunOptions, ProbeOptions, ProofOptions])
def test_every_default_is_within_bounds_and_what_is_not_has_a_hint(kind: type) -> None:
    for field in iter_options(kind):
        if field.name != "model":
            assert TypeAdapter(field.annotation).validate_python(field.default) == field.default
        bounded = "Annotated[" in repr(field.annotation)
        assert not bounded or field.hint, field.name
        assert not field.choices or not field.hint, "a closed choice has its words"


def test_options_that_say_nothing_make_the_default_policy() -> None:
    assert build_policy(RunOptions(model="m", data=["media"])) == Policy()
    assert policy_options(Policy()) == {}


def test_a_policy_says_what_differs_and_makes_itself_again() -> None:
    policy = Policy(prefer="throughput", count={"image": 2}, max_model_len="fit", concurrency=4.0)
    said = policy_options(policy)
    assert said.keys() == {"prefer", "count", "max_model_len", "concurrency"}
    options = make_options(RunOptions, {"model": "m", "data": ["media"], **said})
    assert build_policy(options) == policy


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"policy": Policy(coverage=7)}, "--coverage 7 is not a share"),
        (
            {"policy": Policy(max_tokens_per_item=0)},
            "--max-tokens-per-item must be at least 1, not 0",
        ),
        ({"validate": "all"}, "--validate all: no such choice"),
        ({"startup_budget_s": -1}, "--startup-budget must be a number of seconds"),
        ({"allowed_local_media_path": "none"}, "--allowed-local-media-path none is not a folder"),
    ],
)
def test_the_library_refuses_what_the_command_line_does(asked, says: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        mmcalib.calibrate("m", tmp_path, **asked)
    assert caught.value.message.startswith(says)
    assert caught.value.__notes__ == [f"try: {caught.value.hint}"]


def test_a_policy_from_a_dict(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown key 'max_model_length'") as raised:
        mmcalib.calibrate("m", tmp_path, policy={"max_model_length": 8})
    assert raised.value.hint == "max_model_len"
    with pytest.raises(TypeError, match="policy is a Policy or a dict of its fields, not list"):
        mmcalib.calibrate("m", tmp_path, policy=[8])  # type: ignore[arg-type]


def test_the_library_needs_something_to_calibrate_for() -> None:
    with pytest.raises(UsageError, match="nothing to calibrate for"):
        mmcalib.calibrate("m", [])


@pytest.mark.parametrize("depth", ["none", "all"])
def test_a_configuration_is_proved_in_one_of_three_ways(depth: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"--validate {depth}: no such choice") as caught:
        mmcalib.validate(tmp_path / "engine.yaml", validate=depth)  # type: ignore[arg-type]
    assert caught.value.hint == "one of budget, startup, replay"


@pytest.mark.parametrize("given", [{"max_model_len": 5}, {"limit_mm_per_prompt": {"image": 1}}])
def test_what_a_run_decides_is_said_to_the_run(given: Mapping[str, Any]) -> None:
    with pytest.raises(UsageError, match="sets --"):
        Job.of(RunOptions(model="m", data=["d"]), gpu=None, engine_args=given)


def test_a_pool_is_said_once() -> None:
    said = {"kv_cache_memory_bytes": 1 << 33}
    reject_derived_flags(said, pinned=False)
    with pytest.raises(UsageError, match="--pin-kv-cache exclude each other"):
        reject_derived_flags(said, pinned=True)


def job(*flags: str, **options: Any) -> Job:
    return Job.of(RunOptions(data=["d"], **options), gpu=None, flags=flags)


def test_the_model_may_come_from_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text("kind: Pod\nargs: [--model, a/b, --max-model-len, '8192']\n")
    found = job("--max-num-seqs", "4", config=file)
    assert (found.model, found.config.source) == ("a/b", file)
    assert found.config.file_flags == ("--max-model-len", "8192")
    assert found.config.flags == ("--max-num-seqs", "4")
    assert job(config=file, model="c/d").model == "c/d"
    assert job("vllm", "serve", "e/f", "--max-model-len", "8192").model == "e/f"


def test_a_configuration_that_names_no_model_is_refused() -> None:
    with pytest.raises(UsageError, match="no model given") as refused:
        job()
    assert "--config FILE with one" in refused.value.hint


def test_steps_are_logged_with_their_seconds(caplog: pytest.LogCaptureFixture) -> None:
    progress: mmcalib.Progress = StepLog()
    with caplog.at_level(logging.DEBUG, logger="mmcalib"):
        with progress.step("measuring", 3) as task:
            task.advance()
        progress.note("a note")
        progress.log("a line of vLLM")
    said = [(record.levelname, record.message) for record in caplog.records]
    assert said[0] == ("INFO", "measuring")
    assert said[1][1].startswith("measuring: 0.")
    assert said[2:] == [("INFO", "a note"), ("DEBUG", "a line of vLLM")]


@pytest.mark.engine
def test_calibrate_is_not_silent(tmp_path: Path, caplog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    with caplog.at_level(logging.INFO, logger="mmcalib"), pytest.raises(ModelError):
        mmcalib.calibrate("nobody/has-this", tmp_path)
    assert "finding the model" in caplog.text
