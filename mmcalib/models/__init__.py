"""Find a model's configuration, and bundled facts of well-known models and GPUs.

`resolve` returns a checkpoint folder: local, from the hub, or written from `facts/*.json`.
"""
