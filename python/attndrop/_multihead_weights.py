# SPDX-License-Identifier: Apache-2.0
"""Attention weights in full, from the logsumexp of a call: a second pass, O(seqlen_q seqlen_k)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._extension import definitions

_keep_mask = torch.ops.attndrop.keep_mask.default


# ---- The mask of logits in a graph -----------------------------------------------------------
#
# keep_mask takes sizes, which a graph holds as numbers; this one takes them from a tensor, so that
# lengths stay dynamic.

definitions.define(
    "keep_mask_of(Tensor logits, Tensor rng, Tensor? attn_mask, Tensor? batch_index, *, "
    'bool with_factors, bool is_causal=False, str scheme="element", str stage="weights", '
    'str empty_row="zero") -> (Tensor keep, Tensor factors)'
)


def _keep_mask_of(
    logits: Tensor,
    rng: Tensor,
    attn_mask: Tensor | None,
    batch_index: Tensor | None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    side = (rng, attn_mask, None, None, None, batch_index)
    return _keep_mask(*side, sizes=list(logits.shape), **options)


def _fake_keep_mask_of(
    logits: Tensor, rng: Tensor, *side: Any, with_factors: bool, **options: Any
) -> tuple[Tensor, Tensor]:
    keep = rng.new_empty(logits.shape, dtype=torch.bool)
    sizes = logits.shape if with_factors else (0,)
    return keep, rng.new_empty(sizes, dtype=torch.float64)


definitions.impl("keep_mask_of", _keep_mask_of, "CompositeExplicitAutograd")
torch.library.register_fake("attndrop::keep_mask_of", _fake_keep_mask_of, lib=definitions)


# ---- Weights ---------------------------------------------------------------------------------


def attention_weights(
    query: Tensor,
    key: Tensor,
    attn_mask: Tensor | None,
    logsumexp: Tensor,
    drawn: tuple[Tensor, ...],
    options: dict[str, Any],
) -> Tensor:
    """Weights (batch, num_heads, seqlen_q, seqlen_k) in the dtype of logsumexp, with gradients.

    Args:
        query, key: (batch, num_heads, seqlen, head_dim), of the call.
        attn_mask: as attndrop takes it, broadcastable to the weights.
        logsumexp: (batch, num_heads, seqlen_q), of the call.
        drawn: rng of the call, and batch_index if it had one, for the weights after dropout;
            nothing for those before.
        options: the call's.
    """
    logits = _logits(query, key, attn_mask, logsumexp.dtype, options)
    at_logits = options.get("stage", "weights") == "logits"
    keep = factors = None
    if drawn:
        keep, factors = _masks(logits, attn_mask, drawn, options)
    if at_logits:
        # The logsumexp of the call is that of the kept keys.
        if keep is None:
            return _softmax(logits)
        logits = logits.masked_fill(~keep.to(logits.device), -torch.inf)
    if at_logits or attn_mask is not None:
        # Rows that see nothing have -inf on both sides.
        logsumexp = logsumexp.masked_fill(logsumexp == -torch.inf, 0.0)
    weights = (logits - logsumexp.unsqueeze(-1)).exp()
    return weights if factors is None else weights * factors.to(weights)


def _softmax(logits: Tensor) -> Tensor:
    """softmax; zeros in a row of -inf alone."""
    empty = (logits == -torch.inf).all(-1, keepdim=True)
    return logits.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)


def _logits(
    query: Tensor,
    key: Tensor,
    attn_mask: Tensor | None,
    dtype: torch.dtype,
    options: dict[str, Any],
) -> Tensor:
    """scale * query key^T + mask in the precision of the logsumexp; -inf where hidden."""
    query = query.to(dtype) * query.shape[-1] ** -0.5
    key = key.to(dtype).transpose(-2, -1)
    if torch.is_autocast_enabled(query.device.type):
        with torch.autocast(query.device.type, enabled=False):
            logits = query @ key
    else:
        logits = query @ key
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        logits = logits.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        logits = logits + attn_mask.to(dtype)
    if options.get("is_causal"):
        ones = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device)
        logits = logits.masked_fill(ones.triu(1), -torch.inf)
    return logits


def _masks(
    logits: Tensor, attn_mask: Tensor | None, drawn: tuple[Tensor, ...], options: dict[str, Any]
) -> tuple[Tensor, Tensor | None]:
    """What the call kept, and what multiplies each weight (nothing at stage "logits")."""
    at_logits = options.get("stage", "weights") == "logits"
    one_factor = options.get("empty_row", "zero") == "zero"
    mask = None if attn_mask is None else attn_mask.detach()
    rng = drawn[0]
    batch_index = drawn[1] if len(drawn) > 1 else None
    function: Any = _keep_mask_of
    if torch.compiler.is_compiling():
        function = torch.ops.attndrop.keep_mask_of
    keep, factors = function(
        logits.detach(),
        rng,
        mask,
        batch_index,
        with_factors=not (at_logits or one_factor),
        **options,
    )
    if at_logits:
        return keep, None
    if one_factor:
        # A factor for every weight takes far longer than the mask. With keep_q32 = 0 nothing is
        # kept, and an infinite factor would make its gradients NaN.
        keep_q32 = rng[2].clamp(min=1).to(torch.float64)
        factors = keep.to(logits.dtype) * ((1 << 32) / keep_q32)
    return keep, factors
