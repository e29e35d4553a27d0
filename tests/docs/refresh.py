"""Writes the generated parts of README and docs, docs/schemas, and the example run.

    python -m tests.docs.refresh                        # from the kept example
    python -m tests.docs.refresh out/calibration.json   # from a new run of `make demo`

A new example loses the folders above `sample/` and the suffix of a development version.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer.main
from pydantic import Field, TypeAdapter

from mmcalib.admission.calibration import Calibration
from mmcalib.checks.catalogue import GROUPS
from mmcalib.cli.app import app
from mmcalib.cli.command import MORE
from mmcalib.corpus.given import Distribution
from mmcalib.models.gpus import Gpu
from mmcalib.report.report import WrittenReport
from mmcalib.report.summary import summary
from mmcalib.results.calibration import CalibrationDocument, Comparison
from mmcalib.results.check import Offender, Summary
from mmcalib.results.doctor import BundledModel, Diagnosis, ScanDocument
from mmcalib.results.engine_yaml import engine_yaml
from mmcalib.results.memory import Rehearsal
from mmcalib.results.plan import Plan, Validation

from ..report.example import SERVE
from ..report.golden import printed
from ..schemas import CALIBRATION, EXAMPLE, ROOT, file_of

README = ROOT / "README.md"
REFRESH = "out of date; run: python -m tests.docs.refresh"
COMMANDS: Mapping[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def example() -> Calibration:
    """The calibration that README and docs show."""
    return Calibration.load(CALIBRATION)


def sample(_: str) -> str:
    """The output of `mmcalib run` on a terminal of 80 columns without colours."""
    shown = printed(lambda console: summary(example(), console, serve=SERVE, folder="out"))
    return shown.strip() + "\n"


def checks(_: str) -> str:
    """A section per group of checks, with a paragraph per check."""
    return "\n".join(
        f"## {title}\n\n"
        + "\n".join(f"**{c.code} {c.name}.** {c.explanation}\n" for c in group.values())
        for title, group in GROUPS.items()
    )


def _table(rows: Iterable[tuple[str, ...]]) -> str:
    """A table; its cells have no padding."""
    head, *body = ["|" + "|".join(cell.replace("|", r"\|") for cell in row) + "|" for row in rows]
    return "\n".join([head, "|" + "---|" * (head.count("|") - 1), *body]) + "\n"


def options(command: str) -> str:
    """The options of a command as `--help` shows them; those of `--help-all` in a second table."""
    panels: dict[bool, list[tuple[str, ...]]] = {}
    for parameter in COMMANDS[command].params:
        spelled = parameter.opts if parameter.param_type_name == "option" else []
        words = " ".join([", ".join(spelled), parameter.metavar or ""]).strip()
        default = parameter.default
        if isinstance(default, int | float) and default is not False:
            default = f"{default:g}"
        shown = "" if parameter.required or default in (None, False) else str(default)
        more = getattr(parameter, "rich_help_panel", None) == MORE and command == "run"
        panels.setdefault(more, []).append((f"`{words}`", shown, parameter.help))
    head = ("option", "default", "meaning")
    return "\nWith `--help-all`:\n\n".join(_table([head, *rows]) for rows in panels.values())


# By the name of the command, or of the file for documents on disk.
DOCUMENTS: Final[Mapping[str, Any]] = {
    "calibration": CalibrationDocument,
    "comparison": Comparison,
    "scan": ScanDocument,
    "check": Annotated[Offender | Summary, Field(discriminator="kind")],
    "rehearse": Rehearsal | list[Rehearsal],
    "validate": Validation,
    "plan": Plan,
    "report": WrittenReport,
    "models": list[BundledModel],
    "gpus": list[Gpu],
    "diff": dict[str, list[tuple[str, str, str]]],
    "doctor": Diagnosis,
    "distribution": Distribution,
}


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema of a document, for `check` of a line."""
    found = TypeAdapter(DOCUMENTS[name]).json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}


