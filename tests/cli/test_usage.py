"""Mistakes before the engine: one line, one hint, the right exit code, nothing destroyed."""

import json
import re
import sys
from pathlib import Path

import pytest
from PIL import Image

from mmcalib.cli.output import gpu_that_serves
from mmcalib.errors import MmcalibError, UsageError, unexpected
from mmcalib.limits.policy import TEXT_RESERVE_TOKENS
from mmcalib.options.option import iter_options, make_options, read_words
from mmcalib.options.run import RunOptions, build_policy
from mmcalib.report import CONFIGURATION_NAMES, REPORT_NAMES
from mmcalib.report.configurations import CONFIGURATIONS
from mmcalib.report.report import REPORTS
from mmcalib.workflows.run.session import Job
from tests.conftest import ROOT
from tests.corpus.media import request
from tests.programs import run_program
from tests.report.example import calibration
from tests.schemas import DATA

MODEL = "Qwen/Qwen2.5-VL-3B-Instruct"


def asked(**said: object) -> RunOptions:
    """Hand every option over as the command line does, most of them with nothing."""
    silent = {field.name: field.default for field in iter_options(RunOptions)}
    words = {**silent, "model": MODEL, "data": ["media"], **said}
    return make_options(RunOptions, read_words(iter_options(RunOptions), words))


def job_of(**said: object) -> Job:
    options = asked(**said)
    return Job.of(options, gpu=gpu_that_serves(options.gpu))


def test_the_words_arrive_in_the_job() -> None:
    clip = {"video": {"fps": 1}}
    words = {"count": ["image=4", "video=0"], "media_io_kwargs": json.dumps(clip)}
    job = job_of(**words, max_num_batched_tokens=3)
    assert (job.model, job.options.data, job.options.validate) == (MODEL, ["media"], "replay")
    assert job.policy.count == {"image": 4, "video": 0}
    assert (job.policy.max_num_batched_tokens, job.policy.max_model_len) == (3, None)
    assert job.policy.media_io_kwargs == clip
    assert job.policy.text_reserve_tokens == TEXT_RESERVE_TOKENS != 0
    assert build_policy(asked(text_reserve_tokens=0)).text_reserve_tokens == 0


def test_a_name_too_long_for_a_folder_is_an_error(cli, media) -> None:
    assert ends_well(cli("run", "--model", MODEL, "--data", media, "--out", "x" * 300).err)


PASS_MEDIA = "try: (pass|put) .*(folder|files)"
ALLOW = r"  try: --allowed-local-media-path DIR\n\Z"
ANOTHER = r"  try: --force, or --out another folder\n\Z"


@pytest.mark.parametrize(
    ("words", "code", "says", "remedy"),
    [
        ("--force --data nowhere", 1, "folder not found", PASS_MEDIA),
        ("--force --data empty", 1, "folder contains no", PASS_MEDIA),
        ("--force --data texts", 1, "no image, ", PASS_MEDIA),
        ("--force --requests up.jsonl", 2, "up.jsonl:1: ", ALLOW),
        ("--force --requests root.jsonl", 2, "root.jsonl:1: ", ALLOW),
        ("--data media", 2, "error: --out out is not empty\n", ANOTHER),
    ],
)
def test_an_error_destroys_no_earlier_results(words, code, says, remedy, cli, desk) -> None:
    for name, url in (("up", "../a.png"), ("root", "file:///etc/hostname")):
        (desk / f"{name}.jsonl").write_text(request(url))
    (desk / "out").mkdir()
    old = {"engine.yaml": "model: old\n", "calibration.json": "{}", "mine.txt": "keep"}
    for name, text in old.items():
        (desk / "out" / name).write_text(text)
    ended = cli("run", "--model", MODEL, *words.split(), "--out", "out", "--quiet")
    assert (ended.code, ended.out) == (code, "")
    assert ends_well(ended.err)
    assert says in ended.err
    assert re.search(remedy, ended.err)
    assert {path.name: path.read_text() for path in (desk / "out").iterdir()} == old


def test_a_hostile_name_in_an_error_stays_on_its_line(cli) -> None:
    ended = cli("run", "--model", MODEL, "--data", "a\nb\x1b[31m", "--quiet")
    assert ended.code == 1
    assert ends_well(ended.err)
    assert "\x1b" not in ended.err


def test_a_traceback_only_for_those_who_ask(cli, monkeypatch) -> None:
    assert cli("run", "--model", MODEL).code == 2
    monkeypatch.setenv("MMCALIB_DEBUG", "1")
    with pytest.raises(MmcalibError, match="nothing to calibrate for"):
        cli("run", "--model", MODEL)


@pytest.mark.parametrize("words", ["{", "[]", '{"video": 4}', '{"smell": {}}', "null"])
def test_media_options_are_json_per_modality(words: str) -> None:
    with pytest.raises(UsageError, match="--media-io-kwargs") as caught:
        asked(media_io_kwargs=words)
    assert "fps" in caught.value.hint


MISTAKES = [
    [cell.strip() for cell in line.split("|")]
    for line in (DATA / "mistakes.txt").read_text("utf-8").splitlines()[1:]
]


