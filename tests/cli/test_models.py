"""`mmcalib models` as people look for one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from mmcalib.cli.app import app
from mmcalib.gpus.catalogue import find as find_gpu
from mmcalib.models import bundled


def listed(*words: str) -> list[dict[str, Any]]:
    done = CliRunner().invoke(app, ["models", *words, "--json"])
    assert done.exit_code == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def ids(*words: str) -> list[str]:
    return [model["id"] for model in listed(*words)]


def test_all_of_them_without_a_word() -> None:
    assert ids() == [geometry.id for geometry in bundled()]


def test_words_are_parts_of_the_name_in_any_case() -> None:
    assert ids("qwen3-VL", "32b") == ["Qwen/Qwen3-VL-32B-Instruct"]
    assert ids("no such model") == []


def test_modalities_must_all_be_taken() -> None:
    found = listed("--modality", "video", "--modality", "audio")
    assert found
    assert all({"video", "audio"} <= set(model["modalities"]) for model in found)


def test_weights_and_gpu_leave_out_what_is_too_large() -> None:
    small = listed("--max-weights", "6GiB")
    assert small
    assert all(model["figures"]["weights_bytes"] <= 6 * (1 << 30) for model in small)
    on_l4 = listed("--gpu", "L4")
    assert 0 < len(on_l4) < len(bundled())
    memory = find_gpu("L4").total_bytes
    for model in on_l4:
        assert find_gpu(model["figures"]["calibrated_gpu"]).total_bytes <= memory


def test_facts_are_counted_by_their_status() -> None:
    (glm,) = listed("GLM-OCR")
    geometry = next(one for one in bundled() if one.id == glm["id"])
    assert sum(glm["facts"].values()) == len(list(geometry.facts()))
    assert glm["facts"]["found"] > 0


def test_rows_are_on_stdout_and_their_heads_beside_them() -> None:
    done = CliRunner().invoke(app, ["models", "glm-ocr"])
    rows = done.stdout.splitlines()
    assert [row.split()[0] for row in rows] == ids("glm-ocr")
    assert all("1,369" in row for row in rows), "tokens of 1024 × 1024 pixels"
    assert done.stderr.startswith("model ")


@pytest.mark.parametrize("columns", [80, 100])
def test_the_table_fits_the_terminal(columns: int, cli, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    done = cli("models")
    assert max(map(len, (done.out + done.err).splitlines())) <= columns
    whole = [geometry.id for geometry in bundled()]
    for name, row in zip(whole, done.out.splitlines(), strict=True):
        shown = row.split()[0].rstrip("…")
        assert name.startswith(shown)
        assert len(shown) >= 33 or shown == name


def test_a_name_that_no_model_has_finds_none() -> None:
    assert "no bundled model matches" in CliRunner().invoke(app, ["models", "xyz"]).stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--max-weights", "large"), "--max-weights large: not a size"),
        (("--gpu", "Voodoo2"), "no GPU called"),
        (("--modality", "smell"), "smell"),
    ],
)
def test_what_cannot_be_read_is_refused(words: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(app, ["models", *words])
    assert done.exit_code != 0
    assert said in done.stderr + str(done.exception)
