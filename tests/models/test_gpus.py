"""GPUs by name, in the user's own figures, and of this machine."""

import json
import re
from collections import Counter
from importlib import resources
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcalib.errors import UsageError
from mmcalib.models import gpus
from mmcalib.models.gpus import CAPABILITIES, Gpu
from tests.programs import run_python

NAMES = [gpu.name for gpu in gpus.catalogue_gpus()]
GIB = 2**30
_TEXT = (resources.files("mmcalib.models") / "gpus.json").read_text(encoding="utf-8")
ENTRIES = {entry["name"]: entry for entry in json.loads(_TEXT)}


@pytest.mark.parametrize("gpu", gpus.catalogue_gpus(), ids=lambda gpu: gpu.name)
def test_an_entry_is_sane(gpu: Gpu) -> None:
    """Its total is a little less than the data sheet's size, which a spelling gives."""
    spellings = (gpu.name, *ENTRIES[gpu.name]["aliases"])
    sizes = [int(size[1]) for one in spellings if (size := re.search(r"-(\d+)G$", one))]
    marketed_bytes = min(sizes) * GIB
    assert 0.88 * marketed_bytes <= gpu.total_bytes < marketed_bytes
    assert gpu.total_status in {"found", "inferred"}
    assert len(gpu.source) > 20
    assert gpu.capability in CAPABILITIES
    assert gpu.sm_count is not None
    assert 4 <= gpu.sm_count <= 400


def test_there_are_enough_and_each_once() -> None:
    assert len(NAMES) >= 110
    assert len(set(NAMES)) == len(gpus.catalogue_gpus())


def test_every_spelling_leads_to_its_own_entry() -> None:
    shared = Counter(entry["torch_name"] for entry in ENTRIES.values())
    for name, entry in ENTRIES.items():
        torch_name = [entry["torch_name"]] if shared[entry["torch_name"]] == 1 else []
        for spelling in (name, *torch_name, *entry["aliases"]):
            assert gpus.find_gpu(spelling).name == name, spelling


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
        ("RTX A5000", "RTX-A5000"),
        ("Quadro RTX A6000", "RTX-A6000"),
        ("Quadro RTX 8000", "Quadro-RTX-8000"),
        ("2080 Ti", "RTX-2080-Ti"),
        ("2080 Super with Max-Q Design", "RTX-2080-Super"),
        ("NVIDIA GeForce RTX 4060 Laptop GPU", "RTX-4060-Laptop"),
        ("rtx 5090 mobile", "RTX-5090-Laptop"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("4090 48GB", "RTX-4090-48G"),
        ("4090 D", "RTX-4090-D"),
        ("RTX PRO 6000 Max-Q", "RTX-PRO-6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX-PRO-6000"),
        ("H200 NVL", "H200"),
        ("H20-3e", "H20-141G"),
        ("Thor", "Jetson-AGX-Thor"),
        ("L4:1", "L4"),
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


def test_only_systems_on_a_chip_are_unified() -> None:
    unified = {gpu.name for gpu in gpus.catalogue_gpus() if gpu.unified}
    assert unified == {"GB10", *(name for name in NAMES if name.startswith("Jetson-"))}


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("RTX-4099", "RTX-4090 or RTX-4090-D or RTX-4090-D-48G or RTX-4080"),
        ("RTX 6000", "RTX-A6000 or RTX-PRO-6000 or RTX-6000-Ada or Quadro-RTX-6000"),
        ("L40X", "L40 or L40S"),
        ("L44", "L40 or L40S"),
        ("H300", None),
        ("GTX 1660", None),
        ("RTX 9999", None),
    ],
)
def test_a_misspelt_name_is_answered_with_those_of_its_number(typed: str, meant) -> None:
    with pytest.raises(UsageError) as caught:
        gpus.find_gpu(typed)
    said = f"; did you mean {meant}?" if meant else ""
    assert caught.value.message == f"unknown GPU {typed!r}{said}"
    assert gpus.ANY_GPU_EXAMPLE in caught.value.hint
    assert "torch.cuda.get_device_properties(0)" in caught.value.hint
    assert f"for the {len(NAMES)} known ones" in caught.value.hint


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("2x3090", "--gpu RTX-3090 -- --tensor-parallel-size 2"),
        ("2 x RTX 3090", "--gpu RTX-3090 -- --tensor-parallel-size 2"),
        ("NVIDIA L4 ×4", "--gpu L4 -- --tensor-parallel-size 4"),
        ("8xH100", "--gpu H100-80G -- --tensor-parallel-size 8"),
        ("A100-80GB:4", "--gpu A100-80G -- --tensor-parallel-size 4"),
        ("L4x2", "--gpu L4 -- --tensor-parallel-size 2"),
    ],
)
def test_a_count_is_answered_with_the_tensor_parallel_size(typed: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        gpus.find_gpu(typed)
    assert caught.value.hint.startswith(told)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("A100", "A100-40G, A100-80G"),
        ("nvidia v100", "V100-16G, V100-32G"),
        ("gh200", "GH200-96G, GH200-144G"),
        ("H100", "H100-80G, H100-PCIe, H100-NVL"),
        ("NVIDIA GeForce RTX 3080", "RTX-3080-10G, RTX-3080-12G"),
        ("AGX Orin", "Jetson-AGX-Orin-64G, Jetson-AGX-Orin-32G"),
        ("5060 Ti", "RTX-5060-Ti-8G, RTX-5060-Ti-16G"),
    ],
)
def test_a_name_of_several_sizes_is_refused_with_all_of_them(name: str, meant: str) -> None:
    with pytest.raises(UsageError) as caught:
        gpus.find_gpu(name)
    assert caught.value.message.endswith(f": {meant}")
    assert caught.value.hint.startswith(f"--gpu {meant.split(',')[0]}, or")


