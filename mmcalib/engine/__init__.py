"""The parent's side of the child process that runs vLLM. `shim` is on the child's path, so that
vLLM imports with CPU-only torch and a CUDA build of torchvision.
"""
