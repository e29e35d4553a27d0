"""The configuration as an environment file: vLLM reads no such variable, a shell hands it over."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from mmcalib import wording
from mmcalib.errors import OutputError
from mmcalib.report.configuration_format import ConfigurationFormat
from mmcalib.report.sayable import check_visible
from mmcalib.result.calibration import CalibrationDocument
from mmcalib.result.serve_arguments import serve_arguments
from mmcalib.result.server import ServerPart

# Not VLLM_...: vLLM warns of such names that it does not know, or refuses them.
VARIABLE = "ENGINE_ARGS"
# Names and words that `--option.name word` carries as they are.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_NUMBERS_AND_SUCH = ("true", "false", "null", "NaN", "Infinity")


def environment_text(calibration: CalibrationDocument) -> str:
    """`ENGINE_ARGS=` and the arguments of `vllm serve`, on one line without quotes around it; and
    the limits on media that vLLM itself reads from there.

    Raises OutputError where a value has a line break, which no such file can carry, or another
    character that hides.
    """
    line = f"{VARIABLE}={shlex.join(_words(calibration.engine_config))}"
    if "\n" in line:
        raise OutputError("--emit env: no such file can carry a line break", hint="--emit yaml")
    check_visible(line, "env")
    return (
        f"# vLLM configuration for {wording.plain(calibration.model.id)}, made by mmcalib.\n"
        "# vLLM does not read this variable by itself. Start the server with\n"
        f"#     sh -c 'eval \"exec vllm serve ${VARIABLE}\"'\n"
        f"{line}\n{_media_limits(calibration)}"
    )


def _media_limits(calibration: CalibrationDocument) -> str:
    """Those that were set when the corpus was read; as comments, those that would have admitted
    more of it.
    """
    server = calibration.server
    if server is None:
        return ""
    lines = [f"{name}={value}" for name, value in server.environment.items()]
    if lines:
        lines.insert(0, "# vLLM reads these by itself: its limits when the corpus was read.")
    return "".join(f"{line}\n" for line in (*lines, *left_out_words(server)))


def left_out_words(server: ServerPart) -> list[str]:
    """Comments on what was not calibrated for, as lines."""
    if not server.wanting:
        return []
    return [
        "# The server refuses items of the corpus. They were left out, and limits derived without",
        "# them; so these are comments: set here alone they let in what no limit was derived for.",
        "# With them in its environment, mmcalib run counts the items in, and sets them here:",
        *(f"# {name}={value}" for name, value in server.wanting.items()),
    ]


def _words(config: Mapping[str, Any]) -> Iterator[str]:
    """As `serve_arguments`, but mappings as `--option.name.name value`, which needs no quotes."""
    for option in serve_arguments({k: v for k, v in config.items() if not _dottable(v)}):
        yield from option
    for name, value in config.items():
        if _dottable(value):
            yield from _dotted(wording.flag(name), value)


def _dottable(value: Any) -> bool:
    """Whether every name of a mapping can stand between dots."""
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(_NAME.fullmatch(str(name)) for name in value)
        and all(_dottable(inner) for inner in value.values() if isinstance(inner, Mapping))
    )


def _dotted(flag: str, value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _dotted(f"{flag}.{name}", inner)
    else:
        yield from (flag, _word(value))


def _word(value: Any) -> str:
    """What vLLM reads back as this value: JSON, or a word that is none."""
    bare = isinstance(value, str) and _NAME.fullmatch(value) and value not in _NUMBERS_AND_SUCH
    return str(value) if bare else json.dumps(value, separators=(",", ":"))


RENDERER = ConfigurationFormat(
    "env",
    environment_text,
    use=(
        "docker run --env-file {file} --entrypoint sh IMAGE -c 'eval \"exec vllm serve "
        "$ENGINE_ARGS\"'"
    ),
    variables=True,
)
