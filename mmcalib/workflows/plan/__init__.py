"""`mmcalib plan`: the cheapest changes with which a configuration fits."""
