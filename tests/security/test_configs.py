"""A file for `vllm serve --config` from somebody else, as validate, rehearse and plan read it."""

import os
import time
from pathlib import Path

import pytest

from mmcalib.configs.opening import reject_unsafe_settings
from mmcalib.configs.read import read_configuration
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import ParseServeConfig
from mmcalib.errors import UsageError
from mmcalib.releases.constants import find_unsafe_settings
from tests.cli.conftest import Cli

LAUGHS = "a0: &a0 [x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30)
)
MERGES = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 30)
)


FUNCTIONS = "".join(f"f{n}() {{ {f'f{n + 1};' * 200} }}\n" for n in range(9))
GROWING = {
    "laughs.yaml": LAUGHS,
    "merges.yaml": MERGES,
    "spec.yaml": MERGES.translate({91: "", 93: ""}).replace(", *", ", <<: *") + "spec: *a29\n",
    "itself.yaml": "a: &a [*a]",
    "deep.yaml": "a: " + "[" * 5000,
    "deep-keys.yaml": "a: " + "{b: " * 200 + "1" + "}" * 200,
    "deep-lists.yaml": "- " * 5000 + "a",
    "large.yaml": "x" * (1 << 18) + ": 1",
    "doubled.sh": "A=aaaa\n" + "A=$A$A\n" * 60 + "vllm serve $A\n",
    "array.sh": "A=(a)\n" + 'A+=("${A[@]}" "${A[@]}")\n' * 60 + 'vllm serve "${A[@]}"\n',
    "functions.sh": f"{FUNCTIONS}f0\nvllm serve m\n",
    "deep.sh": "(" * 50_000 + "vllm serve m" + ")" * 50_000,
    "words.sh": "a@" * 100_000 + "\nvllm serve m\n",
    "blocks.md": "```yaml\na: 1\n```\n" * 10_000,
    "lists.py": "a0 = ['vllm', 'serve', 'm']\n"
    + "".join(f"a{n} = [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 60)),
    "scripts.yaml": "env: {" + "a: b, " * 9000 + "}\nrun:\n" + "- vllm serve m\n" * 9000,
    "variables.yaml": f"kind: Pod\nenv: {{A: {'a' * 60000}}}\nargs: ['{'$(A)' * 30000}']",
    "powers.py": "from vllm import LLM\nb = a = 9 * a\n" + "LLM(seed=" + "-" * 3000 + "1)",
}


@pytest.mark.parametrize("name", GROWING)
def test_a_file_that_grows_when_it_is_read_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(GROWING[name])
    started = time.process_time()
    with pytest.raises(UsageError):
        read_configuration(tmp_path / name)
    assert time.process_time() - started < 10


@pytest.mark.parametrize("name", ["/dev/zero", "pipe", "folder", "none"])
@pytest.mark.parametrize("command", [["validate"], ["rehearse", "--gpu", "L4"]])
def test_what_is_no_file_is_one_line(cli: Cli, tmp_path: Path, command, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    said = cli(*command, "--config", name)
    assert said.code == 2
    assert "no such file" in said.err
    assert len(said.err.splitlines()) == 2


@pytest.mark.parametrize(
    "text",
    [
        "a: " + "9" * 5000,
        "a: !!python/object/apply:os.system [id]",
        "[1, 2]: x",
        "\x00",
        "a: *b",
        "a: &b\n<<: 1",
    ],
)
def test_what_yaml_makes_nothing_of_is_a_finding(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.yaml").write_text(text)
    found = read_configuration(tmp_path / "a.yaml")
    assert not found.settings
    assert found.broken
    assert found.broken.isprintable()


CODE = {
    "trust_remote_code": True,
    "worker_cls": "evil.Worker",
    "worker_extension_cls": "evil.More",
    "scheduler_cls": "evil.Scheduler",
    "distributed_executor_backend": "evil.Executor",
    "logits_processors": ["evil:Processor"],
    "reasoning_parser_plugin": "/tmp/evil.py",
    "io_processor_plugin": "evil",
    "model_class_overrides": {"A": "evil:B"},
    "log_config_file": "/tmp/evil.json",
    "kv_transfer_config": {"kv_connector_module_path": "evil"},
    "compilation_config": {"inductor_passes": {"a": "evil.passes"}},
    "structured_outputs_config": {"reasoning_parser_plugin": "/tmp/evil.py"},
    "speculative_config": {"method": "custom_class", "model": "evil.Proposer"},
    "hf_overrides": {"auto_map": {"AutoConfig": "evil.Config"}},
    "mm_processor_kwargs": {"trust_remote_code": True},
}
PLAIN = {
    "distributed_executor_backend": "mp",
    "compilation_config": {"backend": "inductor", "mode": 3},
    "limit_mm_per_prompt": {"image": 4},
    "mm_processor_kwargs": {"images_kwargs": {"size": {"longest_edge": 10}}},
    "structured_outputs_config": {"backend": "xgrammar"},
    "hf_overrides": {"rope_scaling": {"factor": 2}},
}


@pytest.mark.parametrize("name", CODE)
def test_a_setting_that_names_code_is_known(name: str) -> None:
    assert any(found.startswith(name) for found in find_unsafe_settings(CODE, {}, (name,)))
    assert not list(find_unsafe_settings(CODE, CODE, (name,)))


def test_the_usual_settings_are_not() -> None:
    assert not list(find_unsafe_settings(PLAIN, {}, tuple(PLAIN)))


FILES = {
    "worker-cls: evil.Worker": "worker_cls",
    "worker-cl: evil.Worker": "worker_cls",
    "trust-remote-code: true": "trust_remote_code",
    "seed: [1, --trust-remote-code]": "trust_remote_code",
    "served-model-name: [a, --worker-cls, evil.Worker]": "worker_cls",
    "logits-processors: ['evil:P']": "logits_processors",
    "kv-transfer-config: {kv_connector: A, kv_role: kv_both, kv_connector_module_path: evil}": (
        "kv_transfer_config"
    ),
    "hf-overrides: {auto_map: {AutoConfig: evil.C}}": "hf_overrides.auto_map",
    "hf-overrides.auto_map.AutoConfig: evil.C": "hf_overrides.auto_map",
}


@pytest.mark.engine
@pytest.mark.parametrize("line", FILES)
def test_vllm_is_not_started_with_what_only_a_file_names(host, tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(f"model: org/model\nmax-model-len: 4096\n{line}\n")
    found = host.ask(ParseServeConfig(str(path), ()), "reading")
    assert FILES[line] in found.unsafe_settings
    with pytest.raises(UsageError, match=FILES[line]):
        reject_unsafe_settings(found, path)


@pytest.mark.engine
def test_flags_of_a_manifest_are_somebody_else_s(host: EngineHost, tmp_path: Path) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text("kind: Pod\nargs: [--model, org/m, --trust-remote-code, --worker-cls, a.B]\n")
    found = host.ask(read_configuration(path).parse_request, "reading")
    assert set(found.unsafe_settings) == {"trust_remote_code", "worker_cls"}
    own = read_configuration(path, ["--trust-remote-code"])
    assert host.ask(own.parse_request, "reading").unsafe_settings == ("worker_cls",)


@pytest.mark.engine
def test_flags_of_ones_own_may_name_code(host: EngineHost, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("trust-remote-code: true\nmax-model-len: 4096\n")
    flags = ("org/model", "--trust-remote-code")
    assert not host.ask(ParseServeConfig(str(path), flags), "reading").unsafe_settings
    path.write_text("max-model-len: 4096\n")
    assert not host.ask(ParseServeConfig(str(path), flags), "reading").unsafe_settings


@pytest.mark.engine
@pytest.mark.parametrize("command", [["validate"], ["rehearse", "--gpu", "L4"]])
def test_it_is_one_line(cli: Cli, tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "a.yaml").write_text(
        "model: Qwen/Qwen2.5-VL-3B-Instruct\nworker-cls: evil.Worker\n"
    )
    said = cli(*command, "--config", "a.yaml", "--quiet")
    assert said.code == 2
    assert "error: --config a.yaml has settings that make vLLM import" in said.err
    assert "worker_cls" in said.err
    assert "-- --worker-cls evil.Worker" in said.err
