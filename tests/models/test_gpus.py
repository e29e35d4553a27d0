"""GPUs by name, in the user's own figures, and of this machine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import resources
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcalib.errors import UsageError
from mmcalib.models import gpus
from mmcalib.models.gpus import CAPABILITIES, Gpu

NAMES = [gpu.name for gpu in gpus.catalogue_gpus()]

GIB = 2**30
# The size in the vendor's data sheet, of what torch counts as one GPU.
_MARKETED = """
RTX-3060-12G=12 RTX-3070=8 RTX-3080-10G=10 RTX-3090=24 RTX-4060-Ti-16G=16
RTX-4070-Ti-Super=16 RTX-4080=16 RTX-4090=24 RTX-5080=16 RTX-5090=32 T4=16 V100-16G=16
V100-32G=32 A10=24 A10G=24 A16=16 A30=24 A40=48 A100-40G=40 A100-80G=80 A800-80G=80
RTX-A4000=16 RTX-A6000=48 RTX-6000-Ada=48 RTX-PRO-6000=96 L4=24 L40=48 L40S=48
H100-80G=80 H100-PCIe=80 H100-NVL=94 H800=80 H20=96 H200=141 GH200-96G=96 GH200-144G=144
B200=180 B300=288 GB200=186 GB10=128 Jetson-AGX-Orin-64G=64 MI250X=64 MI300X=192
MI325X=256
"""
MARKETED_GB = {name: int(gb) for name, gb in (one.split("=") for one in _MARKETED.split())}
LEAST_SHARE = 0.88


@pytest.mark.parametrize("gpu", gpus.catalogue_gpus(), ids=lambda gpu: gpu.name)
def test_an_entry_is_sane(gpu: Gpu) -> None:
    marketed_bytes = MARKETED_GB[gpu.name] * GIB
    assert LEAST_SHARE * marketed_bytes <= gpu.total_bytes < marketed_bytes
    assert gpu.total_status in {"found", "inferred"}
    assert len(gpu.source) > 20
    assert (gpu.capability is None) == gpu.memory_only
    assert gpu.memory_only or gpu.capability in CAPABILITIES
    assert gpu.sm_count is not None
    assert 4 <= gpu.sm_count <= 400


def test_there_are_enough_and_each_once() -> None:
    assert len(NAMES) >= 30
    assert set(NAMES) == set(MARKETED_GB)
    assert len(set(NAMES)) == len(gpus.catalogue_gpus())
    torch_names = [gpu.torch_name for gpu in gpus.catalogue_gpus()]
    assert len(set(torch_names)) == len(torch_names)


def test_every_spelling_leads_to_its_own_entry() -> None:
    text = (resources.files("mmcalib.models") / "gpus.json").read_text(encoding="utf-8")
    for entry in json.loads(text):
        for spelling in (entry["name"], entry["torch_name"], *entry["aliases"]):
            assert gpus.find_gpu(spelling).name == entry["name"], spelling


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("h100 sxm", "H100-80G"),
        ("NVIDIA H100 80GB HBM3", "H100-80G"),
        ("NVIDIA A100-SXM4-40GB", "A100-40G"),
        ("rtx4090", "RTX-4090"),
        ("3090", "RTX-3090"),
        ("rtx_pro_6000", "RTX-PRO-6000"),
        ("dgx-spark", "GB10"),
    ],
)
def test_what_people_type_is_found(spelling: str, name: str) -> None:
    assert gpus.find_gpu(spelling).name == name


@given(st.data())
def test_case_and_separators_do_not_matter(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(NAMES))
    typed = "".join(
        data.draw(st.sampled_from(["", "-", "_", " "] if char == "-" else [char, char.swapcase()]))
        for char in name
    )
    assert gpus.find_gpu(f" {typed} ").name == name


@pytest.mark.parametrize(
    ("name", "gib"),
    [("H100-SXM", 79.19), ("A100-80G", 79.25), ("T4", 14.56), ("GB10", 121.69), ("L4", 22.03)],
)
def test_totals_are_those_that_vllm_and_torch_log(name: str, gib: float) -> None:
    """And not nvidia-smi's: it prints 23034 MiB, 22.49 GiB, for an L4."""
    assert round(gpus.find_gpu(name).total_bytes / GIB, 2) == gib


def test_only_amd_ones_are_memory_only_and_systems_on_a_chip_unified() -> None:
    memory_only = {gpu.name for gpu in gpus.catalogue_gpus() if gpu.memory_only}
    assert memory_only == {"MI250X", "MI300X", "MI325X"}
    unified = {gpu.name for gpu in gpus.catalogue_gpus() if gpu.unified}
    assert unified == {"GB10", "Jetson-AGX-Orin-64G"}


