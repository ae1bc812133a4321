# SPDX-License-Identifier: Apache-2.0
"""Attention with dropout in PyTorch operations: every device, quadratic memory, differentiable.

It serves devices that have no kernels, installations without the extension, and second derivatives
everywhere. Formulas are those of docs/math/attention.md; W are the weights, F the factors, D = F W.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ._checks import check_attention, check_backward, check_batch_index, logsumexp_dtype
from ._dense import DenseMask, dense_mask
from ._problem import Config, Shape, check_batch_numbers, make_config

Options = dict[str, Any]


@dataclass(frozen=True)
class Side:
    """The tensors beside query, key and value, as the operators take them."""

    rng: Tensor
    attn_mask: Tensor | None = None
    alibi_slopes: Tensor | None = None
    cu_seqlens_q: Tensor | None = None
    cu_seqlens_k: Tensor | None = None
    batch_index: Tensor | None = None


@dataclass(frozen=True)
class Piece:
    """What is computed at once: a batch of equal sequences, or one sequence of a ragged batch."""

    rows_q: slice
    rows_k: slice
    shape: Shape
    config: Config
    batch_index: int | None  # ragged only
    attn_mask: Tensor | None

    def of_q(self, tensor: Tensor) -> Tensor:
        return tensor[:, :, self.rows_q]

    def of_k(self, tensor: Tensor) -> Tensor:
        return tensor[:, :, self.rows_k]


def pieces(shape: Shape, config: Config, side: Side) -> Iterator[Piece]:
    """Splits a ragged batch into its sequences; anything else is one piece."""
    numbers = _batch_numbers(shape, config, side)
    if side.cu_seqlens_q is None or side.cu_seqlens_k is None:
        everything = slice(None)
        named = config if numbers is None else replace(config, batch_index=numbers)
        yield Piece(everything, everything, shape, named, None, side.attn_mask)
        return
    ends_q, ends_k = side.cu_seqlens_q.tolist(), side.cu_seqlens_k.tolist()
    for index in range(len(ends_q) - 1):
        rows_q = slice(ends_q[index], ends_q[index + 1])
        rows_k = slice(ends_k[index], ends_k[index + 1])
        one = Shape(1, shape.num_heads, rows_q.stop - rows_q.start, rows_k.stop - rows_k.start)
        first, head, _, _ = config.origin
        batch = first + index if numbers is None else numbers[index]
        moved = replace(config, origin=(batch, head, 0, 0), total=None)
        yield Piece(rows_q, rows_k, one, moved, index, _mask_of(side.attn_mask, index, one))


def _batch_numbers(shape: Shape, config: Config, side: Side) -> tuple[int, ...] | None:
    if side.batch_index is None:
        return None
    check_batch_index(side.batch_index)
    sequences = shape.batch if side.cu_seqlens_q is None else side.cu_seqlens_q.numel() - 1
    numbers = tuple(side.batch_index.tolist())
    check_batch_numbers(numbers, sequences, config.origin[0])
    return numbers


def _mask_of(attn_mask: Tensor | None, index: int, shape: Shape) -> Tensor | None:
    if attn_mask is None:
        return None
    batch = index if attn_mask.shape[0] > 1 else 0
    mask = attn_mask[batch : batch + 1]
    return mask[:, :, : shape.seqlen_q, : shape.seqlen_k]


def sequence_shape(query: Tensor, key: Tensor) -> Shape:
    return Shape(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


# ---- One piece ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dense:
    """A piece's mask and bias in the dtype of the computation."""

    active: Tensor  # bool: what logsumexp runs over
    factors: Tensor
    bias: Tensor | None
    scale: float
    group: int  # query heads per key head

    def logits(self, query: Tensor, key: Tensor) -> Tensor:
        logits = self.scale * (query @ self.spread(key).transpose(-2, -1))
        if self.bias is not None:
            logits = logits + self.bias
        return torch.where(self.active, logits, 0.0)

    def weights(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """W and logsumexp; a row without active keys has zeros and -inf."""
        logits = self.logits(query, key)
        if logits.shape[-1] == 0:
            return logits, logits.new_full(logits.shape[:-1], -torch.inf)
        peak = torch.where(self.active, logits, -torch.inf).amax(-1, keepdim=True).detach()
        peak = torch.where(peak == -torch.inf, 0.0, peak)
        exps = torch.where(self.active, torch.exp(logits - peak), 0.0)
        total = exps.sum(-1, keepdim=True)
        empty = ~self.active.any(-1, keepdim=True)
        total = torch.where(empty, 1.0, total)
        logsumexp = torch.where(empty, -torch.inf, peak + torch.log(total))
        return exps / total, logsumexp.squeeze(-1)

    def spread(self, tensor: Tensor) -> Tensor:
        """Key heads repeated for the query heads that share them."""
        return tensor.repeat_interleave(self.group, dim=1) if self.group > 1 else tensor

    def gather(self, grad: Tensor) -> Tensor:
        """The gradient of spread."""
        if self.group == 1:
            return grad
        batch, heads, rows, columns = grad.shape
        return grad.view(batch, heads // self.group, self.group, rows, columns).sum(2)


def select_matmul(weights: Tensor, select: Tensor, value: Tensor) -> Tensor:
    """weights @ value in which a cell outside select adds nothing, not even 0 * NaN."""
    if bool(torch.isfinite(value).all()):
        return weights @ value
    finite = torch.where(torch.isfinite(value), value, 0.0)
    out = weights @ finite
    chosen = (select & (weights != 0)).to(weights.dtype)
    for special in (torch.inf, -torch.inf):
        hit = chosen @ (value == special).to(weights.dtype) > 0
        out = torch.where(hit, out + special, out)
    hit = select.to(weights.dtype) @ torch.isnan(value).to(weights.dtype) > 0
    return torch.where(hit, torch.nan, out)


def forward_dense(query: Tensor, key: Tensor, value: Tensor, dense: Dense) -> tuple[Tensor, Tensor]:
    weights, logsumexp = dense.weights(query, key)
    out = select_matmul(weights * dense.factors, dense.factors != 0, dense.spread(value))
    return out, logsumexp


@dataclass(frozen=True)
class Grads:
    """Gradients of query, key, value, and of the logits before scale (which is attn_mask's)."""

    query: Tensor
    key: Tensor
    value: Tensor
    logits: Tensor


def _grad_logits(
    grad_out: Tensor, grad_logsumexp: Tensor | None, weights: Tensor, value: Tensor, dense: Dense
) -> tuple[Tensor, Tensor, Tensor]:
    """dS, dP (zero where nothing is kept) and delta."""
    kept = dense.factors != 0
    grad_weights = torch.where(kept, grad_out @ dense.spread(value).transpose(-2, -1), 0.0)
    delta = (weights * dense.factors * grad_weights).sum(-1, keepdim=True)
    if grad_logsumexp is not None:
        grad = torch.where(dense.active.any(-1), grad_logsumexp, 0.0)
        delta = delta - grad.unsqueeze(-1)
    return weights * (dense.factors * grad_weights - delta), grad_weights, delta


def backward_dense(
    grad_out: Tensor,
    grad_logsumexp: Tensor | None,
    inputs: tuple[Tensor, Tensor, Tensor],
    dense: Dense,
) -> Grads:
    query, key, value = inputs
    weights, _ = dense.weights(query, key)
    grad_logits, _, _ = _grad_logits(grad_out, grad_logsumexp, weights, value, dense)
    dropped = (weights * dense.factors).transpose(-2, -1)
    kept = (dense.factors != 0).transpose(-2, -1)
    active = dense.active
    grad_query = dense.scale * select_matmul(grad_logits, active, dense.spread(key))
    grad_key = dense.scale * select_matmul(
        grad_logits.transpose(-2, -1), active.transpose(-2, -1), query
    )
    grad_value = select_matmul(dropped, kept, grad_out)
    return Grads(grad_query, dense.gather(grad_key), dense.gather(grad_value), grad_logits)


@dataclass(frozen=True)
class SecondGrads:
    """Gradients of the inputs of backward_dense."""

    grad_out: Tensor
    grad_logsumexp: Tensor
    first: Grads


def second_dense(
    upstream: Grads,
    grad_out: Tensor,
    grad_logsumexp: Tensor | None,
    inputs: tuple[Tensor, Tensor, Tensor],
    dense: Dense,
) -> SecondGrads:
    """The gradient of backward_dense, itself in differentiable operations (docs/math/attention.md).

    With X the gradient reaching dS and x the row sums of W X:
      of dP: W F (X - x); of W: F dP (X - x) - delta X + F (grad_out . upstream_value)
    """
    query, key, value = inputs
    weights, _ = dense.weights(query, key)
    grad_logits, grad_weights, delta = _grad_logits(grad_out, grad_logsumexp, weights, value, dense)
    of_query, of_key = upstream.query, dense.spread(upstream.key)
    of_value = dense.spread(upstream.value)
    x = dense.scale * (
        of_query @ dense.spread(key).transpose(-2, -1) + query @ of_key.transpose(-2, -1)
    )
    x = torch.where(dense.active, x + upstream.logits, 0.0)
    mean = (weights * x).sum(-1, keepdim=True)
    cot_grad_weights = weights * dense.factors * (x - mean)
    cot_weights = dense.factors * (
        grad_weights * (x - mean) + grad_out @ of_value.transpose(-2, -1)
    )
    cot_weights = cot_weights - delta * x
    cot_logits = weights * (cot_weights - (weights * cot_weights).sum(-1, keepdim=True))
    dropped = weights * dense.factors
    cot_query = dense.scale * (cot_logits @ dense.spread(key) + grad_logits @ of_key)
    cot_key = dense.scale * (
        cot_logits.transpose(-2, -1) @ query + grad_logits.transpose(-2, -1) @ of_query
    )
    cot_value = cot_grad_weights.transpose(-2, -1) @ grad_out
    cot_grad_out = cot_grad_weights @ dense.spread(value) + dropped @ of_value
    first = Grads(cot_query, dense.gather(cot_key), dense.gather(cot_value), cot_logits)
    return SecondGrads(cot_grad_out, mean.squeeze(-1), first)


# ---- Whole calls ----------------------------------------------------------------------------


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def make_dense(
    piece: Piece, mask: DenseMask, side: Side, options: Options, query: Tensor, key: Tensor
) -> Dense:
    dtype = compute_dtype(query.dtype)
    head_dim = query.shape[-1]
    scale = options.get("scale")
    bias = None
    if piece.attn_mask is not None and piece.attn_mask.is_floating_point():
        bias = piece.attn_mask.to(dtype)
        bias = torch.where(bias == -torch.inf, 0.0, bias)
    if side.alibi_slopes is not None:
        slopes = _alibi(piece, side.alibi_slopes, query.device).to(dtype)
        bias = slopes if bias is None else bias + slopes
    logits = options.get("stage", "weights") == "logits"
    return Dense(
        active=mask.keep if logits else mask.visible,
        factors=mask.factors.to(dtype),
        bias=bias,
        scale=(head_dim**-0.5 if head_dim > 0 else 1.0) if scale is None else scale,
        group=query.shape[1] // max(1, key.shape[1]),
    )


def _alibi(piece: Piece, slopes: Tensor, device: torch.device) -> Tensor:
    """-slope * |i + shift - j|, (batch, heads, seqlen_q, seqlen_k)."""
    _, _, query, key = piece.config.origin
    shape = piece.shape
    total_q, total_k = piece.config.total or (query + shape.seqlen_q, key + shape.seqlen_k)
    shift = total_k - total_q if piece.config.bottom_right else 0
    i = torch.arange(query, query + shape.seqlen_q, device=device).view(-1, 1)
    j = torch.arange(key, key + shape.seqlen_k, device=device)
    if slopes.dim() == 1:
        slopes = slopes.view(1, -1)
    elif piece.batch_index is not None:
        slopes = slopes[piece.batch_index : piece.batch_index + 1]
    return -slopes.double().view(*slopes.shape, 1, 1) * (i + shift - j).abs()


def _dense_of(piece: Piece, side: Side, options: Options, query: Tensor, key: Tensor) -> Dense:
    mask = dense_mask(piece.config, piece.shape, piece.attn_mask, query.device)
    return make_dense(piece, mask, side, options, query, key)


def empty_in_order_of(like: Tensor, columns: int) -> Tensor:
    """Dense; heads inside or outside the rows in memory as in `like`, as the kernels do it."""
    batch, heads, rows, _ = like.shape
    if like.stride(1) >= like.stride(2):
        return like.new_empty((batch, heads, rows, columns))
    return like.new_empty((batch, rows, heads, columns)).transpose(1, 2)


def forward(
    query: Tensor, key: Tensor, value: Tensor, side: Side, options: Options
) -> tuple[Tensor, Tensor]:
    check_attention(query, key, value, side)
    config = make_config(side.rng, options)
    dtype = compute_dtype(query.dtype)
    out = empty_in_order_of(query, value.shape[-1])
    logsumexp = query.new_empty(query.shape[:3], dtype=logsumexp_dtype(query.dtype))
    for piece in pieces(sequence_shape(query, key), config, side):
        q, k, v = (t.to(dtype) for t in (piece.of_q(query), piece.of_k(key), piece.of_k(value)))
        dense = _dense_of(piece, side, options, q, k)
        piece_out, piece_logsumexp = forward_dense(q, k, v, dense)
        out[:, :, piece.rows_q] = piece_out.to(out.dtype)
        logsumexp[:, :, piece.rows_q] = piece_logsumexp.to(logsumexp.dtype)
    return out, logsumexp


@dataclass(frozen=True)
class BackwardInputs:
    grad_out: Tensor
    grad_logsumexp: Tensor | None
    query: Tensor
    key: Tensor
    value: Tensor
    out: Tensor
    logsumexp: Tensor


def mask_of_piece(attn_mask: Tensor, piece: Piece) -> Tensor:
    """The part of a tensor shaped like attn_mask that a piece reads."""
    if piece.batch_index is None:
        return attn_mask
    part = _mask_of(attn_mask, piece.batch_index, piece.shape)
    assert part is not None
    return part


def mask_grad(attn_mask: Tensor, grads: list[tuple[Piece, Tensor]]) -> Tensor:
    """The gradient of attn_mask from those of the logits of all pieces."""
    batches: list[Tensor] = []
    for piece, grad in grads:
        if piece.batch_index is None:
            return grad.sum_to_size(attn_mask.shape)
        shape = mask_of_piece(attn_mask, piece).shape
        part = grad.sum_to_size(shape) if grad.numel() else grad.new_zeros(shape)
        room = (attn_mask.shape[3] - shape[3], attn_mask.shape[2] - shape[2])
        batches.append(torch.nn.functional.pad(part, (0, room[0], 0, room[1])))
    if not batches:
        return torch.zeros_like(attn_mask)
    total = torch.cat(batches)
    return total.sum_to_size(attn_mask.shape)


def backward(
    inputs: BackwardInputs, side: Side, wanted: list[int], options: Options
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    query, key, value = inputs.query, inputs.key, inputs.value
    check_attention(query, key, value, side)
    check_backward(inputs, side, wanted)
    config = make_config(side.rng, options)
    dtype = compute_dtype(query.dtype)
    grads = [empty_in_order_of(t, t.shape[-1]).zero_() for t in (query, key, value)]
    grad_logits: list[tuple[Piece, Tensor]] = []
    for piece in pieces(sequence_shape(query, key), config, side):
        q, k, v = (t.to(dtype) for t in (piece.of_q(query), piece.of_k(key), piece.of_k(value)))
        grad_out = piece.of_q(inputs.grad_out).to(dtype)
        grad_logsumexp = inputs.grad_logsumexp
        if grad_logsumexp is not None:
            grad_logsumexp = piece.of_q(grad_logsumexp).to(dtype)
        dense = _dense_of(piece, side, options, q, k)
        part = backward_dense(grad_out, grad_logsumexp, (q, k, v), dense)
        grads[0][:, :, piece.rows_q] = part.query.to(query.dtype)
        grads[1][:, :, piece.rows_k] = part.key.to(query.dtype)
        grads[2][:, :, piece.rows_k] = part.value.to(query.dtype)
        if wanted[3]:
            grad_logits.append((piece, part.logits))
    none = query.new_empty((0,))
    results = [grad if want else none for grad, want in zip(grads, wanted, strict=False)]
    if wanted[3] and side.attn_mask is not None:
        results.append(mask_grad(side.attn_mask, grad_logits).to(side.attn_mask.dtype))
    else:
        results.append(none)
    return results[0], results[1], results[2], results[3]


def keep_mask(
    side: Side, sizes: list[int], with_factors: bool, options: Options, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Masks of a whole problem; sequences of a ragged batch are padded to the longest."""
    config = make_config(side.rng, options)
    shape = Shape(*sizes)
    parts = list(pieces(shape, config, side))
    masks = [dense_mask(p.config, p.shape, p.attn_mask, device) for p in parts]
    if side.cu_seqlens_q is None:
        keep, factors = masks[0].keep.contiguous(), masks[0].factors
    else:
        rows = max((p.shape.seqlen_q for p in parts), default=0)
        columns = max((p.shape.seqlen_k for p in parts), default=0)
        keep = torch.zeros(
            (len(parts), shape.num_heads, rows, columns), dtype=torch.bool, device=device
        )
        factors = torch.zeros_like(keep, dtype=torch.float64)
        for index, (part, mask) in enumerate(zip(parts, masks, strict=True)):
            inside = (index, slice(None), slice(part.shape.seqlen_q), slice(part.shape.seqlen_k))
            keep[inside] = mask.keep[0]
            factors[inside] = mask.factors[0]
    none = torch.empty((0,), dtype=torch.float64, device=device)
    return keep, factors.contiguous() if with_factors else none
