"""The report of a calibration in every form that people read: a module each, by its name."""
