"""Weight bytes by repeated block, so that a depth-cut model can be scaled to its true depth."""

from __future__ import annotations

import re
from collections.abc import Mapping

# Parameters of a repeated block: `language_model.model.layers.3.mlp.…`, `visual.blocks.0.attn.…`.
_BLOCK = re.compile(r"^(?P<stack>.*?\b(?:layers|blocks|h))\.(?P<index>\d+)\.")
_ENCODER_WORDS = ("visual", "vision", "audio", "tower", "encoder")


def at_depth(sizes: Mapping[str, int], text_layers: int, encoder_layers: int) -> int:
    """Bytes of all parameters if each stack of blocks had its true number of them.

    `sizes` maps parameter names to bytes as built at the cut depth; blocks of a stack are alike.
    """
    blocks: dict[str, set[str]] = {}
    held: dict[str, int] = {}
    total = 0
    for name, size in sizes.items():
        if block := _BLOCK.match(name):
            blocks.setdefault(block["stack"], set()).add(block["index"])
            held[block["stack"]] = held.get(block["stack"], 0) + size
        else:
            total += size
    for stack, indices in blocks.items():
        encoder = any(word in stack for word in _ENCODER_WORDS)
        true = encoder_layers if encoder else text_layers
        total += round(held[stack] / len(indices) * true)
    return total
