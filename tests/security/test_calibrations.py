"""A foreign calibration.json leaks nothing of this machine, and is only text in every output."""

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
import yaml
from PIL import Image
from rich.console import Console

from mmcalib.admission.calibration import Calibration
from mmcalib.domain.shapes import AudioShape, ImageShape, VideoShape
from mmcalib.errors import MmcalibError, OutputError, UsageError
from mmcalib.report.configurations import CONFIGURATIONS
from mmcalib.report.report import Report, html, md
from mmcalib.report.summary import summary
from tests.builders import some
from tests.cli.conftest import Cli, Ended
from tests.cli.test_output import leave
from tests.report.example import calibration, changed
from tests.report.test_emit import container


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with files that nobody meant to send on, and a corpus beside them."""
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


def reported(cli: Cli, home: Path, exemplars: list[str], *words: str) -> tuple[Ended, int]:
    """Report a calibration of these images alone, and count the pictures of the page."""
    part = some(calibration().costs).modalities["image"]
    known = [part.known[0].model_copy(update={"exemplar": exemplar}) for exemplar in exemplars]
    alone = {"image": part.model_copy(update={"known": known})}
    found = changed(calibration(), "costs", modalities=alone)
    found.save(home / "foreign" / "calibration.json")
    said = cli("report", "foreign", *words)
    return said, (home / "foreign" / "report.html").read_text("utf-8").count("data:image/")


def test_a_foreign_calibration_shows_no_local_file(cli: Cli, home: Path) -> None:
    said, pictures = reported(cli, home, [*outside(home), f"{home}/media/a.png"])
    assert (said.code, pictures) == (0, 0)
    assert "mmcalib report foreign --data DIR" in said.err
    assert len(said.err.splitlines()) == 2


def test_only_files_below_the_named_folders_are_shown(cli: Cli, home: Path) -> None:
    inside = [f"{home}/media/a.png", f"tar://in/it.png::{home}/media/mine.tar"]
    said, pictures = reported(cli, home, [*outside(home), *inside][-12:], "--data", "media")
    assert pictures == len(inside)
    assert "pictures left out" in said.err


@pytest.mark.parametrize("root", ["media/a.png", "media-link"])
def test_a_root_may_be_a_file_or_a_link_to_a_folder(cli: Cli, home: Path, root: str) -> None:
    (home / "media-link").symlink_to(home / "media")
    said, pictures = reported(cli, home, [f"{home}/media/a.png"], "--data", root)
    assert pictures == 1
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


def with_value(inside: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copied = inside.copy()
    copied[path[0]] = with_value(inside[path[0]], path[1:], value)
    return copied


def everything_made_of(found: Calibration, *, page: bool) -> tuple[str, str]:
    """Reports, and plain text (summary, forms, code blocks). Any non-MmcalibError propagates."""
    terminal = io.StringIO()
    console = Console(file=terminal, width=100)
    report = Report(found, "vllm serve", roots=())
    shapes = (ImageShape(10, 10), VideoShape(10, 1.0, 10.0, 300, 300), AudioShape(100, 16000))
    renderings = [md, html] if page else [md]
    said = made(
        [partial(render, report) for render in renderings]
        + [partial(found.admits, shape) for shape in shapes]
    )
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
        file.write_text(json.dumps(with_value(document, path, value)))
        try:
            found = Calibration.load(file)
        except UsageError:
            continue
        said, code = everything_made_of(found, page=number % 20 == 0)
        assert "<script>x" not in said.replace("\\<script\\>x", ""), path
        assert all(c.isprintable() for c in (said + code).replace("\n", "")), path


HIDDEN = {
    "right to left": "\u202e",
    "isolate": "\u2066",
    "mark": "\u200f",
    "zero width": "\u200b",
    "byte order": "\ufeff",
    "tag": "\U000e0041",
    "escape": "\x1b",
    "line separator": "\u2028",
}


def configured(**config: Any) -> Calibration:
    found = calibration()
    model = found.model.model_copy(update={"id": str(config.get("model", "m"))})
    config = {**found.engine_config, "model": "m", **config}
    return found.model_copy(update={"engine_config": config, "model": model})


@pytest.mark.parametrize("character", HIDDEN.values(), ids=HIDDEN)
@pytest.mark.parametrize("form", CONFIGURATIONS)
def test_nothing_hides_in_any_form_and_its_value_stays(form: str, character: str) -> None:
    name = f"/models/ü{character}gnp.exe"
    made = configured(model=name, mm_processor_kwargs={"ö": name})
    if form in ("args", "docker", "env"):
        with pytest.raises(OutputError, match="cannot escape"):
            CONFIGURATIONS[form].render(made)
        return
    text = CONFIGURATIONS[form].render(made)
    assert all(line.isprintable() for line in text.split("\n"))
    if form == "yaml":
        assert yaml.safe_load(text)["model"] == name
    if form == "k8s":
        args = container(text)["args"]
        assert args[0] == name
        assert json.loads(args[4]) == {"ö": name}


@pytest.mark.parametrize("character", HIDDEN.values(), ids=HIDDEN)
def test_nothing_hides_in_the_reports(character: str) -> None:
    shown = Report(configured(model=f"/models/a{character}b"), "vllm serve", thumbnails=False)
    assert character not in md(shown)
    assert character not in html(shown)


def test_letters_of_any_language_stay_as_they_are() -> None:
    assert "ünïcödé-日本" in CONFIGURATIONS["yaml"].render(configured(model="/ünïcödé-日本"))


@pytest.mark.parametrize(
    "config",
    [
        {"model": "--trust-remote-code"},
        {"model": "-x"},
        {"cudagraph_capture_sizes": [1, "--trust-remote-code"]},
        {"trust_remote_code": True},
        {"worker_cls": "evil.Worker"},
        {"compilation_config": {"inductor_passes": {"a": "os.system"}}},
        {"config": "/tmp/evil.yaml"},
        {"a b": 1},
        {"-x": 1},
        {"a\ntrust-remote-code": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("form", CONFIGURATIONS)
def test_an_option_that_mmcalib_never_writes_is_not_emitted(form: str, config) -> None:
    with pytest.raises(OutputError, match="not written"):
        CONFIGURATIONS[form].render(configured(**config))


@pytest.mark.parametrize("form", ["yaml", "k8s"])
def test_a_value_is_no_option_where_nothing_ties_it_to_its_own(form: str) -> None:
    with pytest.raises(OutputError, match="as an option"):
        CONFIGURATIONS[form].render(configured(kv_cache_dtype="--trust-remote-code"))
    assert "--kv-cache-dtype=--x" in CONFIGURATIONS["args"].render(configured(kv_cache_dtype="--x"))


def test_it_is_one_line_on_the_terminal(cli: Cli, tmp_path: Path) -> None:
    configured(model="--trust-remote-code\n\x1b[2J").save(tmp_path / "calibration.json")
    said = cli("report", "calibration.json", "--emit", "yaml")
    assert (said.code, said.out) == (1, "")
    assert said.err.startswith("error: not written: vLLM would read model --trust-remote-code\\n")
    assert len(said.err.splitlines()) == 2


@pytest.mark.parametrize("emit", [["args", "env", "k8s", "python"], ["python", "env"]])
def test_forms_are_written_all_or_none(tmp_path: Path, emit: list[str]) -> None:
    with pytest.raises(OutputError, match="--emit env"):
        leave(configured(model="/models/a\nb"), tmp_path, quiet=True, emit=emit)
    written = sorted(os.listdir(tmp_path))
    assert written == ["engine.yaml", "report.html", "report.md"]
    assert yaml.safe_load((tmp_path / "engine.yaml").read_text())["model"] == "/models/a\nb"
