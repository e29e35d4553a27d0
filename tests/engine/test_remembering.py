"""Answers of earlier runs: which are taken, and what vLLM is asked again."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from mmcalib.domain.setting import DEFAULT, Setting
from mmcalib.domain.shapes import ImageShape, VideoShape
from mmcalib.engine import question
from mmcalib.engine.answers import Answers
from mmcalib.engine.messages import (
    AskBudget,
    Blank,
    CountEmbeds,
    File,
    Measure,
    Measured,
    OpenModel,
)
from mmcalib.engine.remembering import RememberingHost
from mmcalib.errors import EngineDied
from tests.engine.conftest import QWEN, Lab, folder_of

pytestmark = pytest.mark.engine

PHOTO, ICON = Blank(ImageShape(640, 480)), Blank(ImageShape(64, 64))
# More than any machine that runs tests has memory for.
VAST = Blank(VideoShape(32, 8.0, 4.0, 200_000, 200_000))


@contextmanager
def silenced(answers: Path) -> Iterator[RememberingHost]:
    """A host whose child is dead: it knows what is remembered, and nothing else."""
    with RememberingHost(Answers(answers)) as host:
        os.kill(host.pid, signal.SIGKILL)
        yield host


def costs(host: RememberingHost, *subjects: Blank | File) -> list[Measured]:
    return list(host.measure(Measure(DEFAULT, subjects), "measuring"))


@pytest.fixture(scope="module")
def model(engine_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of its own, which tests may change and put back."""
    target = tmp_path_factory.mktemp("model") / "qwen"
    shutil.copytree(folder_of(QWEN, engine_cache), target)
    return target


@pytest.fixture(scope="module")
def answers(
    with_vllm: None, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[object]]:
    """The folder of a run that is over, and what it heard."""
    folder = tmp_path_factory.mktemp("answers")
    with RememberingHost(Answers(folder)) as host:
        return folder, asked(host, model)


def asked(host: RememberingHost, model: Path) -> list[object]:
    opened = host.ask(OpenModel(str(model)), "opening")
    budget = host.ask(AskBudget({"model": str(model)}, build_dummy=False), "budget")
    counted = host.ask(CountEmbeds(DEFAULT, (PHOTO,)), "counting")
    return [opened, budget, counted, *costs(host, PHOTO)]


def test_what_was_asked_before_needs_no_child(
    answers: tuple[Path, list[object]], model: Path
) -> None:
    folder, before = answers
    with silenced(folder) as host:
        assert asked(host, model) == before


def test_a_copy_of_the_model_elsewhere_is_the_same(
    answers: tuple[Path, list[object]], model: Path, tmp_path: Path
) -> None:
    folder, before = answers
    shutil.copytree(model, tmp_path / "copy")
    with silenced(folder) as host:
        assert asked(host, tmp_path / "copy") == before


@pytest.mark.parametrize("file", ["config.json", "preprocessor_config.json"])
def test_a_model_that_was_edited_is_another(
    answers: tuple[Path, list[object]], model: Path, tmp_path: Path, file: str
) -> None:
    shutil.copytree(model, tmp_path / "edited")
    path = tmp_path / "edited" / file
    path.write_text(json.dumps({**json.loads(path.read_text()), "edited": 1}))
    with silenced(answers[0]) as host, pytest.raises(EngineDied):
        host.ask(OpenModel(str(tmp_path / "edited")), "opening")


def test_another_setting_is_another_question(
    answers: tuple[Path, list[object]], model: Path
) -> None:
    capped = Setting({"max_pixels": 784 * 100})
    with silenced(answers[0]) as host:
        host.ask(OpenModel(str(model)), "opening")
        with pytest.raises(EngineDied):
            list(host.measure(Measure(capped, (PHOTO,)), "measuring"))


def test_a_file_is_measured_anew(
    answers: tuple[Path, list[object]], model: Path, tmp_path: Path
) -> None:
    from PIL import Image

    path = tmp_path / "photo.png"
    Image.new("RGB", (640, 480)).save(path)
    with RememberingHost(Answers(answers[0])) as host:
        host.ask(OpenModel(str(model)), "opening")
        (found,) = costs(host, File("image", str(path)))
        assert found.cost is not None
        os.kill(host.pid, signal.SIGKILL)
        with pytest.raises(EngineDied):
            costs(host, File("image", str(path)))


def test_a_child_hears_what_it_missed_before_it_is_asked(
    answers: tuple[Path, list[object]], model: Path, qwen: Lab
) -> None:
    with RememberingHost(Answers(answers[0])) as host:
        host.ask(OpenModel(str(model)), "opening")
        (found,) = costs(host, ICON)
    assert found.cost is not None
    assert found.cost.tokens == qwen.cost(ICON).tokens


@pytest.mark.parametrize("written", [b"", b"nonsense", b"\x78\x01" + bytes(100)])
def test_a_damaged_answer_is_asked_for_again(
    answers: tuple[Path, list[object]], model: Path, tmp_path: Path, written: bytes
) -> None:
    folder, before = answers
    shutil.copytree(folder, tmp_path / "damaged")
    for path in (tmp_path / "damaged").iterdir():
        path.write_bytes(written)
    with RememberingHost(Answers(tmp_path / "damaged")) as host:
        again = asked(host, model)
    assert again[:3] == before[:3]
    with silenced(tmp_path / "damaged") as host:
        assert asked(host, model) == again


