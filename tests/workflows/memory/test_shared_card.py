"""Free memory as vLLM finds it, memory outside its reserve, and the utilization that starts."""

from dataclasses import replace
from typing import Any

import pytest

from mmcalib.checks.memory import outside_check
from mmcalib.domain.memory import GRAPHS, Allocation, PhasePeak, RehearsedMemory
from mmcalib.errors import UsageError
from mmcalib.models.gpus import find_gpu, with_free_memory
from mmcalib.prediction.rehearse import memory_figures
from mmcalib.releases.constants import CONTEXT_BYTES, divide
from mmcalib.remedies.memory import Goal
from mmcalib.report.rows import rehearsed_rows
from mmcalib.text import GIB
from tests.workflows.rehearsals import LATE, peaks, rehearsed


def e4b(share: float, **changes: Any) -> RehearsedMemory:
    """Gemma 4 E4B on an L4 next to ollama, vLLM 0.28.0: the figures of a public log."""
    requested, taken = round(share * 22.04 * GIB), round(10.56 * GIB)
    found = rehearsed(
        total_bytes=round(22.04 * GIB),
        free_bytes=round(17.06 * GIB),
        requested_bytes=requested,
        weights_bytes=round(9.81 * GIB),
        buffers_bytes=round(0.48 * GIB),
        non_torch_bytes=0,
        cudagraph_bytes=0,
        activation_peak_bytes=round(0.27 * GIB),
        phases=(PhasePeak("sampler", round(0.27 * GIB), 0, "", ()),),
        kv_cache_bytes=requested - taken,
        after_pool=(Allocation(GRAPHS, round(0.78 * GIB), "assumed"),),
    )
    return replace(found, **changes)


@pytest.mark.parametrize(("share", "starts"), [(0.62, True), (0.75, False)])
def test_graphs_that_nothing_reserves_end_the_start_that_leaves_too_little(share, starts) -> None:
    """0.75 ran out of memory while it captured graphs, and 0.62 served, as published."""
    found = e4b(share)
    assert found.starts is starts
    assert Goal().is_reached(found) is starts
    check = outside_check(found)
    assert check.status == ("pass" if starts else "fail")
    assert found.most_utilization == 0.73
    assert e4b(found.most_utilization).starts
    assert not e4b(0.74).starts
    assert not starts or check.remedy == ""
    assert starts or check.remedy == "--gpu-memory-utilization 0.73"


def test_the_part_of_the_reserve_that_only_the_encoder_needs_has_room_for_graphs() -> None:
    at = {"activation_peak_bytes": GIB, "kv_cache_bytes": 5 * GIB, "requested_bytes": 16 * GIB}
    for language_bytes, outside_gib in ((GIB // 2, 0.28), (GIB, 0.78)):
        found = e4b(0.75, phases=peaks(GIB, language_bytes)[:2], **at)
        assert found.needed_outside_bytes == round(outside_gib * GIB)


def test_a_gpu_with_free_memory_is_named_with_it() -> None:
    gpu = with_free_memory(find_gpu("L4"), "17GiB")
    assert gpu.free_at_start == 17 * GIB - CONTEXT_BYTES
    assert gpu.flags == "--gpu L4 --gpu-memory-free 17408MiB"
    assert find_gpu("L4").free_at_start == find_gpu("L4").total_bytes - CONTEXT_BYTES


@pytest.mark.parametrize(
    ("gpu", "total_gib", "published_gib"),
    # What each of several ranks found free, by public logs of two, four and eight GPUs.
    [("RTX-5090", 31.4, 30.5), ("RTX-PRO-6000", 83.05, 82.22), ("H200", 139.8, 137.64)],
)
def test_nccl_lessens_what_is_free_as_published(gpu: str, total_gib, published_gib: float) -> None:
    found = replace(find_gpu(gpu), total_bytes=round(total_gib * GIB))
    assert abs(found.free_at_start - found.nccl_bytes - published_gib * GIB) < 0.4 * GIB


def test_what_nccl_took_is_shown_with_its_label() -> None:
    found = e4b(0.62, before_snapshot=(Allocation("NCCL", 280 << 20, "assumed"),))
    check = outside_check(found)
    assert check.detail.endswith("are free; NCCL took 0.27 GiB before, assumed")
    rows = rehearsed_rows(memory_figures(found, find_gpu("L4")))
    assert ("NCCL, before vLLM looks", "0.27 GiB", "assumed") in rows


@pytest.mark.parametrize("given", ["17", "0GiB", "100MiB", "23GiB", "much"])
def test_other_sizes_are_refused(given: str) -> None:
    with pytest.raises(UsageError, match=r"L4 has 22\.03 GiB"):
        with_free_memory(find_gpu("L4"), given)


def late(**changes: Any) -> RehearsedMemory:
    """The same GPU without neighbours, and an extensible KV cache that leaves 0.25 GiB."""
    free = round(21.81 * GIB)
    at = {"division": LATE, "after_pool": (), "free_bytes": free, "requested_bytes": free}
    return e4b(1.0, **{**at, "kv_cache_bytes": 11 * GIB, "spare_bytes": GIB // 4, **changes})


def test_an_extensible_kv_cache_leaves_a_reserve_and_nothing_comes_after_it() -> None:
    check = outside_check(late())
    assert check.status == "pass"
    assert "leaves 0.25 GiB free" in check.detail
    assert (late().starts, late().most_utilization) == (True, 1.0)
    rows = rehearsed_rows(memory_figures(late(), find_gpu("L4")))
    assert ("kept free", "− 0.25 GiB", "computed") in rows
    # Beside other processes vLLM wants a share.
    check = outside_check(late(refusal="not set", free_bytes=round(17.06 * GIB)))
    assert (check.status, check.remedy) == ("fail", "--gpu-memory-utilization 0.77")


def test_the_reserve_is_the_most_of_three_and_smaller_caches_do_not_help_before() -> None:
    old, sizes = divide("0.33.0"), ((1, 5, 0.2), (0.1, 5, 0.1465), (0.1, 20, 0.4))
    for peak, budget, left in sizes:
        found = LATE.reserve_bytes(round(peak * GIB), budget * GIB)
        assert found == pytest.approx(left * GIB, rel=1e-3)
        assert old.reserve_bytes(round(peak * GIB), budget * GIB) == 0
    assert (LATE.is_before_kv_cache("cuda graphs"), old.is_before_kv_cache("cuda graphs")) == (1, 0)
    assert all(one.is_before_kv_cache("weights") for one in (LATE, old))
