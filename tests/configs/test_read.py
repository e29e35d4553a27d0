"""The configuration that a user keeps, in every form, and the same file with tuned values."""

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from mmcalib.configs.read import PLACEHOLDER_MODEL, read_configuration
from mmcalib.errors import UsageError
from mmcalib.results.engine_yaml import serve_words
from tests.configs.test_forms import MODEL, read
from tests.schemas import DATA

LIMIT = '{"image": 2, "video": 0}'
WORDS = ("--max-model-len", "8192", "--limit-mm-per-prompt", LIMIT, "--port", "8000")
# What vLLM reads in these words, and what mmcalib would have instead.
READ = {"max_model_len": 8192, "limit_mm_per_prompt": {"image": 2, "video": 0}, "port": 8000}
TUNED = {
    "model": MODEL,
    "limit_mm_per_prompt": {"image": 4, "video": 1},
    "mm_processor_kwargs": {"videos_kwargs": {"size": {"longest_edge": 937664}}},
    "max_model_len": 8192,
    "max_num_batched_tokens": 2048,
}

# One configuration in every form.
FORMS = {path.name: path.read_text() for path in sorted((DATA / "configs").iterdir())}
COMPOSE, SHELL = FORMS["compose.yaml"], FORMS["serve.sh"]


def pairs(words: tuple[str, ...]) -> dict[str, Any]:
    """Options with their values, JSON as what it says."""
    return {words[n]: yaml.safe_load(words[n + 1]) for n in range(0, len(words), 2)}


def test_a_file_of_powershell_is_read_as_the_same_in_utf_8(tmp_path: Path) -> None:
    (tmp_path / "serve.sh").write_text(SHELL, encoding="utf-16")
    assert read_configuration(tmp_path / "serve.sh").model == MODEL


@pytest.mark.parametrize("name", [n for n in FORMS if n != "quoted.yaml"])
def test_tuned_values_go_into_the_file_and_nothing_else_moves(tmp_path: Path, name: str) -> None:
    found = read(tmp_path, name, FORMS[name])
    assert (found.model, found.config, pairs(found.file_flags)) == (MODEL, None, pairs(WORDS))
    again = read(tmp_path, name, found.tune_text(TUNED, READ))
    assert again.model == MODEL
    expected = tuple(serve_words({k: v for k, v in TUNED.items() if k != "model"}))
    assert pairs(again.file_flags) == {**pairs(expected), "--port": 8000}
    removed = [line for line in found.diff(TUNED, READ).splitlines() if line[:1] == "-"][1:]
    assert removed
    assert all("limit" in line or LIMIT in line or "8000" in line for line in removed)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "compose.yaml",
            COMPOSE.replace("{LENGTH: 8192}", "{LENGTH: 8192, VLLM_API_KEY: a, VLLM_PLUGINS: b}"),
        ),
        ("serve.sh", f"export VLLM_API_KEY=a\nVLLM_PLUGINS=b {SHELL[SHELL.index('vllm') :]}"),
    ],
)
def test_variables_of_vllm_that_only_the_server_has_are_named(tmp_path, name, text: str) -> None:
    found = read(tmp_path, name, text)
    (note,) = found.notes({"VLLM_API_KEY": "a"})
    assert note == f"{tmp_path / name} sets VLLM_PLUGINS: export the same here to apply them"
    assert not list(found.notes({"VLLM_API_KEY": "a", "VLLM_PLUGINS": ""}))


def test_a_diff_of_a_deployment_is_of_its_lines(tmp_path: Path) -> None:
    found = read(tmp_path, "deployment.yaml", FORMS["deployment.yaml"]).diff(TUNED, READ)
    assert [line for line in found.splitlines() if line[0] in "+-"][2:] == [
        f"-        - '{LIMIT}'",
        """+        - '{"image": 4, "video": 1}'""",
        "+        - --mm-processor-kwargs",
        """+        - '{"videos_kwargs": {"size": {"longest_edge": 937664}}}'""",
        "+        - --max-num-batched-tokens",
        "+        - '2048'",
    ]


@pytest.mark.parametrize("dtype", ["", "dtype: auto\n", "dtype: bfloat16\n"])
def test_vllm_s_own_file_with_a_dtype_is_no_chart(tmp_path: Path, dtype: str) -> None:
    text = f"model: {MODEL}\n{dtype}max-model-len: 8192\nmax-num-seqs: 4\n"
    found = read(tmp_path, "engine.yaml", text)
    assert found.settings == yaml.safe_load(text)
    assert (found.config, found.file_flags) == (tmp_path / "engine.yaml", ())


