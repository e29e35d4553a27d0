"""The comparison of outputs with another commit: what it leaves out, and that it finds the rest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from same_outputs import Ran, differences, plain  # noqa: E402


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("measuring costs: 62, 3.8/s, 16.3 s", "measuring costs: 62, 7.0/s, 8.9 s"),
        ("checking: 82, 133/s, 0.6 s", "checking: 82, 0.4 s"),
        ('"process_s": 0.0123,', '"process_s": 1.2e-05,'),
        ('"cores_per_100_items_s": 9.092767,', '"cores_per_100_items_s": 9.2,'),
        ("| image | 71 | 13 | 0.091 | 9.1 |", "| image | 71 | 13 | 0.092 | 9.2 |"),
        ('"created_at": "2026-11-20T10:00:00+00:00"', '"created_at": "2026-11-23T01:02:03+00:00"'),
        ("a\nrehearsing on L4: 6/15 40%, 0.2/s, about 9 s left\nb", "a\nb"),
        ("/a/1/media/x.png", "/a/2/media/x.png"),
    ],
)
def test_what_a_clock_or_a_place_says_is_no_difference(one: str, other: str) -> None:
    assert plain(one, Path("/a/1"), Path("/t")) == plain(other, Path("/a/2"), Path("/t"))


@pytest.mark.parametrize(
    ("one", "other"),
    [("tokens 270", "tokens 271"), ("0.36 GiB", "0.37 GiB"), ("| 2,048 | 8 |", "| 2,048 | 9 |")],
)
def test_any_other_number_is_one(one: str, other: str) -> None:
    texts = ({"stdout": plain(text, Path("/a"), Path("/t"))} for text in (one, other))
    before, now = (Ran(text, 1.0) for text in texts)
    assert list(differences("run", before, now))[-2:] == [f"-{one}", f"+{other}"]


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no commit to compare with")
def test_a_tree_is_equal_to_its_commit(tmp_path: Path) -> None:
    """Of commands without vLLM; what is not committed yet may print help differently."""
    (tmp_path / "requests.jsonl").touch()
    script = str(ROOT / "benchmarks" / "same_outputs.py")
    words = ["HEAD", "--media", str(tmp_path), "--only", "list"]
    done = subprocess.run(
        [sys.executable, script, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("1 commands, 0 lines differ\n")
