"""The rules of the house, read from the source: who imports whom, who prints, who exits."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from mmcalib.checks import catalogue

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "mmcalib"

# Lowest first: a module imports from its own group and from those before it.
ORDER = (
    {"errors", "progress", "text", "version"},
    {"domain", "processes"},
    {"files", "logs", "releases", "storage"},
    {"gate", "limits", "media", "models"},
    {"remedies"},
    {"checks", "corpus"},
    {"results"},
    {"census"},
    {"options", "report"},
    {"configs", "engine"},
    {"child", "decision"},
    {"admission", "proof"},
    {"prediction"},
    {"workflows"},
    {"cli"},
    {""},
)
HEAVY = {"torch", "vllm", "transformers"}
MAY_BE_HEAVY = ("mmcalib.child", "mmcalib.engine.shim", "mmcalib.releases")
NOT_AT_START = (*sorted(HEAVY), "librosa", "av", "numpy", "annotated_types", "pydantic", "yaml")

PURE = (
    *("mmcalib.checks", "mmcalib.limits", "mmcalib.domain", "mmcalib.gate", "mmcalib.logs"),
    *("mmcalib.releases.constants", "mmcalib.remedies"),
)
PURE_MAY_IMPORT = (*PURE, "mmcalib.errors", "mmcalib.text")
IMPURE = {
    *("datetime", "io", "logging", "os", "pathlib", "shutil", "socket", "subprocess", "sys"),
    *("tempfile", "threading", "time", "PIL", "av", "soundfile", "librosa"),
}
MAX_LINES, MIN_LINES = 600, 60
# Entries of processes, and what must stay light to import.
SHORT = {"__main__", "version", "child.__main__", "child.serve", "media.blank"}
# What the house may have at most; a commit that cuts lowers them.
CEILINGS = {
    "modules": 225,
    "product lines": 47_222,
    "test files": 183,
    "test lines": 36_170,
    "benchmark lines": 6_960,
    "words of docs": 19_473,
    "words of CHANGELOG": 300,
    "lines of README": 120,
    "options of run": 41,
}
SLACK = {"modules": 5, "test files": 5, "options of run": 0, "lines of README": 20}

# In pieces, so that this file does not hold what it looks for.
REGISTRY_HOSTS = (
    *("pypi" + ".org", "python" + "hosted.org", "npm" + "js.org", "yarn" + "pkg.com"),
    *("crates" + ".io", "conda." + "anaconda.org", "proxy." + "golang.org", "ruby" + "gems.org"),
)
WORK_PATHS = (
    "/work" + r"/(main|shared|\.)",
    r"(?<![\w.}*])/root" + r"/\.(pyenv|cache|venv)",
    "/opt" + "/(pypi|wheels)",
    r"/tmp" + r"/bash_jobs",
)
FORBIDDEN_TEXT = re.compile("|".join([*map(re.escape, REGISTRY_HOSTS), *WORK_PATHS]))
NOT_OURS = {".git", ".venv", ".venv-newest", "sample", "out", "build", "dist", "__pycache__"}


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of mmcalib by its dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text(encoding="utf-8"), str(path))
    return found


def is_package(name: str) -> bool:
    return (ROOT / Path(*name.split(".")) / "__init__.py").is_file()


def within(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def imports(name: str) -> Iterator[tuple[str, int]]:
    """Yield what a module imports anywhere in it, dotted and absolute, with the line."""
    for node in ast.walk(modules()[name]):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = name.split(".")
                above = parts[: len(parts) - node.level + is_package(name)]
                base = ".".join([*above, *filter(None, [base])])
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                yield (whole if whole in modules() else base), node.lineno
        elif isinstance(node, ast.Call) and called(node) in {"import_module", "__import__"}:
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first.value, node.lineno


def called(node: ast.Call) -> str:
    match node.func:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id="sys" | "os" as owner), attr=name):
            return f"{owner}.{name}"
        case ast.Attribute(value=ast.Name(id="importlib"), attr=name):
            return name
    return ""


def rank(name: str) -> int:
    """The group of a module of mmcalib; `mmcalib` itself and its `__main__` are the topmost."""
    top = [*name.split("."), ""][1].replace("__main__", "")
    for position, group in enumerate(ORDER):
        if top in group:
            return position
    raise AssertionError(f"{name} has no place in ORDER; give it one here")


def package(name: str, inside: str = "mmcalib") -> str:
    """The package directly in `inside` that a module is in, empty for the modules beside them."""
    depth = len(inside.split("."))
    parts = name.split(".")
    if not within(name, inside) or len(parts) <= depth:
        return ""
    return parts[depth] if is_package(".".join(parts[: depth + 1])) else ""


def edges(inside: str = "mmcalib") -> set[tuple[str, str]]:
    """(importer, imported) of the packages directly in `inside`, without modules beside them."""
    found = {
        (package(name, inside), package(target, inside))
        for name in modules()
        for target, _ in imports(name)
    }
    return {(a, b) for a, b in found if a and b and a != b and b != "processes"}


def test_packages_do_not_import_each_other() -> None:
    found = edges()
    assert {(a, b) for a, b in found if (b, a) in found} == set()


def test_the_parts_of_the_job_are_in_no_cycle() -> None:
    """Nor in one over several."""
    above: dict[str, set[str]] = {}
    for importer, imported in edges("mmcalib.workflows"):
        above.setdefault(imported, set()).add(importer)
    assert tuple(TopologicalSorter(above).static_order())


def importers(targets: Iterable[str], *, allowed: tuple[str, ...]) -> list[str]:
    return [
        f"{name}:{line} imports {target}"
        for name in modules()
        if not within(name, *allowed)
        for target, line in imports(name)
        if within(target, *targets)
    ]


def test_only_the_child_imports_torch_vllm_or_transformers() -> None:
    assert importers(HEAVY, allowed=MAY_BE_HEAVY) == []


def test_nothing_points_back_up_the_flow() -> None:
    found = [
        f"{name}:{line} imports {target}"
        for name in modules()
        for target, line in imports(name)
        if within(target, "mmcalib") and rank(target) > rank(name)
    ]
    assert found == []


def test_what_is_done_does_not_depend_on_how_it_is_shown() -> None:
    assert importers(["mmcalib.report"], allowed=("mmcalib.cli", "mmcalib.report")) == []


def test_only_releases_imports_vllm() -> None:
    """So that a new release is a matter of that folder; see "How to add" in CONTRIBUTING."""
    assert importers(["vllm"], allowed=("mmcalib.releases",)) == []


def test_only_the_service_uses_the_rehearsal() -> None:
    found = {
        name
        for name in modules()
        if within(name, "mmcalib.child") and not within(name, "mmcalib.child.rehearsal")
        if any(within(target, "mmcalib.child.rehearsal") for target, _ in imports(name))
    }
    assert found == {"mmcalib.child.service"}


def test_releases_are_told_apart_by_version_and_in_their_folder() -> None:
    asked = [
        f"{name}:{node.lineno}"
        for name, tree in modules().items()
        if within(name, "mmcalib.child") or within(name, "mmcalib.engine")
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == "is_reached"
    ]
    guessed = [
        f"{name}:{node.lineno}"
        for name, tree in modules().items()
        if within(name, "mmcalib.releases")
        for node in ast.walk(tree)
        if (isinstance(node, ast.ExceptHandler) and "ImportError" in ast.unparse(node))
        or (isinstance(node, ast.Call) and called(node) == "hasattr")
    ]
    assert (asked, guessed) == ([], [])


def test_only_the_child_imports_itself() -> None:
    """The parent speaks to it over a pipe; importing it would import vLLM."""
    found = [
        f"{name}:{line} imports {target}"
        for name in modules()
        if not within(name, *MAY_BE_HEAVY)
        for target, line in imports(name)
        if within(target, *MAY_BE_HEAVY) and not within(target, *PURE)
    ]
    assert found == []


def test_what_is_pure_reads_asks_and_knows_nothing() -> None:
    found = [
        f"{name}:{line} imports {target}"
        for name in modules()
        if within(name, *PURE)
        for target, line in imports(name)
        if within(target, *IMPURE)
        or (within(target, "mmcalib") and not within(target, *PURE_MAY_IMPORT))
    ]
    found += [
        f"{name}:{node.lineno} opens a file"
        for name, tree in modules().items()
        if within(name, *PURE)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and called(node) == "open"
    ]
    assert found == []


def test_what_is_pure_loads_neither_pydantic_nor_messages() -> None:
    pure = [name for name in modules() if within(name, *PURE)]
    code = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]: importlib.import_module(name)\n"
        "print([m for m in sys.modules if m == 'pydantic' or m.startswith('mmcalib.engine')])"
    )
    found = subprocess.run([sys.executable, "-c", code, *pure], capture_output=True, text=True)
    assert found.stdout == "[]\n", found.stderr


def calls(names: set[str], *, allowed: tuple[str, ...]) -> list[str]:
    return [
        f"{module}:{node.lineno} calls {called(node)}"
        for module, tree in modules().items()
        if not within(module, *allowed)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and called(node) in names
    ]


def test_every_check_is_made_in_one_module_of_checks() -> None:
    """Only `doctor` makes its own, which no calibration has."""
    doctor = "mmcalib.workflows.doctor"
    made = {
        name: {
            getattr(catalogue, node.attr).code
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "ids"
        }
        for name, tree in modules().items()
        if within(name, "mmcalib.checks", doctor)
    }
    assert {x.split(":")[0] for x in calls({"Check"}, allowed=("mmcalib.checks",))} == {doctor}
    assert sorted(code for codes in made.values() for code in codes) == sorted(catalogue.CHECKS)
    assert made[doctor] == set(catalogue.GROUPS["Installation, mmcalib doctor"])


def test_only_the_cli_prints() -> None:
    assert calls({"print"}, allowed=("mmcalib.cli",)) == []


def test_only_the_cli_and_child_processes_exit() -> None:
    exits = {"sys.exit", "os._exit", "exit", "quit", "SystemExit"}
    children = ("mmcalib.child", "mmcalib.models.fetch")
    assert calls(exits, allowed=("mmcalib.cli", *children, "mmcalib.__main__")) == []


def test_no_process_is_started_that_may_import_from_the_working_folder() -> None:
    """Every start uses `safe_environment`, and Python with `-P` or `-I`."""
    found = []
    for name, tree in modules().items():
        starts = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and ast.unparse(node.func) in ("subprocess.Popen", "subprocess.run")
        ]
        source = ast.unparse(tree)
        safe = "safe_environment(" in source or "child_environment(" in source
        safe = safe and ("'-P'" in source or "'-I'" in source)
        found += [
            f"{name}:{node.lineno}"
            for node in starts
            if not safe or not any(k.arg == "env" for k in node.keywords)
        ]
    assert found == []


def test_every_module_says_what_it_is_and_stays_short() -> None:
    found = [
        f"{name} has no docstring"
        for name, tree in modules().items()
        if tree.body and not ast.get_docstring(tree)
    ]
    for path in sorted(PACKAGE.rglob("*.py")):
        lines = len(path.read_text(encoding="utf-8").splitlines())
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        short = lines < MIN_LINES and name not in SHORT and path.stem != "__init__"
        if lines > MAX_LINES or short:
            found.append(f"{name} has {lines} lines")
    assert found == []


def _lines(folder: Path) -> int:
    return sum(len(path.read_bytes().splitlines()) for path in folder.rglob("*.py"))


def _words(page: Path) -> int:
    return len(page.read_text("utf-8").split())


def _run_options() -> int:
    shown = subprocess.run(
        [sys.executable, "-m", "mmcalib", "run", "--help-all"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"},
    )
    return len(set(re.findall(r"^  (--[a-z-]+)", shown.stdout, re.M)))


def test_the_house_does_not_grow() -> None:
    """Each figure is at most its ceiling and close to it. Ceilings only fall."""
    docs = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    figures = {
        "modules": len(list(PACKAGE.rglob("*.py"))),
        "product lines": _lines(PACKAGE),
        "test files": len(list((ROOT / "tests").rglob("test_*.py"))),
        "test lines": _lines(ROOT / "tests"),
        "benchmark lines": _lines(ROOT / "benchmarks"),
        "words of docs": sum(map(_words, docs)),
        "words of CHANGELOG": _words(ROOT / "CHANGELOG.md"),
        "lines of README": len(docs[0].read_text("utf-8").splitlines()),
        "options of run": _run_options(),
    }
    above = {what: n for what, n in figures.items() if n > CEILINGS[what]}
    below = {what: n for what, n in figures.items() if n < CEILINGS[what] - SLACK.get(what, 300)}
    assert (above, below) == ({}, {})


def our_files() -> list[Path]:
    """List what git would carry; without git, all but what is made here."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    if (ROOT / ".git").exists():
        done = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            listed = (ROOT / name for name in done.stdout.split("\0") if name)
            return [path for path in listed if path.is_file()]
    walked = (path for path in ROOT.rglob("*") if path.is_file())
    return [
        path
        for path in walked
        if not any(
            part in NOT_OURS or part.endswith(("_cache", ".egg-info"))
            for part in path.relative_to(ROOT).parts
        )
    ]


def test_no_file_names_a_package_registry_or_a_work_machine() -> None:
    found = []
    for path in our_files():
        text = path.read_bytes().decode("utf-8", errors="replace")
        for number, line in enumerate(text.splitlines(), 1):
            if match := FORBIDDEN_TEXT.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number} has {match.group()}")
    assert found == []


def fresh_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_the_cli_imports_nothing_heavy() -> None:
    done = fresh_python(
        f"import sys, mmcalib.cli; print([n for n in {NOT_AT_START!r} if n in sys.modules])"
    )
    assert (done.stdout, done.stderr, done.returncode) == ("[]\n", "", 0)
