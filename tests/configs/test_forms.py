"""Scripts, programs and files of several servers: what is read, and what is named instead."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from mmcalib.configs.read import WrittenConfiguration, read_configuration
from mmcalib.errors import UsageError
from tests.schemas import DATA

MODEL = "Qwen/Qwen2.5-VL-3B-Instruct"
LARGER = "Qwen/Qwen2.5-VL-7B-Instruct"
LENGTH = "--max-model-len 8192"
DESCRIBED: dict[str, dict[str, Any]] = yaml.safe_load((DATA / "scripts.yaml").read_text("utf-8"))
SCRIPTS, SEVERAL = DESCRIBED["scripts"], DESCRIBED["several"]
COMPOSE, PROGRAM = (SEVERAL[name]["text"] for name in ("compose.yaml", "offline.py"))


def read(folder: Path, name: str, text: str, choice: str = "") -> WrittenConfiguration:
    (folder / name).write_text(text)
    return read_configuration(folder / f"{name}{choice}")


def heard(folder: Path, name: str, text: str, choice: str = "") -> tuple[str, list[str]]:
    """The flags of a server of `MODEL`, and the notes on what is not read."""
    found = read(folder, name, text, choice)
    assert found.model == MODEL
    return " ".join(found.file_flags), [*map(str, found.unread)]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_read_as_bash_reads_it(tmp_path: Path, name: str) -> None:
    script = SCRIPTS[name]
    assert heard(tmp_path, "start", script["text"]) == (LENGTH, script.get("notes", []))


@pytest.mark.parametrize("name", SEVERAL)
def test_several_servers_are_a_question(tmp_path: Path, name: str) -> None:
    text, listed, choice = SEVERAL[name].values()
    with pytest.raises(UsageError) as asked:
        read(tmp_path, name, text)
    assert f"has 2 commands that start vLLM: {listed}" in asked.value.message
    assert asked.value.hint == f"choose one: --config {tmp_path / name}{choice}"
    with pytest.raises(UsageError, match=f"has no command :99, but: {listed[:4]}"):
        read(tmp_path, name, text, ":99")


def test_what_compose_fills_in_is_named(tmp_path: Path) -> None:
    command = f"[--model, '${{M:-{MODEL}}}', --dtype, '${{D}}', --seed, '${{S:?}}', --port, $P]"
    text = f"services: {{v: {{image: ours, command: {command}, environment: [P=1]}}}}\n"
    assert heard(tmp_path, "compose.yaml", text) == (
        "",
        [
            "line 1: --dtype is left out: ${D} is not set in the file",
            "line 1: --seed is left out: ${S:?} is not set in the file",
            "line 1: --port is left out: $P is not set in the file",
        ],
    )


def test_compose_splits_a_command_without_comments_or_variables_of_a_shell(tmp_path: Path) -> None:
    command = f">\n      --model {MODEL} --seed $$S\n      # --dtype half\n      sh -c 'a # b'"
    text = f"services:\n  v:\n    image: vllm/vllm-openai\n    command: {command}\n"
    found = read(tmp_path, "compose.yaml", text)
    assert found.model == MODEL
    assert found.file_flags == ("--seed", "$S", "#", "--dtype", "half", "sh", "-c", "a # b")


def test_what_a_compose_service_takes_from_elsewhere_is_named(tmp_path: Path) -> None:
    own = f"extends: base, env_file: .env, command: [--model, {MODEL}]"
    text = f"services: {{base: {{environment: [S=1]}}, v: {{{own}}}}}\n"
    notes = ["line 1: env_file is not read", "line 1: extends is not read"]
    assert heard(tmp_path, "compose.yaml", text) == ("", notes)


def test_what_a_chart_or_kserve_adds_is_named(tmp_path: Path) -> None:
    text = f"""\
modelArtifacts: {{uri: "hf://{MODEL}"}}
decode:
  parallelism: {{tensor: 2}}
  containers:
  - {{image: vllm, args: [--enforce-eager, true, --seed, "1", --port, "{{{{ .p }}}}"], envFrom: []}}
