"""`report.html`: the calibration as one page that opens from disk, with no network."""
