"""Which release a log is of, and whether its figures close."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmcalib.derive.logs import StartupLog, read_log
from mmcalib.derive.logs.closure import closure_words
from mmcalib.derive.logs.log_release import release_words

LOGS = Path(__file__).parent / "logs"


def log_of(name: str) -> StartupLog:
    return read_log((LOGS / f"{name}.log").read_text(encoding="utf-8").splitlines())


def kv_line(place: str) -> str:
    return f"(EngineCore pid=7) INFO 11-20 10:00:00 [{place}] Available KV cache memory: 1.5 GiB"


# The line of "Available KV cache memory", as public logs show it.
@pytest.mark.parametrize(
    ("line", "releases"),
    [
        (508, ("0.24.0",)),
        (538, ("0.25.0", "0.25.1")),
        (560, ("0.26.0",)),
        (563, ("0.27.0", "0.27.1")),
        (578, ("0.28.0",)),
        (625, ("0.29.0",)),
        (640, ("0.30.0",)),
        (692, ("0.31.0",)),
        (759, ("0.32.0",)),
        (772, ("0.33.0",)),
        (298, ()),
    ],
)
def test_a_line_number_tells_the_release(line: int, releases: tuple[str, ...]) -> None:
    release = read_log([kv_line(f"gpu_worker.py:{line}")]).release
    assert (release.versions, release.known_by) == (releases, "lines" if releases else "unknown")


def test_a_version_that_the_log_names_is_believed_and_held_against_its_lines() -> None:
    banner = "INFO 11-20 10:00:00 [api_utils.py:1] █  version 0.28.0"
    agrees = read_log([banner, kv_line("gpu_worker.py:578")]).release
    assert (agrees.versions, agrees.known_by, agrees.contradicts) == (("0.28.0",), "stated", False)
    assert release_words(agrees) == "of vLLM 0.28.0, as it says"
    other = read_log([banner, kv_line("gpu_worker.py:759")]).release
    assert (other.versions, other.contradicts) == (("0.28.0",), True)
    assert "0.32.0 by the lines of source it names (gpu_worker.py:759)" in release_words(other)


def test_what_public_logs_are_taken_for() -> None:
    assert log_of("0.28-rocm-skips-profiling").release.versions == ("0.28.0",)
    assert log_of("0.31.0-one-line-capacity").release.versions == ("0.31.0",)
    assert log_of("0.11.0-tp4").release.stated == "0.11.0"
    unknown = log_of("0.11.0-sampler-oom").release
    assert (unknown.versions, unknown.astray) == ((), ("gpu_model_runner.py:3480",))
    assert "is none's from 0.23 to 0.33" in release_words(unknown)
    assert "names neither" in release_words(read_log(["CUDA out of memory."]).release)


def test_most_of_the_lines_decide_and_the_others_are_named() -> None:
    lines = [
        kv_line("gpu_worker.py:759"),
        "INFO 11-20 10:00:00 [kv_cache_utils.py:2327] GPU KV cache size: 1,000 tokens",
        "INFO 11-20 10:00:00 [core.py:121] Initializing a V1 LLM engine (v0.32.0) with config: a=1",
    ]
    release = read_log(lines).release
    assert release.by_lines == ("0.32.0",)
    assert release.astray == ("core.py:121",)


@pytest.mark.parametrize(
    "name",
    ["0.8.5-v0-phi4", "0.10.2-itemised", "0.27.1-consumed", "0.28-rocm-skips-profiling",
     "0.31.0-one-line-capacity"],
)  # fmt: skip
def test_the_figures_of_real_logs_close(name: str) -> None:
    log = log_of(name)
    assert [closure.closes for closure in log.closures] == [True]


SUMMARY = (
    "Free memory on device (78.84/79.25 GiB) on startup. Desired GPU memory utilization is (0.92, "
    "72.91 GiB). Actual usage is 15.26 GiB for consumed memory (weights + non-torch), {peak} GiB "
    "for peak activation, and 0.23 GiB for CUDAGraph memory. Current kv cache memory in use is "
    "{kv} GiB."
)


@pytest.mark.parametrize(("kv", "closes"), [("56.21", True), ("56.23", True), ("56.24", False)])
def test_it_closes_within_the_rounding_of_four_figures(kv: str, closes: bool) -> None:
    (closure,) = read_log([SUMMARY.format(peak="1.44", kv=kv)]).closures
    assert closure.closes == closes


def test_where_it_does_not_close_it_says_so() -> None:
    log = read_log(["", SUMMARY.format(peak="2.44", kv="56.21")])
    (closure,) = log.closures
    words = closure_words(closure)
    assert "do not close (line 2): requested − consumed − peak activation = 55.21 GiB" in words
    assert "1.00 GiB apart" in words
    assert "two engines are mixed" in words


def test_two_engines_in_one_log_do_not_close() -> None:
    """The worker's own line is another engine's."""
    log = read_log(["Available KV cache memory: 40.0 GiB", SUMMARY.format(peak="1.44", kv="56.21")])
    assert [closure.closes for closure in log.closures] == [True, False]


def test_each_worker_closes_by_itself() -> None:
    lines = [
        f"(Worker_TP{rank} pid={rank}) Available KV cache memory: {kv} GiB"
        for rank, kv in enumerate(("56.21", "57.21"))
    ]
    lines += [f"(Worker_TP{n} pid={n}) " + SUMMARY.format(peak=p, kv=k)
              for n, (p, k) in enumerate((("1.44", "56.21"), ("0.44", "57.21")))]  # fmt: skip
    assert [(c.process, c.closes) for c in read_log(lines).closures] == [
        ("Worker_TP0 pid=0", True),
        ("Worker_TP1 pid=1", True),
    ]


def test_graphs_are_taken_off_from_0_21_and_not_where_that_is_switched_off() -> None:
    lines = [
        "Estimated CUDA graph memory: 0.50 GiB total",
        "Free memory on device (78.7/79.19 GiB) on startup. Desired GPU memory utilization is "
        "(0.9, 71.27 GiB). Actual usage is 14.08 GiB for weight, 1.97 GiB for peak activation, "
        "0.07 GiB for non-torch memory, and 0.67 GiB for CUDAGraph memory.",
        "Available KV cache memory: 54.65 GiB",
    ]
    (closure,) = read_log(lines).closures
    assert (closure.closes, closure.parts[-1]) == (True, "cudagraph_estimate")
    off = "CUDA graph memory profiling is disabled (VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0)."
    (closure,) = read_log([*lines, off]).closures
    assert not closure.closes


def test_a_log_without_the_parts_closes_nothing() -> None:
    assert read_log(["Available KV cache memory: 40.0 GiB"]).closures == ()


def test_the_peak_is_told_apart_from_graphs_where_the_log_allows_it() -> None:
    gib = 2**30
    summary = SUMMARY.format(peak="3.44", kv="54.21")
    pool = "CUDA graph pool memory: 0.94 GiB (actual), 1.94 GiB (estimated), difference: 1 GiB (1%)"
    assert read_log([summary, pool]).activation_alone_bytes == pytest.approx(1.5 * gib, abs=2)
    assert read_log([summary]).activation_alone_bytes is None
    eager = "non-default args: {'enforce_eager': True}"
    assert read_log([eager, summary]).activation_alone_bytes == round(3.44 * gib)
