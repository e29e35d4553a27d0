"""mmcalib's `check` held against vLLM's own API server, request by request."""
