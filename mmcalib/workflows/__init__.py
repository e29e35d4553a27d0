"""The work of each command: run, validate, plan, rehearse traffic, scan and doctor."""
