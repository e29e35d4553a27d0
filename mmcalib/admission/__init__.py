"""Decide whether a calibration admits media and requests."""
