# SPDX-License-Identifier: Apache-2.0
"""The two functions of flash-attention 2.8 with its signatures, on any device that PyTorch has."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ._functional import scaled_dot_product_attention
from ._masks import keep_mask
from ._rng import IntLike, draw_seed


def _refuse_softcap(softcap: float) -> None:
    if softcap != 0.0:
        raise ValueError(
            f"softcap must be 0 (capped logits are not built), got {softcap}; cap them in an "
            "attention of your own"
        )


def _checked_window(window_size: Sequence[int]) -> Sequence[int]:
    if not isinstance(window_size, Sequence) or len(window_size) != 2:
        raise TypeError(
            "window_size must be two integers (left, right), each -1 where there is no limit, got "
            f"{window_size!r}"
        )
    return window_size


def _attend(
    query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    return scaled_dot_product_attention(
        query,
        key,
        value,
        enable_gqa=True,
        causal_align="bottom-right",
        return_logsumexp=True,
        **options,
    )


def _drawn(seed: IntLike | None, dropout_p: float, needed: bool) -> IntLike | None:
    """A seed that can be used twice: for the attention and for the mask beside it."""
    if seed is not None or not needed or dropout_p == 0.0:
        return seed
    return int(draw_seed().item())


def _signed_weights(
    query: Tensor, key: Tensor, logsumexp: Tensor, options: dict[str, Any], scale: float | None
) -> Tensor:
    """softmax, negative where dropout drops, as flash-attention's S_dmask; 0 where hidden."""
    factor = query.size(-1) ** -0.5 if scale is None else scale
    key = key.repeat_interleave(query.size(1) // key.size(1), dim=1)
    query, key = (tensor.detach().to(logsumexp.dtype) for tensor in (query, key))
    logits = factor * query @ key.transpose(-2, -1)
    slopes = options["alibi_slopes"]
    rows, columns = logits.shape[-2:]
    if slopes is not None:
        i = torch.arange(rows, device=query.device).view(-1, 1) + columns - rows
        distance = (i - torch.arange(columns, device=query.device)).abs()
        logits = logits - slopes.view(-1, query.size(1), 1, 1) * distance
    names = ("dropout_p", "seed", "offset", "scheme", "stage", "empty_row", "is_causal", "window")
    drawn = {name: options[name] for name in names}
    keep, visible = (
        keep_mask(
            *logits.shape,
            causal_align="bottom-right",
            **{**drawn, "dropout_p": dropout_p},
        ).to(query.device)
        for dropout_p in (options["dropout_p"], 0.0)
    )
    weights = torch.where(visible, torch.exp(logits - logsumexp.detach().unsqueeze(-1)), 0.0)
    return torch.where(keep, weights, -weights)


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    scheme: str = "element",
    stage: str = "weights",
    empty_row: str = "zero",
    seed: IntLike | None = None,
    offset: IntLike = 0,
) -> Any:
    """flash_attn.flash_attn_func: attention of (batch, seqlen, heads, head_dim) tensors.

    Args:
        q: (batch, seqlen_q, num_heads, head_dim).
        k, v: (batch, seqlen_k, num_kv_heads, head_dim); num_heads is a multiple of num_kv_heads.
        dropout_p: drops whenever it is not 0; pass 0 in evaluation.
        softmax_scale: default 1/sqrt(head_dim).
        causal, window_size: aligned to the lower right corner; -1 means no limit.
        softcap: only 0.
        alibi_slopes: float32 (num_heads) or (batch, num_heads).
        deterministic: results always are.
        return_attn_probs: also return logsumexp (batch, num_heads, seqlen_q) and the softmax
            (batch, num_heads, seqlen_q, seqlen_k), negative where dropped, None without dropout.
            With stage "logits" the kept weights sum to 1 and dropped ones are beside them.
        scheme, stage, empty_row, seed, offset: as in scaled_dot_product_attention.

    Returns:
        out (batch, seqlen_q, num_heads, head_dim), or (out, logsumexp, softmax).

    Raises:
        TypeError, ValueError: as scaled_dot_product_attention; softcap is not 0.

    Source: the interface of flash-attention 2.8 (Dao 2023).
    """
    _refuse_softcap(softcap)
    options = {
        "dropout_p": dropout_p,
        "is_causal": causal,
        "window": _checked_window(window_size),
        "alibi_slopes": alibi_slopes,
        "scheme": scheme,
        "stage": stage,
        "empty_row": empty_row,
        "seed": _drawn(seed, dropout_p, return_attn_probs),
        "offset": offset,
    }
    query, key, value = (
        _swap(name, tensor, 4) for name, tensor in zip("qkv", (q, k, v), strict=True)
    )
    out, logsumexp = _attend(query, key, value, {**options, "scale": softmax_scale})
    out = out.transpose(1, 2)
    if not return_attn_probs:
        return out
    probs = None
    if dropout_p > 0.0:
        probs = _signed_weights(query, key, logsumexp, options, softmax_scale).to(q.dtype)
    return out, logsumexp, probs