"""
    assert heard(tmp_path, "values.yaml", text) == (
        "--seed 1",
        [
            "line 3: parallelism is not read",
            "line 5: envFrom is not read",
            "line 5: --enforce-eager is left out: true is no text",
            "line 5: --port is left out: {{ .p }} is not filled in",
        ],
    )
    served = f"{{modelFormat: {{}}, runtime: v, args: [--model, {MODEL}]}}"
    text = f"kind: A\nspec: {{model: {served}}}\n"
    assert heard(tmp_path, "a.yaml", text) == ("", ["line 2: runtime is not read"])


@pytest.mark.parametrize(
    ("name", "choice"),
    [("compose.yaml", "#vllm"), ("calls.sh", ":2"), ("branches.sh", ":4"), ("README.md", ":6")],
)
def test_the_answer_chooses_one(tmp_path: Path, name: str, choice: str) -> None:
    assert heard(tmp_path, name, SEVERAL[name]["text"], choice) == (LENGTH, [])


@pytest.mark.engine
def test_the_release_of_an_image_is_compared_with_the_installed_one(tmp_path: Path) -> None:
    (note,) = read(tmp_path, "compose.yaml", COMPOSE, "#vllm").notes({})
    assert "compose.yaml#vllm is from vLLM 0.31.0; mmcalib runs vLLM " in note
    found = read(tmp_path, "serve.sh", f"export VLLM_OTHER=1\nvllm serve {MODEL}\n")
    assert next(found.notes({})).endswith("VLLM_OTHER, which the installed vLLM does not read")


@pytest.mark.parametrize(
    "image",
    [
        "image: 'vllm/vllm-openai:${TAG:-v0.31.0}'",
        'repository: "vllm/vllm-openai"\n  tag: "v0.31.0"',
        "image: {repository: vllm/vllm-openai, tag: v0.31.0}",
        "image: lmcache/vllm-openai:v0.3.9\n  init: vllm/vllm-openai:v0.31.0",
    ],
)
def test_the_release_of_an_image_is_read(tmp_path: Path, image: str) -> None:
    text = f"v:\n  {image}\n  modelURL: {MODEL}\n  args: [--seed, '1']\n"
    assert read(tmp_path, "values.yaml", text).releases == ("0.31.0",)


def test_a_program_is_read_without_running_it(tmp_path: Path) -> None:
    assert heard(tmp_path, "offline.py", PROGRAM, ":4") == (
        f"{LENGTH} --seed 16",
        [
            "line 4: limit_mm_per_prompt is left out: LIMIT is known only when it runs",
            "line 4: max_num_batched_tokens is read as vllm serve's default, not LLM's",
        ],
    )
    second = read(tmp_path, "offline.py", PROGRAM, ":5")
    assert (second.model, second.file_flags) == (LARGER, ("--enforce-eager",))


def test_a_list_of_words_is_a_command(tmp_path: Path) -> None:
    text = f"""\
MODEL, PORT = "{MODEL}", 8000
LIMIT = ["--limit-mm-per-prompt"]
def serve():
    command = ["sleep"]; command += ["1"]
    command: list[str] = ["vllm", "serve", "--uvicorn-log-level=info", "{MODEL}"]
    command += ["--port", str(2**13), "--seed", f"{{1}}{{2}}", "--max-num-seqs", str(SEQUENCES)]
    command.extend([*LIMIT, json.dumps({{"image": 2}})])
    if SEQUENCES:
        command.append("--enforce-eager")
    subprocess.Popen(command)
def stop():
    command = ["sleep"]; command.append("1")
