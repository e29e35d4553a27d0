"""A server's log from somebody else, as `mmcalib plan --log` reads it: bounded, and only text."""

import gzip
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from mmcalib.errors import UsageError
from mmcalib.logs import lines as log_lines
from mmcalib.logs import starts as logs
from mmcalib.logs.starts import StartupLog, last_failed, read_starts
from mmcalib.releases import constants
from mmcalib.workflows.plan import from_log
from tests.cli.conftest import Cli
from tests.programs import answer_of

ARGS = b"non-default args: {'model': 'm', "
FILLS = ["1", "1,111", "1.1", "( ", "a ", "'", "... ", "(a pid=1 ", "\x1b[1", "Using  ", "-", "\t"]


def read_log(lines: Iterable[str]) -> StartupLog:
    return last_failed(read_starts(lines))


def test_every_pattern_takes_time_that_is_linear_in_the_line() -> None:
    patterns = [pattern for _, _, pattern, _ in logs._FACTS] + [*logs._OF_OOM.values()]
    for module in (log_lines, logs, constants):
        patterns += [one for one in vars(module).values() if isinstance(one, re.Pattern)]
    for pattern in patterns:
        for fill in FILLS:
            text = fill * (20_000 // len(fill))
            started = time.process_time()
            # A key is looked for where an argument begins, the others anywhere.
            (pattern.match if pattern is log_lines._KEY else pattern.search)(text)
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
    assert found.log.engine_args == {"model": "m", "dtype": "bfloat16"}
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
        [f"non-default args: {{'gpu_memory_utilization': {value}, 'max_model_len': {value}}}"]
    )
    assert log.engine_args == {}
    assert "gpu_memory_utilization" in log.unread_args
    assert log.gpu_memory_utilization is None


def test_servers_that_nothing_tells_apart_are_refused(tmp_path: Path) -> None:
    log = ARGS + b"'port': 1}\n%b" + ARGS + b"'port': 2}\n"
    assert len(read_starts((log % b"Starting to load model m...\n").decode().split("\n"))) == 2
    (tmp_path / "a.log").write_bytes(log % b"")
    with pytest.raises(UsageError, match="lines of several servers are mixed"):
        from_log.read_server_log(tmp_path / "a.log")


@pytest.mark.parametrize("form", ["utf-16", "latin-1", "utf-8-sig"])
def test_any_encoding_is_some_text(form: str, tmp_path: Path) -> None:
    text = (ARGS + b"}\n\xff\0\nAvailable KV cache memory: 1.0 GiB\n").decode("latin-1")
    (tmp_path / "a.log").write_bytes(text.encode(form))
    log = from_log.read_server_log(tmp_path / "a.log").log
    assert (log.model, log.kv_cache_bytes) == ("m", 1 << 30)


def test_a_compressed_log_is_named_with_its_cure(tmp_path: Path) -> None:
    (tmp_path / "a.log.gz").write_bytes(gzip.compress(ARGS))
    with pytest.raises(UsageError, match="compressed by gzip") as caught:
        from_log.read_server_log(tmp_path / "a.log.gz")
    assert caught.value.hint == f"gunzip -k {tmp_path / 'a.log.gz'}"


def test_nothing_unsafe_and_no_file_of_another_machine_is_taken_over(tmp_path: Path) -> None:
    unsafe = ("trust_remote_code", "worker_cls", "logits_processors", "kv_transfer_config")
    files = ("load_format", "tokenizer", "download_dir", "mm_encoder_fp8_scale_path")
    said = "".join(f"'{name}': 'x.y', " for name in (*unsafe, *files, "mamba_cache_mode"))
    (tmp_path / "a.log").write_bytes(ARGS + said.encode() + b"}\n")
    known = (*unsafe, *files, "model", "mamba_cache_mode")
    args, ignored = from_log.read_server_log(tmp_path / "a.log").engine_args(known)
    assert args == {"mamba_cache_mode": "x.y"}
    assert set(ignored) == set(unsafe)


FIELDS = """
import dataclasses, json
from vllm.engine.arg_utils import AsyncEngineArgs
print(json.dumps([field.name for field in dataclasses.fields(AsyncEngineArgs)]))
"""


@pytest.mark.engine
def test_what_is_said_to_move_no_memory_is_of_the_installed_parser() -> None:
    """All others that it knows are rehearsed."""
    known = set(answer_of("-c", FIELDS))
    assert from_log.NO_MEMORY - known == set()
    moving = {
        *("enable_prefix_caching", "mm_encoder_only", "speculative_config", "attention_backend"),
        *("pipeline_parallel_size", "enable_expert_parallel", "compilation_config"),
        *("enable_lora", "mamba_cache_mode", "skip_mm_profiling", "kv_cache_dtype", "block_size"),
    }
    assert moving <= known - from_log.NO_MEMORY


def test_nothing_of_it_reaches_the_terminal_raw(cli: Cli, tmp_path: Path) -> None:
    model = r"\x1b]0;owned\x07\x1b[31m\u202etxt.\r\nerror: all is well"
    log = f"non-default args: {{'model': '{model}'}}\n{logs.__name__}\n"
    (tmp_path / "a.log").write_text(log)
    said = cli("plan", "--log", "a.log", "--gpu", "L4")
    assert said.code == 1
    assert "owned" in said.err
    assert all(c.isprintable() for line in said.err.split("\n") for c in line)
    assert len(said.err.splitlines()) <= 8
