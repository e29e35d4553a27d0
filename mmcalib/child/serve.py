"""The script `vllm` for a build of vLLM whose package has another name."""

from __future__ import annotations

import importlib.metadata
import sys

from mmcalib.releases import platform
from mmcalib.version import BUILDS

_NAME, _CPU = BUILDS
_ask = importlib.metadata.version


def _version(distribution_name: str) -> str:
    """Add `+cpu`, by which vLLM knows its CPU build (`vllm_version_matches_substr`, 0.32)."""
    try:
        return _ask(distribution_name)
    except importlib.metadata.PackageNotFoundError:
        if distribution_name != _NAME:
            raise
        return f"{_ask(_CPU)}+cpu"


def main() -> None:
    importlib.metadata.version = _version
    sys.argv[0] = _NAME
    platform.run_cli()


if __name__ == "__main__":
    main()
