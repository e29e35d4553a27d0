"""What is emitted of a calibration that means harm: its values, or nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from mmcalib.admission.calibration import Calibration
from mmcalib.cli.output import finish
from mmcalib.errors import OutputError
from mmcalib.report.configurations import CONFIGURATIONS
from mmcalib.report.report import Report, html, md
from tests.cli.conftest import Cli
from tests.report.example import calibration

HIDDEN = {
    "right to left": "\u202e",
    "isolate": "\u2066",
    "mark": "\u200f",
    "zero width": "\u200b",
    "byte order": "\ufeff",
    "tag": "\U000e0041",
    "escape": "\x1b",
    "line separator": "\u2028",
}


def configured(**config: Any) -> Calibration:
    found = calibration()
    model = found.model.model_copy(update={"id": str(config.get("model", "m"))})
    config = {**found.engine_config, "model": "m", **config}
    return found.model_copy(update={"engine_config": config, "model": model})


@pytest.mark.parametrize("character", HIDDEN.values(), ids=HIDDEN)
@pytest.mark.parametrize("form", CONFIGURATIONS)
def test_nothing_hides_in_any_form_and_its_value_stays(form: str, character: str) -> None:
    name = f"/models/ü{character}gnp.exe"
    made = configured(model=name, mm_processor_kwargs={"ö": name})
    if form in ("args", "docker", "env"):
        with pytest.raises(OutputError, match="has no escape for"):
            CONFIGURATIONS[form].render(made)
        return
    text = CONFIGURATIONS[form].render(made)
    assert all(line.isprintable() for line in text.split("\n"))
    if form == "yaml":
        assert yaml.safe_load(text)["model"] == name
    if form == "k8s":
        (started,) = yaml.safe_load(text)["spec"]["template"]["spec"]["containers"]
        assert started["args"][0] == name
        assert json.loads(started["args"][4]) == {"ö": name}


@pytest.mark.parametrize("character", HIDDEN.values(), ids=HIDDEN)
def test_nothing_hides_in_the_reports(character: str) -> None:
    shown = Report(configured(model=f"/models/a{character}b"), "vllm serve", thumbnails=False)
    assert character not in md(shown)
    assert character not in html(shown)


def test_letters_of_any_language_stay_as_they_are() -> None:
    assert "ünïcödé-日本" in CONFIGURATIONS["yaml"].render(configured(model="/ünïcödé-日本"))


@pytest.mark.parametrize(
    "config",
    [
        {"model": "--trust-remote-code"},
        {"model": "-x"},
        {"cudagraph_capture_sizes": [1, "--trust-remote-code"]},
        {"trust_remote_code": True},
        {"worker_cls": "evil.Worker"},
        {"compilation_config": {"inductor_passes": {"a": "os.system"}}},
        {"config": "/tmp/evil.yaml"},
        {"a b": 1},
        {"-x": 1},
        {"a\ntrust-remote-code": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("form", CONFIGURATIONS)
def test_an_option_that_mmcalib_never_writes_is_not_emitted(
    form: str, config: dict[str, Any]
) -> None:
    with pytest.raises(OutputError, match="not emitted"):
        CONFIGURATIONS[form].render(configured(**config))


@pytest.mark.parametrize("form", ["yaml", "k8s"])
def test_a_value_is_no_option_where_nothing_ties_it_to_its_own(form: str) -> None:
    with pytest.raises(OutputError, match="for an option"):
        CONFIGURATIONS[form].render(configured(kv_cache_dtype="--trust-remote-code"))
    assert "--kv-cache-dtype=--x" in CONFIGURATIONS["args"].render(configured(kv_cache_dtype="--x"))


def test_it_is_one_line_on_the_terminal(cli: Cli, tmp_path: Path) -> None:
    configured(model="--trust-remote-code\n\x1b[2J").save(tmp_path / "calibration.json")
    said = cli("report", "calibration.json", "--emit", "yaml")
    assert (said.code, said.out) == (1, "")
    assert said.err.startswith("error: not emitted: vLLM would take model --trust-remote-code\\n")
    assert len(said.err.splitlines()) == 2


@pytest.mark.parametrize("emit", [["args", "env", "k8s", "python"], ["python", "env"]])
def test_forms_are_written_all_or_none(tmp_path: Path, emit: list[str]) -> None:
    with pytest.raises(OutputError, match="--emit env"):
        finish(
            configured(model="/models/a\nb"),
            tmp_path,
            Console(quiet=True),
            as_json=False,
            quiet=True,
            strict=False,
            thumbnails=False,
            emit=emit,
        )
    written = sorted(os.listdir(tmp_path))
    assert written == ["engine.yaml", "report.html", "report.md"]
    assert yaml.safe_load((tmp_path / "engine.yaml").read_text())["model"] == "/models/a\nb"
