"""What does not fit as SARIF 2.1.0, which GitHub and editors show beside the files."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, Final
from urllib.parse import quote

from mmcalib.derive.admission import Answer
from mmcalib.locations.location import BEHIND, Location
from mmcalib.result.check_lines import Offender, Summary
from mmcalib.version import __version__
from mmcalib.wording import plain

SCHEMA: Final = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
# As GitHub names what paths are relative to.
_ROOT: Final = "%SRCROOT%"
_RULES: Final[Mapping[Answer, tuple[str, str]]] = {
    "no": ("does-not-fit", "The calibrated configuration rejects it."),
    "unknown": ("not-known-to-fit", "Nothing proves that the calibrated configuration takes it."),
}
# Where requests stand: the file's name and the line.
_LINE: Final = re.compile(r"(?P<file>.+):(?P<line>[1-9][0-9]{0,17})", re.ASCII | re.DOTALL)


def sarif_json(
    offenders: Sequence[Offender],
    summary: Summary,
    *,
    allow_unknown: bool,
    root: Path,
    requests: Mapping[str, Path] | None = None,
) -> str:
    """One run. Files below `root` are named relative to it; `requests` are the files that origins
    of requests name, by what they name them.
    """
    results = [_result(one, root, requests or {}, allow_unknown=allow_unknown) for one in offenders]
    invocation: dict[str, Any] = {"executionSuccessful": True}
    more = summary.no + summary.unknown - len(offenders)
    if more:
        said = {"text": f"{more} more do not fit and are not listed"}
        invocation["toolExecutionNotifications"] = [{"level": "warning", "message": said}]
    rules = [{"id": rule, "shortDescription": {"text": said}} for rule, said in _RULES.values()]
    driver = {"name": "mmcalib check", "semanticVersion": __version__, "rules": rules}
    run = {"tool": {"driver": driver}, "invocations": [invocation], "results": results}
    document = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(document, indent=2) + "\n"


def _result(
    one: Offender, root: Path, requests: Mapping[str, Path], *, allow_unknown: bool
) -> dict[str, Any]:
    rule, _ = _RULES[one.answer]
    level = "error" if one.answer == "no" else "note" if allow_unknown else "warning"
    remedy = f"\n{plain(one.remedy)}" if one.remedy else ""
    where = _where(one, root, requests)
    found: dict[str, Any] = {
        "ruleId": rule,
        "level": level,
        "message": {"text": f"{plain(one.reason)}{remedy}"},
        "partialFingerprints": {"mmcalib/v1": _fingerprint(rule, one, where)},
    }
    if where:
        found["locations"] = [{"physicalLocation": where}]
    return found


def _fingerprint(rule: str, one: Offender, where: Mapping[str, Any]) -> str:
    named = where["artifactLocation"]["uri"] if where else plain(one.origin)
    return hashlib.sha256(f"{rule} {named} {one.kind}".encode()).hexdigest()


def _where(one: Offender, root: Path, requests: Mapping[str, Path]) -> dict[str, Any]:
    """Empty for what came by standard input."""
    if one.kind == "item":
        if Location.of(one.origin).is_file and not PurePath(one.origin).is_absolute():
            return {}
        return {"artifactLocation": _artifact(one.origin.rpartition(BEHIND)[2], root)}
    found = _LINE.fullmatch(one.origin)
    path = requests.get(found["file"]) if found else None
    if found is None or path is None:
        return {}
    region = {"startLine": int(found["line"])}
    return {"artifactLocation": _artifact(str(path.absolute()), root), "region": region}


def _artifact(path: str, root: Path) -> dict[str, str]:
    if not Location.of(path).is_file:
        return {"uri": quote(path, safe=":/?#[]@!$&'()*+,;=%")}
    whole = PurePath(path)
    if whole.is_relative_to(root):
        below = whole.relative_to(root).as_posix()
        return {"uri": quote(_bytes(below)), "uriBaseId": _ROOT}
    return {"uri": f"file://{quote(_bytes(whole.as_posix()))}"}


def _bytes(name: str) -> bytes:
    return name.encode(errors="surrogateescape")