"""
    assert heard(tmp_path, "a.py", text) == (
        '--uvicorn-log-level=info --port 8192 --seed 12 --limit-mm-per-prompt {"image": 2}',
        [
            "line 9: command.append('--enforce-eager') is not read",
            "line 6: --max-num-seqs is left out: SEQUENCES is known only when it runs",
        ],
    )


@pytest.mark.parametrize(
    "program",
    [
        f"base = ['vllm', 'serve', '{MODEL}']\nrun([*base, *['--max-model-len', '8192']])",
        f"base = ['vllm', 'serve', '{MODEL}']\nrun(base + ['--max-model-len', '8' + '192'])",
        f"a = ['vllm', 'serve', '{MODEL}']\na = a + ['--max-model-len']\na += ['8192']\nrun(a)",
        f"N = 8192\nos.system(f'vllm serve {MODEL} --max-model-len {{N}} 2>&1 | tee log')",
        f"words = 'vllm serve {MODEL} {LENGTH}'.split()",
        f"run(['vllm', 'serve', os.getenv('M', '{MODEL}'), '--max-model-len', '8192'])",
    ],
)
def test_lists_that_are_joined_and_texts_for_a_shell(tmp_path: Path, program: str) -> None:
    assert heard(tmp_path, "a.py", program) == (LENGTH, [])


@pytest.mark.parametrize("change", ["a[2] = 'b'", "a.insert(3, '--seed')", "del a[2]"])
def test_another_change_of_a_list_is_named(tmp_path: Path, change: str) -> None:
    text = f"a = ['vllm', 'serve', '{MODEL}', '--max-model-len', '8192']\n{change}\nrun(a)"
    assert heard(tmp_path, "a.py", text)[1] == [f"line 2: {change} is not read"]


def test_an_option_that_an_unread_change_names_is_left_out(tmp_path: Path) -> None:
    text = f"a = ['vllm', 'serve', '{MODEL}', '--seed', '1', '--port', '2']\n"
    text += "def quiet(w): w += ['--disable-log-stats']\ndef show(words): print(words)\n"
    text += "b = a\nb[b.index('--seed') + 1] = '3'\nquiet(a)\nshow(a)\nrun(a)"
    assert heard(tmp_path, "a.py", text) == (
        "--port 2",
        [
            "line 5: b[b.index('--seed') + 1] = '3' is not read",
            "line 6: quiet(a) is not read",
            "line 1: --seed is left out: it is changed",
        ],
    )


def test_why_no_model_is_given_is_said(tmp_path: Path) -> None:
    error = read(tmp_path, "a.sh", "set -a\nvllm serve $M --seed $S\n").no_model_error()
    why = "line 2: the model is left out: $M is not set in the file"
    assert error.message == f"no model given: {why}"


def test_an_argument_that_is_set_again_is_left_out(tmp_path: Path) -> None:
    text = f"import vllm as v\na = v.EngineArgs('{MODEL}', seed=1, port=1)\na.seed = 2\n"
    notes = [
        "line 3: seed is left out: it is set again here",
        "line 4: port is left out: it is set again here",
    ]
    assert heard(tmp_path, "a.py", f"{text}b = dataclasses.replace(a, port=2)\n") == ("", notes)


@pytest.mark.parametrize("option", ["", "--port=1 ", "--no-enable-prefix-caching "])
def test_the_model_may_follow_an_option(tmp_path: Path, option: str) -> None:
    text = f"vllm serve {option}{MODEL} --seed 1\n"
    assert heard(tmp_path, "a.sh", text) == (f"{option}--seed 1", [])


def test_constants_of_a_program_are_computed(tmp_path: Path) -> None:
    text = f"""\
