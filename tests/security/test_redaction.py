"""`--redact-paths` against names that would slip through."""

from __future__ import annotations

import json
import time
import unicodedata
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmcalib.errors import OutputError, UsageError
from mmcalib.report.html.redact import _PATHS, redacted
from mmcalib.report.report import html
from mmcalib.report.report import md
from mmcalib.report.configurations import CONFIGURATIONS
from mmcalib.report.report import Report
from mmcalib.result.check_result import CheckResult
from mmcalib.wording import one_line, plain
from mmcalib.workflows.gate.calibration import Calibration
from tests.report.example import calibration
from tests.report.hostile import named

T = "UNDISCLOSED"
NAMES = {
    "home": f"/home/{T}/media/a.jpg",
    "folder": f"/srv/{T}",
    "no ending": f"/srv/x {T}.xyz",
    "alone": T,
    "newline": f"/d/{T}\n{T}.jpg",
    "cut": "/d/" + "x" * 150 + T + "y" * 250 + ".png",
    "very long": "/" + "/".join([T] * 100),
    "drive": f"C:\\Users\\{T}\\a b\\{T}.png",
    "share": f"\\\\{T}\\{T}\\x",
    "share by slashes": f"//{T}/share",
    "password": f"https://{T}:{T}@host/x?X-Amz-Signature={T}",
    "signature": f"https://host/a.jpg?X-Amz-Signature={T}&X={T}#{T}",
    "hub": f"https://huggingface.co/datasets/{T}",
    "bucket": f"s3://{T}/{T}/k.mp4",
    "member": f"tar://{T}/cat.jpg::/data/{T}.tar",
    "cell": f"parquet://7/{T}::/data/{T} b.parquet",
    "dataset": f"hf-dataset://{T}/{T}?split={T}",
    "composed": unicodedata.normalize("NFC", f"/d/e\u0301{T}.jpg"),
    "decomposed": unicodedata.normalize("NFD", f"/d/é{T}.jpg"),
    "quotes": f"/d/{T}\"'<&>{T}.png",
    "percent": f"file:///d/{T}%20{T}.png",
    "spaces": f"/d/my {T} holiday/a {T} b",
    "commas": f"/d/{T},{T};x:y)z/{T}",
    "brackets": f"/d/({T}) [{T}]/q {T}",
    "emoji": f"/d/😀{T}😀.heic",
    "not utf-8": f"/d/\udce9{T}.jpg",
    "line": f"/d/{T}.jsonl:17",
    "user": f"~{T}/x/{T}",
    "bidi": f"/d/\u202e{T}.png",
    "inline": f"data:image/png;base64,{T}",
}
SAID = [
    "2 skipped, such as {}: truncated",
    "3 items are downscaled, such as {}",
    "{}",
    "({})",
    "{} costs 4, {} too",
    '"{}"',
    "x={}",
    "see {}, {}; and {}.",
    "of\n{}",
]


def checked(*details: str) -> Calibration:
    checks = [CheckResult(name="c", status="warn", detail=d, remedy=d) for d in details]
    return calibration().model_copy(update={"checks": checks})


def spoken(name: str) -> list[str]:
    ways = (name, one_line(name), plain(name), repr(name))
    return [said.replace("{}", way) for said in SAID for way in ways]


def outputs(found: Calibration) -> dict[str, str]:
    """What leaves the house with `--redact-paths`, but for the page, which takes a second."""
    report = Report(found, f"vllm serve --config /home/{T}/x", thumbnails=False, redact_paths=True)
    clean = redacted(found)[0]
    said = {"md": md(report), "json": json.dumps(clean.model_dump(exclude={"costs"}))}
    for name, form in CONFIGURATIONS.items():
        try:
            said[name] = form.render(clean)
        except OutputError as error:
            said[name] = error.message
    return said


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_what_is_named_is_named_nowhere(name: str) -> None:
    found = named(name)
    model = found.model.model_copy(update={"id": "org/m", "doubts": spoken(name)})
    update = {"model": model, "checks": checked(*spoken(name)).checks}
    for output, text in outputs(found.model_copy(update=update)).items():
        assert T not in text, output


