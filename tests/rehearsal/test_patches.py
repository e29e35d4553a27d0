"""Every name that a stand-in takes the place of is there in the installed vLLM and torch."""

import ast
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mmcalib.engine.environment import child_environment
from mmcalib.releases.release import VLLM_0_31, TargetMissing
from mmcalib.releases.targets import Target, find, replace
from tests.programs import answer_of, run_python
from tests.upstream import before

ROOT = Path(__file__).resolve().parents[2]
STANDINS = "mmcalib/child/rehearsal/patches"

# Stand-ins without `replace`, which notices moved names. Each has a test below or fails loudly.
OTHER_WAYS = {
    (f"{STANDINS}/cuda.py", "torch._C._accelerator_getAllocatorSettings"),
    (f"{STANDINS}/cuda.py", "torch._C._accelerator_setAllocatorSettings"),
    (f"{STANDINS}/flashinfer.py", "sys.meta_path.insert()"),
    (f"{STANDINS}/kernels.py", "setattr(torch.ops)"),
    (f"{STANDINS}/kernels.py", "sys.modules[]"),
}


def sources() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted((ROOT / "mmcalib/child/rehearsal").rglob("*.py")):
        yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def imported(tree: ast.Module) -> set[str]:
    """Names that stand for modules, or for what was imported from them."""
    return {
        (alias.asname or alias.name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }


def other_ways(tree: ast.Module) -> Iterator[str]:
    """Places that change what was imported: by setattr, by assignment, among the modules."""
    foreign = imported(tree)

    def is_foreign(node: ast.expr) -> bool:
        text = ast.unparse(node)
        dotted = all(part.isidentifier() for part in text.split("."))
        return dotted and text.partition(".")[0] in foreign and text != "os.environ"

    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called == "setattr" and is_foreign(node.args[0]):
                yield f"setattr({ast.unparse(node.args[0])})"
            elif called.startswith(("sys.meta_path.", "sys.modules.")):
                yield f"{called}()"
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Attribute) and is_foreign(target):
                    yield ast.unparse(target)
                elif isinstance(target, ast.Subscript) and is_foreign(target.value):
                    yield f"{ast.unparse(target.value)}[]"


def overlaid_methods(tree: ast.Module) -> Iterator[str]:
    """Methods of vLLM's objects that are overlaid by a function of our own, on one object."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
            yield from (one.attr for one in node.targets if isinstance(one, ast.Attribute))


@pytest.fixture(scope="module")
def patched(with_vllm: None) -> dict[str, Any]:
    """Run `tests/rehearsal/patches.py` in a child that installs every stand-in."""
    found: dict[str, Any] = answer_of("-m", "tests.rehearsal.patches")
    return found


@pytest.mark.parametrize(
    "target", ["json.decoder.JSONDecoder.moved", "json.moved.loads", "no_such_package.anything"]
)
def test_a_target_that_is_not_there_is_refused_by_name(target: str) -> None:
    with pytest.raises(TargetMissing, match=re.escape(target)):
        find(target)
    with pytest.raises(TargetMissing, match=re.escape(target)):
        replace(target, None)


def test_a_target_that_a_build_may_lack_is_passed_over() -> None:
    assert replace(Target("no_such_package.anything", optional=True), None) is None


def test_a_replacement_is_in_place_and_gives_back_what_was_there() -> None:
    before = replace("json.decoder.JSONDecoder.decode", "mine")
    try:
        assert json.decoder.JSONDecoder.decode == "mine"
    finally:
        replace("json.decoder.JSONDecoder.decode", before)
    assert json.loads("[1]") == [1]


def test_nothing_is_replaced_in_a_way_that_nobody_checks() -> None:
    found = {(file, way) for file, tree in sources() for way in other_ways(tree)}
    assert found == OTHER_WAYS


@pytest.mark.engine
def test_every_target_is_there_and_a_moved_one_would_be_noticed(patched: dict[str, Any]) -> None:
    assert len(patched["targets"]) > 30
    packages = {one.partition(".")[0] for one in patched["targets"]}
    assert packages == {"humming", "importlib", "torch", "triton", "vllm"}
    assert patched["not_noticed"] == []


@pytest.mark.engine
def test_an_installation_goes_through_every_replacement_in_the_source(patched) -> None:
    ran = {(file, line) for file, line in patched["sites"]}
    missed = [
        f"{file}:{node.lineno}"
        for file, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "replace"
        if not ran & {(file, line) for line in range(node.lineno, (node.end_lineno or 0) + 1)}
    ]
    assert missed == []


@pytest.mark.engine
def test_patches_are_imported_before_anything_of_vllm() -> None:
    """vLLM looks for a GPU and for Triton when it is imported: by then they have to be there."""
    program = (
        "import importlib, pkgutil, sys; sys.modules['vllm'] = None; "
        "import mmcalib.child.rehearsal.startup, mmcalib.child.rehearsal.patches as patches; "
        "[importlib.import_module(f'{patches.__name__}.{found.name}')"
        " for found in pkgutil.iter_modules(patches.__path__)]"
    )
    done = run_python("-c", program, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.engine
def test_an_installation_stops_at_the_first_target_that_moved() -> None:
    program = (
        "import torch; del torch.cuda.mem_get_info; "
        "from mmcalib.models.gpus import find_gpu; "
        "from mmcalib.child.rehearsal.startup import install; "
        "install(find_gpu('H100-80G'))"
    )
    done = run_python("-c", program, cwd=ROOT, env=child_environment(os.environ))
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "TargetMissing: the installed version does not have torch.cuda.mem_get_info" in last


@pytest.mark.engine
def test_settings_exist_and_no_question_is_invented(patched: dict[str, Any]) -> None:
    assert patched["torch_settings"] == [True, True]
    assert patched["invented_questions"] == []


@pytest.mark.engine
@before(VLLM_0_31, "some of what is stood in for is not there")
def test_vllm_still_names_every_compiled_thing_that_is_stood_in_for(patched) -> None:
    """In its Python sources, by a dotted name as far as it is of torch.ops or of vLLM."""
    words: set[str] = set()
    for path in Path(patched["file"]).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8", errors="replace")
        words.update(re.findall(r"\w+", text), re.findall(r"torch\.ops\.\w+|\bvllm\.\w+", text))
    names = [
        *patched["extensions"],
        *(f"torch.ops.{name}" for name in patched["namespaces"]),
        *patched["write_only"],
        *patched["flashinfer"],
        *patched["flash_attention"],
        *patched["runner_phases"],
        patched["encoder_phase"],
        *(name for _, tree in sources() for name in overlaid_methods(tree)),
    ]
    assert len(names) > 60
    assert [name for name in names if name not in words] == []
    assert any("cutlass_scaled_mm_supports" in name for name in patched["support"])


@pytest.mark.engine
def test_everything_that_vllm_takes_from_its_flash_attention_is_stood_in_for(patched) -> None:
    """Its CuTe part (`.cute`) is imported by kernels that never run."""
    package = "vllm.vllm_flash_attn"
    served = {package, f"{package}.flash_attn_interface"}
    folder = Path(patched["file"]).parent
    asked: dict[str, str] = {}
    for path in folder.rglob("*.py"):
        text = path.read_text(encoding="utf-8", errors="replace")
        if package not in text or path.is_relative_to(folder / "vllm_flash_attn"):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module in served:
                asked |= {alias.name: path.name for alias in node.names}
    assert "flash_attn_varlen_func" in asked
    assert {n: f for n, f in asked.items() if n not in patched["flash_attention"]} == {}
