# SPDX-License-Identifier: Apache-2.0
"""The gradient of attndrop::backward: second derivatives of attention under the same mask."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _composite as composite
from ._composite import BackwardInputs, Grads, Options, Side
from ._dense import DenseMask
from ._problem import Config, make_config

#: Visibility does not depend on the rate.
_NOTHING = torch.tensor([0, 0, 1 << 32])


def second_grads(
    upstream: Any,
    inputs: BackwardInputs,
    side: Side,
    options: Options,
) -> Any:
    query, key = inputs.query, inputs.key
    shape = composite.sequence_shape(query, key)
    sizes = [shape.batch, shape.num_heads, shape.seqlen_q, shape.seqlen_k]
    keep, factors = torch.ops.attndrop.keep_mask(
        side.rng,
        None if side.attn_mask is None else side.attn_mask.detach(),
        None,
        side.cu_seqlens_q,
        side.cu_seqlens_k,
        *(() if side.batch_index is None else (side.batch_index,)),
        sizes=sizes,
        with_factors=True,
        **{**options, "scale": None},
    )
    # The rate does not matter here: visibility alone is computed from the configuration.
    config = make_config(_NOTHING, {**options, "empty_row": "zero"})
    parts = [
        _second_of_piece(
            piece,
            upstream,
            inputs,
            side,
            options,
            (keep.to(query.device), factors.to(query.device)),
        )
        for piece in composite.pieces(shape, config, side)
    ]
    rows = [
        torch.cat([part[index] for part in parts], 2).to(like.dtype)
        for index, like in enumerate(
            (inputs.grad_out, inputs.logsumexp, query, inputs.key, inputs.value)
        )
    ]
    return *rows, _mask_grad(side, parts, config, shape)


def _second_of_piece(
    piece: composite.Piece,
    upstream: Any,
    inputs: BackwardInputs,
    side: Side,
    options: Options,
    masks: tuple[Tensor, Tensor],
) -> tuple[Tensor, ...]:
    dtype = composite.compute_dtype(inputs.query.dtype)
    query = piece.of_q(inputs.query).to(dtype)
    key, value = piece.of_k(inputs.key).to(dtype), piece.of_k(inputs.value).to(dtype)
    grad_out = piece.of_q(inputs.grad_out).to(dtype)
    grad_logsumexp = inputs.grad_logsumexp
    if grad_logsumexp is not None:
        grad_logsumexp = piece.of_q(grad_logsumexp).to(dtype)
    geometry = composite.dense_mask(piece.config, piece.shape, piece.attn_mask, query.device)
    if piece.batch_index is not None:
        masks = tuple(  # type: ignore[assignment]
            mask[piece.batch_index : piece.batch_index + 1, :, : query.shape[2], : key.shape[2]]
            for mask in masks
        )
    mask = DenseMask(geometry.visible, *masks)
    dense = composite.make_dense(piece, mask, side, options, query, key)
    logits = torch.zeros((), dtype=dtype, device=query.device)
    if upstream[3] is not None and piece.attn_mask is not None:
        logits = composite.mask_of_piece(upstream[3], piece).to(dtype)
    given = Grads(
        _or_zeros(upstream[0], piece.rows_q, query),
        _or_zeros(upstream[1], piece.rows_k, key),
        _or_zeros(upstream[2], piece.rows_k, value),
        logits,
    )
    second = composite.second_dense(given, grad_out, grad_logsumexp, (query, key, value), dense)
    first = second.first
    return (
        second.grad_out,
        second.grad_logsumexp,
        first.query,
        first.key,
        first.value,
        first.logits,
    )


def _or_zeros(grad: Tensor | None, rows: slice, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if grad is None else grad[:, :, rows].to(like.dtype)


def _mask_grad(side: Side, parts: list[Any], config: Config, shape: Any) -> Tensor | None:
    mask = side.attn_mask
    if mask is None or not mask.is_floating_point():
        return None
    pieces = composite.pieces(shape, config, side)
    return composite.mask_grad(
        mask, [(piece, part[5]) for piece, part in zip(pieces, parts, strict=True)]
    ).to(mask.dtype)