def fields(document: str) -> str:
    """A table per model of a document, then one of the types that have no fields described."""
    whole = schema(document)
    models = {whole["title"]: whole, **whole["$defs"]}
    described = {
        name: model
        for name, model in models.items()
        if any("description" in field for field in model.get("properties", {}).values())
    }
    parts = [
        f"### {name}\n\n{_summary(model)}\n\n" + _table(_field_rows(model, described))
        for name, model in described.items()
    ]
    others = [
        (name, " ".join(f"`{key}`" for key in model["properties"]), _summary(model))
        for name, model in sorted(models.items())
        if name not in described and "properties" in model
    ]
    parts.append("### Other types\n\n" + _table([("type", "keys", "meaning"), *others]))
    return "\n".join(parts)


def _summary(model: Mapping[str, Any]) -> str:
    """The first paragraph of a model's docstring."""
    return " ".join(model.get("description", "").partition("\n\n")[0].split())


def _field_rows(
    model: Mapping[str, Any], linked: Mapping[str, Any]
) -> Iterator[tuple[str, str, str]]:
    yield "key", "type", "meaning"
    for name, field in model["properties"].items():
        yield f"`{name}`", _type(field, linked), field.get("description", "")


def _type(field: Mapping[str, Any], linked: Mapping[str, Any]) -> str:
    """The type of a value in JSON; `?` marks one that may be null."""
    match field:
        case {"$ref": ref}:
            name = ref.rpartition("/")[2]
            return f"[{name}](#{name.lower()})" if name in linked else name
        case {"anyOf": choices}:
            types = [_type(one, linked) for one in choices if one != {"type": "null"}]
            return "/".join(types) + "?" * ({"type": "null"} in choices)
        case {"type": [kind, "null"]}:
            return f"{kind}?"
        case {"enum": values}:
            return "/".join(values)
        case {"const": value}:
            return str(value)
        case {"items": items}:
            return f"{_type(items, linked)}[]"
        case {"prefixItems": items}:
            return f"({','.join(_type(one, linked) for one in items)})"
        case {"additionalProperties": dict() as values}:
            return f"map of {_type(values, linked)}"
    return str(field.get("type", "any"))


# By the name in the marker; each gets the argument behind it.
PARTS: Final[Mapping[str, Callable[[str], str]]] = {
    "sample": sample,
    "engine.yaml": lambda _: engine_yaml(example(), SERVE),
    "checks": checks,
    "options": options,
    "fields": fields,
}
# `<!-- NAME: ARGUMENT -->` before a fenced block, or before lines up to `<!-- end -->`.
_PART: Final = re.compile(
    rf"(?P<start>^<!-- (?P<name>{'|'.join(PARTS)})(?:: (?P<argument>\w+))? -->\n"
    r"(?P<fence>```\w*\n)?).*?(?P<end>^(?(fence)```|<!-- end -->)$)",
    re.S | re.M,
)


def _fill(part: re.Match[str]) -> str:
    return part["start"] + PARTS[part["name"]](part["argument"] or "") + part["end"]


def generated() -> dict[Path, str]:
    """Each file that is generated, whole or in part, and its text as it should be."""
    pages = [README, *(ROOT / "docs").rglob("*.md")]
    return {
        **{page: _PART.sub(_fill, page.read_text("utf-8")) for page in pages},
        **{
            file_of(name): json.dumps(schema(name), indent=2, ensure_ascii=False) + "\n"
            for name in DOCUMENTS
        },
        EXAMPLE / "engine.yaml": engine_yaml(example(), SERVE),
    }


def adopt(path: Path) -> None:
    """Make a finished run the example."""
    text = re.sub(r'(?<=")/[^"]*/(?=sample/)', "", path.read_text(encoding="utf-8"))
    text = re.sub(r"(?<=[ (])/[^ \"]*/(?=sample/)", "", text)
    text = re.sub(r'("mmcalib": "[\d.]+?)\.dev[^"]*', r"\1", text)
    (CALIBRATION).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for new_run in sys.argv[1:]:
        adopt(Path(new_run))
    for path, text in generated().items():
        path.write_text(text, encoding="utf-8")
