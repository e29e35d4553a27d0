"""Processes that are started here: what they may import, how much they may take, when they end."""
