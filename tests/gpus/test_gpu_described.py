"""A GPU in the user's own figures."""

from __future__ import annotations

import pytest

from mmcalib.errors import UsageError
from mmcalib.models.gpus import described


@pytest.mark.parametrize(
    ("memory", "total_bytes"),
    [
        ("24GiB", 24 * 2**30),
        ("80 GiB", 80 * 2**30),
        (" 80gib ", 80 * 2**30),
        ("24GB", 24 * 10**9),
        ("22.03GiB", 23654532382),
        ("81559MiB", 81559 * 2**20),
        ("24000 MB", 24 * 10**9),
        ("1TiB", 2**40),
    ],
)
def test_memory_is_read_in_its_unit(memory: str, total_bytes: int) -> None:
    gpu = described(memory, "8.9")
    assert gpu.total_bytes == total_bytes
    assert (gpu.total_status, gpu.capability, gpu.sm_count) == ("given", (8, 9), None)
    assert not gpu.memory_only
    assert not gpu.unified


def test_its_source_is_what_was_typed() -> None:
    assert described("24 GiB", "12.0").source == "--gpu-memory 24 GiB --capability 12.0"


def test_its_name_sets_off_no_rule_of_vllm() -> None:
    """vLLM takes smaller batches on a GPU with a100 in its name."""
    assert "a100" not in described("79GiB", "8.0").torch_name.lower()


@pytest.mark.parametrize(
    "memory", ["", "24", "GiB", "-24GiB", "24GiBs", "1e3GiB", "24 000MiB", "٢٤GiB"]
)
def test_memory_that_is_no_number_with_a_unit_is_refused(memory: str) -> None:
    with pytest.raises(UsageError, match="a number and a unit") as caught:
        described(memory, "8.9")
    assert "--gpu-memory 24GiB" in caught.value.hint


@pytest.mark.parametrize("memory", ["0GiB", "24MiB", "24000GiB"])
def test_memory_that_no_gpu_has_is_refused(memory: str) -> None:
    with pytest.raises(UsageError, match="no GPU has"):
        described(memory, "8.9")


@pytest.mark.parametrize("capability", ["", "89", "sm_89", "8,9", "8.9a", "8.90", "-8.9"])
def test_a_capability_that_is_not_two_numbers_is_refused(capability: str) -> None:
    with pytest.raises(UsageError, match="two numbers with a point") as caught:
        described("24GiB", capability)
    assert "--capability 8.9" in caught.value.hint


@pytest.mark.parametrize("capability", ["6.1", "8.1", "99.0"])
def test_a_capability_that_vllm_does_not_run_on_is_refused(capability: str) -> None:
    with pytest.raises(UsageError, match=f"has compute capability {capability}") as caught:
        described("24GiB", capability)
    assert "7.0" in caught.value.hint
    assert "12.1" in caught.value.hint
