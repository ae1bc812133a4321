# SPDX-License-Identifier: Apache-2.0
"""attndrop.scaled_dot_product_attention."""

from __future__ import annotations

import operator
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch import Tensor

from ._call import attend
from ._errors import raise_translated, refuse_type, refuse_value
from ._options import AttentionOptions, make_options
from ._rng import IntLike, make_rng

if TYPE_CHECKING:
    from typing_extensions import Unpack

_PLAIN_TYPES = (Tensor, torch.nn.Parameter)


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


def check_inputs(query: Any, key: Any, value: Any, enable_gqa: bool) -> None:
    """Types, axes and heads; the operators check everything else."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if type(tensor) not in _PLAIN_TYPES or tensor.is_nested:
            _check_tensor(name, tensor)
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
    _check_flag("enable_gqa", enable_gqa)
    if not enable_gqa and query.size(-3) != key.size(-3):
        refuse_value(
            f"query has {query.size(-3)} heads and key {key.size(-3)}, got shapes "
            f"{tuple(query.shape)} and {tuple(key.shape)}; pass enable_gqa=True to let groups of "
            "query heads share a key head"
        )


def check_optional(attn_mask: Any, alibi_slopes: Any, cu_seqlens_q: Any, cu_seqlens_k: Any) -> None:
    """Types of the tensors that may be left out."""
    if attn_mask is not None:
        _check_tensor("attn_mask", attn_mask)
    if alibi_slopes is not None:
        _check_tensor("alibi_slopes", alibi_slopes)
        if alibi_slopes.requires_grad and torch.is_grad_enabled():
            refuse_value(
                "alibi_slopes has no gradient, got a tensor that requires one; detach it, or pass "
                "-slope * distance as a float attn_mask, which has one"
            )
    if cu_seqlens_q is not None:
        _check_tensor("cu_seqlens_q", cu_seqlens_q)
    if cu_seqlens_k is not None:
        _check_tensor("cu_seqlens_k", cu_seqlens_k)


def _check_flag(name: str, flag: Any) -> None:
    if flag is not True and flag is not False:
        refuse_type(f"{name} must be True or False, got {flag!r}")


def optional_batch_index(batch_index: Any) -> tuple[Tensor, ...]:
    """One tensor, or none: an operator's argument that may be left out."""
    if batch_index is None:
        return ()
    if isinstance(batch_index, Tensor):
        _check_tensor("batch_index", batch_index)
        return (batch_index,)
    if isinstance(batch_index, (str, bytes)) or not isinstance(batch_index, Sequence):
        refuse_type(f"batch_index must be an integer tensor or integers, got {batch_index!r}")
    try:
        return (torch.tensor([operator.index(number) for number in batch_index]).long(),)
    except TypeError:
        refuse_type(f"batch_index must hold integers, got {batch_index!r}")
    except (ValueError, RuntimeError):  # beyond 64 bits
        refuse_value(f"batch_index must hold numbers in 0 .. 2^32 - 1, got {batch_index!r}")


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
    **options: Unpack[AttentionOptions],
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
    **options: Unpack[AttentionOptions],
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
    batch_index: Tensor | Sequence[int] | None = None,
    return_logsumexp: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Softmax attention with dropout, in place of torch.nn.functional's function of this name.

    out = dropout(softmax(scale * query @ key^T + attn_mask)) @ value, exact, in memory linear in
    the lengths, and with the same mask for the same seed on every machine. On the CPU this takes
    the kernels; other devices take PyTorch operations with quadratic memory.

    Args:
        query: (batch, num_heads, seqlen_q, head_dim) or without batch; float64, float32, bfloat16
            or float16; any strides.
        key: (batch, num_kv_heads, seqlen_k, head_dim).
        value: (batch, num_kv_heads, seqlen_k, head_dim_v).
        attn_mask: broadcastable to (batch, num_heads, seqlen_q, seqlen_k). bool: true takes part.
            Float: added to the logits, -inf hides a key; may require a gradient. It may be combined
            with is_causal and window.
        dropout_p: chance of dropping, in [0, 1]. A tensor of one element keeps a compiled graph
            when the rate changes.
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
        window: (left, right) keys seen around the query's position, ends included; -1: no limit.
        causal_align: "top-left": query i stands at key i. "bottom-right": the last query stands at
            the last key, as in flash-attention.
        alibi_slopes: float32 (num_heads) or (batch, num_heads): adds -slope * distance; without a
            gradient.
        cu_seqlens_q: int32 or int64 (number of sequences + 1): the batch is 1 and sequences lie
            behind one another along seqlen. Comes with cu_seqlens_k.
        origin: (batch, head, query, key) where this part starts in a whole problem, so that parts
            draw the masks of the whole.
        total: (seqlen_q, seqlen_k) of the whole; default: origin + lengths.
        batch_index: int64 or int32 (batch): where each entry of the batch, or with cu_seqlens each
            sequence, stands in a whole batch, in place of the first number of origin; for parts
            that are not contiguous (attndrop.distributed). A tensor keeps a compiled graph.
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
    try:
        check_inputs(query, key, value, enable_gqa)
        check_optional(attn_mask, alibi_slopes, cu_seqlens_q, cu_seqlens_k)
        _check_flag("return_logsumexp", return_logsumexp)
        options = make_options(
            scale, is_causal, causal_align, window, scheme, stage, empty_row, origin, total
        )
        rng = make_rng(dropout_p, seed, offset, training)
        named = optional_batch_index(batch_index)
        side = (rng, attn_mask, alibi_slopes, cu_seqlens_q, cu_seqlens_k, *named)
        out, logsumexp = attend(query, key, value, side, options)
    except RuntimeError as error:
        raise_translated(error)
    return (out, logsumexp) if return_logsumexp else out
