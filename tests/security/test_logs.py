"""A server's log from somebody else, as `mmcalib plan --log` reads it: bounded, and only text."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from mmcalib.derive import logs
from mmcalib.derive.logs import read_log
from mmcalib.errors import UsageError
from mmcalib.releases import constants
from mmcalib.workflows.plan import from_log
from tests.cli.conftest import Cli

ARGS = b"non-default args: {'model': 'm', "
FILLS = ["1", "1,111", "1.1", "( ", "a ", "'", "... ", "(a pid=1 ", "\x1b[1", "Using  ", "-", "\t"]


def patterns() -> list[re.Pattern[str]]:
    found = [pattern for _, _, pattern, _ in logs._FACTS] + [*logs._OF_OOM.values()]
    for module in (logs, constants):
        found += [one for one in vars(module).values() if isinstance(one, re.Pattern)]
    return found


def test_every_pattern_takes_time_that_is_linear_in_the_line() -> None:
    for pattern in patterns():
        for fill in FILLS:
            text = fill * (20_000 // len(fill))
            started = time.process_time()
            # A key is looked for where an argument begins, the others anywhere.
            (pattern.match if pattern is logs._KEY else pattern.search)(text)
            # One that backtracks takes minutes.
            assert time.process_time() - started < 2, (pattern.pattern, fill)


@pytest.mark.parametrize("name", ["/dev/zero", "pipe", "folder"])
def test_what_is_no_log_ends(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match="--log"):
        from_log.read_server_log(tmp_path / name)


def test_a_line_without_end_is_read_as_far_as_lines_go(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    endless = b" x" * 5_000_000
    log.write_bytes(
        ARGS + b"'dtype': 'bfloat16'}" + endless + b"\nAvailable KV cache memory: 1 GiB"
    )
    found = from_log.read_server_log(log)
    assert found.engine_args == {"model": "m", "dtype": "bfloat16"}
    assert found.log.kv_cache_bytes == 1 << 30


def test_of_a_log_that_repeats_itself_little_is_kept() -> None:
    lines = (f"CUDA out of memory. Tried to allocate {n}.00 MiB" for n in range(30_000))
    assert len(read_log(lines).failures) == 20_000
    named = (f"non-default args: {{'k{n}': 1}}" for n in range(30_000))
    assert len(read_log(named).engine_args) == 20_000


@pytest.mark.parametrize(
    "value",
    [
        *("1e999", "-1e999", "9" * 4000, "9" * 5000, "1e300", "10**10**10", "nan", "'\\ud800'"),
        *("(" * 5000, "-" * 50_000 + "1", "{1: 2}", "b'x'", "{1, 2}", "[1e999]"),
    ],
    ids=lambda value: value[:20],
)
def test_no_argument_is_more_than_json_carries(value: str) -> None:
    log = read_log(
        [
            f"non-default args: {{'gpu_memory_utilization': {value}, 'max_model_len': {value}}}",
        ]
    )
    assert all(isinstance(one, str) for one in log.engine_args.values())
    assert log.gpu_memory_utilization is None


@pytest.mark.parametrize("form", ["utf-16", "latin-1", "utf-8-sig"])
def test_any_encoding_is_some_text(form: str, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes((ARGS + b"}\n\xff\0").decode("latin-1").encode(form))
    assert from_log.read_server_log(tmp_path / "a.log").log.model == "m"


def test_only_what_moves_memory_is_taken_over(tmp_path: Path) -> None:
    names = ("trust_remote_code", "worker_cls", "logits_processors", "load_format", "tokenizer")
    said = "".join(f"'{name}': 'x.y', " for name in names)
    (tmp_path / "a.log").write_bytes(ARGS + said.encode() + b"}\n")
    found = from_log.read_server_log(tmp_path / "a.log")
    assert set(found.engine_args) == {"model"}
    assert set(found.ignored) == set(names)


def test_nothing_of_it_reaches_the_terminal_raw(cli: Cli, tmp_path: Path) -> None:
    model = r"\x1b]0;owned\x07\x1b[31m\u202etxt.\r\nerror: all is well"
    log = f"non-default args: {{'model': '{model}'}}\n{logs.__name__}\n"
    (tmp_path / "a.log").write_text(log)
    said = cli("plan", "--log", "a.log", "--gpu", "L4")
    assert said.code == 1
    assert "owned" in said.err
    assert all(c.isprintable() for line in said.err.split("\n") for c in line)
    assert len(said.err.splitlines()) <= 3
