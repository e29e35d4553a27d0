"""The corpus' requests, served where nothing is spent by it."""