from vllm import EngineArgs
BASE = {{"max_model_len": 8 * 1024, "limit_mm_per_prompt": dict(image=2**2)}}
cfg = {{**BASE, "model": "{MODEL}", "seed": 1}}
cfg["seed"] = 1 << 4
same = cfg
same.update({{"port": -2}}, max_num_seqs=9 // 2, enforce_eager=True)
cfg.pop("enforce_eager")
if BASE:
    cfg["dtype"] = "half"
cfg["block_size"] = 2 ** 10**9
EngineArgs(**cfg)
cfg["revision"] = "main"
"""
    known = "is known only when it runs"
    assert heard(tmp_path, "a.py", text) == (
        f'{LENGTH} --limit-mm-per-prompt {{"image": 4}} --seed 16 --port=-2 --max-num-seqs 4',
        [
            f"line 11: enforce_eager is left out: cfg.pop('enforce_eager') {known}",
            f"line 11: dtype is left out: 'half' if ... else ... {known}",
            f"line 11: block_size is left out: 2 ** 10 ** 9 {known}",
            f"line 11: revision is left out: 'main' if ... else ... {known}",
        ],
    )


def test_only_exported_variables_are_the_server_s(tmp_path: Path) -> None:
    text = f"VLLM_KEY_FOR_CLIENTS=EMPTY\nvllm serve {MODEL} --api-key $VLLM_KEY_FOR_CLIENTS\n"
    found = read(tmp_path, "serve.sh", text)
    assert (found.file_flags, found.environment) == (("--api-key", "EMPTY"), ())
    assert read(tmp_path, "serve.sh", f"export {text}").environment == ("VLLM_KEY_FOR_CLIENTS",)


@pytest.mark.parametrize("name", ["start", "train.py", "page.md", "Dockerfile", "Containerfile"])
def test_a_file_in_no_form_is_one_line(tmp_path: Path, name: str) -> None:
    words = {"Dockerfile": '["vllm", "serve", 1]', "Containerfile": '["./start.sh", "--seed", "1"]'}
    text = f"FROM python:3.12\nCMD {words[name]}\n" if name in words else "import os\n"
    with pytest.raises(UsageError) as refused:
        read(tmp_path, name, text)
    what = "command that starts vLLM" if name in words else ""
    assert refused.value.message.startswith(f"--config {tmp_path / name} has no {what}")


@pytest.mark.engine
@pytest.mark.parametrize(
    "text",
    [
        "envs: {M: a/b}\nresources: {ports: 80}\nname: v\n",
        "- envs: [vllm]\n  resources: 1\n",
        '{"envs": {"SM_VLLM_MODEL": "a/b"}, "resources": 1}',
    ],
)
def test_yaml_of_another_program_is_no_configuration(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="is not vLLM's YAML: it has `envs`, `resources`"):
        read(tmp_path, "a.yaml", text)
    kept = "hf-overrides: {a: 1}\nlora-modules: [{name: a}]\nof_another_release: {a: 1}\n"
    assert len(read(tmp_path, "a.yaml", kept).settings) == 3


def test_windows_line_endings_of_a_script_are_named(tmp_path: Path) -> None:
    found = read(tmp_path, "a.sh", f"#!/bin/sh\r\nvllm serve \\\r\n  {MODEL}\r\n")
    assert found.unread == ((1, "no shell starts a script with Windows' line endings", ""),)


def test_an_item_of_several_words_is_named(tmp_path: Path) -> None:
    text = f"image: vllm/vllm-openai\nargs: [--model, {MODEL}, --max-num-seqs 8]\n"
    found = read(tmp_path, "a.yaml", f"kind: Pod\n{text}")
    assert found.unread == ((3, "--max-num-seqs 8 is one word, not several", ""),)


@pytest.mark.parametrize(("name", "said"), [("a.ipynb", "is a notebook"), ("a.hcl", "has no form")])
def test_a_form_that_is_not_read_is_named(tmp_path: Path, name: str, said: str) -> None:
    text = f'job "a" {{\n  args = ["-c", "vllm serve {MODEL} {LENGTH}"]\n}}\n'
    with pytest.raises(UsageError, match=said):
        read(tmp_path, name, text)


def test_a_file_of_any_name_may_be_the_first_word(tmp_path: Path) -> None:
    (tmp_path / "Procfile.old").write_text(f"#!/bin/sh\nvllm serve {MODEL} {LENGTH}\n")
    found = read_configuration(None, [str(tmp_path / "Procfile.old")])
    assert (found.model, " ".join(found.file_flags)) == (MODEL, LENGTH)


@pytest.mark.parametrize("head", ["services:\n v:\n", "kind: Pod\nspec:\n", "a:\n b:\n"])
def test_a_repeated_key_is_named(tmp_path: Path, head: str) -> None:
    text = f"  image: vllm/vllm-openai\n  command: [--seed, '1']\n  command: [--model, {MODEL}]\n"
    notes = ["line 4: command is given again, and only the last is read"]
    assert heard(tmp_path, "a.yaml", head + text) == ("", notes)


def test_an_option_given_twice_is_named(tmp_path: Path) -> None:
    """vLLM takes the last, also of JSON, but joins options of one argument with dots."""
    dotted = "--limit-mm-per-prompt.image 1 --limit-mm-per-prompt.video 0"
    text = f"O='--seed 4 {dotted}'\nvllm serve {MODEL} $O --seed=8\n"
    notes = ["line 2: --seed is given again, and only the last is read"]
    assert heard(tmp_path, "start.sh", text) == (f"--seed 4 {dotted} --seed=8", notes)
