"""Each option once: what the command line and the library call make of it."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from pydantic import TypeAdapter

import mmcalib
from mmcalib.derive.policy import Policy
from mmcalib.errors import UsageError
from mmcalib.options.option import iter_options, make_options
from mmcalib.options.run import ProbeOptions, ProofOptions, RunOptions, build_policy, policy_options


def test_every_rule_of_a_policy_is_an_option_or_a_flag_of_vllm() -> None:
    rules = {rule.name for rule in fields(Policy)}
    behind = {"max_num_seqs", "gpu_memory_utilization"}
    assert rules - {field.name for field in iter_options(RunOptions)} == {
        "ram_budget_bytes",
        *behind,
    }


@pytest.mark.parametrize("kind", [RunOptions, ProbeOptions, ProofOptions])
def test_every_default_is_within_its_own_bounds(kind: type) -> None:
    for field in iter_options(kind):
        if field.name != "model":
            assert TypeAdapter(field.annotation).validate_python(field.default) == field.default


@pytest.mark.parametrize("kind", [RunOptions, ProbeOptions, ProofOptions])
def test_a_value_out_of_bounds_has_a_hint(kind: type) -> None:
    for field in iter_options(kind):
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
    assert (
        build_policy(make_options(RunOptions, {"model": "m", "data": ["media"], **said})) == policy
    )


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
def test_the_library_refuses_what_the_command_line_does(
    asked: dict[str, object], says: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        mmcalib.calibrate("m", tmp_path, **asked)  # type: ignore[arg-type]
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
