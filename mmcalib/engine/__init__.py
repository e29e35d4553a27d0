"""The only package that runs vLLM, always in a child process.

`host` and `messages` run in the parent and are light. `child` runs in the child and imports vLLM.
`shim` is put on the child's path where CUDA-built torchvision stands beside CPU-only torch.
"""