def _swap(name: str, tensor: Tensor, axes: int) -> Tensor:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
    if tensor.dim() != axes:
        wanted = "(batch, seqlen, heads, head_dim)" if axes == 4 else "(rows, heads, head_dim)"
        raise ValueError(f"{name} must have the shape {wanted}, got {tuple(tensor.shape)}")
    return tensor.transpose(-3, -2)


def _check_longest(side: str, cu_seqlens: Any, longest: Any) -> None:
    """Nothing here needs the longest length, but a wrong one is a mistake of the caller."""
    if not isinstance(cu_seqlens, Tensor):
        raise TypeError(
            f"cu_seqlens_{side} must be an int32 or int64 tensor, got {type(cu_seqlens).__name__}"
        )
    if torch.compiler.is_compiling() or cu_seqlens.numel() < 2:
        return
    name, actual = f"max_seqlen_{side}", int(cu_seqlens.diff().max())
    try:
        longest = operator.index(longest)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {longest!r}") from None
    if longest < actual:
        raise ValueError(f"{name} must be at least the longest sequence, {actual}, got {longest}")


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
    *,
    scheme: str = "element",
    stage: str = "weights",
    empty_row: str = "zero",
    seed: IntLike | None = None,
    offset: IntLike = 0,
) -> Any:
    """flash_attn.flash_attn_varlen_func: sequences of different lengths behind one another.

    Args:
        q: (rows_q, num_heads, head_dim); k, v: (rows_k, num_kv_heads, head_dim).
        cu_seqlens_q, cu_seqlens_k: int32 or int64 (number of sequences + 1), from 0.
        max_seqlen_q, max_seqlen_k: at least the longest sequence.
        block_table: only None.
        return_attn_probs: also return logsumexp (num_heads, rows_q) and None.
        Others: as in flash_attn_func.

    Returns:
        out (rows_q, num_heads, head_dim), or (out, logsumexp, None).

    Raises:
        TypeError, ValueError: as flash_attn_func; block_table is given.
    """
    _refuse_softcap(softcap)
    if block_table is not None:
        raise ValueError("block_table must be None: paged keys are not built; gather them first")
    _check_longest("q", cu_seqlens_q, max_seqlen_q)
    _check_longest("k", cu_seqlens_k, max_seqlen_k)
    query, key, value = (
        _swap(name, tensor, 3).unsqueeze(0) for name, tensor in zip("qkv", (q, k, v), strict=True)
    )
    options = {
        "dropout_p": dropout_p,
        "scale": softmax_scale,
        "is_causal": causal,
        "window": _checked_window(window_size),
        "alibi_slopes": alibi_slopes,
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k,
        "scheme": scheme,
        "stage": stage,
        "empty_row": empty_row,
        "seed": seed,
        "offset": offset,
    }
    out, logsumexp = _attend(query, key, value, options)
    out = out.squeeze(0).transpose(0, 1)
    return (out, logsumexp.squeeze(0), None) if return_attn_probs else out
