"""What is known of a configuration as it is, before fixes to it are thought of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mmcalib.domain.knobs import Knob
from mmcalib.domain.shapes import Modality


@dataclass(frozen=True, slots=True)
class Facts:
    """What decides which fixes there are; figures are those of the configuration as it is.

    `largest_items` has the tokens of the largest item of each modality that is served;
    `attention_heads` are those of the language model, None where its config does not say.
    """

    largest_items: Mapping[Modality, int]
    knobs: tuple[Knob, ...]
    chunks_mm_input: bool
    quantized: bool
    tensor_parallel_size: int
    attention_heads: int | None
    weights_bytes: int
    total_bytes: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
