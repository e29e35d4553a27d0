"""Formats numbers, sizes and foreign text, such as paths and library messages, for one line."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30
TIB: Final = 1 << 40

BYTES_PER = {"mib": MIB, "gib": GIB, "tib": TIB, "mb": 10**6, "gb": 10**9, "tb": 10**12}
# Unlike pydantic's ByteSize, not `8`, `8bit` or `5.GiB`, which are mistakes.
SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*([mgt]i?b)", re.IGNORECASE | re.ASCII)


def size_bytes(text: str) -> int | None:
    """Bytes of `24GiB` or `512 MB`; GB is 10**9 bytes and GiB 2**30. None for anything else."""
    match = SIZE.fullmatch(text.strip())
    return int(Decimal(match[1]) * BYTES_PER[match[2].lower()]) if match else None


def whole_as_int(value: float) -> int | float:
    """2 for 2.0; other values unchanged."""
    return int(value) if value == int(value) else value


LINE_CHARS = 200

# Reasons why a file could not be read that may go away.
NO_FILE = "no such file"
NO_PERMISSION = "no permission to read it"
NO_ANSWER = "no answer in time"
NO_ACCESS = "cannot be read: "
# Of a row of a table, or of None.
MISSING = "missing: no image, video or audio"
PASSING = (NO_FILE, NO_PERMISSION, NO_ANSWER, NO_ACCESS)


def printable(text: str) -> str:
    """`text` with line breaks, control and bidirectional characters escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def decode_base64(text: str | bytes) -> bytes:
    """Decode as strictly as pybase64, which vLLM uses. Raises ValueError."""
    data = base64.b64decode(text, validate=True)
    if len(text) != 4 * -(-len(data) // 3):
        raise ValueError("too many = at the end")
    return data


def reason_kind(reason: str) -> str:
    """The part of a reason before its first colon, without the details of one file."""
    return reason.partition(":")[0]


def flag(name: str) -> str:
    """The option for an argument of vLLM: --max-model-len for max_model_len."""
    return f"--{name.replace('_', '-')}"


def serve_option(name: str, value: Any) -> list[str]:
    """Return one option and its values."""
    option = flag(name)
    match value:
        case True:
            return [option]
        case False:
            return [f"--no-{option[2:]}"]
        case list() | tuple():
            return [option, *map(plain_value, value)]
    text = plain_value(value)
    # After a space, the parser would read a leading dash as another option.
    return [f"{option}={text}"] if text.startswith("-") else [option, text]


def plain_value(value: Any) -> str:
    """Return a string unchanged, and anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def one_line(text: str) -> str:
    """`text` with every run of whitespace and control characters as one space, cut to 200."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= LINE_CHARS else line[: LINE_CHARS - 1] + "…"


def describe_releases(what: str, theirs: str, ours: str) -> str:
    """Say that something is for another release of vLLM than the installed one."""
    return f"{what} is from vLLM {theirs}; mmcalib runs vLLM {ours}"


def number(value: float | None) -> str:
    """A number with thousands separators; a dash for None."""
    return "—" if value is None else f"{value:,g}" if value < 10 else f"{value:,.0f}"


def plural(count: int, noun: str) -> str:
    """Such as `1 request` or `1,204 requests`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


# Smaller amounts print as 0.00 GiB.
SHOWN_BYTES: Final = round(0.005 * GIB)


def gib(value: float | None) -> str:
    return "—" if value is None else f"{value / GIB:.2f} GiB".replace("-", "−")


def remaining(value: int | None) -> str:
    """Remaining memory, or such as `2.76 GiB short` if negative."""
    return f"{gib(-value)} short" if value is not None and value < 0 else gib(value)


def share(value: float | None) -> str:
    """A percentage. Only exact values read as 0% or 100%."""
    if value is None:
        return "—"
    if 0 < value < 0.001:
        return "<0.1%"
    if 0.999 < value < 1:
        return ">99.9%"
    return f"{value:.1%}" if 0 < value < 1 else f"{value:.0%}"


def ratio(value: float | None) -> str:
    return "—" if value is None else f"{value:,.2f}"


def seconds(value: float | None) -> str:
    """Seconds, short ones to the millisecond."""
    return "—" if value is None else f"{value:.3f}" if value < 1 else f"{value:.1f}"


def map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """Change every string in a JSON value, except object keys."""
    match value:
        case str():
            return change(value)
        case dict():
            return {key: map_strings(one, change) for key, one in value.items()}
        case list() | tuple():
            return [map_strings(one, change) for one in value]
        case _:
            return value


def dotted(value: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value in nested mappings after its dotted name, such as `vision_config.depth`."""
    for name, one in value.items():
        if isinstance(one, Mapping):
            yield from dotted(one, f"{above}{name}.")
        else:
            yield f"{above}{name}", one
