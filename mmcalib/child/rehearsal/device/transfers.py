"""Copies between host and imaginary device: what is known travels along."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

if TYPE_CHECKING:
    from mmcalib.child.rehearsal.device.imaginary import ImaginaryGpu

aten = torch.ops.aten
NOT_A_TRANSFER = object()
PINNING = {aten._pin_memory.default, aten.pin_memory.default}


def move(gpu: ImaginaryGpu, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Do the operation if it carries data over; `NOT_A_TRANSFER` if it is another kind."""
    if func is aten._local_scalar_dense.default:
        return _scalar(gpu, args[0])
    if func is aten._to_copy.default:
        return _to_copy(gpu, args[0], kwargs)
    if func is aten.copy_.default:
        return _copy(gpu, args[0], args[1])
    if func in PINNING:
        return args[0]
    if func in (aten.lift_fresh.default, aten.lift.default):
        return args[0]
    return NOT_A_TRANSFER


def _scalar(gpu: ImaginaryGpu, fake: torch.Tensor) -> Any:
    value = gpu.values.of(fake)
    if value is not None:
        return value.item()
    gpu.guesses["item"] += 1
    return 0.0 if fake.dtype.is_floating_point else 0


def _to_copy(gpu: ImaginaryGpu, source: torch.Tensor, kwargs: dict[str, Any]) -> Any:
    device = torch.device(kwargs.get("device") or source.device).type
    dtype = kwargs.get("dtype") or source.dtype
    if isinstance(source, FakeTensor):
        if device == source.device.type or device == "meta":
            return NOT_A_TRANSFER
        if source.device.type == "cpu":
            return _booked(gpu, gpu.empty_like_of(source, dtype, device), None)
        return _to_host(gpu, source, dtype)
    made = gpu.empty_like_of(source, dtype, device)
    return _booked(gpu, made, source if device == "cuda" else None)


def _booked(gpu: ImaginaryGpu, made: torch.Tensor, value: torch.Tensor | None) -> torch.Tensor:
    if made.device.type == "cuda":
        gpu.ledger.book(made, "aten._to_copy.default")
        if value is not None:
            gpu.values.learn(made, value)
    return made


def _to_host(gpu: ImaginaryGpu, source: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    from mmcalib.child.rehearsal.device.imaginary import LARGE_HOST_BYTES

    value = gpu.values.of(source)
    if value is not None:
        return value.to(dtype).clone()
    if source.numel() * dtype.itemsize > LARGE_HOST_BYTES:
        return gpu.empty_like_of(source, dtype, "cpu")
    if not dtype.is_floating_point:
        gpu.guesses["to host"] += 1
    return torch.zeros(source.size(), dtype=dtype)


def _copy(gpu: ImaginaryGpu, target: torch.Tensor, source: torch.Tensor | float) -> Any:
    if not isinstance(source, torch.Tensor):
        source = torch.tensor(source, dtype=target.dtype)
    if not isinstance(target, FakeTensor):
        value = gpu.values.of(source)
        if value is not None:
            target.copy_(value)
            return target
        # What lies there is nobody's: a buffer that was made for this.
        target.zero_()
        if not target.dtype.is_floating_point:
            gpu.guesses["copy to host"] += 1
        return target
    value = gpu.values.of(source) if isinstance(source, FakeTensor) else source
    if value is None or not gpu.values.worth_knowing(value):
        gpu.values.forget(target)
        return target
    known = gpu.values.of(target)
    if known is not None:
        known.copy_(value)
    else:
        gpu.values.learn(target, value.expand(target.shape))
    return target
