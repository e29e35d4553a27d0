"""`python -m mmcalib`."""

from mmcalib.cli import main

main()