OLD = "P40", "Tesla P100-PCIE-16GB", "GTX 1080 Ti", "Quadro P6000"
MAKERS = (
    *("Radeon AI PRO R9700", "AMD Instinct MI355X", "mi300x", "8xMI300X", "Arc B60", "TPU v6e"),
    "Cerebras WSE-3",
)


@pytest.mark.parametrize(
    ("name", "says", "hint"),
    [
        *((name, f"unknown GPU '{name}'", "mmcalib list gpus") for name in ("", "nvidia")),
        ("L4,L40S", "are several GPUs, not one", "name one"),
        # Before Volta.
        *((name, f"wheels do not run on {name}: .*below 7.0", "") for name in OLD),
        *((name, "is not an NVIDIA GPU", "run or validate without --gpu") for name in MAKERS),
    ],
)
def test_what_is_no_usable_gpu_is_answered_with_what_works(name: str, says: str, hint: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        gpus.find_gpu(name)
    assert caught.value.exit_code == 2
    assert hint in caught.value.hint


def test_importing_the_catalogue_reads_no_file() -> None:
    code = (
        "from mmcalib.models import gpus as c; assert c.catalogue_gpus.cache_info().currsize == 0;"
        "c.find_gpu('l4'); assert c.catalogue_gpus() is c.catalogue_gpus()"
    )
    done = run_python("-c", code)
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
    assert not gpu.unified


def test_its_source_is_what_was_typed() -> None:
    assert gpus.describe_gpu("24 GiB", "12.0").source == "--gpu-memory 24 GiB --capability 12.0"


def test_its_name_sets_off_no_rule_of_vllm() -> None:
    """vLLM takes smaller batches on a GPU with a100 in its name."""
    assert "a100" not in gpus.describe_gpu("79GiB", "8.0").torch_name.lower()


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
def test_figures_that_no_gpu_has_are_refused(memory, capability: str, says: str, hint: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        gpus.describe_gpu(memory, capability)
    assert re.search(hint, caught.value.hint)


L4_BYTES = 22563 * 2**20
FIRST_HANDLE = 7
ATTRIBUTES = {75: 8, 76: 9, 16: 58, 18: 0}


class Libcuda:
    """Writes through the pointers it is given, as libcuda does; `refused` answers with a code."""

    def __init__(self, number: int = 2, **refused: int) -> None:
        self.number, self.refused = number, refused

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
                return self.number
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


def pretended(number: int = 2, **refused: int) -> gpus.CudaDriver:
    return gpus.CudaDriver(Libcuda(number, **refused))


def test_the_first_gpu_is_read_by_pointers_and_its_handle() -> None:
    assert gpus.detect_gpu(pretended) == L4
    assert gpus.has_gpu(pretended)


def test_a_machine_without_gpus_says_so() -> None:
    with pytest.raises(UsageError, match="no GPU") as caught:
        gpus.detect_gpu(lambda: pretended(0))
    assert "--gpu NAME" in caught.value.hint
    assert not gpus.has_gpu(lambda: pretended(0))


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
        gpus.detect_gpu(lambda: pretended(**refused))
    assert "--gpu NAME" in caught.value.hint


def test_this_machine_answers_one_way_or_the_other() -> None:
    """A real driver may be there; the two functions agree in any case."""
    if gpus.has_gpu():
        assert gpus.detect_gpu().total_bytes > 2**30
    else:
        with pytest.raises(UsageError):
            gpus.detect_gpu()
