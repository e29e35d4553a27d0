"""Files that cost far more than their size, and what a command took for them."""

import os
import threading
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from tests.corpus.media import png
from tests.security.commands import started

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Spent:
    """Memory at once and time of a command and all that it started."""

    code: int
    out: str
    err: str
    most_bytes: int
    seconds: float


def spent(home: Path, *words: object) -> Spent:
    """Run it, and add up again and again what its processes hold."""
    began = time.monotonic()
    process = started(home, *words)
    most, done = 0, threading.Event()

    def look() -> None:
        nonlocal most
        while not done.wait(0.02):
            most = max(most, _held_bytes(process.pid))

    looker = threading.Thread(target=look)
    looker.start()
    try:
        out, err = process.communicate(timeout=400)
    finally:
        done.set()
        looker.join()
    return Spent(process.returncode, out, err, most, time.monotonic() - began)


def _held_bytes(root: int) -> int:
    """The private and shared pages of the process and all below it, shared ones once each."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                words = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(words[1]), []).append(int(entry))
    total, waiting = 0, [root]
    while waiting:
        pid = waiting.pop()
        waiting += children.get(pid, [])
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
    return total


def zip_bomb(path: Path) -> None:
    """One member of a zip: 500 MB of zeros in some MB."""
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("bomb.png", "w", force_zip64=True) as file,
    ):
        file.write(png())
        for _ in range(500):
            file.write(bytes(MIB))


def slow_jpeg(path: Path, side_px: int, scans: int) -> Path:
    """A progressive JPEG that repeats its last scan: bytes per megapixel, over all coefficients."""
    path.parent.mkdir(exist_ok=True)
    Image.new("RGB", (side_px, side_px), (70, 90, 20)).save(
        path, "JPEG", progressive=True, quality=50
    )
    data = path.read_bytes()
    last = data.rindex(b"\xff\xda")
    scan = data[last : data.rindex(b"\xff\xd9")]
    path.write_bytes(data[:last] + scan * scans + b"\xff\xd9")
    return path
