# SPDX-License-Identifier: Apache-2.0
"""What PyTorch must know of the operators: shapes, gradients, vmap, autocast, FLOPs."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from . import _composite as composite
from ._checks import check_attention, check_backward, logsumexp_dtype
from ._composite import Grads, Options, Side
from ._dense import DenseMask
from ._extension import MISSING, definitions
from ._problem import Config, make_config

_ops = torch.ops.attndrop
_warned_devices: set[str] = set()


# ---- Devices without kernels ----------------------------------------------------------------


def _say_once(device: torch.device) -> None:
    if device.type == "cpu" or device.type in _warned_devices:
        return
    _warned_devices.add(device.type)
    warnings.warn(
        f"attndrop has no kernels for {device.type}: these tensors take PyTorch operations with "
        "quadratic memory; the masks are the same",
        RuntimeWarning,
        stacklevel=2,
    )


def _forward(query: Tensor, key: Tensor, value: Tensor, *side: Any, **options: Any) -> Any:
    _say_once(query.device)
    return composite.forward(query, key, value, Side(*side), options)


def _backward(*args: Any, wanted: list[int], **options: Any) -> Any:
    inputs = composite.BackwardInputs(*args[:7])
    return composite.backward(inputs, Side(*args[7:]), wanted, options)


def _keep_mask(*side: Any, sizes: list[int], with_factors: bool, **options: Any) -> Any:
    given = Side(*side)
    return composite.keep_mask(given, sizes, with_factors, options, given.rng.device)


for _name, _function in (
    ("forward", _forward),
    ("backward", _backward),
    ("keep_mask", _keep_mask),
):
    definitions.impl(_name, _function, "CompositeExplicitAutograd")


# ---- Shapes ---------------------------------------------------------------------------------


@torch.library.register_fake("attndrop::forward", lib=definitions)
def _fake_forward(query: Tensor, key: Tensor, value: Tensor, *side: Any, **options: Any) -> Any:
    check_attention(query, key, value, Side(*side))
    out = composite.empty_in_order_of(query, value.shape[-1])
    return out, query.new_empty(query.shape[:3], dtype=logsumexp_dtype(query.dtype))


@torch.library.register_fake("attndrop::backward", lib=definitions)
def _fake_backward(*args: Any, wanted: list[int], **options: Any) -> Any:
    inputs, side = composite.BackwardInputs(*args[:7]), Side(*args[7:])
    check_attention(inputs.query, inputs.key, inputs.value, side)
    check_backward(inputs, side, wanted)
    tensors = (inputs.query, inputs.key, inputs.value)
    grads = [
        composite.empty_in_order_of(t, t.shape[-1]) if want else inputs.query.new_empty((0,))
        for t, want in zip(tensors, wanted, strict=False)
    ]
    mask = side.attn_mask
    if wanted[3] and mask is not None:
        grads.append(mask.new_empty(mask.shape))
    else:
        grads.append(inputs.query.new_empty((0,)))
    return tuple(grads)


@torch.library.register_fake("attndrop::keep_mask", lib=definitions)
def _fake_keep_mask(*side: Any, sizes: list[int], with_factors: bool, **options: Any) -> Any:
    given = Side(*side)
    if given.cu_seqlens_q is not None:
        context = torch.library.get_ctx()
        longest = [context.new_dynamic_size(), context.new_dynamic_size()]
        sizes = [given.cu_seqlens_q.shape[0] - 1, sizes[1], *longest]
    keep = given.rng.new_empty(sizes, dtype=torch.bool)
    factors = given.rng.new_empty(sizes if with_factors else (0,), dtype=torch.float64)
    return keep, factors


# ---- Gradients ------------------------------------------------------------------------------

_MASK = 4  # of attn_mask among the inputs of forward


def _save_forward(ctx: Any, inputs: Any, keyword_only_inputs: Options, output: Any) -> None:
    ctx.save_for_backward(*inputs, *output)
    ctx.options = keyword_only_inputs
    ctx.set_materialize_grads(False)


def _forward_grad(ctx: Any, grad_out: Tensor | None, grad_logsumexp: Tensor | None) -> Any:
    query, key, value, *side, out, logsumexp = ctx.saved_tensors
    if grad_out is None and grad_logsumexp is None:
        return (None,) * 8
    if grad_out is None:
        grad_out = torch.zeros_like(out)
    needed = ctx.needs_input_grad
    wanted = [int(needed[index]) for index in (0, 1, 2, _MASK)]
    grads = _ops.backward(
        grad_out,
        grad_logsumexp,
        query,
        key,
        value,
        out,
        logsumexp,
        *side,
        wanted=wanted,
        **ctx.options,
    )
    given = [grad if want else None for grad, want in zip(grads, wanted, strict=True)]
    return (*given[:3], None, given[3], None, None, None)


def _save_backward(ctx: Any, inputs: Any, keyword_only_inputs: Options, output: Any) -> None:
    ctx.save_for_backward(*inputs)
    ctx.options = dict(keyword_only_inputs)
    ctx.wanted = ctx.options.pop("wanted")
    ctx.set_materialize_grads(False)


def _backward_grad(ctx: Any, *upstream: Tensor | None) -> Any:
    """Second derivatives, of the same mask, in operations that can be differentiated again."""
    inputs = composite.BackwardInputs(*ctx.saved_tensors[:7])
    side = Side(*ctx.saved_tensors[7:])
    grads = _second(upstream, inputs, side, ctx.wanted, ctx.options)
    grad_out, grad_logsumexp, query, key, value, attn_mask = grads
    if inputs.grad_logsumexp is None:
        grad_logsumexp = None
    return grad_out, grad_logsumexp, query, key, value, None, None, None, attn_mask, *(None,) * 3


def _second(
    upstream: Any,
    inputs: composite.BackwardInputs,
    side: Side,
    wanted: list[int],
    options: Options,
) -> Any:
    query, key = inputs.query, inputs.key
    shape = composite.sequence_shape(query, key)
    sizes = [shape.batch, shape.num_heads, shape.seqlen_q, shape.seqlen_k]
    keep, factors = _ops.keep_mask(
        side.rng,
        None if side.attn_mask is None else side.attn_mask.detach(),
        None,
        side.cu_seqlens_q,
        side.cu_seqlens_k,
        sizes=sizes,
        with_factors=True,
        **{**options, "scale": None},
    )
    # The rate does not matter here: visibility alone is computed from the configuration.
    config = make_config(_no_dropout(side.rng), {**options, "empty_row": "zero"})
    parts = [
        _second_of_piece(
            piece, upstream, inputs, side, options, (keep.to(query.device), factors.to(query.device))
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


def _no_dropout(rng: Tensor) -> Tensor:
    return torch.tensor([0, 0, 1 << 32])


def _second_of_piece(
    piece: composite.Piece,
    upstream: Any,
    inputs: composite.BackwardInputs,
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


torch.library.register_autograd(
    "attndrop::forward", _forward_grad, setup_context=_save_forward, lib=definitions
)
torch.library.register_autograd(
    "attndrop::backward", _backward_grad, setup_context=_save_backward, lib=definitions
)


# ---- vmap -----------------------------------------------------------------------------------


def _looped(op: Any, num_results: int) -> Any:
    """A vmap rule that means the same as a loop: every sample has the coordinates of one call."""

    def rule(info: Any, in_dims: Any, *args: Any, **options: Any) -> Any:
        dims = in_dims[: len(args)]
        calls = []
        for index in range(info.batch_size):
            sample = [
                arg if dim is None else arg.select(dim, index)
                for arg, dim in zip(args, dims, strict=True)
            ]
            calls.append(op(*sample, **options))
        results = tuple(torch.stack([call[i] for call in calls]) for i in range(num_results))
        return results, (0,) * num_results

    return rule


torch.library.register_vmap("attndrop::forward", _looped(_ops.forward, 2), lib=definitions)
torch.library.register_vmap("attndrop::backward", _looped(_ops.backward, 4), lib=definitions)
torch.library.register_vmap("attndrop::keep_mask", _looped(_ops.keep_mask, 2), lib=definitions)


# ---- Autocast -------------------------------------------------------------------------------


def cast_inputs(device_type: str, *tensors: Tensor | None) -> list[Tensor | None]:
    """Floats but float64 in the autocast dtype, as PyTorch does for its own attention."""
    dtype = torch.get_autocast_dtype(device_type)
    return [
        tensor.to(dtype)
        if tensor is not None
        and tensor.is_floating_point()
        and tensor.dtype is not torch.float64
        else tensor
        for tensor in tensors
    ]


def _autocast(device_type: str, key: torch._C.DispatchKey) -> Any:
    def forward(query: Tensor, key_: Tensor, value: Tensor, rng: Tensor, *side: Any, **kw: Any) -> Any:
        mask, *rest = side
        query, key_, value, mask = cast_inputs(device_type, query, key_, value, mask)
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key)):
            return _ops.forward(query, key_, value, rng, mask, *rest, **kw)

    return forward


for _device, _key in (("cpu", "AutocastCPU"), ("cuda", "AutocastCUDA")):
    definitions.impl("forward", _autocast(_device, getattr(torch._C.DispatchKey, _key)), _key)


# ---- FLOPs ----------------------------------------------------------------------------------


def _products(query: Any, key: Any, value: Any, kwargs: Any) -> tuple[int, int]:
    """Multiply-adds of a product with head_dim and with head_dim_v; hidden weights count too."""
    batch, heads, rows, head_dim = query
    columns = key[2]
    weights = batch * heads * rows * columns
    return weights * head_dim, weights * value[3]


def _forward_flops(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> int:
    of_keys, of_values = _products(query, key, value, kwargs)
    return 2 * (of_keys + of_values)


def _backward_flops(
    grad_out: Any, grad_logsumexp: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any
) -> int:
    of_keys, of_values = _products(query, key, value, kwargs)
    return 2 * (3 * of_keys + 2 * of_values)


register_flop_formula(_ops.forward)(_forward_flops)
register_flop_formula(_ops.backward)(_backward_flops)

__all__ = ["MISSING", "cast_inputs"]
