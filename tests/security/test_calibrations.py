"""A calibration.json from somebody else: nothing of this machine gets into what is
made of it, nothing in it is more than text, and no number breaks what reads it.
"""

from __future__ import annotations

import io
import json
import os
import random
import re
import shutil
import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from rich.console import Console

from mmcalib.admission.calibration import Calibration
from mmcalib.domain.shapes import AudioShape, ImageShape, VideoShape
from mmcalib.errors import MmcalibError, UsageError
from mmcalib.report.configurations import CONFIGURATIONS
from mmcalib.report.html.roots import Roots
from mmcalib.report.report import Report, html, md
from mmcalib.report.terminal import summary
from tests.cli.conftest import Cli
from tests.report.example import calibration

PICTURE = "data:image/"


def naming(exemplars: list[str]) -> Calibration:
    """The example, with these images alone."""
    found = calibration()
    assert found.costs is not None
    part = found.costs.modalities["image"]
    known = [part.known[0].model_copy(update={"exemplar": exemplar}) for exemplar in exemplars]
    parts = {"image": part.model_copy(update={"known": known})}
    return found.model_copy(update={"costs": found.costs.model_copy(update={"modalities": parts})})


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """What nobody meant to send on, and a corpus beside it."""
    for name in ("private.png", "media/a.png", "media-2/b.png"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (40, 30), "red").save(path)
    with tarfile.open(tmp_path / "private.tar", "w") as archive:
        archive.add(tmp_path / "private.png", "in/it.png")
    shutil.copy(tmp_path / "private.tar", tmp_path / "media" / "mine.tar")
    (tmp_path / "media" / "link.png").symlink_to(tmp_path / "private.png")
    (tmp_path / "media" / "out").symlink_to(tmp_path)
    os.link(tmp_path / "private.tar", tmp_path / "media-2" / "other.tar")
    (tmp_path / "foreign").mkdir()
    return tmp_path


def outside(home: Path) -> list[str]:
    return [
        f"{home}/private.png",
        "private.png",
        f"{home}/media/../private.png",
        f"{home}/media/link.png",
        f"{home}/media/out/private.png",
        f"{home}/media-2/b.png",
        f"tar://in/it.png::{home}/private.tar",
        f"tar://in/it.png::{home}/media/../private.tar",
        f"file://{home}/private.png",
        f"{home}/media/\0.png",
        f"{home}/media/\ud800.png",
    ]


def test_a_foreign_calibration_shows_no_local_file(cli: Cli, home: Path) -> None:
    naming([*outside(home), f"{home}/media/a.png"]).save(home / "foreign" / "calibration.json")
    said = cli("report", "foreign")
    assert said.code == 0
    assert PICTURE not in (home / "foreign" / "report.html").read_text("utf-8")
    assert "mmcalib report foreign --data DIR" in said.err
    assert len(said.err.splitlines()) == 2


def test_only_files_below_the_named_folders_are_shown(cli: Cli, home: Path) -> None:
    inside = [f"{home}/media/a.png", f"tar://in/it.png::{home}/media/mine.tar"]
    naming([*outside(home), *inside][-12:]).save(home / "foreign" / "calibration.json")
    said = cli("report", "foreign", "--data", "media")
    assert (home / "foreign" / "report.html").read_text("utf-8").count(PICTURE) == len(inside)
    assert "pictures left out" in said.err


@pytest.mark.parametrize("root", ["media/a.png", "media-link"])
def test_a_root_may_be_a_file_or_a_link_to_a_folder(cli: Cli, home: Path, root: str) -> None:
    (home / "media-link").symlink_to(home / "media")
    naming([f"{home}/media/a.png"]).save(home / "foreign" / "calibration.json")
    said = cli("report", "foreign", "--data", root)
    assert (home / "foreign" / "report.html").read_text("utf-8").count(PICTURE) == 1
    assert "left out" not in said.err


HOSTILE: list[Any] = [
    *(-1, 0, 1, 2**61, -(2**61), 1e17, 0.5, 1e-300, None, [], {}, True, "2/1", "x" * 3000),
    *("", "\ud800", {"count": -5, "width": 0}, "\x1b[2J\u202e<script>x</script>"),
]
MARKUP = len(HOSTILE) - 1


