"""README and docs against the code: what they show is what the tool does. No vLLM, no network."""

import ast
import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from pydantic import TypeAdapter

from mmcalib.admission.calibration import Calibration
from mmcalib.corpus.given import Distribution
from mmcalib.models.gpus import find_gpu
from mmcalib.text import GIB
from tests.programs import run_program

from ..schemas import CALIBRATION, EXAMPLE, ROOT
from .pages import TEXTS, anchors, command_lines, fenced, links, programs
from .refresh import COMMANDS, REFRESH, generated

_OPTION = re.compile(r"--[a-z][a-z-]*")

# Options of other programs that the pages name.
_ELSEWHERE = """
--extra-index-url --tensor-parallel-size --skip-mm-profiling --port --cache --media
--max-num-seqs --gpu-memory-utilization --trust-remote-code --install-completion --gpus
--entrypoint --env-file --build-arg --tag --rm --shm-size --constraint --api-key
--enable-log-requests --grid --seed --enable-auto-tool-choice --tool-call-parser
--reasoning-parser --reasoning-config --add --limit-mm-per-prompt --load-format
"""
# Where vLLM has the messages that the how-tos quote; the last is torch's.
SOURCES = (
    "config/compilation.py",
    "entrypoints/serve/utils/api_utils.py",
    "multimodal/processing/context.py",
    "v1/core/encoder_cache_manager.py",
    "v1/core/kv_cache_utils.py",
    "v1/engine/input_processor.py",
    "v1/worker/utils.py",
)
NOT_VLLM = {"CUDA out of memory"}


def shell_lines(program: str) -> list[tuple[str, list[str]]]:
    """Every command of the bash blocks that starts with `program`: (page, its words)."""
    return [
        (page, words)
        for page, line in command_lines()
        for words in programs(line)
        if words and words[0] == program
    ]


def test_generated_parts_are_current() -> None:
    stale = [path for path, text in generated().items() if path.read_text("utf-8") != text]
    assert stale == [], REFRESH


def test_the_example_is_one_run() -> None:
    calibration = Calibration.load(CALIBRATION)
    parsed = yaml.safe_load((EXAMPLE / "engine.yaml").read_text(encoding="utf-8"))
    assert {key.replace("-", "_"): value for key, value in parsed.items()} == (
        calibration.engine_config
    )
    assert calibration.verdict == "pass"


def test_yaml_blocks_parse_and_have_dashes() -> None:
    """Those of vLLM; the others are distributions."""
    for page, content in fenced("yaml"):
        keys = yaml.safe_load(content)
        assert keys, page
        if "items" in keys:
            assert [*TypeAdapter(Distribution).validate_python(keys).lines()], page
        else:
            assert [key for key in keys if "_" in str(key)] == [], page


def test_every_command_shown_is_one_that_the_tool_takes() -> None:
    shown_commands = shell_lines("mmcalib")
    assert len(shown_commands) >= 5
    for page, (_, command, *arguments) in shown_commands:
        assert command in COMMANDS, f"{page}: mmcalib {command}"
        # Parses as the command line would, without running anything.
        COMMANDS[command].make_context(command, list(arguments))


def test_options_in_prose_exist() -> None:
    known = {"--help", *_ELSEWHERE.split()}
    for command in COMMANDS.values():
        known |= {spelling for parameter in command.params for spelling in parameter.opts}
    for page, text in TEXTS.items():
        assert set(_OPTION.findall(text)) - known == set(), page


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    asked = {
        (page, target)
        for page, (_, *named) in shell_lines("make")
        for target in named
        if "=" not in target
    }
    prose = re.compile(r"`make ([a-z -]+?)(?: [A-Z]+=\S+)?`")
    asked |= {(p, t) for p, text in TEXTS.items() for m in prose.findall(text) for t in m.split()}
    assert asked
    assert {(page, target) for page, target in asked if target not in targets} == set()


def strings(source: Path) -> Iterator[str]:
    """Every string of a module; what an f-string replaces is left out."""
    for node in ast.walk(ast.parse(source.read_text("utf-8"))):
        match node:
            case ast.JoinedStr(values=parts):
                yield "".join(
                    str(part.value) if isinstance(part, ast.Constant) else "\0" for part in parts
                )
            case ast.Constant(value=str() as text):
                yield text


