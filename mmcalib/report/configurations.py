"""The tuned configuration in every form of `--emit`: `CONFIGURATIONS`.

A calibration may come from elsewhere, so a form rejects settings that mmcalib never writes.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from pprint import pformat
from typing import Any, Final

import yaml

from mmcalib import text
from mmcalib.domain.model import Server
from mmcalib.errors import OutputError
from mmcalib.limits.processor_cache import processor_caches_bytes, shm_bytes
from mmcalib.releases.constants import PROMPT_ARGUMENTS, find_unsafe_settings
from mmcalib.report import rows
from mmcalib.results.calibration import CalibrationDocument, with_environment
from mmcalib.results.engine_yaml import engine_yaml, serve_arguments, serve_words, visible_yaml
from mmcalib.results.part import first_failed
from mmcalib.text import GIB


@dataclass(frozen=True, slots=True)
class ConfigurationFormat:
    """A form; `text` is None for `engine.yaml`. `use` has `{file}` for the file name, and `{serve}`
    for the command that serves here; with `variables` the form sets the environment.
    """

    suffix: str
    text: Callable[[CalibrationDocument], str] | None
    use: str
    comments: bool = True
    variables: bool = False

    @property
    def file(self) -> str:
        return f"engine.{self.suffix}"

    def usage(self, server: Server, name: str, serve: str = "vllm serve") -> str:
        """The command that starts an engine from the file, quoted for a shell."""
        how = self.use.replace("{file}", name).replace("{serve}", serve)
        return how if self.variables else with_environment(server.environment, how)

    def render(self, calibration: CalibrationDocument, serve: str = "vllm serve") -> str:
        """The file's content. Raises OutputError if the form cannot carry a value."""
        _check_settings(calibration.engine_config, in_yaml=self.suffix.endswith("yaml"))
        usage = self.usage(calibration.server, self.file, serve)
        text = self.text(calibration) if self.text else engine_yaml(calibration, usage)
        if calibration.verdict == "fail" and self.comments:
            failed = first_failed(calibration.checks)
            text = f"# The verdict is fail: {rows.check_line(failed)}\n{text}"
        return text


_SETTING = re.compile(r"[a-z][a-z0-9_]*")


def _check_settings(config: Mapping[str, Any], *, in_yaml: bool) -> None:
    """Raise OutputError for settings that mmcalib never writes, and for values that vLLM reads as
    options: `in_yaml` it reads any value with a leading dash so.
    """
    odd = [name for name in config if not _SETTING.fullmatch(name) or name == "config"]
    far = [*odd, *find_unsafe_settings(config, {}, tuple(config))]
    if far:
        raise OutputError(
            f"not written: mmcalib never sets {', '.join(map(text.printable, far))}",
            hint="do not serve with this calibration.json: somebody changed it",
        )
    for name, value in config.items():
        words = value if isinstance(value, list | tuple) else [value]
        # A list becomes separate words, as do the model and, in YAML, any value.
        alone = words is value or in_yaml or name == "model"
        for word in words:
            if alone and isinstance(word, str) and word.startswith("-"):
                raise OutputError(
                    f"not written: vLLM would read {name} {text.printable(word)} as an option",
                    hint="write a folder of that name as ./-NAME",
                )


def _check_visible(line: str, form: str) -> None:
    """Raise OutputError for a control character that the form cannot escape."""
    hidden = next((c for c in line if not c.isprintable() and c != "\n"), None)
    if hidden is not None:
        raise OutputError(
            f"--emit {form} cannot escape the character {text.printable(hidden)} of a value",
            hint="--emit yaml",
        )


def _image(calibration: CalibrationDocument) -> str:
    release = re.match(r"\d+\.\d+\.\d+", calibration.tool["vllm"])
    return f"vllm/vllm-openai:{f'v{release[0]}' if release else 'latest'}"


_LEFT_OUT = """\
# The server rejects some items of the data, so the limits were derived without them.
# Run mmcalib again with these variables set: it then includes the items. Do not set the
# variables only here, as no limit was derived for the items.
"""


def _head(calibration: CalibrationDocument, *notes: str) -> str:
    title = f"vLLM configuration for {calibration.model.id}, made by mmcalib."
    lines = [f"# {text.printable(note)}\n" for note in (title, *notes)]
    if wanting := calibration.needed_variables:
        lines += [_LEFT_OUT, *(f"# {name}={value}\n" for name, value in wanting.items())]
    return "".join(lines)


def _args(calibration: CalibrationDocument) -> str:
    """One option per line, quoted for a shell. Raises OutputError for control characters."""
    options = list(map(shlex.join, serve_arguments(calibration.engine_config)))
    _check_visible("".join(options), "args")
    return " \\\n    ".join(options) + "\n"


_PORT = 8000
_HUB = '--env HF_HOME=/hub --volume "${HF_HOME:-$HOME/.cache/huggingface}:/hub"'


_MOUNT = "The container needs the file {} of --chat-template: mount it there."


def _template_file(config: Mapping[str, Any]) -> str:
    """The path of the chat template; empty for one in the text (`load_chat_template`, 0.32)."""
    template = str(config.get("chat_template") or "")
    return "" if set(template) & set("{}\n") else template


