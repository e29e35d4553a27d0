"""README and docs against the code: what they show is what the tool does. No vLLM, no network."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
import typer.main
import yaml
from pydantic import BaseModel

import mmcalib
from mmcalib.admission.calibration import Calibration
from mmcalib.cli.app import app

from .pages import TEXTS, command_lines, fenced, programs
from .refresh import EXAMPLE, PAGES, ROOT, blocks, shown

_OPTION = re.compile(r"--[a-z][a-z-]*")
# Typer writes `--model <str>` or `--model TEXT`, by version.
_METAVAR = re.compile(r"(--[a-z-]+)(?: <\S+>| [A-Z]{3,}\b)")

COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
# `merge` stands on the page of `scan`.
PAGE_OF_ITS_OWN = sorted(COMMANDS)

# Options of other programs that the pages name.
_ELSEWHERE = """
--extra-index-url --version --tensor-parallel-size --skip-mm-profiling
--limit-mm-per-prompt --port --no-x --cache --media --max-num-seqs
--gpu-memory-utilization --mm-processor-device --mm-tensor-ipc --trust-remote-code
--install-completion --show-completion --gpus --entrypoint --env-file --from-env-file
--build-arg --tag --rm --shm-size --constraint --api-key --memory --quantization
--moe-backend --backend --endpoint --dataset-name --dataset-path --disable-shuffle --add
--no-oversample --num-prompts --custom-output-len --ignore-eos --max-concurrency
--kv-cache-dtype --enable-log-requests --grid --seed
--chat-template --chat-template-content-format --default-chat-template-kwargs
--enable-auto-tool-choice --tool-call-parser --reasoning-parser --reasoning-config
"""


def shell_lines(program: str) -> list[tuple[str, list[str]]]:
    """Every command of the bash blocks that starts with `program`: (page, its words)."""
    return [
        (page, words)
        for page, line in command_lines()
        for words in programs(line)
        if words and words[0] == program
    ]


def options(command: str) -> set[str]:
    """Every spelling of every option of a command."""
    found = {"--help"}
    for parameter in COMMANDS[command].params:
        found |= {*parameter.opts, *parameter.secondary_opts}
    return found


def words(text: str) -> list[str]:
    return _METAVAR.sub(r"\1", text).split()


def test_its_page_shows_the_real_help_of_run() -> None:
    page = shown("help", TEXTS[PAGES["help"]])
    assert words(page) == words(blocks()["help"]), "python tests/docs/refresh.py"


@pytest.mark.parametrize("name", ["terminal", "engine.yaml"])
def test_the_example_is_shown_as_it_is_rendered(name: str) -> None:
    assert shown(name, TEXTS[PAGES[name]]) == blocks()[name], "python tests/docs/refresh.py"


def test_the_example_is_one_run() -> None:
    calibration = Calibration.load(EXAMPLE / "calibration.json")
    parsed = yaml.safe_load((EXAMPLE / "engine.yaml").read_text(encoding="utf-8"))
    assert {key.replace("-", "_"): value for key, value in parsed.items()} == (
        calibration.engine_config
    )
    assert (EXAMPLE / "engine.yaml").read_text("utf-8") == blocks()["engine.yaml"]
    assert calibration.model.id in (EXAMPLE / "report.md").read_text("utf-8")
    assert calibration.verdict == "pass"


def test_yaml_blocks_parse_and_have_dashes() -> None:
    found = list(fenced("yaml"))
    assert found
    for page, content in found:
        keys = yaml.safe_load(content)
        assert keys, page
        assert [key for key in keys if "_" in str(key)] == [], page


def test_the_readme_opens_with_five_lines() -> None:
    title, opening = TEXTS["README.md"].split("\n\n")[:2]
    assert title == "# mmcalib"
    assert len(opening.splitlines()) <= 5
    assert len(TEXTS["README.md"].splitlines()) <= 220


def test_every_command_shown_is_one_that_the_tool_takes() -> None:
    shown_commands = shell_lines("mmcalib")
    assert len(shown_commands) >= 5
    for page, (_, command, *arguments) in shown_commands:
        assert command in COMMANDS, f"{page}: mmcalib {command}"
        # Parses as the command line would, without running anything.
        COMMANDS[command].make_context(command, list(arguments))


def test_options_in_prose_exist() -> None:
    known = set().union(*map(options, COMMANDS))
    known |= set(_ELSEWHERE.split())
    for page, text in TEXTS.items():
        assert set(_OPTION.findall(text)) - known == set(), page


@pytest.mark.parametrize("command", PAGE_OF_ITS_OWN)
def test_a_command_s_page_lists_exactly_its_options(command: str) -> None:
    rows = re.findall(r"^\| (`--.*?`) \|", TEXTS[f"docs/{command}.md"], re.M)
    named = {name for name in options(command) if name.startswith("--")}
    section = TEXTS[f"docs/{command}.md"].partition("## Options")[2].partition("\n## ")[0]
    once = re.findall(r"^\| `(--[a-z-]+)", section, re.M)
    assert sorted(once) == sorted(set(once)), "each option in one row"
    assert set(_OPTION.findall(" ".join(rows))) == named


def test_every_option_has_help() -> None:
    silent = [
        f"{name} {parameter.name}"
        for name, command in COMMANDS.items()
        for parameter in command.params
        if not getattr(parameter, "help", None)
    ]
    assert silent == []


def test_python_blocks_compile() -> None:
    found = list(fenced("python"))
    assert found
    for page, content in found:
        compile(content, page, "exec")


def test_library_page_lists_arguments_fields_and_methods() -> None:
    page = TEXTS["docs/library.md"]
    names = [*inspect.signature(mmcalib.calibrate).parameters]
    names += [*inspect.signature(mmcalib.Policy).parameters]
    assert [name for name in names if f"| `{name}` |" not in page] == []
    assert [name for name in mmcalib.__all__ if name not in page and name[0] != "_"] == []


def test_numbers_page_names_every_field() -> None:
    page = TEXTS["docs/numbers.md"]
    assert [name for name in sorted(_fields(Calibration)) if f"`{name}`" not in page] == []


def _fields(model: type[BaseModel]) -> set[str]:
    found = set(model.model_json_schema()["properties"])
    for part in model.model_json_schema().get("$defs", {}).values():
        found |= set(part.get("properties", ()))
    return found


def test_every_check_of_the_example_is_explained() -> None:
    page = TEXTS["docs/numbers.md"]
    names = [check.name for check in Calibration.load(EXAMPLE / "calibration.json").checks]
    assert [n for n in names if f"`{n}`" not in page and not n.endswith("size hint")] == []


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
