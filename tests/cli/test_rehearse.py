"""`mmcalib rehearse` before any child is started, and what it prints."""

from __future__ import annotations

import pytest

MODEL = "Qwen/Qwen2.5-VL-3B-Instruct"


@pytest.mark.parametrize(
    ("words", "says", "hint"),
    [
        (["--model", MODEL, "--gpu", "H1000"], "H1000", "--gpu-memory"),
        (["--model", MODEL, "--gpu", "MI300X"], "MI300X has no CUDA", "--gpu H100-80G"),
        (["--model", MODEL, "--gpu-memory", "24GiB"], "go together", "--capability 8.9"),
        (["--model", MODEL, "--capability", "8.9"], "go together", "--gpu-memory 24GiB"),
        (["--gpu", "L4", "--gpu-memory", "24GiB", "--capability", "8.9"], "one or the other", ""),
        (["--gpu", "L4", "--config", "a", "--compare", "a", "b"], "one or the other", ""),
        (
            ["--model", MODEL, "--gpu", "L4", "--data", "."],
            "--data needs --requests",
            "mmcalib run",
        ),
        (
            ["--gpu", "L4", "--requests", "r", "--compare", "a", "b"],
            "under one configuration",
            "--config",
        ),
        (["--concurrency", "2", "--rate", "2"], "--timestamps are one or the other", "64"),
        (["--rate", "2", "--timestamps"], "--timestamps are one or the other", "64"),
        (["--gpu", "L4", "--timestamps"], "--timestamps need --requests", "--requests"),
        (["--gpu", "L4"], "no model is named", "--model MODEL"),
        (["--gpu", "L4", "--config", "none.yaml"], "none.yaml: no such file", ""),
    ],
)
def test_a_mistake_is_one_line(words: list[str], says: str, hint: str, cli) -> None:
    ended = cli("rehearse", *words)
    assert (ended.code, ended.out) == (2, "")
    lines = ended.err.splitlines()
    assert len(lines) <= 2
    assert says in lines[0]
    assert hint in ended.err