def test_what_this_machine_had_no_memory_for_is_tried_again(
    answers: tuple[Path, list[object]], model: Path
) -> None:
    with RememberingHost(Answers(answers[0])) as host:
        host.ask(OpenModel(str(model)), "opening")
        (found,) = costs(host, VAST)
        assert found.refused_by == "host_memory"
        os.kill(host.pid, signal.SIGKILL)
        with pytest.raises(EngineDied):
            costs(host, VAST)


def test_the_first_that_is_known_is_said_once(
    answers: tuple[Path, list[object]], model: Path
) -> None:
    said: list[str] = []
    with RememberingHost(Answers(answers[0], lambda: said.append("known"))) as host:
        asked(host, model)
    assert said == ["known"]


def test_what_this_run_has_asked_itself_is_not_said_to_be_of_another(
    model: Path, tmp_path: Path, with_vllm: None
) -> None:
    said: list[str] = []
    with RememberingHost(Answers(tmp_path, lambda: said.append("known"))) as host:
        assert asked(host, model) == asked(host, model)
    assert not said


@pytest.mark.parametrize("remembers", [True, False])
def test_one_that_asks_once_is_asked_for_files_and_after_another_start(
    answers: tuple[Path, list[object]], model: Path, tmp_path: Path, remembers: bool
) -> None:
    from PIL import Image

    path = tmp_path / "photo.png"
    Image.new("RGB", (640, 480)).save(path)
    kept = Answers(answers[0]) if remembers else None
    with RememberingHost(kept, asks_once=True) as host:
        before = [*asked(host, model), *costs(host, File("image", str(path)))]
        host.close()
        host.revive()
        os.kill(host.pid, signal.SIGKILL)
        assert [*asked(host, model), *costs(host, File("image", str(path)))] == before
        host.revive()
        (photo,) = costs(host, ICON)
    assert photo.cost is not None, "it has the model open again"


def test_a_model_that_is_open_is_not_opened_again(
    model: Path, tmp_path: Path, with_vllm: None
) -> None:
    with RememberingHost(Answers(tmp_path)) as host:
        host.ask(OpenModel(str(model), tries=False), "opening")
        host.ask(OpenModel(str(model), tries=False), "opening")
        assert host._waiting is None


def test_a_folder_that_cannot_be_written_remembers_nothing(model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with RememberingHost(Answers(tmp_path / "file" / "answers")) as host:
        assert host.ask(OpenModel(str(model), tries=False), "opening").model.modalities


def _changed_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_ATTENTION_BACKEND", "FLASHINFER")


def _other_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of vLLM's that was edited in place."""
    spec = find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    path = Path(spec.origin)
    monkeypatch.setattr(
        question, "version_of", lambda status: f"{status.st_size + (status == path.stat())}"
    )


@pytest.mark.parametrize("change", [_changed_environment, _other_code])
def test_other_code_or_another_environment_is_another_question(
    with_vllm: None,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[pytest.MonkeyPatch], None],
) -> None:
    def found() -> str:
        question._made_by.cache_clear()
        return question.digest(CountEmbeds(DEFAULT, (PHOTO,)), "")

    monkeypatch.setattr(question, "version_of", lambda status: f"{status.st_size}")
    before = found()
    assert found() == before
    change(monkeypatch)
    assert found() != before
    question._made_by.cache_clear()


def test_a_folder_of_media_that_the_server_may_read_is_not_read_through(
    model: Path, tmp_path: Path
) -> None:
    """By no question, however many files it holds; a pipe would keep it waiting for ever."""
    args = {"model": str(model), "allowed_local_media_path": str(tmp_path)}
    before = question.digest(AskBudget(args, build_dummy=False), "")
    os.mkfifo(tmp_path / "pipe")
    assert question.digest(AskBudget(args, build_dummy=False), "") == before


def test_nobody_else_reads_them(tmp_path: Path) -> None:
    Answers(tmp_path / "cache" / "answers")
    assert (tmp_path / "cache" / "answers").stat().st_mode & 0o777 == 0o700


def test_of_too_many_the_oldest_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmcalib.engine.answers._MOST", 5)
    monkeypatch.setattr("mmcalib.engine.answers._LEFT", 3)
    for number in range(8):
        path = tmp_path / f"{number}.answer"
        path.touch()
        os.utime(path, (number, number))
    Answers(tmp_path)
    assert sorted(one.name for one in tmp_path.iterdir()) == [f"{n}.answer" for n in (5, 6, 7)]


@pytest.mark.parametrize("name", ["plain", "josé", 'a "b"', "a\\b"])
def test_a_checkpoint_of_any_name_counts_by_what_it_holds(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    found = []
    for text in ("{}", "{ }", "{}"):
        (folder / "config.json").write_text(text)
        found.append(question.digest(AskBudget({"model": str(folder)}, build_dummy=False), ""))
    assert found[0] == found[2] != found[1]
