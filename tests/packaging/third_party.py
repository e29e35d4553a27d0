"""Write THIRD_PARTY.md, on what the wheel contains: python -m tests.packaging.third_party"""

import re
import tomllib
from collections.abc import Mapping

from mmcalib.models.catalogue import bundled_models
from tests.conftest import ROOT
from tests.packaging.built import package_files

PAGE = ROOT / "THIRD_PARTY.md"
FACTS = "mmcalib/models/facts/*.json"

# Everything in the package that is no Python, by pattern: what it is, and of whose making.
DATA: Mapping[str, tuple[str, str]] = {
    "mmcalib/py.typed": ("marks the package as typed", "mmcalib"),
    "mmcalib/checks/checks.txt": ("codes, names and explanations of checks", "mmcalib"),
    "mmcalib/corpus/profiles/*.yaml": ("profiles of traffic, each with its source", "mmcalib"),
    "mmcalib/models/gpus.json": ("sizes of GPUs, each with where it was read", "mmcalib"),
    "mmcalib/models/quantizations.json": ("usual quantizations, with their sources", "mmcalib"),
    FACTS: ("geometries of models, [below](#geometries-of-models)", "mmcalib"),
    "mmcalib/report/html/templates/*.j2": ("page, style and script of the report", "mmcalib"),
    "mmcalib/report/templates/*.j2": ("the report as text", "mmcalib"),
}
# The licence of each dependency, as its metadata has it.
BROUGHT: Mapping[str, str] = {
    "annotated-types": "MIT",
    "av": "BSD-3-Clause; its wheels hold FFmpeg with x264 and x265, under GPL-2.0-or-later",
    "bracex": "MIT",
    "jinja2": "BSD-3-Clause",
    "jsonschema": "MIT",
    "markupsafe": "BSD-3-Clause",
    "numpy": "BSD-3-Clause; its wheels hold OpenBLAS, under BSD-3-Clause",
    "pillow": "MIT-CMU",
    "platformdirs": "MIT",
    "pydantic": "MIT",
    "pyyaml": "MIT",
    "rich": "MIT",
    "soundfile": "BSD-3-Clause; its wheels hold libsndfile, under LGPL-2.1-or-later",
    "tree-sitter": "MIT",
    "tree-sitter-bash": "MIT",
    "typer": "MIT",
    "urllib3": "MIT",
}

_HEAD = """# What the wheel holds, and what it brings along

mmcalib is under [Apache-2.0](LICENSE), and so is every file of its wheel. It holds no weights,
no tokenizer, no chat template, no font, no library and no code of anybody else. Written by
`python -m tests.packaging.third_party`; `tests/packaging` fails where the package is otherwise.

## Files that are no code
"""
_MODELS = """
## Geometries of models

Numbers of configurations and processors, and names of special tokens: each value with its status
and where it was read. They were collected one by one from what is published; no file of a model is
among them. Turn markers and tokenizers are mmcalib's own stand-ins. The model itself has a licence
of its own, which its card states and whoever downloads it accepts.
"""
_NUMBERS = """
## Numbers from vLLM and transformers

`mmcalib/releases/constants.py` has numbers and sentences of vLLM, each with its file, and the
geometries have defaults of transformers. Both projects are under Apache-2.0. mmcalib imports the
vLLM that is installed and contains none of it.

## What pip installs with it

Not part of the wheel; each comes under its own licence:
"""


def dependencies() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return [re.split(r"[^\w-]", line, maxsplit=1)[0] for line in project["dependencies"]]


def data_files() -> set[str]:
    return {name for name in package_files() if not name.endswith(".py")}


def page() -> str:
    models = (
        f"| `{geometry.id}` | [its card](https://huggingface.co/{geometry.id}) |"
        for geometry in bundled_models()
    )
    data = (f"| `{pattern}` | {what} | {whose} |" for pattern, (what, whose) in DATA.items())
    brought = (f"| {name} | {BROUGHT[name]} |" for name in dependencies())
    parts = (
        (_HEAD, "| file | what it is | made by |\n|---|---|---|", data),
        (_MODELS, "| model | licence of the model |\n|---|---|", models),
        (_NUMBERS, "| package | licence |\n|---|---|", brought),
    )
    return "".join("\n".join([intro, head, *rows, ""]) for intro, head, rows in parts)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
