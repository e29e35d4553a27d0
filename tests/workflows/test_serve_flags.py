"""What somebody pastes behind --, from a command for another release, or with the model in it."""

from __future__ import annotations

import pytest

from mmcalib.engine.vllm_config import model_beside, refuse_unknown, refused_flags
from mmcalib.errors import UsageError

OPTIONS = ("max-model-len", "enable-log-requests", "limit-mm-per-prompt")


@pytest.mark.parametrize(
    "pasted",
    [
        "--model a/b --max-model-len 8192",
        "--max-model-len 8192 --model=a/b",
        "a/b --max-model-len 8192",
        "vllm serve a/b --max-model-len 8192",
    ],
)
def test_the_model_may_stand_among_the_flags(pasted: str) -> None:
    flags = pasted.split()
    assert model_beside(None, flags) == ("a/b", ("--max-model-len", "8192"))
    assert model_beside("a/b", flags)[0] == "a/b"
    with pytest.raises(UsageError, match="two models are named: c/d and a/b"):
        model_beside("c/d", flags)


def test_flags_without_a_model_stay_as_they_are() -> None:
    assert model_beside("a/b", ["--served-model-name", "x"]) == (
        "a/b",
        ("--served-model-name", "x"),
    )
    assert model_beside(None, ()) == (None, ())


@pytest.mark.parametrize(
    ("flags", "said", "hint"),
    [
        (
            "--swap-space 4 --disable_log_requests",
            "unrecognized arguments: --swap-space 4 --disable-log-requests",
            "leave out --swap-space, gone since vLLM 0.18.0; "
            "--no-enable-log-requests for --disable-log-requests",
        ),
        (
            "--max-modle-len 8",
            "unrecognized arguments: --max-modle-len 8",
            "--max-model-len for --max-modle-len",
        ),
        (
            "--limit-mm-per-prompt image=4,video=0",
            "argument --limit-mm-per-prompt: Value image=4,video=0 cannot be converted to JSON.",
            """--limit-mm-per-prompt '{"image": 4, "video": 0}'""",
        ),
        ("--dtype x", "argument --dtype: invalid choice: 'x'", "vllm serve --help=all lists them"),
    ],
)
def test_a_refused_flag_has_what_to_type_instead(flags: str, said: str, hint: str) -> None:
    error = refused_flags(said, flags.split(), OPTIONS)
    assert error is not None
    assert error.hint == hint
    assert said in error.message


def test_what_vllm_says_of_the_file_is_not_the_flags() -> None:
    said = "unrecognized arguments: --nonsense 1"
    assert refused_flags(said, ["--max-model-len", "8"], OPTIONS) is None
    assert refused_flags("argument --dtype: invalid", ["--seed", "1"], OPTIONS) is None


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("foo", "vllm serve --help=all lists them, with dashes"),
        ("max_modle_len", "max_model_len"),
        ("swap_space", "leave out --swap-space, gone since vLLM 0.18.0"),
    ],
)
def test_an_argument_that_vllm_has_not_is_the_user_s_mistake(name: str, hint: str) -> None:
    with pytest.raises(UsageError, match=f"has no argument {name}") as error:
        refuse_unknown({"dtype": "auto", name: 1}, ("dtype", "max_model_len"))
    assert error.value.hint == hint
    refuse_unknown({"dtype": "auto"}, ("dtype",))
