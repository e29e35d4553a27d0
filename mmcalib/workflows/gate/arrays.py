"""Arrays as pictures, frames and sound: numpy's, torch's and others', by shape alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_CHANNELS = (1, 3, 4)
_NEEDED = ("shape", "ndim", "dtype")


@dataclass(frozen=True, slots=True)
class Layout:
    """What the axes of a picture, or of so many `frames`, mean. `channels_axis` is None without
    channels.
    """

    width_px: int
    height_px: int
    channels_axis: int | None
    frames: int | None = None


def is_array(item: Any) -> bool:
    """Whether it has the attributes of one: no library is imported to tell."""
    if isinstance(item, type) or not all(hasattr(item, name) for name in _NEEDED):
        return False
    return isinstance(item.shape, tuple) and str(item.dtype) != "object"


def layout_of(array: Any) -> Layout | None:
    """Height × width, channels in front or behind, and frames before them; None for others."""
    shape = tuple(array.shape)
    if 0 in shape:
        return None
    match shape:
        case (height, width):
            return Layout(width, height, None)
        case (height, width, channels) if channels in _CHANNELS:
            return Layout(width, height, 2)
        case (channels, height, width) if channels in _CHANNELS:
            return Layout(width, height, 0)
        case (frames, height, width, channels) if channels in _CHANNELS:
            return Layout(width, height, 2, frames)
        case (frames, channels, height, width) if channels in _CHANNELS:
            return Layout(width, height, 0, frames)
    return None


def is_sound(array: Any, rate_hz: Any) -> bool:
    """Samples, or channels × samples, either axis first, at a whole rate in Hz."""
    try:
        whole = 0 < rate_hz == int(rate_hz)
    except (TypeError, ValueError, OverflowError):
        return False
    return whole and array.ndim in (1, 2) and 0 not in tuple(array.shape)


def as_numpy(array: Any) -> Any:
    """The same numbers in numpy, also of a tensor that is on a GPU, needs a gradient, or is of a
    type that numpy lacks.
    """
    import numpy as np

    if not hasattr(array, "detach"):
        return np.asarray(array)
    tensor = array.detach().cpu()
    return tensor.float().numpy() if "bfloat16" in str(tensor.dtype) else tensor.numpy()


def like(array: Any, made: Any) -> Any:
    """The numpy array `made` as what `array` is, where that is a tensor."""
    import sys

    torch = sys.modules.get("torch")
    if torch is None or not isinstance(array, torch.Tensor):
        return made.astype(array.dtype) if type(array).__module__ == "numpy" else made
    return torch.from_numpy(made).to(dtype=array.dtype, device=array.device)
