"""Mistakes before the engine: one line, one hint, the right exit code, nothing destroyed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from mmcalib.cli.output import gpu_that_serves
from mmcalib.derive.policy import TEXT_RESERVE_TOKENS
from mmcalib.errors import MmcalibError, UsageError, unexpected
from mmcalib.options.option import iter_options, make_options, read_words
from mmcalib.options.run import RunOptions, build_policy
from mmcalib.report import CONFIGURATION_NAMES, REPORT_NAMES
from mmcalib.report.configurations import CONFIGURATIONS
from mmcalib.report.report import REPORTS
from mmcalib.workflows.run.session import Job
from tests.conftest import ROOT
from tests.corpus.media import request
from tests.report.example import calibration

MODEL = "Qwen/Qwen2.5-VL-3B-Instruct"


def asked(**said: object) -> RunOptions:
    """As the command line gives them to `mmcalib run`: every option, most of them with nothing."""
    silent = {field.name: field.default for field in iter_options(RunOptions)}
    words = {**silent, "model": MODEL, "data": ["media"], **said}
    return make_options(RunOptions, read_words(iter_options(RunOptions), words))


def job_of(**said: object) -> Job:
    options = asked(**said)
    return Job.of(options, gpu=gpu_that_serves(options.gpu))


def test_the_words_arrive_in_the_job() -> None:
    job = job_of(count=["image=4", "video=0"], max_num_batched_tokens=3)
    assert (job.model, job.options.data, job.options.validate) == (MODEL, ["media"], "replay")
    assert job.policy.count == {"image": 4, "video": 0}
    assert (job.policy.max_num_batched_tokens, job.policy.max_model_len) == (3, None)
    assert job.policy.text_reserve_tokens == TEXT_RESERVE_TOKENS


def test_a_reserve_of_nothing_is_not_the_default() -> None:
    assert build_policy(asked(text_reserve_tokens=0)).text_reserve_tokens == 0


def results(folder: Path) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    old = {"engine.yaml": "model: old\n", "calibration.json": "{}", "mine.txt": "keep"}
    for name, text in old.items():
        (folder / name).write_text(text)
    return old


def held(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_earlier_results_are_not_overwritten(cli, media, tmp_path) -> None:
    old = results(tmp_path / "out")
    ended = cli("run", "--model", MODEL, "--data", media, "--out", "out")
    assert ended.code == 2
    assert ended.err == "error: --out out is not empty\n  try: --force, or --out another folder\n"
    assert held(tmp_path / "out") == old


def test_a_name_too_long_for_a_folder_is_an_error(cli, media) -> None:
    ended = cli("run", "--model", MODEL, "--data", media, "--out", "x" * 300)
    assert ends_well(ended.err)


@pytest.mark.parametrize(
    ("data", "says"),
    [("nowhere", "folder not found"), ("empty", "folder contains no"), ("text", "no image, ")],
)
def test_no_media_is_an_error_that_destroys_nothing(data: str, says: str, cli, tmp_path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("words")
    old = results(tmp_path / "out")
    ended = cli("run", "--model", MODEL, "--data", data, "--out", "out", "--force", "--quiet")
    assert (ended.code, ended.out) == (1, "")
    assert ends_well(ended.err)
    assert says in ended.err
    assert re.search(r"try: (pass|put) .*(folder|files)", ended.err)
    assert held(tmp_path / "out") == old


@pytest.mark.parametrize("url", ["../media/a.png", "file:///etc/hostname"])
def test_requests_outside_the_allowed_root_are_a_usage_error(
    url: str, cli, media, tmp_path
) -> None:
    (tmp_path / "requests").mkdir()
    (tmp_path / "requests" / "r.jsonl").write_text(request(url))
    old = results(tmp_path / "out")
    words = ["--requests", "requests/r.jsonl", "--out", "out", "--force", "--quiet"]
    ended = cli("run", "--model", MODEL, *words)
    assert ended.code == 2
    assert ends_well(ended.err)
    assert "r.jsonl:1: " in ended.err
    assert ended.err.endswith("  try: --allowed-local-media-path DIR\n")
    assert held(tmp_path / "out") == old


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


def test_media_options_reach_the_policy() -> None:
    job = job_of(media_io_kwargs='{"video": {"fps": 1}}')
    assert job.policy.media_io_kwargs == {"video": {"fps": 1}}


RUN = f"run --model {MODEL}"

ON_L4 = f"--model {MODEL} --gpu L4"

# What is typed, the exit code, words of the error, words of the remedy.
MISTAKES = [
    ("list gpus --size 24", 2, "no such option: --size", "mmcalib list --help"),
    ("list cards", 2, "cards is not models, gpus, profiles or checks", "mmcalib list models"),
    ("diff nowhere", 2, "missing argument 'NEW'", "mmcalib diff --help"),
    ("rnu", 2, "no such command 'rnu'", "mmcalib --help"),
    ("--modle x", 2, "no such option: --modle", "mmcalib --help"),
    ("run", 2, "nothing to calibrate for", "--data DIR"),
    ("run --data media", 2, "no model given", "--config FILE"),
    (
        f"rehearse {ON_L4} --max-model-len 9",
        2,
        "--max-model-len",
        "rehearse ... -- --max-model-len",
    ),
    (RUN, 2, "nothing to calibrate for", "--data DIR or --requests FILE.jsonl"),
    (f"{RUN} --data", 2, "'--data' requires an argument", "mmcalib run --help"),
    (f"{RUN} media", 2, "unexpected argument: media", "--data media; flags of vLLM"),
    (f"{RUN} -- python3 -m http.server", 2, "python3 ... does not start vllm serve", "after --,"),
    ("plan server.log", 2, "unexpected argument: server.log", "--log server.log; flags of vLLM"),
    (f"{RUN} --model a/b --data media", 2, "--model is repeated", "once: --model MODEL"),
    (f"{RUN} --data media -v --verbose", 2, "--verbose is repeated", "once: --verbose"),
    (f"{RUN} --data media --gpu A100", 2, "A100-40G, A100-80G", "--gpu A100-40G"),
    ("check media --quiet --quiet", 2, "--quiet is repeated", "once: --quiet"),
    (f"{RUN} --data media -- more", 2, "unexpected argument: more", "--data more; flags of vLLM"),
    (f"{RUN} --data media --frobnicate", 2, "--frobnicate", "go after --: mmcalib run ... --"),
    (f"{RUN} --data media --sample many", 2, "invalid value for '--sample'", "run --help"),
    (f"{RUN} --data media --workers 0", 2, "--workers must be at least 1", "--workers 4"),
    (f"{RUN} --data media --max-num-seqs 4", 2, "--max-num-seqs", "run ... -- --max-num-seqs ..."),
    (
        f"{RUN} --data media --max-model-len 32k",
        2,
        "32k is not a token count",
        "--max-model-len 32768",
    ),
    (f"{RUN} --data media --prefer speed", 2, "no such choice", "quality, throughput"),
    (f"{RUN} --data media --device gpu", 2, "--device gpu: no such", "cpu, cuda"),
    (f"{RUN} --data nowhere --device cuda", 2, "no GPU that CUDA can see", "--device cpu"),
    (f"{RUN} --data media --gpu L44", 2, "did you mean L40 or L40S?", "--gpu-memory SIZE"),
    (f"{RUN} --data media --gpu L4=0.8/h,T4=x", 2, "x is not a price per hour", "T4=0.80/h"),
    (f"{RUN} --data media --gpu L4=0.8/h", 2, "a price compares several GPUs", "L40S=1.90/h"),
    (f"{RUN} --data media --concurrency 4", 2, "--concurrency needs --gpu", "--gpu L4"),
    (f"{RUN} --data media --count cats=4", 2, "--count cats=4", "--count image=4"),
    (f"{RUN} --data media --count image", 2, "image is not MODALITY=N", "--count image=4"),
    (f"{RUN} --data media --conversation image", 2, "image is not MODALITY=N", "--count image=4"),
    (f"{RUN} --data media --count image=-1", 2, "--count image=-1", "--count image=4"),
    (f"{RUN} --data media --coverage 0", 2, "--coverage 0.0 is not a share", "--coverage 0.99"),
    (f"{RUN} --data media --coverage nan", 2, "--coverage nan is not a share", "--coverage 0.99"),
    (f"{RUN} --data media --coverage text=1", 2, "text=1 is not a share", "image=0.99"),
    (f"{RUN} --data media --coverage 1 --coverage image=1", 2, "--coverage 1 is not a share", ""),
    (f"{RUN} --data media --min-image-pixels 0", 2, "must be at least 1, not 0", ""),
    (f"{RUN} --data media --concurrency 0", 2, "--concurrency must be a number above 0", "16"),
    (f"{RUN} --data media --ram-budget lots", 2, "lots is not a size", "--ram-budget 16GiB"),
    (f"{RUN} --data media --max-model-len -5", 2, "must be at least 1, not -5", ""),
    (f"{RUN} --data media --text-reserve-tokens -1", 2, "must not be negative", ""),
    (f"{RUN} --data media --allowed-local-media-path none", 2, "none is not a folder", ""),
    (f"{RUN} --data media --startup-budget nan", 2, "--startup-budget must be", "--startup"),
    (f"{RUN} --data media --out full", 2, "full is not empty", "--force, or --out another"),
    (f"{RUN} --data media --out a.txt", 2, "a.txt is a file", "--out another folder"),
    (f"{RUN} --data nowhere", 1, "folder not found", "--data DIR"),
    (f"{RUN} --data empty", 1, "folder contains no files", "put media files into it"),
    (f"{RUN} --data texts", 1, "nothing to measure", "--data DIR"),
    (f"{RUN} --data media/*.xyz", 1, "no file matches", "quote the pattern"),
    (f"{RUN} --data @none.txt", 1, "list of paths not found", "@paths.txt"),
    (f"{RUN} --requests none.jsonl", 1, "requests file not found", "--requests FILE"),
    (f"{RUN} --requests media", 1, "a folder", "--data takes a folder"),
    (f"{RUN} --requests bad.jsonl", 1, "bad.jsonl:1: not JSON", '{"messages":'),
    ("run --model gpt-4o --data media", 1, "not bundled", "mmcalib list models"),
    ("run --model Qwen/Qwen2.5-VL-3B --data media", 1, "not a local folder", f"such as {MODEL}"),
    ("run --model qwen2.5-vl-3b --data media", 1, "not a local folder", f"such as {MODEL}"),
    ("run --model qwen/qwen2.5-vl-3b-instuct --data media", 1, "not found", f"such as {MODEL}"),
    ("run --model ./none --data media", 1, "./none is not a folder", "ls ."),
    ("run --model texts --data media", 1, "has no config.json", "config.json, tokenizer"),
    ("check", 2, "nothing to check", "name NEW_DATA"),
    ("check media", 2, "cannot read out/calibration.json", "mmcalib run --model MODEL"),
    ("check media --calibration bad.jsonl", 2, "is not a calibration", "mmcalib run"),
    ("check nowhere --calibration kept", 1, "folder not found", "NEW_DATA"),
    ("run --output x", 2, "no such option: --output", "mmcalib run ... --out ..."),
    ("scan", 2, "nothing to scan", "--data DIR or --requests"),
    ("serve --config none.yaml", 2, "--config none.yaml: no such file", "mmcalib run --model"),
    ("report --calibration kept", 2, "--calibration", "mmcalib report out/calibration.json"),
    ("report nowhere", 2, "cannot read nowhere", "mmcalib run --model MODEL"),
    (
        "report kept --format pdf",
        2,
        "--format pdf is unknown; it takes html, md, text, issue",
        "--format html",
    ),
    (f"rehearse --model {MODEL} --gpu MI300X", 2, "MI300X is not an NVIDIA GPU", "without --gpu"),
    (f"rehearse {ON_L4} --config none.yaml", 2, "no such file", "vllm serve"),
    (f"rehearse {ON_L4} --answer-tokens 7", 2, "--answer-tokens needs", "--requests requests"),
    (f"rehearse {ON_L4} --step-ms 1", 2, "--step-ms needs --rate or", "--rate 2"),
    ("rehearse --gpu L4", 2, "no model given", "--model MODEL"),
    *(
        (
            f"{command} --gpu L4",
            1,
            "3B-Instruct is not a folder on this machine",
            f"--model {MODEL}",
        )
        for command in (
            "plan --model /mnt/Qwen2.5-VL-3B-Instruct",
            "validate --config compose.yaml",
        )
    ),
    (f"plan {ON_L4} --goal fast", 2, "is not a goal", "concurrency>=16"),
    (f"plan {ON_L4} --log none.log", 2, "No such file", "tee server.log"),
    ("validate", 2, "nothing to validate", "mmcalib validate engine.yaml"),
    ("validate --config none.yaml", 2, "no such file", "vllm serve"),
    ("validate --config c.yaml --data nowhere", 1, "nowhere: no such file", "ls ."),
    (f"{RUN} --data media --item-timeout nan", 2, "--item-timeout must be a number", "--item"),
    ("scan --data nope://b/x", 2, "unsupported scheme: nope://", "s3://"),
    ("scan --data tar://a::/b.tar", 2, "cannot list tar://a::/b.tar", "--data /b.tar"),
    (f"plan {ON_L4} --gpu-memory 24GiB --capability 8.9", 2, "exclude each other", "--gpu"),
    (f"rehearse --model {MODEL} --gpu-memory 24GiB", 2, "go together", "--capability X.Y"),
    ("rehearse --gpu L4 --config a --compare a b", 2, "exclude each other", "--co"),
    (f"rehearse {ON_L4} --data .", 2, "--data needs --requests", "mmcalib run"),
    ("rehearse --gpu L4 --requests r --compare a b", 2, "needs one configuration", "--config"),
    ("rehearse --rate 2 --timestamps", 2, "--timestamps exclude each other", "64"),
    ("rehearse --gpu L4 --timestamps", 2, "--timestamps need --requests", "--requests"),
    ("validate --config c.yaml --startup-budget -1", 2, "--startup-budget must be", "--startup"),
    ("validate --config c.yaml --gpu Abacus", 2, "Abacus", "--gpu"),
    ("report kept --data nowhere", 2, "--data nowhere: no such file or folder", "--data"),
    ("report kept --out . --force", 2, "is a folder", "--out"),
    ("report kept --emit toml", 2, "it takes yaml, args, docker", "--emit args"),
    ("run --model m --data x --emit toml", 2, "--emit toml is unknown; it takes", "--emit args"),
    ("report kept --emit args --json", 2, "", "--out engine.args"),
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
def test_a_mistake_is_one_line_and_the_next_thing_to_type(
    typed: str, code: int, says: str, remedy: str, cli, desk: Path
) -> None:
    ended = cli(*typed.split())
    assert ended.code == code
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
    shell = f"{sys.executable} -m mmcalib {words} > /dev/full"
    done = subprocess.run(
        ["bash", "-c", shell], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert ends_well(done.stderr)
    assert done.stderr == "error: cannot write: No space left on device\n  try: df -h\n"


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
