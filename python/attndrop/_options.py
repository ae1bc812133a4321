# SPDX-License-Identifier: Apache-2.0
"""Arguments that are no tensors, as the keyword arguments that all operators share."""

from __future__ import annotations

import functools
import numbers
import operator
from collections.abc import Sequence
from typing import Any, TypedDict

import torch
from torch import Tensor

from ._errors import refuse_type, refuse_value


class MaskOptions(TypedDict, total=False):
    """Keyword arguments that decide a mask; attndrop.keep_mask takes all of them."""

    offset: int | Tensor
    scheme: str
    stage: str
    empty_row: str
    window: Sequence[int] | None
    causal_align: str
    cu_seqlens_q: Tensor | None
    cu_seqlens_k: Tensor | None
    origin: Sequence[int] | None
    total: Sequence[int] | None
    batch_index: Tensor | Sequence[int] | None


class AttentionOptions(MaskOptions, total=False):
    """Keyword arguments of attndrop.scaled_dot_product_attention."""

    scale: float | None
    enable_gqa: bool
    seed: int | Tensor | None
    training: bool
    alibi_slopes: Tensor | None


_ALIGN = {"top-left": False, "bottom-right": True}

#: What the operators take when an option is left out; leaving out saves time in each call.
_DEFAULTS: dict[str, Any] = {
    "scale": None,
    "is_causal": False,
    "bottom_right": False,
    "window_left": -1,
    "window_right": -1,
    "scheme": "element",
    "stage": "weights",
    "empty_row": "zero",
    "origin": (),
    "total": (),
}
_TWO63 = 1 << 63


def _integers(name: str, given: Any, count: int, axes: str) -> tuple[int, ...]:
    if not isinstance(given, Sequence) or isinstance(given, str) or len(given) != count:
        refuse_type(f"{name} must be {count} integers ({axes}), got {given!r}")
    try:
        values = tuple(operator.index(number) for number in given)
    except TypeError:
        refuse_type(f"{name} must be {count} integers ({axes}), got {given!r}")
    for value in values:
        if not -_TWO63 <= value < _TWO63:
            refuse_value(f"{name} must be {count} integers ({axes}) of 64 bits, got {given!r}")
    return values


def _check_text(name: str, text: Any) -> None:
    if not isinstance(text, str):
        refuse_type(f"{name} must be a name, got {text!r}")
    if not (text.isascii() and text.isprintable()):
        refuse_value(f"{name} must be a name in printable ASCII, got {text!r}")


def _scale(scale: Any) -> Any:
    if scale is None or type(scale) is float or isinstance(scale, torch.SymFloat):
        return scale
    if not isinstance(scale, numbers.Real):
        refuse_type(f"scale must be a finite number or None, got {scale!r}")
    try:
        return float(scale)
    except OverflowError:
        refuse_value("scale must be a finite number or None, got an integer beyond every float")


def _make_options(
    scale: float | None,
    is_causal: bool,
    causal_align: str,
    window: Sequence[int] | None,
    scheme: str,
    stage: str,
    empty_row: str,
    origin: Sequence[int] | None,
    total: Sequence[int] | None,
) -> dict[str, Any]:
    for name, text in (("scheme", scheme), ("stage", stage), ("empty_row", empty_row)):
        _check_text(name, text)
    if not isinstance(causal_align, str) or causal_align not in _ALIGN:
        refuse_value(
            'causal_align must be "top-left" (as PyTorch) or "bottom-right" (as flash-attention), '
            f"got {causal_align!r}"
        )
    if not isinstance(is_causal, (bool, int)) or is_causal not in (0, 1):
        refuse_type(f"is_causal must be True or False, got {is_causal!r}")
    left, right = (-1, -1) if window is None else _integers("window", window, 2, "left, right")
    options = {
        "scale": _scale(scale),
        "is_causal": bool(is_causal),
        "bottom_right": _ALIGN[causal_align],
        "window_left": left,
        "window_right": right,
        "scheme": scheme,
        "stage": stage,
        "empty_row": empty_row,
        "origin": ()
        if origin is None
        else _integers("origin", origin, 4, "batch, head, query, key"),
        "total": () if total is None else _integers("total", total, 2, "seqlen_q, seqlen_k"),
    }
    return {name: value for name, value in options.items() if value != _DEFAULTS[name]}


_cached_options = functools.lru_cache(maxsize=1024)(_make_options)


def make_options(*arguments: Any) -> dict[str, Any]:
    """_make_options with a memory; the result is not to be changed."""
    if torch.compiler.is_compiling():
        return _make_options(*arguments)
    try:
        return _cached_options(*arguments)
    except TypeError:  # something that cannot be hashed, such as a list
        return _make_options(*arguments)
