"""The parent's side of the child process that runs vLLM: what is said to it, and how it is started.

`shim` is put on the child's path where CUDA-built torchvision stands beside CPU-only torch.
"""