@pytest.fixture
def desk(tmp_path: Path, media: Path) -> Path:
    """A working folder with something to go wrong with."""
    (tmp_path / "empty").mkdir()
    for folder, file in (("texts", "a.txt"), ("full", "engine.yaml"), (".", "a.txt")):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / file).write_text("words")
    (tmp_path / "bad.jsonl").write_text("{bad\n")
    (tmp_path / "bad.yaml").write_text("prefer: [\n")
    (tmp_path / "c.yaml").write_text("model: a/b\n")
    image = "{image: vllm/vllm-openai, command: [--model, /mnt/Qwen2.5-VL-3B-Instruct]}"
    (tmp_path / "compose.yaml").write_text(f"services: {{llm: {image}}}\n")
    (tmp_path / "kept").mkdir()
    calibration().save(tmp_path / "kept" / "calibration.json")
    return tmp_path


def ends_well(err: str) -> bool:
    """The last two lines are the error and the remedy, and no other line is of an error."""
    *_, error, remedy = err.splitlines()
    return (
        error.startswith("error: ")
        and remedy.startswith("  try: ")
        and err.count("error: ") == 1
        and "Traceback" not in err
    )


@pytest.mark.parametrize(
    ("typed", "code", "says", "remedy"), MISTAKES, ids=[row[0] for row in MISTAKES]
)
def test_a_mistake_is_one_line_and_a_remedy(typed, code, says: str, remedy: str, cli, desk) -> None:
    ended = cli(*typed.split())
    assert ended.code == int(code)
    assert (ended.out != "") == ("--json" in typed), "then the error is a document"
    assert ends_well(ended.err), ended.err
    assert not (desk / "out").exists(), "nothing is made before the words are understood"
    *_, error, hint = ended.err.splitlines()
    assert says in error
    assert remedy in hint


def test_the_table_has_every_command() -> None:
    from mmcalib.cli.app import COMMANDS

    assert {typed.split()[0] for typed, *_ in MISTAKES} >= set(COMMANDS)
    assert len(MISTAKES) >= 40


def test_every_name_has_what_renders_it() -> None:
    assert (*REPORTS,) == REPORT_NAMES
    assert (*CONFIGURATIONS,) == CONFIGURATION_NAMES


def test_without_vllm_no_corpus_is_read(cli, desk: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    ended = cli("run", "--model", MODEL, "--data", "media", "--json")
    assert (ended.code, json.loads(ended.out)["error"]["kind"]) == (1, "vllm_missing")
    assert ended.err.splitlines()[0] == "error: vLLM is not installed"
    assert not (desk / "out").exists()


def test_what_nobody_foresaw_is_one_line_too() -> None:
    found = unexpected(ValueError("two\nlines"))
    assert (found.message, found.exit_code) == ("unexpected ValueError: two lines", 1)
    assert "MMCALIB_DEBUG=1" in found.hint


def test_a_cache_that_cannot_be_written_names_its_variable(cli, desk: Path, monkeypatch) -> None:
    monkeypatch.setenv("MMCALIB_CACHE_DIR", "a.txt")
    ended = cli("run", "--model", MODEL, "--data", "media")
    assert ended.code == 1
    assert ends_well(ended.err), ended.err
    assert "export MMCALIB_CACHE_DIR=" in ended.err


@pytest.mark.parametrize("words", ["list models --json", "list models", "--version"])
def test_a_full_disk_behind_stdout_is_an_error(words: str) -> None:
    done = run_program("bash", "-c", f"{sys.executable} -m mmcalib {words} > /dev/full", cwd=ROOT)
    assert done.returncode == 1
    assert ends_well(done.stderr)
    assert done.stderr == "error: cannot write: No space left on device\n  try: df -h\n"


@pytest.mark.parametrize("words", ["list models --json", "list models", "list gpus 2>/dev/null"])
def test_a_reader_that_leaves_is_no_error(words: str) -> None:
    """`mmcalib list models | head -1` leaves at the end or between two lines."""
    shell = f"set -o pipefail; {sys.executable} -m mmcalib {words} | head -c 1"
    done = run_program("bash", "-c", shell, cwd=ROOT)
    assert (done.returncode, len(done.stdout), done.stderr) == (0, 1, "")


@pytest.mark.parametrize(
    ("typed", "kind", "code"),
    [
        (f"run --model {MODEL} --data nowhere", "corpus", 1),
        ("run", "usage", 2),
        ("run --model ./none --data media", "model", 1),
        ("list cards", "usage", 2),
        ("report kept --emit args --out a.txt", "usage", 2),
    ],
)
def test_with_json_an_error_is_the_document(typed: str, kind: str, code: int, cli, desk) -> None:
    ended = cli(*typed.split(), "--json")
    error = json.loads(ended.out)["error"]
    assert (ended.code, error["kind"]) == (code, kind)
    *_, message, hint = ended.err.splitlines()
    assert (message, hint) == (f"error: {error['message']}", f"  try: {error['hint']}")


def test_check_takes_the_folder_of_a_run(cli, desk: Path) -> None:
    Image.new("RGB", (20, 20)).save(desk / "media" / "b.png")
    ended = cli("check", "media", "--calibration", "kept", "--json", "--quiet", "--allow-unknown")
    assert json.loads(ended.out.splitlines()[-1])["kind"] == "summary"
