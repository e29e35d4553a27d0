"""Every command of README and docs that needs no vLLM is run; `commands.py` has the rule."""

import re
import shutil
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
from PIL import Image

from mmcalib.corpus.requests import Reading, RequestsSource

from ..corpus.listed import prompts_of
from ..schemas import ROOT
from .commands import ELSEWHERE, FAST, LINES, SLOW, check, commands, named
from .pages import fenced, programs
from .workspace import copy, execute, prepare

# Calls that need vLLM or its server; tests/e2e makes them.
CALLS_VLLM = re.compile(r"\bvllm\b|\bOpenAI\(|\bmmcalib\.(?:calibrate|rehearse|validate)\(")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare(tmp_path_factory.mktemp("docs"))


@pytest.fixture
def workspace(template: Path, tmp_path: Path) -> Path:
    copy(template, tmp_path / "w")
    return tmp_path / "w"


@pytest.mark.parametrize(("page", "line"), FAST, ids=[line for _, line in FAST])
def test_command_runs(page: str, line: str, workspace: Path) -> None:
    check(page, line, workspace)


def marks(code: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] * ("ray" in code) + [pytest.mark.engine] * ("ray.data.llm" in code)


BLOCKS = [block for block in fenced("python") if not CALLS_VLLM.search(block[1])]


@pytest.mark.parametrize(
    ("page", "code"), [pytest.param(*block, marks=marks(block[1])) for block in BLOCKS]
)
def test_python_runs(page: str, code: str, workspace: Path) -> None:
    for package in re.findall(r"^(?:import|from) (\w+)", code, re.M):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    (workspace / "shown.py").write_text(code)
    done = execute("python shown.py", workspace)
    assert done.returncode == 0, f"{page}\n{done.stderr}"


MADE = {
    "servegen.yaml": (10_000, ["size:728x1288"] * 3),
    "azure.jsonl": (2, ["size:1024x768"] * 2),
    "aiperf.jsonl": (1000, ["size:1024x768"] * 3 + ["size:16000Hz,10s"]),
    "perf.yaml": (10_000, [*["size:1920x1080"] * 2, "size:1280x720,1fps,32s", "size:16000Hz,5s"]),
}


@pytest.mark.skipif(not shutil.which("jq"), reason="jq is not installed")
def test_a_recipe_makes_a_corpus_of_another_format(tmp_path: Path) -> None:
    """A sample of each project's format becomes so many requests, one of them as given."""
    shutil.copytree(Path(__file__).with_name("traces"), tmp_path, dirs_exist_ok=True)
    for line in (line for page, line in LINES if "plan-ahead" in page and line.startswith("jq")):
        done = execute(line, tmp_path)
        assert done.returncode == 0, f"{line}\n{done.stderr}"
    for name, (requests, most) in MADE.items():
        prompts = prompts_of(RequestsSource(tmp_path / name, Reading(tmp_path)))
        sizes = [[item.path.partition("#")[0] for item in prompt.items] for prompt in prompts]
        assert (name, len(sizes), most in sizes) == (name, requests, True)


EXPORTS = {
    "spans.jsonl": [[(800, 600)]],
    "chats.json": [[(1024, 1024)], [(1024, 1024), (512, 512)]],
}


@pytest.mark.skipif(not shutil.which("jq"), reason="jq is not installed")
@pytest.mark.parametrize("name", EXPORTS)
def test_a_recipe_makes_requests_of_an_export(tmp_path: Path, name: str) -> None:
    shutil.copy(Path(__file__).with_name("traces") / name, tmp_path)
    (line,) = (line for _, line in LINES if line.endswith(f" {name} > requests.jsonl"))
    assert execute(line, tmp_path).returncode == 0
    prompts = prompts_of(RequestsSource(tmp_path / "requests.jsonl", Reading(tmp_path)))
    sizes = [[Image.open(item.path).size for item in prompt.items] for prompt in prompts]
    assert sizes == EXPORTS[name]


def test_no_line_of_the_docs_is_left_over() -> None:
    """A line runs here, leads outside, or is of a program that is known to be run elsewhere."""
    left = [
        f"{page}: {line}"
        for page, line in LINES
        for words in programs(line)[:1]
        if not commands(line) and named(words) not in ELSEWHERE
    ]
    assert left == []
    assert len(FAST) >= 15
    assert len(SLOW) >= 15


def test_pip_installs_extras_that_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = {
        extra
        for _, line in LINES
        if line.startswith("pip ")
        for found in re.findall(r"(?:mmcalib|\.)\[([\w,]+)\]", line)
        for extra in found.split(",")
    }
    assert asked
    assert asked - set(project["optional-dependencies"]) == set()


def test_scripts_and_modules_that_are_shown_exist() -> None:
    python = [words[1:] for _, line in LINES for words in programs(line) if "python" in words[0]]
    shown = {f"{w[1].replace('.', '/')}.py" if w[0] == "-m" else w[0] for w in python}
    assert shown
    assert {name for name in shown if not (ROOT / name).is_file()} == set()
