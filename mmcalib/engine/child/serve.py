"""The script `vllm`, where the installed build is not the package of that name."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, DistributionFinder, MetadataPathFinder

from mmcalib.engine.wheels import BUILDS, installed

_NAME, _CPU = BUILDS


class _CpuBuild(DistributionFinder):
    """Answers for `vllm` with the metadata of its CPU build."""

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        """Finds no modules."""

    def find_distributions(
        self, context: DistributionFinder.Context | None = None
    ) -> Iterable[Distribution]:
        if context is None or context.name != _NAME:
            return ()
        return MetadataPathFinder.find_distributions(DistributionFinder.Context(name=_CPU))


def main() -> None:
    """Run vLLM's own command line with the words of this process."""
    if installed(_NAME) is None:
        sys.meta_path.append(_CpuBuild())
    from vllm.entrypoints.cli.main import main as vllm

    sys.argv[0] = _NAME
    vllm()


if __name__ == "__main__":
    main()
