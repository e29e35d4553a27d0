"""`python -m mmcalib`."""

import sys

if not sys.flags.safe_path:
    # The working folder, before all others. It may be a data set that somebody else made.
    del sys.path[0]

from mmcalib.cli import main

main()
