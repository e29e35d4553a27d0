"""The child process as a process: it dies, hangs, complains; the parent says so in one line."""

import os
import signal
import sys
import venv
from pathlib import Path

import pytest

import mmcalib
from mmcalib.domain.knobs import DEFAULT
from mmcalib.domain.shapes import ImageShape
from mmcalib.engine.environment import child_environment
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import Blank, Measure, OpenModel, StartEngine
from mmcalib.errors import EngineDied, EngineError, VllmMissing, VllmRefused
from mmcalib.models.cut import cut_checkpoint
from mmcalib.models.resolve import resolve
from mmcalib.processes import free_bytes
from tests.builders import some
from tests.e2e.command import QWEN
from tests.processes import is_alive, wait_until
from tests.programs import executable, run_program, run_python

pytestmark = pytest.mark.engine


def test_a_killed_child_is_a_clear_error_and_no_hang(tmp_path: Path) -> None:
    with EngineHost(log=tmp_path / "log") as host:
        os.kill(host.pid, signal.SIGKILL)
        with pytest.raises(EngineDied, match="killed by SIGKILL while opening the model") as caught:
            host.ask(OpenModel("nowhere"), "opening the model")
        assert caught.value.exhausted == "memory"
        with pytest.raises(EngineDied):
            host.ask(OpenModel("nowhere"), "opening it again")


def test_a_child_that_closes_the_pipe_and_runs_on_is_not_said_to_have_ended(tmp_path) -> None:
    deaf = executable(tmp_path / "python", '#!/bin/bash\neval "exec $4>&-"\nexec sleep 60\n')
    with (
        EngineHost(log=tmp_path / "log", python=deaf) as host,
        pytest.raises(EngineDied, match="the engine process does not answer while opening"),
    ):
        host.ask(OpenModel("nowhere"), "opening")


# The child in a Python that finds no vLLM.
WITHOUT_VLLM = """
import runpy, sys
class Missing:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "vllm":
            raise ModuleNotFoundError("No module named 'vllm'", name="vllm")
sys.meta_path.insert(0, Missing)
runpy.run_module("mmcalib.child", run_name="__main__")
"""


def test_a_python_without_vllm_says_who_knows_how_to_install_it(tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text(WITHOUT_VLLM)
    script = f'#!/bin/sh\nexec {sys.executable} -P {tmp_path}/child.py "$4"\n'
    bare = executable(tmp_path / "python", script)
    with (
        EngineHost(log=tmp_path / "log", python=bare) as host,
        pytest.raises(VllmMissing) as caught,
    ):
        host.ask(OpenModel("nowhere"), "opening")
    assert caught.value.message == "vLLM is not installed"
    assert caught.value.hint.startswith("mmcalib doctor")


@pytest.mark.slow
def test_one_that_has_died_is_begun_again_with_its_model(tmp_path, engine_cache: Path) -> None:
    model = resolve(QWEN, cache_dir=engine_cache)
    request = Measure(DEFAULT, (Blank(ImageShape(280, 280)),))
    with EngineHost() as host:
        host.ask(OpenModel(model.path, search_knobs=False), "opening the model")
        (before,) = host.measure(request, "measuring")
        os.kill(host.pid, signal.SIGKILL)
        with pytest.raises(EngineDied, match="killed by SIGKILL") as caught:
            list(host.measure(request, "measuring"))
        log = Path(caught.value.hint.removeprefix("its log: "))
        assert log.is_file()
        host.revive()
        (again,) = host.measure(request, "measuring")
    assert some(again.cost).tokens == some(before.cost).tokens
    log.unlink()
    log.parent.rmdir()


@pytest.mark.slow
@pytest.mark.skipif((free_bytes() or 0) > 100 << 30, reason="this machine holds it")
def test_an_engine_that_needs_more_memory_than_is_free_is_not_tried(tmp_path: Path) -> None:
    """10,485,760 tokens: two layers keep 8 KiB of each and 25 % more, 256 sequences 5 bytes."""
    scout = resolve("meta-llama/Llama-4-Scout-17B-16E-Instruct", cache_dir=tmp_path)
    cut = cut_checkpoint(Path(scout.path), tmp_path / "cut", 2)
    args = {"model": str(cut), "load_format": "dummy", "max_num_seqs": 256}
    with EngineHost() as host, pytest.raises(VllmRefused) as caught:
        host.ask(StartEngine({**args, "enforce_eager": True}, (48, 34), 90.0), "starting")
    assert caught.value.exhausted == "memory"
    # A CPU without bfloat16 computes in float32, and keeps 16 KiB of each token.
    assert caught.value.reason.endswith(("about 112.5 GiB needed", "about 212.5 GiB needed"))


def test_closing_ends_what_the_child_started(tmp_path: Path) -> None:
    """A worker of vLLM may hold a GPU's memory."""
    worker = tmp_path / "worker"
    parent = executable(tmp_path / "python", f"#!/bin/sh\nsleep 60 &\necho $! > {worker}\nwait\n")
    with EngineHost(log=tmp_path / "log", python=parent):
        wait_until(lambda: worker.is_file() and worker.read_text().strip())
        assert is_alive(int(worker.read_text()))
    wait_until(lambda: not is_alive(int(worker.read_text())))


def test_the_child_sees_the_gpus_that_the_user_chose() -> None:
    assert child_environment({"CUDA_VISIBLE_DEVICES": "3"})["CUDA_VISIBLE_DEVICES"] == "3"
    assert "CUDA_VISIBLE_DEVICES" not in child_environment({})


def test_vllm_s_own_words_come_through_and_the_host_lives_on(host: EngineHost) -> None:
    with pytest.raises(EngineError) as caught:
        host.ask(OpenModel("/nonexistent/model"), "opening the model")
    assert "vLLM, while opening the model" in caught.value.message
    assert "\n" not in caught.value.message


def test_measuring_before_opening_is_an_error_and_not_a_crash(tmp_path: Path) -> None:
    with EngineHost(log=tmp_path / "log") as host:
        subject = Blank(ImageShape(10, 10))
        with pytest.raises(EngineError, match="no model is open"):
            list(host.measure(Measure(DEFAULT, (subject,)), "measuring"))


def test_the_parent_never_loads_torch_or_vllm(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from mmcalib.engine.host import EngineHost; "
        f"h = EngineHost(log=Path({str(tmp_path / 'log')!r})); h.close(); "
        "import mmcalib.workflows.run.run, mmcalib.cli.run, mmcalib.cli.output; "
        "print([m for m in ('torch', 'vllm', 'transformers') if m in sys.modules])"
    )
    assert run_python("-c", program, check=True).stdout.strip() == "[]"


def test_its_processes_find_this_mmcalib_and_nothing_of_this_path(tmp_path: Path) -> None:
    environment = tmp_path / "bare"
    venv.create(environment, with_pip=False)
    (tmp_path / "json.py").write_text("raise SystemExit('not the json of that environment')")
    base = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONHOME": "/nowhere"}
    code = "import json, sys, mmcalib; print(json.dumps([mmcalib.__file__, sys.prefix]))"
    command = (environment / "bin" / "python", "-P", "-c", code)
    done = run_program(*command, env=child_environment(base, foreign=True), cwd=tmp_path)
    assert done.stderr == ""
    assert mmcalib.__file__ in done.stdout
    assert str(environment) in done.stdout
    own = child_environment(base)
    assert str(tmp_path) in own["PYTHONPATH"], "a child of the same interpreter keeps it"
    assert sys.prefix not in done.stdout
