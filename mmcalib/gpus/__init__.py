"""GPUs to rehearse a start of vLLM on: the catalogue's, a described one, this machine's."""
