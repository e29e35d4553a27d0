"""CONTRIBUTING, "How to add: a bundled model", done on a copy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .copy_of import copy_of

FACTS = "mmcalib/models/facts"
ID = "example/Qwen2-VL-Tuned"
ROW = "| `Qwen/Qwen2-VL-2B-Instruct` | image, video |"


@pytest.mark.slow
def test_a_model_is_one_file_of_facts(tmp_path: Path) -> None:
    copy = copy_of(tmp_path)
    sibling = json.loads((copy.folder / FACTS / "qwen2-vl-2b-instruct.json").read_text())
    new = f"{FACTS}/qwen2-vl-tuned.json"
    copy.write(new, json.dumps({**sibling, "id": ID}, indent=2))
    copy.edit("docs/models.md", ROW, f"| `{ID}` | image, video |\n{ROW}")
    known = '"Qwen/Qwen2-VL-2B-Instruct"'
    copy.edit("tests/models/test_geometry_facts.py", f"{known},", f'{known},\n    "{ID}",')
    copy.edit(
        "tests/models/test_geometry_depth.py",
        f"{known}: (28, 32),",
        f'{known}: (28, 32),\n    "{ID}": (28, 32),',
    )
    assert copy.changed() == {new}
    copy.passes(
        "tests/models/test_geometry_facts.py",
        "tests/models/test_geometry_depth.py",
        "tests/docs/test_docs.py::test_their_page_lists_the_bundled_models",
    )
    assert f"{ID} " in copy.mmcalib("models").stdout
