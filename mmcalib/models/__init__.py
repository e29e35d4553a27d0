"""Bundled facts of well-known models, and where a model's configuration comes from.

Model → `resolve` → a checkpoint folder: local, from the hub (cached or fetched), or materialised
from the facts in `facts/*.json`, where every number carries its status and its source.
"""

from mmcalib.models.catalogue import bundled, find
from mmcalib.models.checkpoint import materialise, vocab_size
from mmcalib.models.cut import CutCheckpoint, cut_checkpoint, read_config
from mmcalib.models.cut_config import cut_depth
from mmcalib.models.depth import Depths, depths
from mmcalib.models.fact import Fact, Geometry, Status
from mmcalib.models.resolve import ResolvedModel, resolve

__all__ = [
    "CutCheckpoint",
    "Depths",
    "Fact",
    "Geometry",
    "ResolvedModel",
    "Status",
    "bundled",
    "cut_checkpoint",
    "cut_depth",
    "depths",
    "find",
    "materialise",
    "read_config",
    "resolve",
    "vocab_size",
]
