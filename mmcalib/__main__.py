"""Run the command line for `python -m mmcalib`."""

import sys

if not sys.flags.safe_path:
    # Remove the working folder from the import path: it may be an untrusted data set.
    del sys.path[0]

from mmcalib.cli import main

main()
