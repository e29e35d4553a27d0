"""CONTRIBUTING, "How to add: a GPU", done on a copy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .copy_of import copy_of

CATALOGUE = "mmcalib/gpus/catalogue.json"
ENTRY = {
    "name": "RTX-9090",
    "torch_name": "NVIDIA GeForce RTX 9090",
    "total_bytes": 51_200_000_000,
    "total_status": "inferred",
    "source": "made up: what torch reports of a card that nobody sells",
    "capability": [12, 0],
    "sm_count": 200,
    "aliases": ["RTX-9090-48G"],
}


@pytest.mark.slow
def test_a_gpu_is_one_entry(tmp_path: Path) -> None:
    copy = copy_of(tmp_path)
    entries = json.loads((copy.folder / CATALOGUE).read_text())
    copy.write(CATALOGUE, json.dumps([*entries, ENTRY], indent=2))
    copy.edit(
        "tests/gpus/test_gpu_catalogue.py", '"RTX-3070": 8,', '"RTX-3070": 8,\n    "RTX-9090": 48,'
    )
    assert copy.changed() == {CATALOGUE}
    copy.passes("tests/gpus")
    found = "from mmcalib.gpus import catalogue; print(catalogue.find('rtx 9090 48gb').name)"
    assert copy.run("-c", found).stdout == "RTX-9090\n"
    completed = "from mmcalib.options.completion import gpu_names; print(*gpu_names())"
    assert "RTX-9090" in copy.run("-c", completed).stdout.split()