def test_a_misspelt_name_is_answered_with_close_ones() -> None:
    with pytest.raises(UsageError, match="unknown GPU 'RTX-4099'; did you mean RTX-4090") as caught:
        gpus.find_gpu("RTX-4099")
    assert gpus.ANY_GPU_EXAMPLE in caught.value.hint
    assert f"for the {len(NAMES)} known ones" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("A100", "A100-40G, A100-80G"),
        ("nvidia v100", "V100-16G, V100-32G"),
        ("gh200", "GH200-96G, GH200-144G"),
        ("H100", "H100-80G, H100-PCIe, H100-NVL"),
    ],
)
def test_a_name_of_several_sizes_is_refused_with_all_of_them(name: str, meant: str) -> None:
    with pytest.raises(UsageError) as caught:
        gpus.find_gpu(name)
    assert caught.value.message.endswith(f": {meant}")
    assert gpus.find_gpu(caught.value.hint.split()[-1]).name == meant.split(",")[0]


@pytest.mark.parametrize("name", ["", "nvidia", "Cerebras WSE-3", "L4,L40S"])
def test_an_unknown_name_is_refused(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        gpus.find_gpu(name)
    assert caught.value.exit_code == 2


def test_importing_the_catalogue_reads_no_file() -> None:
    code = (
        "from mmcalib.models import gpus as c; assert c.catalogue_gpus.cache_info().currsize == 0;"
        "c.find_gpu('l4'); assert c.catalogue_gpus() is c.catalogue_gpus()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("memory", "total_bytes"),
    [
        ("24GiB", 24 * 2**30),
        ("80 GiB", 80 * 2**30),
        ("22.03GiB", 23654532382),
        ("81559MiB", 81559 * 2**20),
        ("24000 MB", 24 * 10**9),
    ],
)
def test_memory_is_read_in_its_unit(memory: str, total_bytes: int) -> None:
    gpu = gpus.describe_gpu(memory, "8.9")
    assert gpu.total_bytes == total_bytes
    assert (gpu.total_status, gpu.capability, gpu.sm_count) == ("given", (8, 9), None)
    assert not gpu.memory_only
    assert not gpu.unified


def test_its_source_is_what_was_typed() -> None:
    assert gpus.describe_gpu("24 GiB", "12.0").source == "--gpu-memory 24 GiB --capability 12.0"


def test_its_name_sets_off_no_rule_of_vllm() -> None:
    """vLLM takes smaller batches on a GPU with a100 in its name."""
    assert "a100" not in gpus.describe_gpu("79GiB", "8.0").torch_name.lower()


@pytest.mark.parametrize("name", ["Radeon AI PRO R9700", "AMD Instinct MI355X", "mi350x"])
def test_an_amd_gpu_is_not_to_be_described_as_one_of_nvidia(name: str) -> None:
    with pytest.raises(UsageError, match="an AMD GPU") as caught:
        gpus.find_gpu(name)
    assert "--capability" not in caught.value.hint


UNITS = ("24", "GiB", "-24GiB", "24GiBs", "٢٤GiB")
SPELLINGS = ("89", "sm_89", "8.90", "-8.9")


@pytest.mark.parametrize(
    ("memory", "capability", "says", "hint"),
    [
        *((one, "8.9", "a number and a unit", "--gpu-memory 24GiB") for one in UNITS),
        *((one, "8.9", "no GPU has", "") for one in ("0GiB", "24MiB", "24000GiB")),
        *(("24GiB", one, "looks like 8.9", "--capability 8.9") for one in SPELLINGS),
        *(("24GiB", c, f"capability {c}", r"7\.0.*12\.1") for c in ("6.1", "8.1", "99.0")),
    ],
)
def test_figures_that_no_gpu_has_are_refused(
    memory: str, capability: str, says: str, hint: str
) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        gpus.describe_gpu(memory, capability)
    assert re.search(hint, caught.value.hint)


L4_BYTES = 22563 * 2**20
FIRST_HANDLE = 7
ATTRIBUTES = {75: 8, 76: 9, 16: 58, 18: 0}


class Pretended:
    def __init__(self, number: int = 1) -> None:
        self.number = number

    def count(self) -> int:
        return self.number

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
    assert gpus.detect_gpu(Pretended) == L4
    assert gpus.has_gpu(Pretended)


def test_a_machine_without_gpus_says_so() -> None:
    with pytest.raises(UsageError, match="no GPU") as caught:
        gpus.detect_gpu(lambda: Pretended(0))
    assert "--gpu NAME" in caught.value.hint
    assert not gpus.has_gpu(lambda: Pretended(0))


def test_libcuda_is_asked_with_pointers_and_handles() -> None:
    assert gpus.detect_gpu(lambda: gpus.CudaDriver(Libcuda())) == L4
    assert gpus.CudaDriver(Libcuda()).total_bytes(1) == L4_BYTES + 1, "not by the ordinal"


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        ({"cuInit": 100}, "no GPU"),
        ({"cuInit": 803}, "error 803 in cuInit"),
        ({"cuDeviceTotalMem_v2": 101}, "error 101 in cuDeviceTotalMem_v2"),
    ],
)
def test_what_the_driver_refuses_is_told(refused: dict[str, int], said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        gpus.detect_gpu(lambda: gpus.CudaDriver(Libcuda(**refused)))
    assert "--gpu NAME" in caught.value.hint


def test_this_machine_answers_one_way_or_the_other() -> None:
    """With a real driver if there is one; the two functions agree in any case."""
    if gpus.has_gpu():
        assert gpus.detect_gpu().total_bytes > 2**30
    else:
        with pytest.raises(UsageError):
            gpus.detect_gpu()
