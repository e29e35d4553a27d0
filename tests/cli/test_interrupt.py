import os
import signal

import pytest

from mmcalib.cli.app import during_interrupt
from tests.conftest import ROOT
from tests.corpus.serving import serving
from tests.processes import wait_until
from tests.programs import start_python

# Stands where the hub's client would be, and takes its time.
SLOW_HUB = "import pathlib, time; pathlib.Path({mark!r}).touch(); time.sleep(60)"


@pytest.mark.engine
@pytest.mark.parametrize(("sign", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_ends_it_and_keeps_earlier_results(sign, code: int, media, tmp_path) -> None:
    mark, out = tmp_path / "asked", tmp_path / "out"
    out.mkdir()
    (out / "engine.yaml").write_text("old")
    (tmp_path / "stub").mkdir()
    (tmp_path / "stub" / "huggingface_hub.py").write_text(SLOW_HUB.format(mark=str(mark)))
    words = ["run", "--model", "no/such", "--data", str(media), "--out", str(out), "--force"]
    env = {**os.environ, "PYTHONPATH": f"{tmp_path / 'stub'}:{ROOT}", "HF_HUB_OFFLINE": "0"}
    # Only a hub that answers is asked.
    with (
        serving() as server,
        start_python("-m", "mmcalib", *words, env={**env, "HF_ENDPOINT": server.url}) as process,
    ):
        wait_until(lambda: mark.exists() or process.poll() is not None, 30)
        process.send_signal(sign)
        _, err = process.communicate(timeout=30)
    assert process.returncode == code, err
    assert "Traceback" not in err
    assert ("interrupted" in err) == (sign == signal.SIGINT)
    assert (out / "engine.yaml").read_text() == "old"


def test_what_goes_wrong_while_an_interrupt_closes_things_is_no_error_of_its_own() -> None:
    def closing() -> None:
        try:
            raise KeyboardInterrupt
        finally:
            os.close(-1)

    with pytest.raises(OSError, match="Bad file") as interrupted:
        closing()
    assert during_interrupt(interrupted.value)
    with pytest.raises(OSError, match="Bad file") as other:
        os.close(-1)
    assert not during_interrupt(other.value)