def test_vllm_s_own_file_keeps_its_comments(tmp_path: Path) -> None:
    text = (
        f"# ours\nmodel: {MODEL}\nlimit-mm-per-prompt: {{image: 2, video: 0}}\n"
        "mm-processor-cache-gb: 0\nmax-model-len: 8192  # the longest\n# the end\nport: 8000\n"
        "gpu-memory-utilization: 0.92\n"
    )
    found = read(tmp_path, "engine.yaml", text)
    assert (found.model, found.model_name, found.config) == (None, MODEL, tmp_path / "engine.yaml")
    values = {"mm_processor_cache_gb": 0, "gpu_memory_utilization": 0.92}
    tuned = found.tune_text(TUNED, {**READ, **values})
    assert tuned.startswith("# ours\nmodel: ")
    assert "max-model-len: 8192  # the longest\n# the end\nport: 8000\n" in tuned
    assert yaml.safe_load(tuned) == {
        **{name.replace("_", "-"): value for name, value in TUNED.items()},
        "port": 8000,
        "gpu-memory-utilization": 0.92,
    }


def test_a_pasted_command_is_read_and_shown_an_option_a_line() -> None:
    pasted = shlex.split(f"vllm serve {MODEL} --max-model-len 8192 --limit-mm-per-prompt.image 2")
    found = read_configuration(None, pasted)
    assert (found.model, found.source) == (MODEL, None)
    assert found.flags == ("--max-model-len", "8192", "--limit-mm-per-prompt.image", "2")
    diff = found.diff(TUNED, {"max_model_len": 8192, "limit_mm_per_prompt": {"image": 2}})
    assert [line for line in diff.splitlines() if line[0] in "+-"][2:] == [
        "-    --limit-mm-per-prompt.image 2",
        """+    --limit-mm-per-prompt '{"image": 4, "video": 1}' \\""",
        """+    --mm-processor-kwargs '{"videos_kwargs": {"size": {"longest_edge": 937664}}}' \\""",
        "+    --max-num-batched-tokens 2048",
    ]


def test_a_file_may_be_the_first_word_and_the_user_s_words_win(tmp_path: Path) -> None:
    file = tmp_path / "deployment.yaml"
    file.write_text(FORMS["deployment.yaml"])
    found = read_configuration(None, [str(file), "--max-num-seqs", "4"], "other/model")
    assert (found.source, found.model) == (file, "other/model")
    assert found.parse_request.flags == ("other/model", "--max-num-seqs", "4")
    assert found.parse_request.file_flags == found.file_flags
    assert read_configuration(None).parse_request.flags == (PLACEHOLDER_MODEL,)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind: ConfigMap\ndata: {a: b}\n", "no container"),
        ("services: {web: {image: nginx}}\n", "no container"),
        (
            "kind: Pod\nspec: {containers: [{command: [vllm, serve, --config, /etc/e.yaml]}]}\n",
            "another --config file on line 2\n.*mmcalib ... -- --config /etc/e.yaml",
        ),
        (
            "kind: Pod\nspec: {containers: [{command: [vllm, serve, a/b]}, "
            "{command: [vllm, serve, c/d]}]}\n",
            r"2 commands that start vLLM: line 2 \(a/b\), line 2 \(c/d\)\n.*a line of its own",
        ),
    ],
)
def test_what_starts_no_vllm_or_two_is_said(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read(tmp_path, "a.yaml", text)


def test_words_that_yaml_escapes_are_shown_as_a_command(tmp_path: Path) -> None:
    diff = read(tmp_path, "quoted.yaml", FORMS["quoted.yaml"]).diff(TUNED, READ).splitlines()
    assert diff[0] == "--- vllm serve\tyours"
    assert f"-    --limit-mm-per-prompt '{LIMIT}' \\" in diff
    assert """+    --limit-mm-per-prompt '{"image": 4, "video": 1}' \\""" in diff


def test_a_chart_without_arguments_gets_a_list(tmp_path: Path) -> None:
    text = FORMS["values.yaml"]
    text = text[: text.index("      extraArgs")]
    found = read(tmp_path, "values.yaml", text)
    assert found.file_flags == ("--max-model-len", "8192")
    again = read(tmp_path, "values.yaml", found.tune_text({**TUNED, "max_model_len": 4096}, READ))
    assert again.file_flags[:2] == ("--max-model-len", "4096")
    assert pairs(again.file_flags)["--max-num-batched-tokens"] == 2048


def test_a_pasted_command_may_name_a_file_of_vllm_s_own(tmp_path: Path) -> None:
    file = tmp_path / "engine.yaml"
    file.write_text(f"model: {MODEL}\nmax-model-len: 8192\n")
    found = read_configuration(None, ["vllm", "serve", "--config", str(file), "--port", "8000"])
    assert (found.config, found.model_name, found.flags) == (file, MODEL, ("--port", "8000"))
