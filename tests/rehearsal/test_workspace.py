import pytest

pytest.importorskip("torch", reason="needs torch, which comes with vLLM: make setup")

from mmcalib.child.rehearsal import ledger
from mmcalib.child.rehearsal.allocator import CachingAllocator
from mmcalib.text import KIB, MIB

COMMON = 8 * MIB + 128 * KIB


@pytest.mark.parametrize(
    ("capability", "torch_version", "expected"),
    [
        ((7, 5), (2, 13), COMMON),
        ((8, 0), (2, 8), COMMON),
        ((9, 0), (2, 13), 32 * MIB),
        ((10, 0), (2, 11), COMMON),
        ((10, 0), (2, 12), 32 * MIB),
        ((12, 0), (2, 13), 32 * MIB),
        ((11, 0), (2, 13), COMMON),
        ((11, 0), (2, 14), 32 * MIB),
    ],
)
def test_default_sizes(capability, torch_version: tuple[int, int], expected: int) -> None:
    assert ledger.cublas_workspace_bytes(capability, torch_version) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (":4096:2:16:8", COMMON),
        (":4096:8", 32 * MIB),
        (":16:8", 128 * KIB),
        (":0:0", 0),
        ("nonsense", None),
    ],
)
def test_a_config_overrides_the_default_and_nonsense_does_not(text, expected: int | None) -> None:
    for capability, default in (((8, 0), COMMON), ((9, 0), 32 * MIB)):
        found = ledger.cublas_workspace_bytes(capability, (2, 13), text)
        assert found == (default if expected is None else expected)


@pytest.mark.parametrize(
    ("torch_version", "size_config", "expected"),
    [
        ((2, 8), None, MIB),
        ((2, 11), "32768", 32 * MIB),
        ((2, 11), "nonsense", MIB),
        ((2, 13), "4096", 0),
    ],
)
def test_cublaslt(torch_version: tuple[int, int], size_config: str | None, expected: int) -> None:
    assert ledger.cublaslt_workspace_bytes(torch_version, size_config) == expected


@pytest.mark.parametrize(
    ("torch_version", "operations", "expected"),
    [
        ((2, 11), "mm bmm mm baddbmm", 32 * MIB),
        ((2, 11), "mm addmm", 33 * MIB),
        ((2, 13), "addmm mm", 32 * MIB),
        ((2, 13), "convolution", 0),
    ],
)
def test_libraries_have_a_workspace_each_until_torch_2_12(
    torch_version, operations, expected
) -> None:
    allocator = CachingAllocator()
    workspaces = ledger.Workspaces(allocator, (9, 0), torch_version, {})
    for operation in operations.split():
        workspaces.use(operation)
    assert allocator.allocated_bytes == expected
