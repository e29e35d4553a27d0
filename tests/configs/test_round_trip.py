"""Random configurations, written in every form, come back whole."""

import json
import random
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from mmcalib.configs.read import WrittenConfiguration, read_configuration
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import ListServeOptions, ParseServeConfig
from mmcalib.results.engine_yaml import serve_arguments, serve_words
from mmcalib.text import serve_option

pytestmark = pytest.mark.engine
CASES, SEED = 300, 20_261_128
Config = dict[str, Any]
WORDS = ("a", "it's", 'say "x"', "a b", "$HOME", "#1", "back\\slash", "ü", "{}", "*", "--", "a=b")
CHART = {"max_model_len": "maxModelLen", "max_num_seqs": "maxNumSeqs", "dtype": "dtype"}


def random_config(rng: random.Random, defaults: Mapping[str, Any]) -> Config:
    """Some of vLLM's arguments, with values of the type of their defaults."""
    config: Config = {"model": rng.choice(["org/model", "/models/my model", "m"])}
    for name in rng.sample(sorted(defaults), rng.randint(1, 8)):
        config[name] = random_value(rng, defaults[name])
    return config


def random_value(rng: random.Random, like: Any, depth: int = 0) -> Any:
    match like:
        case bool():
            return not like
        case int():
            return rng.randint(-1, 1 << 20)
        case float():
            return round(rng.random(), 3)
        case dict() if depth < 2:
            likes = [1, 0.5, False, "", {}][: 5 - depth]
            return {f"k{n}": random_value(rng, rng.choice(likes), depth + 1) for n in range(2)}
        case list():
            return [rng.randint(0, 99) for _ in range(rng.randint(1, 3))]
    return " ".join(rng.sample(WORDS, rng.randint(1, 3)))


def escaped(value: Any) -> Any:
    return json.loads(json.dumps(value).replace("$", "$$"))


def pod(**container: Any) -> tuple[str, str]:
    spec = {"containers": [{"name": "v", "image": "vllm/vllm-openai", **escaped(container)}]}
    return "pod.yaml", yaml.safe_dump({"apiVersion": "v1", "kind": "Pod", "spec": spec})


def write_yaml(rng: random.Random, config: Config) -> tuple[str, str]:
    items = rng.sample(list(config.items()), len(config))
    return "engine.yaml", yaml.safe_dump(dict(items), sort_keys=False)


def write_kubernetes(rng: random.Random, config: Config) -> tuple[str, str]:
    return pod(args=["--model", *serve_words(config)])


def write_shell_in_kubernetes(rng: random.Random, config: Config) -> tuple[str, str]:
    command = " \\\n  ".join(map(shlex.join, serve_arguments(config)))
    script = f"# it's ours\nexport A=1\nexec vllm serve {command} 2>&1 | tee log\n"
    return pod(command=["sh", "-c"], args=[script])


def write_compose(rng: random.Random, config: Config) -> tuple[str, str]:
    words = ["--model", *serve_words(config)]
    command = escaped(words if rng.random() < 0.5 else shlex.join(words))
    service = {"image": "vllm/vllm-openai", "command": command}
    return "compose.yaml", yaml.safe_dump({"services": {"v": service}, "x-a": "--b"})


def write_chart(rng: random.Random, config: Config) -> tuple[str, str]:
    fields = {CHART[name]: value for name, value in config.items() if name in CHART}
    rest = {n: v for n, v in config.items() if n not in CHART and n != "model"}
    vllm = {**fields, "extraArgs": escaped(serve_words(rest))}
    engine = {"name": "q", "modelURL": config["model"], "vllmConfig": vllm}
    return "values.yaml", yaml.safe_dump({"servingEngineSpec": {"modelSpec": [engine]}})


