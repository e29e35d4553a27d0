"""An imaginary GPU: its tensors, its memory, and what its kernels take for themselves."""