def test_each_quoted_message_is_one_of_vllm() -> None:
    found = importlib.util.find_spec("vllm")
    if found is None or found.origin is None:
        pytest.skip("needs vLLM: make setup")
    said = "\n".join(text for name in SOURCES for text in strings(Path(found.origin).parent / name))
    tables = [text.partition("| vLLM says |")[2].partition("\n\n")[0] for text in TEXTS.values()]
    rows = [line.split(" | ")[0] for table in tables for line in table.splitlines()[2:]]
    messages = {message for row in rows for message in re.findall(r"`([^`]+)`", row)} - NOT_VLLM
    assert len(messages) >= 9
    assert {message for message in messages if message not in said} == set()


def leads_somewhere(page: str, target: str) -> bool:
    path, _, anchor = target.partition("#")
    file = ((ROOT / page).parent / path).resolve() if path else ROOT / page
    there = file.exists() and file.is_relative_to(ROOT)
    return there and (not anchor or anchor in anchors(file.read_text(encoding="utf-8")))


@pytest.mark.parametrize("page", TEXTS)
def test_links_lead_somewhere(page: str) -> None:
    local = [target for target in links(page) if "://" not in target]
    assert [target for target in local if not leads_somewhere(page, target)] == []


def test_an_anchor_is_what_github_makes_of_a_heading() -> None:
    text = "# R7: CPU cache\n## What it says as JSON\n### `--emit`\n## a\n## a\n```\n# no\n```\n"
    assert anchors(text) == {"r7-cpu-cache", "what-it-says-as-json", "--emit", "a", "a-1"}


def test_every_page_of_the_docs_is_in_their_index() -> None:
    index = {
        (ROOT / "docs" / target.partition("#")[0]).resolve() for target in links("docs/README.md")
    }
    pages = {path.resolve() for path in ROOT.glob("docs/**/*.md")} - {ROOT / "docs/README.md"}
    assert {str(path.relative_to(ROOT)) for path in pages - index} == set()


def test_pictures_are_carried_by_git_or_new() -> None:
    """A picture that git ignores is there on this machine only."""
    shown = {
        ((ROOT / page).parent / target).resolve()
        for page in TEXTS
        for target in links(page)
        if target.endswith((".png", ".svg"))
    }
    assert shown
    if (ROOT / ".git").exists():
        done = run_program("git", "check-ignore", *shown, cwd=ROOT)
        assert [Path(line).name for line in done.stdout.splitlines()] == []


def test_the_readme_s_figures_of_accuracy_are_those_measured() -> None:
    """First predictions, before anything was fitted on the starts that they are of."""
    readme, first = " ".join((ROOT / "README.md").read_text().split()), dict[str, float]()
    for line in (ROOT / "reports/gpu/results.jsonl").read_text().splitlines():
        measured = json.loads(line)
        pool = {part["name"]: part for part in measured["components"]}.get("KV pool")
        if pool:
            first.setdefault(measured["key"], (pool["predicted"] - pool["measured"]) / GIB)
    least, most = min(first.values()), max(first.values())
    share = most * GIB / find_gpu("H100-80G").total_bytes
    assert f"For {len(first)} starts on an H100" in readme
    assert f"{least:.2f} to {most:.2f} GiB too high, at most {share:.2%} of the GPU" in readme
    page = (ROOT / "reports/memory-accuracy.md").read_text()
    section = page[page.index("\n## Published logs") : page.index("\n## Text-only controls\n")]
    rows = re.findall(r"\n\| kv pool \|[^|]*\|[^|]*\| ([+-][\d.]+) \|", section)
    errors = sorted(abs(float(row)) for row in rows)
    within = [error for error in errors if error < 1]
    found = f"Of {len(errors)} published logs, {len(within)} are within {within[-1]:.2f} GiB, and "
    least, most = errors[len(within)], errors[-1]
    found += f"{len(errors) - len(within)} from one machine off by {least:.2f} to {most:.2f} GiB"
    assert found in readme
