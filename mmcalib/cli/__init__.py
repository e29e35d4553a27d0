"""The command line: the only place that prints and the only place that exits.

One file per command; each imports what it runs when it runs, so that `--help` stays fast.
"""

from mmcalib.cli.app import main

__all__ = ["main"]
