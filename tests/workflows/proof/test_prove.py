"""A lack of this machine's memory is no verdict on the configuration; a crash of vLLM is."""

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mmcalib.checks.check import Check
from mmcalib.checks.engine import replay_check
from mmcalib.domain.shapes import ImageShape
from mmcalib.domain.traffic import BurstResult, PromptOutcome
from mmcalib.errors import EngineDied, EngineSilent, OutputError, VllmRefused
from mmcalib.models.resolve import resolve
from mmcalib.progress import Silent
from mmcalib.proof.prove import Launch, prove
from mmcalib.proof.replay import choose_heaviest, leave_out_exhausting
from tests.workflows.corpora import corpus, decide
from tests.workflows.fake_host import opened

LARGE, SMALL = ImageShape(2800, 2240), ImageShape(280, 280)


class Failing:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def ask(self, request: object, doing: str) -> Any:
        raise self.error


def tried(error: Exception, folder: Path, *, serves: bool = False) -> Check:
    decision = decide(corpus([SMALL]))
    model = Path(resolve("Qwen/Qwen2.5-VL-3B-Instruct", cache_dir=folder).path)
    on = replace(opened(), device="cuda" if serves else "cpu")
    launch = Launch(decision, on, model, folder / "scratch", 90.0)
    host: Any = Failing(error)
    (check,) = prove(host, launch, None, Silent(), remedy="--validate budget").checks
    return check


KILLED = EngineDied("killed by SIGKILL", hint="its log", exhausted="memory")
FULL = OutputError("cannot write")
FULL.__cause__ = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("error", "lacking"),
    [
        (KILLED, "memory"),
        (VllmRefused("MemoryError", exhausted="memory"), "memory"),
        (MemoryError("here"), "memory"),
        (FULL, "disk space"),
    ],
)
def test_what_this_machine_cannot_hold_is_skipped(error, lacking: str, tmp_path: Path) -> None:
    check = tried(error, tmp_path)
    assert (check.name, check.status) == ("engine start", "skip")
    assert f"this machine ran out of {lacking}" in check.detail


@pytest.mark.parametrize(
    "error",
    [
        VllmRefused("head size 80 is not supported"),
        EngineDied("killed by SIGSEGV"),
        EngineSilent("said nothing for 900 s"),
    ],
)
def test_a_crash_for_the_configuration_fails(error: Exception, tmp_path: Path) -> None:
    check = tried(error, tmp_path)
    assert (check.name, check.status, check.detail) == ("engine start", "fail", str(error))


def test_the_machine_that_serves_fails_where_its_memory_ends(tmp_path: Path) -> None:
    assert tried(KILLED, tmp_path, serves=True).status == "fail"


def test_a_prompt_that_memory_ends_under_is_left_out_and_not_rejected() -> None:
    read = corpus([], [[LARGE], [SMALL]])
    decision = decide(read)
    chosen = choose_heaviest(read.prompts, decision, 8000, 1e9)
    (large,), (small,) = chosen.prompts, chosen.admit
    exhausted = PromptOutcome(large.origin, "MemoryError", (), out_of_memory=True)
    admitted = PromptOutcome(small.origin, "", (100,))
    replayed = BurstResult((exhausted,), 1.0, 0, (admitted,))
    assert replay_check(chosen, replayed, (), 8000).status == "fail"
    chosen, replayed = leave_out_exhausting(chosen, replayed)
    assert (chosen.prompts, chosen.encoder_tokens, chosen.admit) == ((), 0, (small,))
    assert (chosen.too_heavy, replayed.answers) == (1, ())
    assert replay_check(chosen, replayed, (), 8000).status == "skip"