def _docker(calibration: CalibrationDocument) -> str:
    """A script of one command that takes more arguments. Raises OutputError as `_args` does."""
    config = calibration.engine_config
    model = str(config.get("model", ""))
    files = [path for path in (model, _template_file(config)) if PurePosixPath(path).is_absolute()]
    variables = calibration.server.environment
    mounts = [f"type=bind,source={path},target={path},readonly" for path in files]
    lines = [
        "docker run --rm --gpus all",
        f"--shm-size {math.ceil(shm_bytes(config) / GIB)}g",
        f"--publish {_PORT}:{_PORT}",
        *(shlex.join(["--env", f"{name}={value}"]) for name, value in variables.items()),
        *(shlex.join(["--mount", mount]) for mount in mounts),
        *([] if model in files else [_HUB]),
        f"--entrypoint vllm {_image(calibration)} serve",
        *map(shlex.join, serve_arguments(config)),
    ]
    command = " \\\n    ".join(lines)
    _check_visible(command, "docker")
    memory = (
        f"The processor cache may take {text.gib(processor_caches_bytes(config))} of main memory "
        "(computed), in addition to vLLM. If you set --memory, allow for both."
    )
    template = _template_file(config)
    notes = [memory, *([_MOUNT.format(template)] if template and template not in files else [])]
    return f'{_head(calibration, *notes)}exec {command} \\\n    "$@"\n'


# Not VLLM_...: vLLM warns about such names that it does not know, or rejects them.
_VARIABLE = "ENGINE_ARGS"


def _env(calibration: CalibrationDocument) -> str:
    """`ENGINE_ARGS=` with the arguments of `vllm serve` on one line, and the media limits that vLLM
    reads from the environment. Raises OutputError for line breaks and control characters.
    """
    line = f"{_VARIABLE}={shlex.join(serve_words(calibration.engine_config))}"
    if "\n" in line:
        raise OutputError("--emit env cannot carry a line break", hint="--emit yaml")
    _check_visible(line, "env")
    notes = [f"vLLM does not read {_VARIABLE}. Start the server with"]
    notes.append(f"    sh -c 'eval \"exec vllm serve ${_VARIABLE}\"'")
    limits = [f"{name}={value}\n" for name, value in calibration.server.environment.items()]
    if limits:
        notes.append("vLLM reads the limits below it. The data was read with them.")
    return _head(calibration, *notes) + "".join([f"{line}\n", *limits])


_APP = "vllm"
_MODELS = "/models"
_RANKS = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


def _k8s(calibration: CalibrationDocument) -> str:
    """A complete Deployment. A local model is read from a volume."""
    config, notes = dict(calibration.engine_config), list[str]()
    shared = math.ceil(shm_bytes(config) / GIB)
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]  # noqa: S108 - of the container
    volumes: list[dict[str, Any]] = [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{shared}Gi"}}
    ]
    if calibration.model.source == "local":
        folder = PurePosixPath(str(config["model"])).name
        config["model"] = f"{_MODELS}/{folder}"
        mounts.append({"name": "models", "mountPath": _MODELS})
        volumes.append({"name": "models", "persistentVolumeClaim": {"claimName": "models"}})
        notes.append(f"The volume claim `models` must contain the checkpoint as {folder}.")
    if template := _template_file(config):
        notes.append(_MOUNT.format(template))
    ranks = (n for n in map(config.get, _RANKS) if isinstance(n, int) and n > 0)
    labels = {"app": _APP}
    limits = calibration.server.environment.items()
    given = [{"name": name, "value": str(value)} for name, value in limits]
    container = {
        "name": _APP,
        "image": _image(calibration),
        "command": ["vllm", "serve"],
        # Kubernetes replaces `$(NAME)` in arguments, and reads `$$` as `$`.
        "args": [word.replace("$", "$$") for word in serve_words(config)],
        **({"env": given} if given else {}),
        "ports": [{"containerPort": _PORT}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": _PORT}},
        "resources": {"limits": {"nvidia.com/gpu": str(math.prod(ranks))}},
        "volumeMounts": mounts,
    }
    pod = {"containers": [container], "volumes": volumes}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": _APP, "labels": dict(labels)},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": dict(labels)},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
    # No line of the argument list is folded.
    return _head(calibration, *notes) + visible_yaml(_Block, deployment, width=10_000)


class _Block(yaml.SafeDumper):
    """Writes text of several lines as a block."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Block.add_representer(str, _text)

_SCRIPT = """\
from vllm import LLM

{arguments}
# vLLM may start processes that import this file again.
if __name__ == "__main__":
    llm = LLM(**ENGINE_ARGS)
"""
_PYTHON_COLUMNS = 88


def _python(calibration: CalibrationDocument) -> str:
    lines = ["ENGINE_ARGS = {"]
    for name, value in calibration.engine_args().items():
        if value is not None:
            start = f"    {name!r}: "
            shown = pformat(value, width=_PYTHON_COLUMNS - len(start), sort_dicts=False)
            lines.append(start + shown.replace("\n", f"\n{' ' * len(start)}") + ",")
    arguments = "\n".join([*lines, "}\n"])
    left_out = ", ".join(name for name in PROMPT_ARGUMENTS if name in calibration.engine_config)
    notes = [f"LLM does not take these options of the server: {left_out}."] if left_out else []
    return _head(calibration, *notes) + _SCRIPT.format(arguments=arguments)


# By the names and in the order of `CONFIGURATION_NAMES`.
CONFIGURATIONS: Final[Mapping[str, ConfigurationFormat]] = {
    "yaml": ConfigurationFormat("yaml", None, use="{serve} --config {file}"),
    "args": ConfigurationFormat(
        "args", _args, use='eval "vllm serve $(cat {file})"', comments=False
    ),
    "docker": ConfigurationFormat("docker.sh", _docker, use="sh {file}", variables=True),
    "env": ConfigurationFormat(
        "env",
        _env,
        use="docker run --env-file {file} --entrypoint sh IMAGE "
        f"-c 'eval \"exec vllm serve ${_VARIABLE}\"'",
        variables=True,
    ),
    "k8s": ConfigurationFormat("k8s.yaml", _k8s, use="kubectl apply -f {file}", variables=True),
    "python": ConfigurationFormat("py", _python, use="LLM(**ENGINE_ARGS), see the end of {file}"),
}
