"""The table of published logs writes one name down for all layers that are alike."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from memory.layers import written_out


def test_a_range_of_numbers_in_a_name_stands_for_each() -> None:
    given = {"deep": {"layers.{8..10}.mlp": {"bits": 4}}, "head": [1], "{0..1}.{0..1}": "pair"}
    assert written_out(given) == {
        "deep": {f"layers.{number}.mlp": {"bits": 4} for number in (8, 9, 10)},
        "head": [1],
        **dict.fromkeys(("0.0", "0.1", "1.0", "1.1"), "pair"),
    }
