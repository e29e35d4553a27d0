"""The GPU of this machine, with a driver and a library that only pretend."""

from __future__ import annotations

from typing import Any

import pytest

from mmcalib.errors import UsageError
from mmcalib.models import gpus as here
from mmcalib.models.gpus import Gpu

L4_BYTES = 22563 * 2**20
FIRST_HANDLE = 7
ATTRIBUTES = {75: 8, 76: 9, 16: 58, 18: 0}


class Pretended:
    def __init__(self, gpus: int = 1) -> None:
        self.gpus = gpus

    def count(self) -> int:
        return self.gpus

    def name(self, device: int) -> str:
        return "NVIDIA L4"

    def total_bytes(self, device: int) -> int:
        return L4_BYTES

    def attribute(self, code: int, device: int) -> int:
        return ATTRIBUTES[code]


class Libcuda:
    """Writes through the pointers it is given, as libcuda does; `refused` answers with a code."""

    def __init__(self, **refused: int) -> None:
        self.refused = refused

    def __getattr__(self, function: str) -> Any:
        return lambda *arguments: self.refused.get(function) or self.answer(function, *arguments)

    def answer(self, function: str, *arguments: Any) -> int:
        if function == "cuDeviceGetName":
            arguments[0].value = b"NVIDIA L4"
        elif function != "cuInit":
            arguments[0]._obj.value = self.value(function, *arguments[1:])
        return 0

    def value(self, function: str, *asked: Any) -> int:
        match function, asked:
            case "cuDeviceGetCount", ():
                return 2
            case "cuDeviceGet", (ordinal,):
                return int(ordinal) + FIRST_HANDLE
            case "cuDeviceTotalMem_v2", (handle,):
                return L4_BYTES + int(handle.value) - FIRST_HANDLE
            case "cuDeviceGetAttribute", (code, _):
                return ATTRIBUTES[code]
        raise AssertionError(f"{function}{asked} is not in cuda.h")


L4 = Gpu(
    name="NVIDIA L4",
    torch_name="NVIDIA L4",
    total_bytes=L4_BYTES,
    total_status="read",
    source="the CUDA driver of this machine",
    capability=(8, 9),
    sm_count=58,
)


def test_the_first_gpu_is_read() -> None:
    assert here.present(Pretended) == L4
    assert here.has_gpu(Pretended)


def test_a_machine_without_gpus_says_so() -> None:
    with pytest.raises(UsageError, match="no GPU") as caught:
        here.present(lambda: Pretended(gpus=0))
    assert "--gpu NAME" in caught.value.hint
    assert not here.has_gpu(lambda: Pretended(gpus=0))


def test_libcuda_is_asked_with_pointers() -> None:
    assert here.present(lambda: here.CudaDriver(Libcuda())) == L4


def test_a_handle_and_not_an_ordinal_is_asked_about() -> None:
    assert here.CudaDriver(Libcuda()).total_bytes(1) == L4_BYTES + 1


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        ({"cuInit": 100}, "no GPU"),
        ({"cuInit": 803}, "answers cuInit with 803"),
        ({"cuDeviceTotalMem_v2": 101}, "answers cuDeviceTotalMem_v2 with 101"),
    ],
)
def test_what_the_driver_refuses_is_told(refused: dict[str, int], said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        here.present(lambda: here.CudaDriver(Libcuda(**refused)))
    assert "--gpu NAME" in caught.value.hint


def test_this_machine_answers_one_way_or_the_other() -> None:
    """With a real driver if there is one; the two functions agree in any case."""
    if here.has_gpu():
        assert here.present().total_bytes > 2**30
    else:
        with pytest.raises(UsageError):
            here.present()