def test_what_is_named_is_not_in_the_page_either() -> None:
    names = [name for key, name in NAMES.items() if key != "not utf-8"]
    checks = checked(*(said for name in names for said in spoken(name))).checks
    found = named(f"/{T}/".join(names)).model_copy(update={"checks": checks})
    found = found.model_copy(update={"model": calibration().model})
    one = found.limits.evidence[0]
    evidence = [one.model_copy(update={"exemplar": name, "reason": name}) for name in names]
    limits = found.limits.model_copy(update={"evidence": evidence})
    shown = found.model_copy(update={"limits": limits})
    page = html(Report(shown, "vllm serve", thumbnails=False, redact_paths=True))
    assert T not in page


@pytest.mark.parametrize("name", [n for k, n in NAMES.items() if k != "alone"])
def test_what_only_a_sentence_names_is_withheld_too(name: str) -> None:
    left = [c.detail for c in redacted(checked(*spoken(name)))[0].checks if T in c.detail]
    assert not left


def test_an_example_is_withheld_whatever_it_is_called() -> None:
    clean = redacted(checked(f"2 skipped, such as {T} b: truncated", f"x, such as {T}"))[0]
    assert [c.detail for c in clean.checks] == [
        "2 skipped, such as (path withheld): truncated",
        "x, such as (path withheld)",
    ]


@pytest.mark.parametrize(
    ("model", "left"), [(f"{T}/tuned", "tuned"), (f"./{T}/tuned/", "tuned"), (f"/{T}/t", "t")]
)
def test_of_a_local_model_only_its_last_part_is_left(model: str, left: str) -> None:
    found = calibration()
    update: dict[str, Any] = {
        "model": found.model.model_copy(update={"id": model, "source": "local"}),
        "engine_config": {**found.engine_config, "model": model},
    }
    for text in outputs(found.model_copy(update=update)).values():
        assert T not in text
    assert redacted(found.model_copy(update=update))[0].engine_config["model"] == left


def words_of(inside: Any) -> set[str]:
    if isinstance(inside, dict):
        return {word for one in inside.values() for word in words_of(one)} | set(inside)
    if isinstance(inside, list):
        return {word for one in inside for word in words_of(one)}
    return {inside} if isinstance(inside, str) else set()


WORDS = sorted(word for word in words_of(calibration().model_dump(mode="json")) if len(word) < 40)


@pytest.mark.parametrize("word", WORDS)
def test_a_file_may_be_called_like_a_word_of_the_document(word: str) -> None:
    for name in (word, f"/d/{word}", f"/d/{word}.jpg"):
        assert redacted(named(name))[0].verdict == calibration().verdict


CHARACTERS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)


@settings(max_examples=25, deadline=None)
@given(CHARACTERS, CHARACTERS)
def test_no_character_lets_a_known_name_through(before: str, behind: str) -> None:
    name = f"/d/{before}{T}{behind}"
    found = named(name).model_copy(update={"checks": checked(*spoken(name)[::3]).checks})
    found = found.model_copy(update={"model": calibration().model})
    for output, text in outputs(found).items():
        assert T not in text, output


@pytest.mark.parametrize(
    "fill", ["a/ ", "such as ", "/a ", "~a", "\\", "a:1", "x.jpg ", "a", ".", "="]
)
def test_a_long_sentence_takes_no_longer(fill: str) -> None:
    started = time.process_time()
    for pattern in _PATHS:
        pattern.sub("", fill * (5_000 // len(fill)))
    redacted(checked(fill * (1_000_000 // len(fill))))
    assert time.process_time() - started < 5


def test_more_names_than_a_run_writes_are_refused() -> None:
    found = calibration()
    one = found.limits.evidence[0]
    evidence = [one.model_copy(update={"exemplar": f"/d/{n}"}) for n in range(6_000)]
    limits = found.limits.model_copy(update={"evidence": evidence})
    with pytest.raises(UsageError, match="does not name"):
        redacted(found.model_copy(update={"limits": limits}))
