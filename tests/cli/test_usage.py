"""What goes wrong before the engine: one line, one hint, the right exit code, nothing destroyed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmcalib.cli.output import gpu_that_serves
from mmcalib.derive.policy import TEXT_RESERVE_TOKENS
from mmcalib.errors import MmcalibError, UsageError
from mmcalib.options.option import options_of
from mmcalib.options.run import RunOptions
from mmcalib.options.validation import policy_of
from mmcalib.workflows.run.job import Job

MODEL = "Qwen/Qwen2.5-VL-3B-Instruct"


def is_one_error(err: str) -> bool:
    """`error: …`, then perhaps `  try: …`, and nothing else."""
    lines = err.splitlines()
    return (
        lines[-1 if len(lines) == 1 else -2].startswith("error: ")
        and (len(lines) == 1 or lines[-1].startswith("  try: "))
        and "Traceback" not in err
    )


@pytest.mark.parametrize(
    ("words", "says", "hint"),
    [
        (["--count", "image"], "--count image: not a modality and a number", "--count image=4"),
        (["--count", "image=x"], "--count image=x", "--count image=4"),
        (["--count", "image=-1"], "--count image=-1", "--count image=4"),
        (["--count", "pictures=1"], "--count pictures=1", "--count image=4"),
        (["--count", "=1"], "--count =1", "--count image=4"),
        (["--prefer", "speed"], "--prefer speed: no such choice", "one of quality, throughput"),
        (["--validate", "all"], "--validate all: no such choice", "one of none, budget, startup"),
        (["--coverage", "0"], "--coverage 0.0 is not a share", "--coverage 0.99"),
        (["--coverage", "1.01"], "--coverage 1.01 is not a share", "--coverage 0.99"),
        (["--coverage", "-1"], "--coverage -1.0 is not a share", "--coverage 0.99"),
        (["--coverage", "nan"], "--coverage nan is not a share", "--coverage 0.99"),
        (["--coverage", "most"], "--coverage most is not a share", "image=0.99"),
        (["--coverage", "text=1"], "--coverage text=1 is not a share", "image=0.99"),
        (["--coverage", "1", "--coverage", "image=1"], "--coverage 1 is not a share", ""),
        (["--max-model-len", "short"], "--max-model-len short is no number", "or fit"),
        (["--min-image-pixels", "0"], "--min-image-pixels must be at least 1, not 0", ""),
        (["--concurrency", "0"], "--concurrency must be a number above 0", "16"),
        (["--concurrency", "4"], "--concurrency needs --gpu", "--gpu L4"),
        (["--device", "gpu"], "--device gpu: no such choice", "one of cpu, cuda"),
        (["--ram-budget", "lots"], "--ram-budget lots: not a size", "--ram-budget 16GiB"),
        (["--max-tokens-per-item", "0"], "--max-tokens-per-item must be at least 1, not 0", ""),
        (["--max-model-len", "-5"], "--max-model-len must be at least 1, not -5", ""),
        (["--max-num-batched-tokens", "0"], "--max-num-batched-tokens must be at least 1", ""),
        (["--text-reserve-tokens", "-1"], "--text-reserve-tokens must not be negative", ""),
        (["--sample", "0"], "--sample must be at least 1", ""),
        (["--allowed-local-media-path", "none"], "none is not a folder", ""),
    ],
)
def test_a_wrong_option_is_a_usage_error(words, says: str, hint: str, cli, media, tmp_path) -> None:
    ended = cli("run", "--model", MODEL, "--data", media, "--out", "out", *words)
    assert (ended.code, ended.out) == (2, "")
    assert is_one_error(ended.err)
    assert says in ended.err
    assert hint in ended.err
    assert not (tmp_path / "out").exists(), "nothing is made before the words are understood"


@pytest.mark.parametrize("seconds", ["-1", "nan"])
def test_a_startup_budget_is_a_time(seconds: str) -> None:
    with pytest.raises(UsageError):
        asked(startup_budget_s=float(seconds))


def asked(**said: object) -> RunOptions:
    """As the command line gives them to `mmcalib run`: every option, most of them with nothing."""
    silent = {field.name: field.default for field in options_of(RunOptions)}
    return RunOptions.of_words({**silent, "model": MODEL, "data": ["media"], **said})


def job_of(**said: object) -> Job:
    options = asked(**said)
    return Job.of(options, gpu=gpu_that_serves(options.gpu))


def test_the_words_arrive_in_the_job() -> None:
    job = job_of(count=["image=4", "video=0"], max_num_batched_tokens=3)
    assert (job.model, job.data, job.validate) == (MODEL, ("media",), "replay")
    assert job.policy.count == {"image": 4, "video": 0}
    assert (job.policy.max_num_batched_tokens, job.policy.max_model_len) == (3, None)
    assert job.policy.text_reserve_tokens == TEXT_RESERVE_TOKENS


def test_a_reserve_of_nothing_is_not_the_default() -> None:
    assert policy_of(asked(text_reserve_tokens=0)).text_reserve_tokens == 0


def test_data_or_requests_are_needed(cli) -> None:
    ended = cli("run", "--model", MODEL)
    assert ended.code == 2
    assert ended.err == (
        "error: nothing to calibrate for\n  try: --data DIR or --requests FILE.jsonl\n"
    )


@pytest.mark.parametrize(
    "words",
    [["run"], ["run", "--modle", "x"], ["walk"], ["run", "--model", "x", "--sample", "many"]],
)
def test_what_the_parser_refuses_is_a_usage_error_too(words: list[str], cli) -> None:
    ended = cli(*words)
    assert (ended.code, ended.out) == (2, "")
    assert "Traceback" not in ended.err


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


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_a_file_is_no_folder_for_results(force: list[str], cli, media, tmp_path) -> None:
    (tmp_path / "out").write_text("mine")
    ended = cli("run", "--model", MODEL, "--data", media, "--out", "out", *force)
    assert ended.code == 2
    assert ended.err.startswith("error: --out out is a file\n")
    assert (tmp_path / "out").read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_an_error(cli, media, tmp_path) -> None:
    (tmp_path / "file").write_text("x")
    ended = cli("run", "--model", MODEL, "--data", media, "--out", "file/out")
    assert ended.code == 1
    assert ended.err.startswith("error: cannot write to --out file/out\n")


@pytest.mark.usefixtures("ordinary_user")
def test_a_folder_that_cannot_be_written_is_an_error(cli, media, tmp_path) -> None:
    (tmp_path / "out").mkdir(mode=0o500)
    ended = cli("run", "--model", MODEL, "--data", media, "--out", "out")
    assert (ended.code, "cannot write to --out out" in ended.err) == (1, True)


def test_a_name_too_long_for_a_folder_is_an_error(cli, media) -> None:
    ended = cli("run", "--model", MODEL, "--data", media, "--out", "x" * 300)
    assert is_one_error(ended.err)


@pytest.mark.parametrize(
    ("data", "says"),
    [("nowhere", "no such folder: "), ("empty", "no files in folder: "), ("text", "no image, ")],
)
def test_no_media_is_an_error_that_destroys_nothing(data: str, says: str, cli, tmp_path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("words")
    old = results(tmp_path / "out")
    ended = cli("run", "--model", MODEL, "--data", data, "--out", "out", "--force", "--quiet")
    assert (ended.code, ended.out) == (1, "")
    assert is_one_error(ended.err)
    assert says in ended.err
    assert "try: --data DIR" in ended.err
    assert held(tmp_path / "out") == old


def request(url: str) -> str:
    content = [{"type": "image_url", "image_url": {"url": url}}]
    return json.dumps({"messages": [{"role": "user", "content": content}]}) + "\n"


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
    assert is_one_error(ended.err)
    assert "r.jsonl:1: " in ended.err
    assert ended.err.endswith("  try: --allowed-local-media-path DIR\n")
    assert held(tmp_path / "out") == old


def test_an_unknown_model_is_an_error_that_destroys_nothing(cli, media, tmp_path) -> None:
    old = results(tmp_path / "out")
    ended = cli(
        "run", "--model", "no/such-model", "--data", media, "--out", "out", "--force", "--quiet"
    )
    assert ended.code == 1
    assert is_one_error(ended.err)
    assert "no/such-model is not a local folder" in ended.err
    assert "try: mmcalib list models" in ended.err
    assert held(tmp_path / "out") == old


def test_a_hostile_name_in_an_error_stays_on_its_line(cli) -> None:
    ended = cli("run", "--model", MODEL, "--data", "a\nb\x1b[31m", "--quiet")
    assert ended.code == 1
    assert is_one_error(ended.err)
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
