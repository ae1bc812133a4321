# SPDX-License-Identifier: Apache-2.0
"""attndrop.scaled_dot_product_attention."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Literal, overload

import torch
from torch import Tensor

from ._errors import refuse_type, refuse_value, translated
from ._op import cast_inputs
from ._rng import IntLike, make_rng

_ops = torch.ops.attndrop
_ALIGN = {"top-left": False, "bottom-right": True}


def _check_tensor(name: str, tensor: Any) -> None:
    if not isinstance(tensor, Tensor):
        refuse_type(
            f"{name} must be a torch.Tensor, got {type(tensor).__name__}; for NumPy and other "
            "arrays use attndrop.arrays.attention"
        )
    if tensor.is_nested or tensor.layout != torch.strided:
        refuse_type(
            f"{name} must be a strided tensor, got a nested or sparse one; pass its values and "
            "cu_seqlens_q, cu_seqlens_k"
        )
    distributed = sys.modules.get("torch.distributed.tensor")
    if distributed is not None and isinstance(tensor, distributed.DTensor):
        refuse_type(
            f"{name} is a DTensor; call attndrop on its local part (to_local()) and pass origin "
            "and total, so that all ranks draw the mask of the whole"
        )


def _check_tensors(named: Sequence[tuple[str, Any]]) -> None:
    """Types and devices; the operators check everything else."""
    device = None
    for name, tensor in named:
        _check_tensor(name, tensor)
        device = device or tensor.device
        if tensor.device != device:
            refuse_value(
                f"all tensors of a call must be on one device, got {named[0][0]} on {device} and "
                f"{name} on {tensor.device}"
            )


def _pair(name: str, given: Any, default: tuple[int, int]) -> tuple[int, int]:
    if given is None:
        return default
    if not isinstance(given, Sequence) or len(given) != 2:
        refuse_type(f"{name} must be two integers, got {given!r}")
    return given[0], given[1]


def _numbers(name: str, given: Any, count: int) -> list[int]:
    if given is None:
        return []
    if not isinstance(given, Sequence) or len(given) != count:
        refuse_type(f"{name} must be {count} integers, got {given!r}")
    return list(given)


def _check_heads(query: Tensor, key: Tensor, enable_gqa: bool) -> None:
    if enable_gqa or query.shape[-3] == key.shape[-3]:
        return
    refuse_value(
        f"query has {query.shape[-3]} heads and key {key.shape[-3]}, got shapes "
        f"{tuple(query.shape)} and {tuple(key.shape)}; pass enable_gqa=True to let groups of query "
        "heads share a key head"
    )


def make_options(
    *,
    scale: float | None,
    is_causal: bool,
    window: Sequence[int] | None,
    causal_align: str,
    scheme: str,
    stage: str,
    empty_row: str,
    origin: Sequence[int] | None,
    total: Sequence[int] | None,
) -> dict[str, Any]:
    """The keyword arguments that all operators share."""
    if causal_align not in _ALIGN:
        refuse_value(
            f'causal_align must be "top-left" (as PyTorch) or "bottom-right" (as flash-attention), '
            f"got {causal_align!r}"
        )
    for name, text in (("scheme", scheme), ("stage", stage), ("empty_row", empty_row)):
        if not isinstance(text, str):
            refuse_type(f"{name} must be a name, got {text!r}")
    left, right = _pair("window", window, (-1, -1))
    return {
        "scale": scale,
        "is_causal": bool(is_causal),
        "bottom_right": _ALIGN[causal_align],
        "window_left": left,
        "window_right": right,
        "scheme": scheme,
        "stage": stage,
        "empty_row": empty_row,
        "origin": _numbers("origin", origin, 4),
        "total": _numbers("total", total, 2),
    }


def _mask_with_four_axes(attn_mask: Tensor | None) -> Tensor | None:
    if attn_mask is None or attn_mask.dim() >= 4:
        return attn_mask
    return attn_mask[(None,) * (4 - attn_mask.dim())]


def call_forward(
    tensors: tuple[Tensor, Tensor, Tensor], side: tuple[Tensor | None, ...], options: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """The operator, for three or four axes, with autocast."""
    query, key, value = tensors
    mask = side[1]
    device_type = query.device.type
    if torch.is_autocast_enabled(device_type):
        query, key, value, mask = cast_inputs(device_type, query, key, value, mask)  # type: ignore[assignment]
    batched = query.dim() != 3
    if not batched:
        query, key, value = query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0)
    out, logsumexp = _ops.forward(
        query, key, value, side[0], _mask_with_four_axes(mask), *side[2:], **options
    )
    return (out, logsumexp) if batched else (out.squeeze(0), logsumexp.squeeze(0))


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float | Tensor,
    enable_gqa: bool,
    seed: IntLike | None,
    offset: IntLike,
    training: bool,
    alibi_slopes: Tensor | None,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    return_logsumexp: bool,
    geometry: dict[str, Any],
) -> Any:
    given = (("attn_mask", attn_mask), ("alibi_slopes", alibi_slopes))
    present = [(name, tensor) for name, tensor in given if tensor is not None]
    _check_tensors([("query", query), ("key", key), ("value", value), *present])
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() not in (3, 4):
            refuse_value(
                f"{name} must have the shape (batch, heads, seqlen, head_dim) or (heads, seqlen, "
                f"head_dim), got shape {tuple(tensor.shape)}"
            )
    if not query.dim() == key.dim() == value.dim():
        refuse_value(
            "query, key and value must have the same number of axes, got shapes "
            f"{tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}"
        )
    _check_heads(query, key, enable_gqa)
    options = make_options(**geometry)
    rng = make_rng(dropout_p, seed, offset, training)
    side = (rng, attn_mask, alibi_slopes, cu_seqlens_q, cu_seqlens_k)
    out, logsumexp = call_forward((query, key, value), side, options)
    return (out, logsumexp) if return_logsumexp else out


@overload
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = ...,
    dropout_p: float | Tensor = ...,
    is_causal: bool = ...,
    *,
    return_logsumexp: Literal[False] = ...,
    **options: Any,
) -> Tensor: ...


@overload
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = ...,
    dropout_p: float | Tensor = ...,
    is_causal: bool = ...,
    *,
    return_logsumexp: Literal[True],
    **options: Any,
) -> tuple[Tensor, Tensor]: ...


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float | Tensor = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    scheme: str = "element",
    stage: str = "weights",
    empty_row: str = "zero",
    seed: IntLike | None = None,
    offset: IntLike = 0,
    training: bool = True,
    window: Sequence[int] | None = None,
    causal_align: str = "top-left",
    alibi_slopes: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    origin: Sequence[int] | None = None,
    total: Sequence[int] | None = None,
    return_logsumexp: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Softmax attention with dropout, in place of torch.nn.functional's function of this name.

    out = dropout(softmax(scale * query @ key^T + attn_mask)) @ value, exact, in memory linear in the
    lengths, and with the same mask for the same seed on every machine. On the CPU this takes the
    kernels; other devices take PyTorch operations with quadratic memory.

    Args:
        query: (batch, num_heads, seqlen_q, head_dim) or without batch; float64, float32, bfloat16
            or float16; any strides.
        key: (batch, num_kv_heads, seqlen_k, head_dim).
        value: (batch, num_kv_heads, seqlen_k, head_dim_v).
        attn_mask: broadcastable to (batch, num_heads, seqlen_q, seqlen_k). bool: true takes part.
            Float: added to the logits, -inf hides a key; may require a gradient. It may be combined
            with is_causal and window.
        dropout_p: chance of dropping, in [0, 1]. A tensor of one element keeps a compiled graph when
            the rate changes.
        is_causal: query i sees keys up to its own position.
        scale: default 1/sqrt(head_dim).
        enable_gqa: num_heads may be a multiple of num_kv_heads.
        scheme: which weights share a draw, "NAME[:param=value,...]"; see attndrop.schemes().
        stage: "weights" drops after the softmax, "logits" before it (DropKey).
        empty_row: what a row does that loses every key: "zero", "keep_one", "redraw",
            "at_least_one:attempts=A", "keep_self", "keep_first", "undropped".
        seed: 0 .. 2^64 - 1, or an integer tensor of one element. None draws one from PyTorch's
            default generator, so that torch.manual_seed makes a run repeatable.
        offset: 0 .. 2^64 - 1, another mask for each; see call_offset. An integer or a tensor.
        training: False drops nothing and draws nothing.
        window: (left, right) keys seen around the query's position, both ends included; -1: no limit.
        causal_align: "top-left": query i stands at key i. "bottom-right": the last query stands at
            the last key, as in flash-attention.
        alibi_slopes: float32 (num_heads) or (batch, num_heads): adds -slope * distance.
        cu_seqlens_q: int32 or int64 (number of sequences + 1): the batch is 1 and sequences lie
            behind one another along seqlen. Comes with cu_seqlens_k.
        origin: (batch, head, query, key) where this part starts in a whole problem, so that parts
            draw the masks of the whole.
        total: (seqlen_q, seqlen_k) of the whole; default: origin + lengths.
        return_logsumexp: also return the logsumexp of the logits, (batch, num_heads, seqlen_q),
            float32 (float64 for float64 inputs); differentiable. At stage "weights" it does not
            depend on dropout.

    Returns:
        out (batch, num_heads, seqlen_q, head_dim_v), or (out, logsumexp).

    Raises:
        TypeError: a wrong type or dtype.
        ValueError: a wrong value, shape, device or combination. Inside a compiled graph the
            operator's RuntimeError has the same sentence.

    Source: Dao et al. 2022 (FlashAttention) for the computation, Li et al. 2022 (DropKey) for stage
    "logits"; docs/mask-format.md defines the mask, docs/math/attention.md the numbers.
    """
    geometry = {
        "scale": scale,
        "is_causal": is_causal,
        "window": window,
        "causal_align": causal_align,
        "scheme": scheme,
        "stage": stage,
        "empty_row": empty_row,
        "origin": origin,
        "total": total,
    }
    arguments = (
        query,
        key,
        value,
        attn_mask,
        dropout_p,
        enable_gqa,
        seed,
        offset,
        training,
        alibi_slopes,
        cu_seqlens_q,
        cu_seqlens_k,
        return_logsumexp,
        geometry,
    )
    if torch.compiler.is_compiling():
        return _attention(*arguments)
    try:
        return _attention(*arguments)
    except RuntimeError as error:
        known = translated(error)
        if known is None:
            raise
        raise known from None
