"""`mmcalib run`: the whole calibration, and its document."""
