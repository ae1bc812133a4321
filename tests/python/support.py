# SPDX-License-Identifier: Apache-2.0
"""What the tests compare with: dense attention in double, given the factors of the mask."""

from __future__ import annotations

import math
from typing import Any

import attndrop
import torch
from torch import Tensor

MASK_OPTIONS = [
    "dropout_p",
    "seed",
    "offset",
    "is_causal",
    "attn_mask",
    "scheme",
    "stage",
    "empty_row",
    "window",
    "causal_align",
    "cu_seqlens_q",
    "cu_seqlens_k",
    "origin",
    "total",
    "batch_index",
]

SCHEMES = (
    "element",
    "shared",
    "key",
    "word",
    "query",
    "head",
    "block:block_q=3,block_k=2",
    "symmetric",
)
POLICIES = ("zero", "keep_one", "redraw", "keep_self", "keep_first", "undropped")


def is_legal(scheme: str, empty_row: str) -> bool:
    return empty_row not in ("keep_one", "redraw") or scheme in ("element", "shared")


def rng(dropout_p: float, seed: int = 0, offset: int = 0) -> Tensor:
    return torch.tensor([seed, offset, math.floor((1 - dropout_p) * 2**32 + 0.5)])


def inputs(
    *shape: int,
    kv: tuple[int, ...] | None = None,
    dtype: torch.dtype = torch.float64,
    grad: bool = True,
) -> list[Tensor]:
    """query, key, value of (batch, heads, seqlen, head_dim)."""
    shapes = (shape, kv or shape, kv or shape)
    return [torch.randn(s, dtype=dtype).requires_grad_(grad) for s in shapes]


def mask_of(query: Tensor, key: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    chosen = {name: value for name, value in options.items() if name in MASK_OPTIONS}
    if isinstance(chosen.get("attn_mask"), Tensor):
        chosen["attn_mask"] = chosen["attn_mask"].detach()
    sizes = (query.size(0), query.size(1), query.size(2), key.size(2))
    return attndrop.keep_mask(*sizes, factors=True, **chosen)


def dense(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """(out, logsumexp) of softmax, times the factors, times value; autograd does the rest."""
    keep, factors = mask_of(query, key, **options)
    visible, _ = mask_of(query, key, **{**options, "dropout_p": 0.0})
    group = query.size(1) // key.size(1)
    key, value = (t.repeat_interleave(group, 1) for t in (key, value))
    scale = options.get("scale")
    scale = query.size(-1) ** -0.5 if scale is None else scale
    logits = scale * query @ key.transpose(-2, -1)
    attn_mask = options.get("attn_mask")
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        logits = logits + attn_mask.masked_fill(attn_mask == -torch.inf, 0.0)
    active = keep if options.get("stage") == "logits" else visible
    logits = logits.masked_fill(~active, -torch.inf)
    empty = ~active.any(-1, keepdim=True)
    weights = logits.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)
    logsumexp = logits.masked_fill(empty, 0.0).logsumexp(-1).masked_fill(empty[..., 0], -torch.inf)
    return (weights * factors.to(weights.dtype)) @ value, logsumexp


def grads(out: Tensor, tensors: list[Tensor], upstream: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(out, tensors, upstream))


def largest_difference(a: Tensor, b: Tensor) -> float:
    """Relative to the largest magnitude of b, or to 1 where that is larger."""
    if b.numel() == 0:
        return 0.0
    a, b = a.detach().double(), b.detach().double()
    return float((a - b).abs().max() / b.abs().max().clamp(min=1.0))
