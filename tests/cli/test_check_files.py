"""What `mmcalib check` writes for CI systems, and the hook and the action that run it there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import pytest
import yaml
from jsonschema import Draft202012Validator, FormatChecker
from PIL import Image

from mmcalib.cli import check_files
from mmcalib.report.junit import junit_xml
from mmcalib.report.sarif import sarif_json
from mmcalib.result.check_lines import Offender, Summary
from mmcalib.workflows.gate.check import SAYS_MEDIA
from tests.report.example import calibration
from tests.report.published import SARIF

ROOT = Path(__file__).resolve().parents[2]


def request(*names: str) -> str:
    parts = [{"type": "image_url", "image_url": {"url": name}} for name in names]
    return json.dumps({"messages": [{"role": "user", "content": parts}]})


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """A calibration; a page that fits, a strip that does not; requests, of which one does not."""
    calibration().save(tmp_path / "calibration.json")
    (tmp_path / "new").mkdir()
    Image.new("RGB", (1000, 750)).save(tmp_path / "new" / "page.png")
    Image.new("RGB", (3, 700)).save(tmp_path / "new" / "a strip <&>.png")
    lines = [request("page.png"), request(*["page.png"] * 9)]
    (tmp_path / "new" / "r.jsonl").write_text("\n".join(lines))
    return tmp_path


CHECK = ("check", "--calibration", "calibration.json", "new", "--requests", "new/r.jsonl")


def valid(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)
    Draft202012Validator(SARIF, format_checker=FormatChecker()).validate(found)
    (run,) = found["runs"]
    rules = {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    assert {result["ruleId"] for result in run["results"]} <= rules
    return found


def test_both_files_say_what_the_exit_code_says(cli, desk: Path) -> None:
    said = cli(*CHECK, "--junit", "ci/junit.xml", "--sarif", "ci/check.sarif", "--quiet")
    assert said.code == 3
    (suite,) = Xml.parse(desk / "ci" / "junit.xml").getroot()
    assert {n: suite.get(n) for n in ("tests", "failures", "errors", "skipped")} == {
        "tests": "4",
        "failures": "2",
        "errors": "0",
        "skipped": "0",
    }
    strip, prompt = suite.findall("testcase")
    assert (strip.get("classname"), strip.get("name")) == (
        "mmcalib.item",
        str(desk / "new" / "a strip <&>.png"),
    )
    failure = strip.find("failure")
    assert failure is not None
    assert "233:1" in str(failure.get("message"))
    assert "crop or pad" in str(failure.text)
    assert prompt.get("name") == "r.jsonl:2"
    (run,) = valid((desk / "ci" / "check.sarif").read_text())["runs"]
    results = run["results"]
    assert [(one["ruleId"], one["level"]) for one in results] == [("does-not-fit", "error")] * 2
    where = [one["locations"][0]["physicalLocation"] for one in results]
    assert where[0]["artifactLocation"] == {
        "uri": "new/a%20strip%20%3C%26%3E.png",
        "uriBaseId": "%SRCROOT%",
    }
    assert where[1] == {
        "artifactLocation": {"uri": "new/r.jsonl", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 2},
    }


def test_where_all_fits_there_is_nothing_in_them(cli, desk: Path) -> None:
    (desk / "new" / "a strip <&>.png").unlink()
    (desk / "junit.xml").write_text("of an earlier check")
    said = cli(*CHECK[:4], "--junit", "junit.xml", "--sarif", "check.sarif")
    assert said.code == 0, said.err
    (suite,) = Xml.parse(desk / "junit.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), len(suite)) == ("1", "0", 0)
    assert valid((desk / "check.sarif").read_text())["runs"][0]["results"] == []


@pytest.mark.parametrize("option", ["--junit", "--sarif"])
def test_a_folder_is_no_file(cli, desk: Path, option: str) -> None:
    said = cli(*CHECK, option, "new")
    assert (said.code, said.out) == (2, "")
    assert f"{option} new is a folder" in said.err


def offender(origin: str, answer: str = "no", kind: str = "item") -> Offender:
    known = {"tokens": None, "embeds": None, "exact": True, "basis": "none"}
    words = {"reason": "too \x1b[2J large", "remedy": ""}
    more: dict[str, Any] = {"largest": None, "shapes": []}
    said = {"kind": kind, "origin": origin, "answer": answer, **known, **words, **more}
    return Offender.model_validate(said)


def summary(no: int = 0, unknown: int = 0) -> Summary:
    return Summary(
        kind="summary",
        all_fit=False,
        share=1.0,
        checked=99,
        skipped=0,
        fits=0,
        no=no,
        unknown=unknown,
    )


@pytest.mark.parametrize(
    ("origin", "uri"),
    [
        ("/here/a.png", "a.png"),
        ("/elsewhere/a b.png", "file:///elsewhere/a%20b.png"),
        ("/here/\udce9\u202e.png", "%E9%E2%80%AE.png"),
        ("s3://bucket/a b.png", "s3://bucket/a%20b.png"),
        ("tar://a/b.png::/here/c.tar", "c.tar"),
    ],
)
def test_every_origin_is_a_uri(origin: str, uri: str) -> None:
    text = sarif_json([offender(origin)], summary(1), allow_unknown=False, root=Path("/here"))
    (result,) = valid(text)["runs"][0]["results"]
    location = result["locations"][0]["physicalLocation"]["artifactLocation"]
    assert location["uri"] == uri
    assert "\x1b" not in result["message"]["text"]
    case = Xml.fromstring(junit_xml([offender(origin)], summary(1), allow_unknown=False))[0][0]
    assert str(case.get("name")).isprintable()


@pytest.mark.parametrize("kind", ["prompt", "item"])
def test_what_came_by_standard_input_stands_nowhere(kind: Any) -> None:
    one = offender("line 3", kind=kind)
    found = valid(sarif_json([one], summary(1), allow_unknown=False, root=Path("/")))
    assert "locations" not in found["runs"][0]["results"][0]


def test_the_same_item_has_the_same_fingerprint_wherever_the_checkout_is() -> None:
    made = [
        valid(sarif_json([offender(f"{root}/a.png")], summary(1), allow_unknown=False, root=root))
        for root in (Path("/one"), Path("/two"))
    ]
    assert made[0] == made[1]


def test_requests_of_two_files_of_one_name_stand_in_their_own() -> None:
    files = {name: Path(name) for name in ("/in/a/requests.jsonl", "/in/b/requests.jsonl")}
    one = offender("/in/b/requests.jsonl:7", kind="prompt")
    text = sarif_json([one], summary(1), allow_unknown=False, root=Path("/in"), requests=files)
    (result,) = valid(text)["runs"][0]["results"]
    location = result["locations"][0]["physicalLocation"]
    assert location["artifactLocation"]["uri"] == "b/requests.jsonl"
    assert location["region"] == {"startLine": 7}


def test_what_may_be_unknown_fails_nothing() -> None:
    one = offender("/a.png", "unknown")
    suite = Xml.fromstring(junit_xml([one], summary(unknown=1), allow_unknown=True))[0]
    assert (suite.get("failures"), suite.get("skipped")) == ("0", "1")
    assert suite[0].find("skipped") is not None
    found = valid(sarif_json([one], summary(unknown=1), allow_unknown=True, root=Path("/")))
    assert found["runs"][0]["results"][0]["level"] == "note"


def test_of_very_many_the_rest_is_counted() -> None:
    kept = [offender("/a.png")] * 2
    assert "3 more" in junit_xml(kept, summary(no=5), allow_unknown=False)
    found = valid(sarif_json(kept, summary(no=5), allow_unknown=False, root=Path("/")))
    (notice,) = found["runs"][0]["invocations"][0]["toolExecutionNotifications"]
    assert "3 more" in notice["message"]["text"]
    assert check_files._MOST <= 25_000


def test_the_hook_is_one_that_pre_commit_takes() -> None:
    clientlib = pytest.importorskip("pre_commit.clientlib")
    (hook,) = clientlib.load_manifest(ROOT / ".pre-commit-hooks.yaml")
    assert hook["entry"].split()[:2] == ["mmcalib", "check"]
    media = re.compile(hook["files"])
    assert [ending for ending in SAYS_MEDIA if not media.search(f"a/b.{ending.upper()}")] == []
    others = ("a.py", "a.ts", "a.mts", "calibration.json", "png", "a.png.txt")
    assert not any(media.search(name) for name in others)
    assert hook["pass_filenames"] is True


@pytest.fixture
def action() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
    return found


def test_the_action_hands_on_each_of_its_inputs(action: dict[str, Any]) -> None:
    assert action["runs"]["using"] == "composite"
    said = json.dumps(action["runs"]["steps"])
    for name, given in action["inputs"].items():
        assert f"${{{{ inputs.{name} }}}}" in said
        assert {"description", "default"} <= given.keys()
    for step in action["runs"]["steps"]:
        # An input in a script would be run by the shell.
        assert "${{" not in step.get("run", "")
        assert "uses" in step or step["shell"] == "bash"


def test_the_step_of_the_action_checks(action: dict[str, Any], desk: Path) -> None:
    programs = desk / "bin"
    programs.mkdir()
    (programs / "mmcalib").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mmcalib "$@"\n')
    (programs / "mmcalib").chmod(0o755)
    step = action["runs"]["steps"][-1]
    given = {
        "CALIBRATION": "calibration.json",
        "DATA": "new/page.png\nnew/a strip <&>.png\n",
        "REQUESTS": "new/r.jsonl\n",
        "ALLOW_UNKNOWN": "false",
        "JUNIT": "",
        "SARIF": "$(touch evil).sarif",
    }
    assert step["env"].keys() == given.keys()
    environment = {
        **os.environ,
        **given,
        "PATH": f"{programs}:{os.defpath}",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        ["bash", "-e", "-c", step["run"]],
        cwd=desk,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    assert "2 of 4 fit, 2 do not" in done.stderr
    assert not (desk / "evil").exists()
    assert len(valid((desk / given["SARIF"]).read_text())["runs"][0]["results"]) == 2
