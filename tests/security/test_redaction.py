"""`--redact-paths` against names that would slip through."""

import json
import unicodedata
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmcalib.admission.calibration import Calibration
from mmcalib.errors import OutputError, UsageError
from mmcalib.report.configurations import CONFIGURATIONS
from mmcalib.report.html.redact import WITHHELD, redacted
from mmcalib.report.report import REPORTS, Report, html
from mmcalib.results.part import CheckResult
from mmcalib.text import one_line, printable
from tests.report.example import calibration
from tests.report.hostile import named

T = "UNDISCLOSED"
NAMES = {
    "home": f"/home/{T}/media/a.jpg",
    "alone": T,
    "newline": f"/d/{T}\n{T}.jpg",
    "cut": "/d/" + "x" * 150 + T + "y" * 250 + ".png",
    "share": f"\\\\{T}\\{T}\\x",
    "share by slashes": f"//{T}/share",
    "password": f"https://{T}:{T}@host/x?X-Amz-Signature={T}",
    "bucket": f"s3://{T}/{T}/k.mp4",
    "member": f"tar://{T}/cat.jpg::/data/{T}.tar",
    "cell": f"parquet://7/{T}::/data/{T} b.parquet",
    "dataset": f"hf-dataset://{T}/{T}?split={T}",
    "composed": unicodedata.normalize("NFC", f"/d/e\u0301{T}.jpg"),
    "quotes": f"/d/{T}\"'<&>{T}.png",
    "spaces": f"/d/my {T} holiday/a {T} b",
    "brackets": f"/d/({T}) [{T}]/q {T}",
    "emoji": f"/d/😀{T}😀.heic",
    "not utf-8": f"/d/\udce9{T}.jpg",
    "line": f"/d/{T}.jsonl:17",
    "bidi": f"/d/\u202e{T}.png",
    "inline": f"data:image/png;base64,{T}",
}
SAID = [
    "2 skipped, for example {}: truncated",
    "3 items are downscaled, such as {}",
    "{}",
    '"{}"',
    "see {}, {}; and {}.",
    "of\n{}",
]


def checked(name: str) -> list[CheckResult]:
    """Sentences of checks on a file, as they are written and as others would."""
    ways = (name, one_line(name), printable(name), repr(name)[1:-1])
    details = [said.replace("{}", way) for said in SAID for way in ways]
    return [
        CheckResult(name="c", status="warn", detail=detail, remedy=detail, names=[name])
        for detail in details
    ]


def outputs(found: Calibration) -> dict[str, str]:
    """Outputs with `--redact-paths`, but for the page, which takes a second."""
    report = Report(found, f"vllm serve --config /home/{T}/x", thumbnails=False, redact_paths=True)
    clean = redacted(found)[0]
    said = {name: render(report) for name, render in REPORTS.items() if name != "html"}
    said["json"] = json.dumps(clean.model_dump(exclude={"costs"}))
    for name, form in CONFIGURATIONS.items():
        try:
            said[name] = form.render(clean)
        except OutputError as error:
            said[name] = error.message
    return said


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_what_is_named_is_named_nowhere(name: str) -> None:
    found = named(name)
    model = found.model.model_copy(update={"id": "org/m"})
    everywhere = found.model_copy(update={"model": model, "checks": checked(name)})
    by_checks_alone = calibration().model_copy(update={"checks": checked(name)})
    for output, text in (*outputs(everywhere).items(), *outputs(by_checks_alone).items()):
        assert T not in text, output


def test_what_is_named_is_not_in_the_page_either() -> None:
    names = [name for key, name in NAMES.items() if key != "not utf-8"]
    checks = [check for name in names for check in checked(name)]
    found = calibration().model_copy(update={"checks": checks})
    one = found.evidence[0]
    evidence = [one.model_copy(update={"exemplar": name, "reason": name}) for name in names]
    shown = found.model_copy(update={"evidence": evidence})
    assert T not in html(Report(shown, "vllm serve", thumbnails=False, redact_paths=True))


@pytest.mark.parametrize("said", ["/srv/{}/b c.jpg: cut", "open file:///srv/{}/%20b failed"])
def test_a_sentence_that_names_a_folder_of_theirs_is_withheld(said: str) -> None:
    """A check that forgot to say that it names a file."""
    check = CheckResult(name="c", status="warn", detail=said.format(T))
    found = named(f"/srv/{T}/a.jpg").model_copy(update={"checks": [check]})
    assert [c.detail for c in redacted(found)[0].checks] == [WITHHELD]


@pytest.mark.parametrize(
    ("model", "left"), [(f"{T}/tuned", "tuned"), (f"./{T}/tuned/", "tuned"), (f"/{T}/t", "t")]
)
def test_of_a_local_model_only_its_last_part_is_left(model: str, left: str) -> None:
    found = calibration()
    update: dict[str, Any] = {
        "model": found.model.model_copy(update={"id": model, "source": "local", "doubts": [model]}),
        "engine_config": {**found.engine_config, "model": model, "tokenizer": f"/{T}/tokens"},
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
    found = named(name).model_copy(update={"checks": checked(name)[::3]})
    found = found.model_copy(update={"model": calibration().model})
    for output, text in outputs(found).items():
        assert T not in text, output


def test_more_names_than_a_run_writes_are_refused() -> None:
    found = calibration()
    evidence = [found.evidence[0].model_copy(update={"exemplar": f"/d/{n}"}) for n in range(6_000)]
    with pytest.raises(UsageError, match="too many to redact"):
        redacted(found.model_copy(update={"evidence": evidence}))
