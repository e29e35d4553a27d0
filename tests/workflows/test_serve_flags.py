"""Flags pasted behind --, from a command for another release, or with the model in it."""

import json
import shlex

import pytest

from mmcalib.configs.commands import split_model
from mmcalib.configs.opening import reject_unknown_arguments, rejected_flags_error
from mmcalib.configs.read import read_configuration
from mmcalib.errors import UsageError
from tests.builders import some

OPTIONS = ("max-model-len", "enable-log-requests", "limit-mm-per-prompt")


@pytest.mark.parametrize(
    "pasted",
    [
        "--model a/b --max-model-len 8192",
        "--max-model-len 8192 --model=a/b",
        "a/b --max-model-len 8192",
    ],
)
def test_the_model_may_stand_among_the_flags(pasted: str) -> None:
    flags = pasted.split()
    assert split_model(None, flags) == ("a/b", ("--max-model-len", "8192"))
    assert split_model("a/b", flags)[0] == "a/b"
    with pytest.raises(UsageError, match="two different models: c/d and a/b"):
        split_model("c/d", flags)


@pytest.mark.parametrize(
    "pasted",
    [
        "vllm serve a/b --seed 1",
        "python3.11 -m vllm.entrypoints.openai.api_server --model a/b --seed 1",
        "python -m vllm.entrypoints.cli.main serve a/b --seed 1",
        "CUDA_VISIBLE_DEVICES=0,1 VLLM_USE_V1=1 vllm serve a/b --seed 1",
        "HF_HOME=/x a/b --seed 1",
        "sudo -E env A=1 nohup /opt/bin/vllm serve a/b --seed 1",
        "uv run --with vllm -- vllm serve a/b --seed 1",
        "docker run --gpus all -v ~/vllm:/root/vllm -p 8000:8000 --rm vllm/vllm-openai:v0.32.0"
        " --model a/b --seed 1",
        "sudo docker run -it --name vllm --entrypoint vllm r.example:5/vllm@sha256:ab serve a/b"
        " --seed 1",
        "podman run --ipc=host image vllm serve a/b --seed 1",
        "vllm serve a/b '\\' --seed 1 '\n'",
        "'A=1 vllm serve a/b \\ \n  --seed 1 2>&1 | tee server.log'",
    ],
)
def test_a_pasted_command_is_the_flags_of_its_server(pasted: str) -> None:
    found = read_configuration(None, shlex.split(pasted))
    assert (found.model, found.flags) == ("a/b", ("--seed", "1"))


@pytest.mark.parametrize(
    "pasted", ["python serve.py --seed 1", "docker run ours --seed 1", "vllm bench serve"]
)
def test_a_command_that_starts_no_server_is_one_line(pasted: str) -> None:
    with pytest.raises(UsageError, match="does not start vllm serve") as error:
        read_configuration(None, pasted.split())
    assert "type only the flags of vllm serve" in error.value.hint


@pytest.mark.parametrize(
    ("flags", "value"),
    [
        (["--mm-processor-kwargs", "{max_pixels:1000000}"], {"max_pixels": 1_000_000}),
        (["--limit-mm-per-prompt", "image=2", "video=0", "--seed"], {"image": 2, "video": 0}),
        (["--limit_mm_per_prompt=image:2,", "video:0"], {"image": 2, "video": 0}),
        (
            ["--hf-overrides", "'{a: {b: yarn, c: 4.0, d: [true]}}'"],
            {"a": {"b": "yarn", "c": 4.0, "d": [True]}},
        ),
    ],
)
def test_json_whose_quotes_a_shell_took_has_them_again(flags: list[str], value) -> None:
    option = flags[0].partition("=")[0].replace("_", "-")
    said = f"argument {option}: Value ... cannot be converted to JSON."
    error = some(rejected_flags_error(said, flags, OPTIONS))
    assert shlex.split(error.hint or "") == [option, json.dumps(value)]


def test_flags_without_a_model_stay_as_they_are() -> None:
    assert split_model("a/b", ["--served-model-name", "x"]) == ("a/b", ("--served-model-name", "x"))
    assert split_model(None, ()) == (None, ())


@pytest.mark.parametrize(
    ("flags", "said", "hint"),
    [
        (
            "--swap-space 4 --disable_log_requests",
            "unrecognized arguments: --swap-space 4 --disable-log-requests",
            "leave out --swap-space, removed in vLLM 0.18.0; "
            "--no-enable-log-requests for --disable-log-requests",
        ),
        (
            "--max-modle-len 8",
            "unrecognized arguments: --max-modle-len 8",
            "--max-model-len for --max-modle-len",
        ),
        (
            "--rope-scaling {}",
            "unrecognized arguments: --rope-scaling {}",
            """--hf-overrides '{"rope_parameters": {...}}' for --rope-scaling""",
        ),
        (
            "--limit-mm-per-prompt image=4,video=0",
            "argument --limit-mm-per-prompt: Value image=4,video=0 cannot be converted to JSON.",
            """--limit-mm-per-prompt '{"image": 4, "video": 0}'""",
        ),
        ("--dtype x", "argument --dtype: invalid choice: 'x'", "vllm serve --help=all"),
    ],
)
def test_a_refused_flag_has_what_to_type_instead(flags: str, said: str, hint: str) -> None:
    error = some(rejected_flags_error(said, flags.split(), OPTIONS))
    assert error.hint == hint
    assert said in error.message


def test_what_vllm_says_of_the_file_is_not_the_flags() -> None:
    said = "unrecognized arguments: --nonsense 1"
    assert rejected_flags_error(said, ["--max-model-len", "8"], OPTIONS) is None
    assert rejected_flags_error("argument --dtype: invalid", ["--seed", "1"], OPTIONS) is None


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("foo", "vllm serve --help=all (write its options with underscores)"),
        ("max_modle_len", "max_model_len"),
        ("swap_space", "leave out --swap-space, removed in vLLM 0.18.0"),
    ],
)
def test_an_argument_that_vllm_has_not_is_the_user_s_mistake(name: str, hint: str) -> None:
    with pytest.raises(UsageError, match=f"has no argument {name}") as error:
        reject_unknown_arguments({"dtype": "auto", name: 1}, ("dtype", "max_model_len"))
    assert error.value.hint == hint
    reject_unknown_arguments({"dtype": "auto"}, ("dtype",))