def write_bash(rng: random.Random, config: Config) -> tuple[str, str]:
    lines, command, array = ["#!/bin/bash", "# don't", "OPTS="], "", list[str]()
    for number, words in enumerate(serve_arguments(config)):
        *first, last = map(shlex.quote, words)
        match rng.randrange(6):
            case 0 if number:
                array += words
                continue
            case 1 if number and all(re.fullmatch(r"[\w.-]+", word) for word in words):
                lines.append(f'OPTS+=" {" ".join(words)}"')
                continue
            case 2:
                lines.append(f"V{number}={last}")
                last = f'"$V{number}"'
            case 3 if words[-1].isalnum():
                last = f'"${{NONE:-"{words[-1]}"}}"'
            case 4:
                lines.append(f"f{number}() {{ A{number}=$1; }}\nf{number} {last}")
                last = f'"${{A{number}}}"'
        command += " ".join([*first, last]) + " \\\n    "
    middle = len(array) // 2
    lines.append(f"ARGS=({shlex.join(array[:middle])})\nARGS+=({shlex.join(array[middle:])})")
    lines.append(f'exec vllm serve {command}"${{ARGS[@]}}" $OPTS "$@"  # the end')
    return "serve.sh", "\n".join(lines) + "\n"


def write_docker(rng: random.Random, config: Config) -> tuple[str, str]:
    image = "--gpus all -v ~/x:/y --rm vllm/vllm-openai:v0.32.0"
    return "run.sh", f"docker run {image} --model {shlex.join(serve_words(config))}\n"


def write_python(rng: random.Random, config: Config) -> tuple[str, str]:
    named = {name: name.upper() for name in config if rng.random() < 0.3}
    lines = [f"{named[name]} = {config[name]!r}" for name in named]
    given = (f"{name}={named.get(name, repr(value))}" for name, value in config.items())
    lines.append(f"engine = Engine({', '.join(given)})")
    return "offline.py", "\n".join(["from vllm import LLM as Engine", *lines])


Writer = Callable[[random.Random, Config], tuple[str, str]]
WRITERS: tuple[Writer, ...] = (
    *(write_yaml, write_kubernetes, write_shell_in_kubernetes, write_compose, write_chart),
    *(write_bash, write_docker, write_python),
)


def options_of(words: tuple[str, ...]) -> list[list[str]]:
    """Options with their values; their order is that of the form."""
    found: list[list[str]] = []
    for word in words:
        found += [[]] if word.startswith("--") and word[2:] else []
        found[-1].append(word)
    return sorted(found)


def lost(written: WrittenConfiguration, config: Config) -> Any:
    """Return what was read, if it is not the configuration."""
    rest = {name: value for name, value in config.items() if name != "model"}
    if written.config is not None:
        return None if written.settings == config else written.settings
    is_same = written.model == config["model"]
    meant = options_of(tuple(word for n, v in rest.items() for word in serve_option(n, v)))
    return None if is_same and options_of(written.file_flags) == meant else written.file_flags


@pytest.fixture(scope="module")
def defaults(host: EngineHost) -> dict[str, Any]:
    """The arguments of the installed vLLM that have a default, by their options' names."""
    known = host.ask(ListServeOptions(), "listing").arguments
    values = host.ask(ParseServeConfig(None, ("m",)), "parsing").values
    return {
        name: value
        for name, value in values.items()
        if known.get(name.replace("_", "-")) == name and value is not None and name != "model"
    }


def test_no_form_loses_a_setting_in_silence(defaults: dict[str, Any], tmp_path: Path) -> None:
    assert len(defaults) > 100
    rng, wrong = random.Random(SEED), list[Any]()
    for _ in range(CASES):
        config = random_config(rng, defaults)
        for write in WRITERS:
            name, text = write(rng, config)
            (tmp_path / name).write_text(text)
            written = read_configuration(tmp_path / name)
            if (found := lost(written, config)) is not None:
                wrong.append((write.__name__, found, config, text))
    assert wrong == []


def test_vllm_reads_the_same_of_every_form(host: EngineHost, tmp_path: Path) -> None:
    rng, config = random.Random(SEED), {"model": "org/model", "max_model_len": 8192}
    config |= {"limit_mm_per_prompt": {"image": 2, "video": 0}, "enforce_eager": True}
    config |= {"hf_overrides": {"a": [1, "it's"]}, "gpu_memory_utilization": 0.5}
    for write in WRITERS:
        name, text = write(rng, config)
        (tmp_path / name).write_text(text)
        request = read_configuration(tmp_path / name).parse_request
        assert host.ask(request, "parsing").engine_args == config, write
