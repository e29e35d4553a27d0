"""Today's traffic against a calibration: from requests, or from what a server counts."""
