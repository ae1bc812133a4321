# SPDX-License-Identifier: Apache-2.0
"""Seed, offset and rate of a call as the one int64 tensor that the operators read."""

from __future__ import annotations

import array
import math
import numbers
import operator
from typing import Any

import torch
from torch import Tensor

from ._eager import is_plain_eager
from ._errors import refuse_type, refuse_value

_TWO64 = 1 << 64
_ONE32 = 1 << 32
_OFFSET_STEP, _OFFSET_MICRO, _OFFSET_LAYER = 1 << 40, 1 << 12, 1 << 12

#: A seed or an offset: an integer in 0 .. 2^64 - 1, or an integer tensor of one element.
IntLike = int | Tensor


def call_offset(step: int, layer: int, micro: int = 0) -> int:
    """The offset of a call: step * 2^24 + micro * 2^12 + layer.

    One seed then serves a whole training: every step, micro-batch and layer draws its own mask.

    Args:
        step: optimizer step, 0 .. 2^40 - 1.
        layer: layer of the model, 0 .. 4095.
        micro: micro-batch inside the step (gradient accumulation), 0 .. 4095.

    Raises:
        TypeError: an argument is no integer.
        ValueError: an argument is out of its range.
    """
    given = {"step": step, "layer": layer, "micro": micro}
    limits = {"step": _OFFSET_STEP, "layer": _OFFSET_LAYER, "micro": _OFFSET_MICRO}
    checked = {}  # integers of Python, which no shift overflows
    for name, value in given.items():
        try:
            number = operator.index(value)
        except TypeError:
            raise TypeError(f"{name} must be an integer, got {value!r}") from None
        if not 0 <= number < limits[name]:
            raise ValueError(f"{name} must be in 0 .. {limits[name] - 1}, got {number}")
        checked[name] = number
    return (checked["step"] << 24) + (checked["micro"] << 12) + checked["layer"]


def _signed(name: str, value: Any) -> int:
    """An integer of 64 bits as the int64 with the same bits."""
    number: Any = value
    if type(value) is not int:
        try:
            number = operator.index(value)
        except TypeError:
            number = None
        if number is None or isinstance(value, bool):
            refuse_type(
                f"{name} must be an integer in 0 .. 2^64 - 1 or an integer tensor, got {value!r}"
            )
    if not 0 <= number < _TWO64:
        refuse_value(f"{name} must be in 0 .. 2^64 - 1, got {number}; take it modulo 2^64")
    return number - _TWO64 if number >= _TWO64 // 2 else number


def _keep_q32(dropout_p: Any) -> int:
    """floor((1 - dropout_p) * 2^32 + 0.5), with the refusals of dropout_p."""
    if type(dropout_p) is not float:
        known = isinstance(dropout_p, (numbers.Real, torch.SymFloat))
        if not known or isinstance(dropout_p, bool):
            refuse_type(f"dropout_p must be a number in [0, 1], got {dropout_p!r}")
    if not 0.0 <= dropout_p <= 1.0:
        refuse_value(
            f"dropout_p must be a finite number in [0, 1], got {_short(dropout_p)}; 0.5 drops half "
            "of the weights"
        )
    return math.floor((1.0 - float(dropout_p)) * _ONE32 + 0.5)


def _short(number: Any) -> str:
    try:
        return f"{float(number):g}"
    except OverflowError:
        return "an integer beyond every float"


def _check_scalar(name: str, tensor: Tensor, fits: bool, kind: str) -> None:
    """One element that can be read and wants no gradient."""
    if tensor.numel() != 1 or not fits:
        refuse_type(
            f"{name} must hold one {kind}, got {tensor.dtype} of shape {tuple(tensor.shape)}"
        )
    if tensor.requires_grad:
        refuse_value(f"{name} has no gradient, got a tensor that requires one; detach it")
    if tensor.is_meta:
        refuse_value(f"{name} must hold a number, got a tensor on meta, which holds none")


def _scalar(name: str, value: IntLike) -> Tensor:
    if not isinstance(value, Tensor):
        return torch.full((), _signed(name, value), dtype=torch.int64, device="cpu")
    kinds = value.is_floating_point() or value.is_complex() or value.dtype == torch.bool
    _check_scalar(name, value, not kinds, "integer")
    return value.to("cpu", torch.int64).reshape(())


def _rate(dropout_p: float | Tensor) -> Tensor:
    if not isinstance(dropout_p, Tensor):
        if isinstance(dropout_p, float) and torch.compiler.is_compiling():
            dropout_p = torch.zeros((), dtype=torch.float64, device="cpu") + dropout_p
        else:
            return torch.full((), _keep_q32(dropout_p), dtype=torch.int64, device="cpu")
    _check_rate(dropout_p)
    p = dropout_p.to("cpu", torch.float64).reshape(())
    # A rate out of range or NaN becomes a keep_q32 that the operator refuses.
    q32 = torch.floor((1.0 - p) * _ONE32 + 0.5)
    return torch.where(torch.isfinite(q32), q32, -1.0).to(torch.int64)


def _check_rate(dropout_p: Tensor) -> None:
    fits = dropout_p.is_floating_point()
    _check_scalar("dropout_p", dropout_p, fits, "floating-point number")


#: Drops nothing.
_NOTHING = torch.tensor([0, 0, _ONE32], device="cpu")


def make_rng(
    dropout_p: float | Tensor, seed: IntLike | None, offset: IntLike, training: bool
) -> Tensor:
    """int64 (3) on the CPU: seed, offset, keep_q32.

    Without a seed one of 63 bits is drawn from PyTorch's default generator, and only where
    something may be dropped.
    """
    if training is not True and training is not False:
        refuse_type(f"training must be True or False, got {training!r}")
    if not is_plain_eager():
        return _traceable_rng(dropout_p, seed, offset, training)
    drops = training
    if isinstance(dropout_p, Tensor):
        _check_rate(dropout_p)
        dropout_p = dropout_p.item()
    elif dropout_p == 0:
        drops = False
    keep_q32 = _keep_q32(dropout_p)
    if seed is None:
        seed = int(draw_seed().item()) if drops else 0
    if isinstance(seed, Tensor) or isinstance(offset, Tensor):
        rate = keep_q32 if training else _ONE32
        return _stack(seed, offset, torch.full((), rate, dtype=torch.int64, device="cpu"))
    numbers_of_call = [_signed("seed", seed), _signed("offset", offset), keep_q32]
    if not drops:
        return _NOTHING
    # Takes a third of the time of torch.tensor.
    return torch.frombuffer(array.array("q", numbers_of_call), dtype=torch.int64)


def draw_seed() -> Tensor:
    return torch.randint((1 << 63) - 1, (), dtype=torch.int64, device="cpu")


def _stack(seed: IntLike, offset: IntLike, rate: Tensor) -> Tensor:
    return torch.stack([_scalar("seed", seed), _scalar("offset", offset), rate])


def _traceable_rng(
    dropout_p: float | Tensor, seed: IntLike | None, offset: IntLike, training: bool
) -> Tensor:
    rate = _rate(dropout_p)
    if not training:
        rate = torch.full((), _ONE32, dtype=torch.int64, device="cpu")
    if seed is None:
        drops = training and (isinstance(dropout_p, Tensor) or dropout_p != 0)
        seed = draw_seed() if drops else 0
    return _stack(seed, offset, rate)