# Code in Markdown, a block or a few words, in which nothing is markup.
CODE = re.compile(r"^```yaml\n.*?^```$|`[^`\n]+`", re.DOTALL | re.MULTILINE)


def places(inside: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(inside, dict):
        for name, one in inside.items():
            yield from places(one, (*path, name))
    elif isinstance(inside, list):
        for place, one in enumerate(inside[:2]):
            yield from places(one, (*path, place))


def changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copied = json.loads(json.dumps(document))
    inside = copied
    for step in path[:-1]:
        inside = inside[step]
    inside[path[-1]] = value
    return copied


def everything_made_of(found: Calibration, *, page: bool) -> tuple[str, str]:
    """Reports, and what is no markup: summary, forms and the report's blocks of code. Raises what
    is no MmcalibError.
    """
    terminal = io.StringIO()
    console = Console(file=terminal, width=100)
    report = Report(found, "vllm serve", roots=Roots())
    shapes = (ImageShape(10, 10), VideoShape(10, 1.0, 10.0, 300, 300), AudioShape(100, 16000))
    tried: list[Callable[[], object]] = [
        lambda: md(report),
        *(partial(found.admits, shape) for shape in shapes),
    ]
    tried += [lambda: html(report)] if page else []
    said = made(tried)
    forms = [partial(form.render, found) for form in CONFIGURATIONS.values()]
    plain = made([lambda: summary(found, console), *forms]) + terminal.getvalue()
    return CODE.sub("", said), plain + "".join(CODE.findall(said))


def made(tried: list[Callable[[], object]]) -> str:
    said = []
    for make in tried:
        try:
            said.append(str(make()))
        except MmcalibError:
            continue
    return "".join(said)


def test_whatever_a_field_holds_is_refused_or_shown_as_text(tmp_path: Path) -> None:
    document = json.loads(calibration().to_json())
    # Markup everywhere, and of the other values two in each place.
    markup, others = HOSTILE[MARKUP], [v for n, v in enumerate(HOSTILE) if n != MARKUP]
    draw = random.Random(0)
    tries = [(path, v) for path in places(document) for v in (markup, *draw.sample(others, 2))]
    for number, (path, value) in enumerate(tries):
        file = tmp_path / "calibration.json"
        file.write_text(json.dumps(changed(document, path, value)))
        try:
            found = Calibration.load(file)
        except UsageError:
            continue
        said, code = everything_made_of(found, page=number % 20 == 0)
        assert "<script>x" not in said.replace("\\<script\\>x", ""), path
        assert all(c.isprintable() for c in (said + code).replace("\n", "")), path


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[" * 100_000, "not JSON"),
        ('{"a":' * 500 + "0" + "}" * 500, "nested too deeply"),
        ('{"verdict": "fail", "verdict": "pass"}', "a key twice"),
        ('{"a": NaN}', "NaN is no number"),
        ('{"a": -Infinity}', "no number"),
        ('{"a": 1e999}', "too large"),
        ('{"a": %s}' % ("9" * 5000), "too large"),
        ('{"checks": [%s]}' % ",".join("0" * 30_000), "30,000 entries"),  # noqa: UP031
        (json.dumps(dict.fromkeys(map(str, range(3000)))), "3,000 keys"),
        ("\ufeff{}", "not JSON"),
        ('{"schema_version": 2}', "is not a calibration"),
    ],
    ids=range(11),
)
def test_what_no_calibration_is_is_refused_at_once(
    text: str, complaint: str, tmp_path: Path
) -> None:
    (tmp_path / "a.json").write_text(text, "utf-8")
    with pytest.raises(UsageError) as refused:
        Calibration.load(tmp_path / "a.json")
    assert complaint in refused.value.message
    assert len(refused.value.message) < 1000


@pytest.mark.parametrize("name", ["/dev/zero", "pipe", "folder"])
def test_what_is_no_file_ends(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError):
        Calibration.load(tmp_path / name)
