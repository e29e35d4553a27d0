"""The mistakes that are most likely, over all commands: what is wrong, what to type, exit code."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from mmcalib.cli.command import none_of
from mmcalib.errors import unexpected
from mmcalib.report.formats import REPORT_NAMES
from tests.report.example import calibration

ROOT = Path(__file__).resolve().parent.parent.parent
MODEL = "Qwen/Qwen2.5-VL-3B-Instruct"
RUN = f"run --model {MODEL}"
ON_L4 = f"--model {MODEL} --gpu L4"

# What is typed, the exit code, words of the error, words of the remedy.
MISTAKES = [
    ("list gpus --size 24", 2, "no such option: --size", "mmcalib list --help"),
    ("list cards", 2, "cards is neither models nor gpus", "mmcalib list models"),
    ("diff nowhere", 2, "missing argument 'NEW'", "mmcalib diff --help"),
    ("rnu", 2, "no such command 'rnu'", "mmcalib --help"),
    ("--modle x", 2, "no such option: --modle", "mmcalib --help"),
    ("run", 2, "nothing to calibrate for", "--data DIR"),
    ("run --data media", 2, "no model is named", "--config FILE"),
    ("run --modle a/b --data media", 2, "no such option: --modle", "mmcalib run ... --model ..."),
    (
        f"rehearse {ON_L4} --max-model-len 9",
        2,
        "--max-model-len",
        "rehearse ... -- --max-model-len",
    ),
    (RUN, 2, "nothing to calibrate for", "--data DIR or --requests FILE.jsonl"),
    (f"{RUN} --data", 2, "'--data' requires an argument", "mmcalib run --help"),
    (f"{RUN} media", 2, "unexpected argument: media", "did you mean --data media?"),
    ("plan server.log", 2, "unexpected argument: server.log", "did you mean --log server.log?"),
    (f"{RUN} c.yaml", 2, "unexpected argument: c.yaml", "did you mean --config c.yaml?"),
    (f"{RUN} --data media --gpu L4 --gpu T4", 2, "--gpu is given twice", "once: --gpu NAME"),
    (f"{RUN} --model a/b --data media", 2, "--model is given twice", "once: --model MODEL"),
    (f"{RUN} --data media --sample 1 --sample=1", 2, "--sample is given twice", "once: --sample N"),
    (f"{RUN} --data media -v --verbose", 2, "--verbose is given twice", "once: --verbose"),
    (f"{RUN} --data media --gpu A100", 2, "A100-40G, A100-80G", "--gpu A100-40G"),
    ("check media --quiet --quiet", 2, "--quiet is given twice", "once: --quiet"),
    (f"{RUN} --data media -- more", 2, "unexpected argument: more", "did you mean --data more?"),
    (f"{RUN} --data media --frobnicate", 2, "--frobnicate", "go after --: mmcalib run ... --"),
    (f"{RUN} --data media --sample many", 2, "invalid value for '--sample'", "run --help"),
    (f"{RUN} --data media --workers 0", 2, "--workers must be at least 1", "--workers 4"),
    (f"{RUN} --data media --max-num-seqs 4", 2, "--max-num-seqs", "run ... -- --max-num-seqs ..."),
    (f"{RUN} --data media --max-model-len 32k", 2, "32k is no number", "--max-model-len 32768"),
    (f"{RUN} --data media --prefer speed", 2, "no such choice", "quality, throughput"),
    (f"{RUN} --data media --validate all", 2, "no such choice", "startup, replay"),
    (f"{RUN} --data media --device gpu", 2, "--device gpu: no such", "cpu, cuda"),
    (f"{RUN} --data nowhere --device cuda", 2, "no GPU that CUDA can see", "--device cpu"),
    (f"{RUN} --data media --executor slurm", 2, "no such choice", "local, ray"),
    (f"{RUN} --data media --gpu L44", 2, "close to it: L4", "--gpu-memory 24GiB"),
    (f"{RUN} --data media --concurrency 4", 2, "--concurrency needs --gpu", "--gpu L4"),
    (f"{RUN} --data media --count cats=4", 2, "--count cats=4", "--count image=4"),
    (f"{RUN} --data media --out full", 2, "full is not empty", "--force, or --out another"),
    (f"{RUN} --data media --out a.txt", 2, "a.txt is a file", "--out another folder"),
    (f"{RUN} --data nowhere", 1, "no such folder", "--data DIR"),
    (f"{RUN} --data empty", 1, "no files in folder", "--data DIR"),
    (f"{RUN} --data texts", 1, "nothing to measure", "--data DIR"),
    (f"{RUN} --data media/*.xyz", 1, "no file matches", "in quotes"),
    (f"{RUN} --data @none.txt", 1, "no such list of paths", "@paths.txt"),
    (f"{RUN} --requests none.jsonl", 1, "no such requests file", "--requests FILE"),
    (f"{RUN} --requests media", 1, "a folder", "--data names a folder"),
    (f"{RUN} --requests bad.jsonl", 1, "bad.jsonl:1: not JSON", '{"messages":'),
    ("run --model gpt-4o --data media", 1, "no geometry is bundled", "mmcalib list models"),
    ("run --model Qwen/Qwen2.5-VL-3B --data media", 1, "not a local folder", f"such as {MODEL}"),
    ("run --model ./none --data media", 1, "./none is not a folder", "ls ."),
    ("run --model texts --data media", 1, "without config.json", "config.json, tokenizer"),
    ("check", 2, "nothing to check", "name NEW_DATA"),
    ("check media", 2, "cannot read out/calibration.json", "mmcalib run --model MODEL"),
    ("check media --calibration bad.jsonl", 2, "is not a calibration", "mmcalib run"),
    ("check nowhere --calibration kept", 1, "no such folder", "NEW_DATA"),
    ("scan", 2, "nothing to scan", "--data DIR or --requests"),
    ("serve --config none.yaml", 2, "--config none.yaml: no such file", "mmcalib run --model"),
    ("report --calibration kept", 2, "--calibration", "mmcalib report out/calibration.json"),
    ("report nowhere", 2, "cannot read nowhere", "mmcalib run --model MODEL"),
    ("report kept --format pdf", 2, none_of(REPORT_NAMES), "--format html"),
    (f"rehearse --model {MODEL} --gpu H1000", 2, "no GPU called 'H1000'", "--gpu-memory"),
    (f"rehearse --model {MODEL} --gpu MI300X", 2, "MI300X has no CUDA", "--gpu H100-80G"),
    (f"rehearse {ON_L4} --max-num-seqs 4", 2, "--max-num-seqs", "rehearse ... -- --max-num-seqs"),
    (f"rehearse {ON_L4} --config none.yaml", 2, "no such file", "vllm serve"),
    (f"rehearse {ON_L4} --answer-tokens 7", 2, "--answer-tokens needs", "--requests requests"),
    (f"rehearse {ON_L4} --step-ms 1", 2, "--step-ms needs --rate or", "--rate 2"),
    ("rehearse --gpu L4", 2, "no model is named", "--model MODEL"),
    (f"plan {ON_L4} --goal fast", 2, "is not a goal", "concurrency>=16"),
    (f"plan {ON_L4} --log none.log", 2, "No such file", "tee server.log"),
    ("validate", 2, "nothing to validate", "mmcalib validate engine.yaml"),
    ("validate --config none.yaml", 2, "no such file", "vllm serve"),
    ("validate --config c.yaml --data nowhere", 1, "nowhere: no such file", "ls ."),
    ("validate --config c.yaml --max-num-seqs 4", 2, "--max-num-seqs", "validate ... -- --max-num"),
    ("doctor extra", 2, "unexpected extra argument", "mmcalib doctor --help"),
    ("--json run", 2, "--json", "mmcalib run --json"),
    ("doctor --fix", 2, "no such option: --fix", "mmcalib doctor --help"),
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
def test_a_mistake_is_one_line_and_the_next_thing_to_type(
    typed: str, code: int, says: str, remedy: str, cli, desk: Path
) -> None:
    ended = cli(*typed.split())
    assert ended.code == code
    assert (ended.out != "") == ("--json" in typed), "then the error is a document"
    assert ends_well(ended.err), ended.err
    *_, error, hint = ended.err.splitlines()
    assert says in error
    assert remedy in hint


def test_the_table_has_every_command() -> None:
    from mmcalib.cli.app import COMMANDS

    assert {typed.split()[0] for typed, *_ in MISTAKES} >= set(COMMANDS)
    assert len(MISTAKES) >= 40


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
@pytest.mark.parametrize(
    "typed",
    [f"{RUN} --data media", f"rehearse {ON_L4}", f"plan {ON_L4}", "validate --config c.yaml"],
)
def test_without_vllm_the_doctor_is_named(typed: str, cli, desk: Path) -> None:
    ended = cli(*typed.split())
    assert (ended.code, ended.out) == (1, "")
    assert ends_well(ended.err), ended.err
    assert "vLLM is not installed" in ended.err
    assert "try: mmcalib doctor" in ended.err


def test_without_vllm_no_corpus_is_read(cli, desk: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    ended = cli("run", "--model", MODEL, "--data", "media", "--json")
    assert (ended.code, json.loads(ended.out)["error"]["kind"]) == (1, "vllm_missing")
    assert ended.err.splitlines()[0] == "error: vLLM is not installed beside mmcalib"
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


def test_a_full_disk_behind_stdout_is_an_error() -> None:
    shell = f"{sys.executable} -m mmcalib list models --json > /dev/full"
    done = subprocess.run(
        ["bash", "-c", shell], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert ends_well(done.stderr)
    assert "No space left on device" in done.stderr


@pytest.mark.parametrize("words", ["list models --json", "list models", "list gpus 2>/dev/null"])
def test_a_reader_that_leaves_is_no_error(words: str) -> None:
    """As in `mmcalib list models | head -1`, at the end and between two lines."""
    shell = f"set -o pipefail; {sys.executable} -m mmcalib {words} | head -c 1"
    done = subprocess.run(
        ["bash", "-c", shell], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, len(done.stdout), done.stderr) == (0, 1, "")


@pytest.mark.parametrize(
    ("typed", "kind", "code"),
    [
        (f"{RUN} --data nowhere", "corpus", 1),
        ("run", "usage", 2),
        ("run --model ./none --data media", "model", 1),
        ("list cards", "usage", 2),
        ("report kept --emit args --out a.txt", "usage", 2),
    ],
)
def test_with_json_an_error_is_the_document(
    typed: str, kind: str, code: int, cli, desk: Path
) -> None:
    ended = cli(*typed.split(), "--json")
    error = json.loads(ended.out)["error"]
    assert (ended.code, error["kind"]) == (code, kind)
    *_, message, hint = ended.err.splitlines()
    assert (message, hint) == (f"error: {error['message']}", f"  try: {error['hint']}")


def test_check_takes_the_folder_of_a_run(cli, desk: Path) -> None:
    Image.new("RGB", (20, 20)).save(desk / "media" / "b.png")
    ended = cli("check", "media", "--calibration", "kept", "--json", "--quiet", "--allow-unknown")
    assert json.loads(ended.out.splitlines()[-1])["kind"] == "summary"
