"""Where materialised checkpoints are kept."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_dir() -> Path:
    """Where materialised checkpoints are kept; `MMCALIB_CACHE_DIR` moves it."""
    named = os.environ.get("MMCALIB_CACHE_DIR")
    return Path(named) if named else platformdirs.user_cache_path("mmcalib")
