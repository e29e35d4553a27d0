"""A folder in which the commands of the docs find what they name: small, real, made on the spot."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from mmcalib.admission.calibration import Calibration
from mmcalib.domain.shapes import AudioShape
from mmcalib.media.blank import write_blank
from mmcalib.models.catalogue import find_model
from mmcalib.models.checkpoint import materialise
from mmcalib.report.configurations import CONFIGURATIONS
from tests.builders import some
from tests.programs import run_program

from ..corpus.tars import png, tar
from ..e2e.media import clip, photo, requests
from ..report.test_rehearsal_report import one
from ..schemas import CALIBRATION, EXAMPLE, ROOT

QWEN = "Qwen/Qwen2.5-VL-3B-Instruct"
SPEECH_HZ = 16_000
TARS = 100
# Absolute paths of the docs, and the folder that stands for each.
MOUNTS = {"/data": "data", "/mnt/media": "media"}


def prepare(folder: Path) -> Path:
    """Fill the folder. Its commands run with `run`, each in a copy of it."""
    for name in ("media", "new-media", "photos", "data", "data/pets", "sample/image"):
        for number in range(3):
            photo(folder / name / f"{number}.jpg", 320 + 64 * number, 240, number)
    (folder / "sample" / "audio").mkdir()
    for seconds in (1, 30):
        shape = AudioShape(seconds * SPEECH_HZ, SPEECH_HZ)
        write_blank(shape, seconds, folder / "sample" / "audio")
    photo(folder / "photo.jpg", 640, 480)
    clip(folder / "media" / "clip.mp4", 160, 120, 20)
    clip(folder / "sample" / "video" / "clip.mp4", 160, 120, 20)
    for file, at in (("requests.jsonl", "media"), ("sample/requests.jsonl", "image")):
        requests(folder / file, [("image", f"{at}/0.jpg"), ("image", f"{at}/1.jpg")])
    (folder / "corpus.jsonl").write_text('{"sizes": ["size:640x480"], "text_bytes": 9}\n')
    # A row: what is sent as it stands has URLs, which a copy of the folder would not have.
    row = {"prompt": "Describe.", "image_files": ["new-media/0.jpg", "new-media/1.jpg"]}
    (folder / "new-requests.jsonl").write_text(f"{json.dumps(row)}\n")
    (folder / "shards").mkdir()
    for number in range(TARS):
        tar(folder / "shards" / f"train-{number:04}.tar", ("a.png", png()))
    table = pa.table({"image": [{"bytes": png(), "path": "a.png"}], "text": ["Describe."]})
    pq.write_table(table, folder / "train-00000-of-00004.parquet")
    materialise(some(find_model(QWEN)), folder / "checkpoint")
    shutil.copytree(EXAMPLE, folder / "out")
    shutil.copytree(EXAMPLE, folder / "out-before")
    shutil.copy(folder / "out" / "engine.yaml", folder)
    (folder / "default.yaml").write_text(f"model: {QWEN}\n")
    deployed = CONFIGURATIONS["k8s"].render(Calibration.load(CALIBRATION))
    (folder / "deployment.yaml").write_text(deployed)
    # As a vLLM server prints it.
    args = f"non-default args: {{'model': '{QWEN}'}}"
    (folder / "server.log").write_text(f"(APIServer pid=7) INFO 07-01 10:00:00 {args}\n")
    for name in ("old", "new"):
        (folder / f"{name}.json").write_text(one(folder).model_dump_json())
    shutil.rmtree(folder / "3b")
    return folder


def copy(template: Path, to: Path) -> None:
    """A workspace of one's own; its media are newer than its results."""
    left = shutil.ignore_patterns(".cache", ".bin")
    shutil.copytree(template, to, copy_function=os.link, ignore=left)
    _replace(to / "out" / "calibration.json")


def _replace(path: Path) -> None:
    """A file of its own in place of a link, and as old as files get."""
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)
    os.utime(path, (0, 0))


def execute(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The line in bash, with this checkout's `mmcalib`; a failure anywhere in a pipe counts."""
    programs = folder / ".bin"
    programs.mkdir(exist_ok=True)
    for name, words in (("mmcalib", "-m mmcalib"), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        (programs / name).chmod(0o755)
    for path, name in MOUNTS.items():
        line = line.replace(path, str(folder / name))
    env = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "MMCALIB_CACHE_DIR": str(folder / ".cache"),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_CACHE": str(folder / ".cache"),
        "NO_COLOR": "1",
    }
    return run_program("bash", "-o", "pipefail", "-c", line, cwd=folder, env=env)
