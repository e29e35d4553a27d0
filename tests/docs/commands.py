"""The commands of README and docs (one per line of a bash block), and where each is run.

`test_commands.py` runs `mmcalib` beside the files that a line names. Where it needs vLLM,
`tests/e2e/test_docs.py` does, by default with `--validate budget`, which starts no engine.
`ELSEWHERE` and `OUTSIDE` give the reasons why the rest is not run.
"""

import re
import shutil
from pathlib import Path

from .pages import command_lines, programs
from .workspace import execute

# Commands that need vLLM, and of these the ones with `--validate`.
NEEDS_VLLM = {"run", "rehearse", "plan", "validate"}
PROVES = {"run", "validate"}
# Their answer may be no.
MAY_SAY_NO = {"doctor", "plan"}

# Programs that other tests answer for, or nobody can run here.
ELSEWHERE = {
    "make": "its targets: test_docs.py; what they do: a release runs them",
    "jq": "another program, on exports that others make",
    "pip": "installs; its extras: test_commands.py",
    "vllm": "tests/e2e/test_serve.py starts it",
    "echo": "the first request: tests/e2e/test_serve.py sends it",
    ".venv/bin/python": "scripts and modules of this repository: test_commands.py",
    ".venv/bin/pytest": "these tests",
    "docker": "needs Docker",
    "sh": "the same: a script with docker run",
    "kubectl": "needs a cluster",
    "patch": "of a manifest; tests/configs/test_read.py has the diff",
    "eval": "tests/engine/test_emit.py hands these words to vLLM",
}
# Arguments of `mmcalib` that lead out of this machine.
OUTSIDE = {
    "s3://": "a bucket",
    "hf-dataset://lmms-lab": "the hub",
    "RAY_ADDRESS=": "a cluster",
    "mmcalib serve": "a server ends when it is told to; tests/e2e/test_serve.py starts one",
}


def named(words: list[str]) -> str:
    """The program of a command, behind variables that are set for it."""
    return next((word for word in words if not re.fullmatch(r"[A-Z_]+=.*", word)), "")


def commands(line: str) -> list[list[str]]:
    """The words of each `mmcalib` in a line, without the first."""
    return [words[1:] for words in programs(line) if named(words) == "mmcalib"]


LINES = command_lines()
# A line that stands on several pages is run once.
OURS = {" ".join(line.split()): page for page, line in LINES if commands(line)}
RUN_HERE = [(page, line) for line, page in OURS.items() if not any(far in line for far in OUTSIDE)]
FAST = [(p, line) for p, line in RUN_HERE if not {c[0] for c in commands(line)} & NEEDS_VLLM]
SLOW = [(p, line) for p, line in RUN_HERE if {c[0] for c in commands(line)} & NEEDS_VLLM]


def check(page: str, line: str, workspace: Path) -> None:
    """Run the line. A page's command is its reader's first: results of others are removed."""
    for words in commands(line):
        if "--out" in words and words[0] in ("run",) and "--force" not in words:
            shutil.rmtree(workspace / words[words.index("--out") + 1], ignore_errors=True)
        if "--save" in words:
            (workspace / words[words.index("--save") + 1]).unlink()
    done = execute(line, workspace)
    may_be = {0, 3} if {words[0] for words in commands(line)} & MAY_SAY_NO else {0}
    assert done.returncode in may_be, f"{page}: {line}\n{done.stderr}"
