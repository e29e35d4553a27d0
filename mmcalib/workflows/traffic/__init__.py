"""Serve the corpus' requests on a simulated GPU."""
