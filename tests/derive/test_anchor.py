"""A rehearsal beside a log: where they part, and what the log makes of another rehearsal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mmcalib.derive.anchor import TOLERANCE_BYTES, Anchor, Part, parts
from mmcalib.derive.logs import StartupLog, read_log
from tests.workflows.rehearsals import GIB, rehearsed

# requested 20, weights 7, buffers 0.25, peak 2, outside torch 0.125, graphs 0.125, KV 10.5.
BASE = rehearsed()


def summary(*, consumed: float, peak: float, kv: float) -> StartupLog:
    """0.27.0 on; graphs are in the peak."""
    return read_log(
        [
            "Model loading took 7.1 GiB memory and 2.0 seconds",
            "Estimated CUDA graph memory: 0.50 GiB total",
            "GPU KV cache size: 262,144 tokens, Maximum concurrency for 32,768 tokens per request: "
            "8.00x",
            "Free memory on device (21.5/22.0 GiB) on startup. Desired GPU memory utilization is "
            f"(0.9, 20.0 GiB). Actual usage is {consumed} GiB for consumed memory (weights + "
            f"non-torch), {peak} GiB for peak activation, and 0.40 GiB for CUDAGraph memory. "
            f"Current kv cache memory in use is {kv} GiB.",
        ]
    )


LOG = summary(consumed=7.6, peak=3.4, kv=9.0)


def by_name(found: list[Part]) -> dict[str, float]:
    return {part.name: round(part.difference / GIB, 3) for part in found}


def test_every_line_that_the_log_itemises_is_held_against_the_rehearsal() -> None:
    found = parts(LOG, BASE)
    assert {name: apart for name, apart in by_name(found).items() if "token" not in name} == {
        "requested": 0,
        "weights": -0.1,
        # 3.4 with graphs of 0.5.
        "activation peak": -0.9,
        # 7.6 consumed, 7.1 of weights.
        "outside torch, and buffers": -0.125,
        "CUDA graphs": -0.375,
        "KV cache": 1.5,
    }
    assert [part.name for part in found if part.apart] == [
        "activation peak",
        "outside torch, and buffers",
        "CUDA graphs",
        "KV cache",
    ]


def test_a_log_that_itemises_nothing_says_what_all_the_rest_takes() -> None:
    lines = [
        "non-default args: {'gpu_memory_utilization': 0.5}",
        "Model loading took 7.0 GiB memory and 2.0 seconds",
        "Available KV cache memory: 2.0 GiB",
    ]
    found = {part.name: part for part in parts(read_log(lines), BASE)}
    # Half of the rehearsed GPU's 22.
    assert found["all but weights and KV cache"].log == 2 * GIB
    assert found["all but weights and KV cache"].rehearsed == 5 * GIB // 2
    assert "all but weights and KV cache" not in {part.name for part in parts(LOG, BASE)}
    assert parts(read_log(["CUDA out of memory."]), BASE) == []


def test_a_peak_that_holds_graphs_is_compared_with_both() -> None:
    lines = [line for line in LOG.quote if "Estimated" not in line]
    found = by_name(parts(read_log(lines), BASE))
    assert found["activation peak and CUDA graphs"] == round(2.125 - 3.4, 3)
    assert "activation peak" not in found


def test_what_lies_within_the_scatter_of_rehearsals_is_not_apart() -> None:
    near = Part("KV cache", GIB, GIB + TOLERANCE_BYTES)
    assert not near.apart
    assert replace(near, rehearsed=near.rehearsed + 1).apart


def test_budgets_and_tokens_are_compared_too() -> None:
    line = "Encoder cache will be initialized with a budget of 8192 tokens"
    (budget,) = (p for p in parts(read_log([line]), BASE) if p.name == "encoder budget")
    assert (budget.log, budget.rehearsed, budget.unit, budget.apart) == (
        8192,
        16_384,
        "tokens",
        True,
    )
    half = ["Available KV cache memory: 10.5 GiB", "GPU KV cache size: 611,664 tokens"]
    (token,) = (p for p in parts(read_log(half), BASE) if p.name == "KV cache of a token")
    assert (token.log, token.rehearsed, token.apart) == (18_432, 36_864, True)


def test_the_log_s_own_configuration_is_as_the_log_says() -> None:
    found = Anchor(LOG, BASE).moved(BASE)
    assert found.kv_cache_bytes == 9 * GIB
    assert (found.kv_cache_tokens, found.max_concurrency) == (262_144, pytest.approx(8.0))
    assert found.weights_bytes == round(7.1 * GIB)
    assert found.activation_peak_bytes == pytest.approx(2.9 * GIB, abs=2)
    left = (
        found.requested_bytes - found.weights_bytes - found.buffers_bytes - found.non_torch_bytes
        - found.activation_peak_bytes - found.cudagraph_bytes
    )  # fmt: skip
    assert left == pytest.approx(9 * GIB, abs=4)


def test_a_fix_is_the_log_plus_what_was_rehearsed_to_change() -> None:
    fixed = replace(
        BASE,
        activation_peak_bytes=GIB,
        kv_cache_bytes=BASE.kv_cache_bytes + GIB,
        kv_cache_tokens=334_959,
        max_concurrency=10.22,
    )
    found = Anchor(LOG, BASE).moved(fixed)
    assert found.kv_cache_bytes == 10 * GIB
    assert found.activation_peak_bytes == pytest.approx(1.9 * GIB, abs=2)
    # In proportion, from the log's 262,144 in 9 GiB.
    assert found.kv_cache_tokens == pytest.approx(262_144 * 10 / 9, rel=1e-4)
    assert found.max_concurrency == pytest.approx(8.0 * 10 / 9, rel=1e-3)


def test_what_starts_in_the_rehearsal_may_not_by_the_log_and_the_other_way() -> None:
    nothing = Anchor(read_log(["Available KV cache memory: -2.0 GiB"]), BASE)
    found = nothing.moved(BASE)
    assert (found.kv_cache_bytes, found.kv_cache_tokens) == (-2 * GIB, None)
    assert found.problem.startswith("nothing is left for the KV cache, by the log")
    little = Anchor(read_log(["Available KV cache memory: 1.0 GiB"]), BASE).moved(BASE)
    assert little.kv_cache_tokens is None
    assert "does not hold one request of full length, by the log" in little.problem
    short = replace(
        BASE, kv_cache_bytes=-GIB, kv_cache_tokens=None, max_concurrency=None, problem="no"
    )
    lines = ["Available KV cache memory: 2.0 GiB"]
    starts = Anchor(read_log(lines), short).moved(short)
    assert starts.problem == ""
    assert starts.kv_cache_tokens == pytest.approx(2 * GIB / 36_864, abs=1)
    assert starts.max_concurrency == pytest.approx(2 * GIB / 36_864 / 32_768)


def test_what_the_log_does_not_state_stays_as_rehearsed() -> None:
    found = Anchor(read_log(["Available KV cache memory: 9.0 GiB"]), BASE).moved(BASE)
    assert found.weights_bytes == BASE.weights_bytes
    assert found.buffers_bytes == BASE.buffers_bytes


def test_a_log_that_states_nothing_outside_torch_states_nothing() -> None:
    """The buffers are in it, or in the peak, and counted once."""
    line = (
        "INFO 07-02 17:08:07 [worker.py:267] model weights take 7.10GiB; non_torch_memory takes "
        "0.00GiB; PyTorch activation peak memory takes 2.00GiB; the rest of the memory reserved "
        "for KV Cache is 9.00GiB."
    )
    log = read_log([line])
    assert log.non_torch_bytes == 0
    found = Anchor(log, BASE).moved(BASE)
    assert (found.non_torch_bytes, found.buffers_bytes) == (0, 0)
