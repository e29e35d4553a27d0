from __future__ import annotations

import pytest

from mmcalib.admission.calibration import Calibration
from mmcalib.report.html.redact import redacted
from mmcalib.report.report import Report, html, md
from tests.report.example import SERVE, calibration
from tests.report.hostile import NAMES, named


def test_no_name_of_a_file_is_left_in_any_report() -> None:
    report = Report(calibration(), SERVE, redact_paths=True)
    for text in (html(report), md(report)):
        for name in ("page-7", "door", "letterhead", "broken", "/data", "out/engine.yaml"):
            assert name not in text, name


def test_one_file_has_one_name_everywhere() -> None:
    clean, names = redacted(calibration())
    alias = names["/data/scan/page-7.png"]
    assert alias.endswith(".png")
    assert clean.corpus.modalities["image"].tokens.exemplar == alias
    assert [e.exemplar for e in clean.limits.evidence].count(alias) == 3
    assert any(alias in check.detail for check in clean.checks)


def test_numbers_settings_and_the_model_stay() -> None:
    found = calibration()
    clean, _ = redacted(found)
    assert clean.model.id == "Qwen/Qwen2.5-VL-3B-Instruct"
    assert clean.engine_config == found.engine_config
    assert clean.frontier == found.frontier
    assert clean.memory == found.memory
    assert [e.reason for e in clean.limits.evidence] == [e.reason for e in found.limits.evidence]


def test_of_a_model_folder_its_last_part_is_left() -> None:
    found = calibration()
    model = found.model.model_copy(update={"id": "/home/me/secret/qwen-tuned"})
    config = {**found.engine_config, "model": "/home/me/secret/qwen-tuned"}
    update = {"model": model, "engine_config": config}
    clean, _ = redacted(found.model_copy(update=update))
    assert clean.model.id == "qwen-tuned"
    assert clean.engine_config["model"] == "qwen-tuned"


@pytest.mark.parametrize("kind", NAMES)
def test_hostile_names_are_withheld_like_any_other(kind: str) -> None:
    shown = Report(named(f"/undisclosed/{NAMES[kind]}"), SERVE, redact_paths=True)
    assert "undisclosed" not in md(shown)


def test_hostile_names_are_withheld_in_the_page_too() -> None:
    name = "/undisclosed/".join(["", *NAMES.values()])
    shown = Report(named(name), SERVE, thumbnails=False, redact_paths=True)
    assert "undisclosed" not in html(shown)


def test_without_the_wish_names_are_shown() -> None:
    found: Calibration = calibration()
    assert "page-7.png" in html(Report(found, SERVE, thumbnails=False))
