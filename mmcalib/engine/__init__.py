"""The parent's side of the child process that runs vLLM. `shim` is put on the child's path where
CUDA-built torchvision stands beside CPU-only torch.
"""
