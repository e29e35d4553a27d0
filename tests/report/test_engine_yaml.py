from __future__ import annotations

from typing import Any

import pytest
import yaml

from mmcalib.admission.calibration import Calibration
from mmcalib.results.engine_yaml import engine_yaml
from tests.report.example import SERVE, calibration
from tests.report.golden import check_golden
from tests.report.hostile import NAMES, named


def with_config(config: dict[str, Any]) -> Calibration:
    return calibration().model_copy(update={"engine_config": config})


def spelled_for_vllm(config: dict[str, Any]) -> dict[str, Any]:
    """R9: keys with dashes, names inside as they are, a false as `no-x: true`."""
    return {
        (f"no-{key}" if value is False else key).replace("_", "-"): True
        if value is False
        else value
        for key, value in config.items()
    }


def test_golden() -> None:
    check_golden("engine.yaml", engine_yaml(calibration(), SERVE))


def test_it_is_the_engine_config() -> None:
    found = yaml.safe_load(engine_yaml(calibration(), SERVE))
    assert found == spelled_for_vllm(calibration().engine_config)
    assert list(found) == list(spelled_for_vllm(calibration().engine_config))
    assert found["no-enable-prefix-caching"] is True
    assert found["limit-mm-per-prompt"]["audio"] == 0


def test_inside_a_mapping_a_false_stays_a_false() -> None:
    config = {"model": "m", "mm_processor_kwargs": {"do_resize": False}, "enforce_eager": True}
    found = yaml.safe_load(engine_yaml(with_config(config), SERVE))
    assert found == {
        "model": "m",
        "mm-processor-kwargs": {"do_resize": False},
        "enforce-eager": True,
    }


def test_a_null_is_not_written() -> None:
    """`vllm serve --config` ends with exit code 2 on one."""
    found = yaml.safe_load(engine_yaml(with_config({"model": "m", "max_num_seqs": None}), SERVE))
    assert found == {"model": "m"}


@pytest.mark.parametrize(
    "model", ["yes", "1e3", "a: b", "#x", "-", "ü/ö", "0x10", "~", "a" * 300, "x y", "'", "1:30"]
)
def test_a_model_name_stays_a_string(model: str) -> None:
    assert yaml.safe_load(engine_yaml(with_config({"model": model}), SERVE)) == {"model": model}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_hostile_names_stay_inside_comments(name: str) -> None:
    text = engine_yaml(named(name), f"vllm serve --config {name}")
    text.encode("utf-8", errors="strict")
    assert yaml.safe_load(text) == yaml.safe_load(engine_yaml(calibration(), SERVE))
    assert all(char.isprintable() for line in text.split("\n") for char in line)


def test_every_value_has_its_reason_right_above() -> None:
    blocks = engine_yaml(calibration(), SERVE).split("\n\n")
    by_key = {
        next(line for line in block.splitlines() if not line.startswith("#")).split(":")[0]: block
        for block in blocks[1:]
        if block.strip()
    }
    for entry in calibration().limits.evidence:
        key, _, inner = entry.setting.partition(".")
        block = by_key[key.replace("_", "-")].replace("\n#  ", "")
        assert (inner or key) in block
        assert entry.reason in block
        assert f"[{entry.label}]" in block
        assert entry.exemplar in block


def test_comments_are_not_wider_than_a_page() -> None:
    lines = engine_yaml(calibration(), SERVE).splitlines()
    assert max(map(len, lines)) <= 100


def test_the_same_calibration_gives_the_same_bytes() -> None:
    assert engine_yaml(calibration(), SERVE) == engine_yaml(calibration(), SERVE)
