"""Which media a calibration admits."""
