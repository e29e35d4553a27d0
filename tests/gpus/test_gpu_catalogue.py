"""The catalogue of GPUs: its entries are plausible, and are found however they are spelt."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcalib.errors import UsageError
from mmcalib.models import gpus
from mmcalib.models.gpus import CAPABILITIES, Gpu

GIB = 2**30
# The size in the vendor's data sheet, of what torch counts as one GPU.
MARKETED_GB = {
    "RTX-3060-12G": 12,
    "RTX-3070": 8,
    "RTX-3080-10G": 10,
    "RTX-3090": 24,
    "RTX-4060-Ti-16G": 16,
    "RTX-4070-Ti-Super": 16,
    "RTX-4080": 16,
    "RTX-4090": 24,
    "RTX-5080": 16,
    "RTX-5090": 32,
    "T4": 16,
    "V100-16G": 16,
    "V100-32G": 32,
    "A10": 24,
    "A10G": 24,
    "A16": 16,
    "A30": 24,
    "A40": 48,
    "A100-40G": 40,
    "A100-80G": 80,
    "A800-80G": 80,
    "RTX-A4000": 16,
    "RTX-A6000": 48,
    "RTX-6000-Ada": 48,
    "RTX-PRO-6000": 96,
    "L4": 24,
    "L40": 48,
    "L40S": 48,
    "H100-80G": 80,
    "H100-PCIe": 80,
    "H100-NVL": 94,
    "H800": 80,
    "H20": 96,
    "H200": 141,
    "GH200-96G": 96,
    "GH200-144G": 144,
    "B200": 180,
    "B300": 288,
    "GB200": 186,
    "GB10": 128,
    "Jetson-AGX-Orin-64G": 64,
    "MI250X": 64,
    "MI300X": 192,
    "MI325X": 256,
}
LEAST_SHARE = 0.88


@pytest.mark.parametrize("gpu", gpus.all(), ids=lambda gpu: gpu.name)
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
    assert len(gpus.names()) >= 30
    assert set(gpus.names()) == set(MARKETED_GB)
    assert len(set(gpus.names())) == len(gpus.all())
    torch_names = [gpu.torch_name for gpu in gpus.all()]
    assert len(set(torch_names)) == len(torch_names)


def test_every_spelling_leads_to_its_own_entry() -> None:
    text = (resources.files("mmcalib.models") / "gpus.json").read_text(encoding="utf-8")
    for entry in json.loads(text):
        for spelling in (entry["name"], entry["torch_name"], *entry["aliases"]):
            assert gpus.find(spelling).name == entry["name"], spelling


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("h100 sxm", "H100-80G"),
        ("H100 80GB", "H100-80G"),
        ("NVIDIA H100 80GB HBM3", "H100-80G"),
        ("a100 80gb", "A100-80G"),
        ("NVIDIA A100-SXM4-40GB", "A100-40G"),
        ("nvidia l4", "L4"),
        ("L40S", "L40S"),
        ("rtx4090", "RTX-4090"),
        ("geforce rtx 3090", "RTX-3090"),
        ("3090", "RTX-3090"),
        ("rtx_pro_6000", "RTX-PRO-6000"),
        ("dgx-spark", "GB10"),
        ("gb200", "GB200"),
        ("mi300x", "MI300X"),
    ],
)
def test_what_people_type_is_found(spelling: str, name: str) -> None:
    assert gpus.find(spelling).name == name


@given(st.data())
def test_case_and_separators_do_not_matter(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(gpus.names()))
    typed = "".join(
        data.draw(st.sampled_from(["", "-", "_", " "] if char == "-" else [char, char.swapcase()]))
        for char in name
    )
    assert gpus.find(f" {typed} ").name == name


def test_the_total_is_torchs_and_not_nvidia_smis() -> None:
    """nvidia-smi prints 23034 MiB, 22.49 GiB, for an L4."""
    assert round(gpus.find("L4").total_bytes / GIB, 2) == 22.03


@pytest.mark.parametrize(
    ("name", "gib"), [("H100-SXM", 79.19), ("A100-80G", 79.25), ("T4", 14.56), ("GB10", 121.69)]
)
def test_totals_are_those_that_vllm_and_torch_log(name: str, gib: float) -> None:
    assert round(gpus.find(name).total_bytes / GIB, 2) == gib


def test_only_the_amd_ones_are_memory_only() -> None:
    memory_only = {gpu.name for gpu in gpus.all() if gpu.memory_only}
    assert memory_only == {"MI250X", "MI300X", "MI325X"}


def test_only_systems_on_a_chip_are_unified() -> None:
    unified = {gpu.name for gpu in gpus.all() if gpu.unified}
    assert unified == {"GB10", "Jetson-AGX-Orin-64G"}


def test_a_misspelt_name_is_answered_with_close_ones() -> None:
    with pytest.raises(UsageError, match=r"'RTX-4099' is known; close to it: .*RTX-4090") as caught:
        gpus.find("RTX-4099")
    assert caught.value.hint.endswith(gpus.ANY)
    assert f"shows {len(gpus.names())};" in caught.value.hint


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
        gpus.find(name)
    assert caught.value.message.endswith(f": {meant}")
    assert gpus.find(caught.value.hint.split()[-1]).name == meant.split(",")[0]


@pytest.mark.parametrize("name", ["", "nvidia", "Cerebras WSE-3", "L4,L40S"])
def test_an_unknown_name_is_refused(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        gpus.find(name)
    assert caught.value.exit_code == 2


def test_importing_the_catalogue_reads_no_file() -> None:
    code = (
        "from mmcalib.models import gpus as c; assert c.all.cache_info().currsize == 0;"
        "c.find('l4'); assert c.all() is c.all()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
