"""Whether every command writes and prints what it did at another commit.

    python benchmarks/same_outputs.py COMMIT --media DIR [--model MODEL]... [--only COMMAND]...

Both trees run the same commands side by side on the same media: `run`, `report` in all its forms,
`check`, `validate`, `rehearse`, `plan` and `scan`; no engine starts. What they print, their exit
codes and every file are compared; only what a clock says may differ. Prints each difference as a
diff, then a table of the seconds that the commands took. Exits 1 where anything differs.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODELS = (
    "Qwen/Qwen2.5-VL-3B-Instruct",
    "OpenGVLab/InternVL2-2B",
    "Qwen/Qwen2-Audio-7B-Instruct",
)
GPU = "L4"
# Of one length, so that lines break at the same place.
SIDES = {"before": "1", "now": "2"}
FORMS = ("yaml", "args", "env", "k8s", "python")

# What a clock says: seconds as text, in JSON and in tables, what is computed of them, and dates.
CLOCK = (
    (re.compile(r"\d[\d.,]* (?:ms|s|min)\b"), "TIME"),
    # A rate is told of what took long enough.
    (re.compile(r", [\d.,]+/s\b"), ""),
    (re.compile(r"\b\d[\d.,]* cores?\b"), "CORES"),
    (re.compile(r'("[a-z_0-9]*(?:_s|_s_per_item|seconds)": )[-\d.e]+'), r"\1TIME"),
    # Seconds of a processor in tables, and what they come to per hundred items.
    (re.compile(r"(?<=\| )0\.\d{2,3} \| [\d.,]+ \|$", re.M), "TIME |"),
    (re.compile(r"(?<=\| )\d+\.\d{3} \|"), "TIME |"),
    (re.compile(r"<bdi>0\.\d{2,3}</bdi></td><td><bdi>[\d.,]+</bdi>"), "TIME"),
    # How often progress is told depends on how long it takes.
    (re.compile(r"^.*\d+%, about.*\n", re.M), ""),
    (re.compile(r"\b20\d\d-\d\d-\d\d(?:[T ][\d:.+Z]+)?"), "DATE"),
)


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command left: texts by what they are, and how long it took."""

    texts: Mapping[str, str]
    seconds: float


def commands(models: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Name each line of `mmcalib`, in the order in which they need each other's files."""
    for number, model in enumerate(models):
        out = f"out-{number}"
        yield (
            f"run {model}",
            f"run --model {model} --data media --requests media/requests.jsonl --gpu {GPU} "
            f"--validate budget --out {out} --force --json",
        )
        yield f"report {model}", f"report {out} --format md --out {out}.md"
        for form in FORMS:
            words = f"report {out} --emit {form} --out {out}.{form} --force"
            yield f"report --emit {form} {model}", words
        for form in ("", " --json"):
            yield f"check{form} {model}", f"check --calibration {out}/calibration.json{form} media"
            words = f"--config {out}/engine.yaml --data media --gpu {GPU} --validate budget{form}"
            yield f"validate{form} {model}", f"validate {words}"
            yield f"rehearse{form} {model}", f"rehearse --model {model} --gpu {GPU}{form}"
        yield f"plan {model}", f"plan --model {model} --gpu {GPU}"
    yield "scan", "scan --data media --json --no-cache"
    yield "list", "list models --json"
    yield "run --help", "run --help"


def ran(tree: Path, folder: Path, words: str) -> Ran:
    """The command in `folder` with the package of `tree`; what it wrote is taken from there."""
    before = files(folder)
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree),
        "COLUMNS": "120",
        "MMCALIB_CACHE_DIR": str(folder / "cache"),
    }
    code = "import sys; from mmcalib.cli import main; main()"
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code, *words.split()],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.monotonic() - begun
    texts = {"exit code": str(done.returncode), "stdout": done.stdout, "stderr": done.stderr}
    for name, state in files(folder).items():
        if before.get(name) != state:
            texts[name] = (folder / name).read_text(errors="replace")
    return Ran({name: plain(text, folder, tree) for name, text in texts.items()}, seconds)


def files(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file but the media and the cache, with its size and time of change."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and name.parts[0] not in ("media", "cache"):
            state = path.stat()
            found[str(name)] = (state.st_size, state.st_mtime_ns)
    return found


def plain(text: str, folder: Path, tree: Path) -> str:
    """Without what differs by place and time."""
    text = text.replace(str(folder), "FOLDER").replace(str(tree), "TREE")
    # As Markdown has it.
    text = text.replace(str(folder).replace("_", "\\_"), "FOLDER")
    for pattern, instead in CLOCK:
        text = pattern.sub(instead, text)
    return text


def differences(name: str, before: Ran, now: Ran) -> Iterator[str]:
    for what in sorted({*before.texts, *now.texts}):
        old, new = before.texts.get(what, ""), now.texts.get(what, "")
        if old != new:
            yield from difflib.unified_diff(
                old.splitlines(),
                new.splitlines(),
                f"{name}: {what}, before",
                f"{name}: {what}, now",
                lineterm="",
                n=1,
            )


def checked_out(commit: str, folder: Path) -> Path:
    """The tree of a commit, in `folder`."""
    archive = subprocess.run(
        ["git", "archive", commit], cwd=ROOT, capture_output=True, check=True
    ).stdout
    folder.mkdir(parents=True)
    subprocess.run(["tar", "-x"], cwd=folder, input=archive, check=True)
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commit")
    parser.add_argument("--media", type=Path, required=True, help="with requests.jsonl in it")
    parser.add_argument("--model", action="append")
    parser.add_argument("--only", action="append", default=[], help="commands that begin so")
    given = parser.parse_args()
    found: list[str] = []
    rows: list[tuple[str, Ran, Ran]] = []
    with tempfile.TemporaryDirectory(prefix="same-outputs-") as scratch:
        trees = {"before": checked_out(given.commit, Path(scratch, "tree")), "now": ROOT}
        for side in trees:
            folder = Path(scratch, SIDES[side])
            folder.mkdir()
            shutil.copytree(given.media, folder / "media")
        for name, words in commands(given.model or MODELS):
            if given.only and not name.startswith(tuple(given.only)):
                continue
            print(f"{name} ...", file=sys.stderr, flush=True)
            before, now = (
                ran(tree, Path(scratch, SIDES[side]), words) for side, tree in trees.items()
            )
            rows.append((name, before, now))
            lines = list(differences(name, before, now))
            for line in lines:
                print(line, flush=True)
            found += lines
    # A command that fails at once on both sides is equal, too, and says little.
    print(f"\n{'command':58}{'exit':>5}{'before, s':>10}{'now, s':>10}{'ratio':>8}")
    for name, old, new in rows:
        seconds = f"{old.seconds:10.1f}{new.seconds:10.1f}{new.seconds / old.seconds:8.2f}"
        print(f"{name:58}{new.texts['exit code']:>5}{seconds}")
    print(f"{len(rows)} commands, {len(found)} lines differ")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
