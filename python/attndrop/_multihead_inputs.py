# SPDX-License-Identifier: Apache-2.0
"""Shapes of torch.nn.MultiheadAttention's inputs, and its masks as the one that attndrop takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn import functional

from ._eager import is_plain_eager

_CAUSAL_ROWS = 256


@dataclass(frozen=True)
class Widths:
    """Last axes that query, key and value must have, and the order of the axes before it."""

    embed_dim: int
    kdim: int
    vdim: int
    batch_first: bool


@dataclass(frozen=True)
class Sizes:
    """batch is 1 for inputs without batch. extra: keys that add_bias_kv and add_zero_attn add."""

    batched: bool
    batch: int
    num_heads: int
    seqlen_q: int
    seqlen_k: int
    extra: int


def _axes(widths: Widths) -> str:
    return "(batch, seqlen, width)" if widths.batch_first else "(seqlen, batch, width)"


def _refuse(what: str, tensors: tuple[Tensor, Tensor, Tensor]) -> NoReturn:
    shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
    raise ValueError(f"query, key and value {what}, got shapes {shapes}")


def check_shapes(
    query: Any, key: Any, value: Any, widths: Widths, num_heads: int, extra: int
) -> Sizes:
    """Sizes of a call; refuses inputs that do not fit one another."""
    given = (query, key, value)
    for name, tensor in zip(("query", "key", "value"), given, strict=True):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
    if query.dim() not in (2, 3) or not query.dim() == key.dim() == value.dim():
        _refuse(f"must all be {_axes(widths)} or all (seqlen, width)", given)
    if (query.shape[-1], key.shape[-1], value.shape[-1]) != (
        widths.embed_dim,
        widths.kdim,
        widths.vdim,
    ):
        _refuse(
            "must have the widths embed_dim, kdim and vdim = "
            f"{widths.embed_dim}, {widths.kdim}, {widths.vdim}",
            given,
        )
    batched = query.dim() == 3
    batch_axis, seqlen_axis = (0, 1) if widths.batch_first else (1, 0)
    if not batched:
        seqlen_axis = 0
    if batched and not query.shape[batch_axis] == key.shape[batch_axis] == value.shape[batch_axis]:
        _refuse(f"must have the same batch in {_axes(widths)}", given)
    if key.shape[seqlen_axis] != value.shape[seqlen_axis]:
        _refuse("must have the same seqlen in key and value", given)
    return Sizes(
        batched,
        query.shape[batch_axis] if batched else 1,
        num_heads,
        query.shape[seqlen_axis],
        key.shape[seqlen_axis],
        extra,
    )


def _check_mask(name: str, mask: Any, shapes: tuple[tuple[int, ...], ...]) -> None:
    if not isinstance(mask, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(mask).__name__}")
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise TypeError(f"{name} must be bool (true hides a key) or floating, got {mask.dtype}")
    if tuple(mask.shape) not in shapes:
        allowed = " or ".join(str(shape) for shape in shapes)
        raise ValueError(f"{name} must have the shape {allowed}, got {tuple(mask.shape)}")


def _with_four_axes(
    attn_mask: Tensor | None, key_padding_mask: Tensor | None, sizes: Sizes
) -> list[Tensor]:
    """The masks, checked, broadcastable to (batch, num_heads, seqlen_q, seqlen_k)."""
    masks = []
    rows = (sizes.seqlen_q, sizes.seqlen_k)
    if attn_mask is not None:
        _check_mask("attn_mask", attn_mask, (rows, (sizes.batch * sizes.num_heads, *rows)))
        if attn_mask.dim() == 2:
            masks.append(attn_mask[None, None])
        else:
            masks.append(attn_mask.reshape(sizes.batch, sizes.num_heads, *rows))
    if key_padding_mask is not None:
        batch = (sizes.batch,) if sizes.batched else ()
        _check_mask("key_padding_mask", key_padding_mask, ((*batch, sizes.seqlen_k),))
        masks.append(key_padding_mask.reshape(sizes.batch, 1, 1, sizes.seqlen_k))
    return masks


def _is_causal_mask(mask: Tensor) -> bool:
    """Whether a mask (seqlen_q, seqlen_k) is the causal one; looked at a few rows at a time."""
    hidden = True if mask.dtype == torch.bool else -torch.inf
    for first in range(0, mask.shape[0], _CAUSAL_ROWS):
        rows = mask[first : first + _CAUSAL_ROWS]
        if not torch.equal(rows, torch.full_like(rows, hidden).triu(first + 1)):
            return False
    return True


def _says_only_causal(attn_mask: Any) -> bool:
    """Whether is_causal says all that this mask says. Asked only where the answer is cheap."""
    return (
        isinstance(attn_mask, Tensor)
        and attn_mask.dim() == 2
        and attn_mask.device.type == "cpu"
        and not attn_mask.requires_grad
        and is_plain_eager()
        and _is_causal_mask(attn_mask)
    )


def merge_masks(
    attn_mask: Tensor | None, key_padding_mask: Tensor | None, is_causal: bool, sizes: Sizes
) -> tuple[Tensor | None, bool]:
    """(attn_mask, is_causal) for attndrop: a key takes part where all of the three let it.

    Torch's masks are true where a key is hidden, attndrop's where it takes part. Nothing larger is
    made than what was given, except (batch, 1, seqlen_q, seqlen_k) of both masks together.
    """
    masks = _with_four_axes(attn_mask, key_padding_mask, sizes)
    if is_causal and _says_only_causal(attn_mask):
        masks = masks[1:]
    if is_causal and sizes.extra:
        # Causal order would hide the extra keys, which all queries see.
        device = masks[0].device if masks else None
        ones = torch.ones(sizes.seqlen_q, sizes.seqlen_k, dtype=torch.bool, device=device)
        masks, is_causal = [*masks, ones.triu(1)[None, None]], False
    if not masks:
        return None, is_causal
    if all(mask.dtype == torch.bool for mask in masks):
        hidden = masks[0]
        for mask in masks[1:]:
            hidden = hidden | mask
        return functional.pad(hidden, (0, sizes.extra)).logical_not(), is_causal
    dtype = next(mask.dtype for mask in masks if mask.dtype != torch.bool)
    bias: Any = 0
    for mask in masks:
        if mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -torch.inf)
        bias = bias + mask
    return functional.pad(bias, (0, sizes.extra)), is_causal
