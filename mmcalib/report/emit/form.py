"""One form: the file that it is kept in, its text, and how an engine is started from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mmcalib.report import words
from mmcalib.report.emit.arguments import arguments_text
from mmcalib.report.emit.environment import environment_text
from mmcalib.report.emit.kubernetes import kubernetes_text
from mmcalib.report.emit.python import python_text
from mmcalib.report.emit.sayable import check_sayable
from mmcalib.result.calibration import CalibrationDocument
from mmcalib.result.check_result import first_failed
from mmcalib.result.engine_yaml import engine_yaml
from mmcalib.result.server import ServerPart, serving


@dataclass(frozen=True, slots=True)
class Form:
    """`use` has the place `{file}` for the file's name. `comments` is false where a comment would
    be in the way; `variables`: it carries the environment of the server, too.
    """

    file: str
    render: Callable[[CalibrationDocument], str]
    use: str
    comments: bool = True
    variables: bool = False

    def used(self, server: ServerPart | None, name: str) -> str:
        """How an engine is started from the file of that name, quoted for a shell."""
        how = self.use.replace("{file}", name)
        return how if self.variables else serving(server, how)

    def text(self, calibration: CalibrationDocument) -> str:
        """The file's content. One that was emitted against the verdict says so on top.

        Raises OutputError where the form cannot carry a value, and for what is no configuration.
        """
        check_sayable(calibration.engine_config, in_yaml=self.file.endswith(".yaml"))
        text = self.render(calibration)
        if calibration.verdict == "fail" and self.comments:
            failed = first_failed(calibration.checks)
            text = f"# The verdict is fail: {words.check_line(failed)}\n{text}"
        return text


def _yaml(calibration: CalibrationDocument) -> str:
    return engine_yaml(calibration, serving(calibration.server, "vllm serve --config engine.yaml"))


FORMS: dict[str, Form] = {
    "yaml": Form("engine.yaml", _yaml, "vllm serve --config {file}"),
    "args": Form("engine.args", arguments_text, 'eval "vllm serve $(cat {file})"', comments=False),
    "env": Form(
        "engine.env",
        environment_text,
        "docker run --env-file {file} --entrypoint sh IMAGE -c 'eval \"exec vllm serve "
        "$ENGINE_ARGS\"'",
        variables=True,
    ),
    "k8s": Form(
        "engine.k8s.yaml",
        kubernetes_text,
        "paste into your Deployment what {file} says",
        variables=True,
    ),
    "python": Form("engine.py", python_text, "LLM(**ENGINE_ARGS), as at the end of {file}"),
}
