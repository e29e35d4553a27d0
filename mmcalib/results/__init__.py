"""Models of the documents that mmcalib prints and saves. Pure values: they read no files."""
