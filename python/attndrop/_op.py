# SPDX-License-Identifier: Apache-2.0
"""What PyTorch must know of the operators: shapes, gradients, vmap, autocast, FLOPs."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from . import _composite as composite
from ._checks import check_attention, check_backward, logsumexp_dtype
from ._composite import Options, Side
from ._eager import below_autograd, is_plain_eager
from ._extension import MISSING, definitions
from ._second import second_grads

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
        longest: Any = [context.new_dynamic_size(), context.new_dynamic_size()]
        sizes = [given.cu_seqlens_q.shape[0] - 1, sizes[1], *longest]
    keep = given.rng.new_empty(sizes, dtype=torch.bool)
    factors = given.rng.new_empty(sizes if with_factors else (0,), dtype=torch.float64)
    return keep, factors


# ---- Gradients ------------------------------------------------------------------------------

_MASK = 4  # of attn_mask among the inputs of forward
_backward_op = _ops.backward.default


def backward_grads(
    saved: Any,
    needed: Any,
    options: Options,
    grad_out: Tensor | None,
    grad_logsumexp: Tensor | None,
    backward: Any = None,
) -> tuple[Tensor | None, ...]:
    """Gradients of the tensors of forward, from them and its results.

    backward: what calls the operator of this name; by default the operator itself.
    """
    query, key, value, *side, out, logsumexp = saved
    unused = (None,) * (len(side) - 2)
    if grad_out is None:
        if grad_logsumexp is None:
            return (None,) * (3 + len(side))
        grad_out = torch.zeros_like(out)
    wanted = [int(needed[0]), int(needed[1]), int(needed[2]), int(needed[_MASK])]
    arguments = (grad_out, grad_logsumexp, query, key, value, out, logsumexp, *side)
    if backward is not None:
        grads = backward(*arguments, wanted=wanted, **options)
    elif torch.is_grad_enabled() or not is_plain_eager():
        grads = _backward_op(*arguments, wanted=wanted, **options)
    else:
        with below_autograd():
            grads = _backward_op(*arguments, wanted=wanted, **options)
    of_query, of_key, of_value, of_mask = grads
    return (
        of_query if wanted[0] else None,
        of_key if wanted[1] else None,
        of_value if wanted[2] else None,
        None,
        of_mask if wanted[3] else None,
        *unused,
    )


def _save_forward(ctx: Any, inputs: Any, keyword_only_inputs: Options, output: Any) -> None:
    ctx.save_for_backward(*inputs, *output)
    ctx.options = keyword_only_inputs
    ctx.set_materialize_grads(False)


def _forward_grad(ctx: Any, grad_out: Tensor | None, grad_logsumexp: Tensor | None) -> Any:
    return backward_grads(
        ctx.saved_tensors, ctx.needs_input_grad, ctx.options, grad_out, grad_logsumexp
    )


def _save_backward(ctx: Any, inputs: Any, keyword_only_inputs: Options, output: Any) -> None:
    ctx.save_for_backward(*inputs)
    ctx.options = dict(keyword_only_inputs)
    ctx.wanted = ctx.options.pop("wanted")
    ctx.set_materialize_grads(False)


def second_backward_grads(
    saved: Any, wanted: list[int], options: Options, upstream: tuple[Tensor | None, ...]
) -> tuple[Tensor | None, ...]:
    """Gradients of the tensors of backward: second derivatives, of the same mask, in
    operations that can be differentiated again."""
    inputs, side = composite.BackwardInputs(*saved[:7]), Side(*saved[7:])
    wanted_upstream = tuple(
        grad if want else None for grad, want in zip(upstream, wanted, strict=True)
    )
    grads = second_grads(wanted_upstream, inputs, side, options)
    grad_out, grad_logsumexp, query, key, value, attn_mask = grads
    if inputs.grad_logsumexp is None:
        grad_logsumexp = None
    rest = (None,) * (len(saved) - 9)
    return grad_out, grad_logsumexp, query, key, value, None, None, None, attn_mask, *rest


def _backward_grad(ctx: Any, *upstream: Tensor | None) -> Any:
    return second_backward_grads(ctx.saved_tensors, ctx.wanted, ctx.options, upstream)


torch.library.register_autograd(
    "attndrop::forward", _forward_grad, setup_context=_save_forward, lib=definitions
)
torch.library.register_autograd(
    "attndrop::backward", _backward_grad, setup_context=_save_backward, lib=definitions
)


# ---- vmap -----------------------------------------------------------------------------------


def loop_over_samples(call: Any, info: Any, in_dims: Any, tensors: Any) -> Any:
    """vmap means a loop: every sample has the coordinates of a call, and with one seed its mask."""
    calls = []
    for index in range(info.batch_size):
        sample = [
            tensor if dim is None else tensor.select(dim, index)
            for tensor, dim in zip(tensors, in_dims, strict=True)
        ]
        calls.append(call(*sample))
    results = tuple(torch.stack(results) for results in zip(*calls, strict=True))
    return results, (0,) * len(results)


def _looped(op: Any) -> Any:
    def rule(info: Any, in_dims: Any, *args: Any, **options: Any) -> Any:
        return loop_over_samples(partial(op, **options), info, in_dims[: len(args)], args)

    return rule


torch.library.register_vmap("attndrop::forward", _looped(_ops.forward), lib=definitions)
torch.library.register_vmap("attndrop::backward", _looped(_ops.backward), lib=definitions)
torch.library.register_vmap("attndrop::keep_mask", _looped(_ops.keep_mask), lib=definitions)


# ---- Autocast -------------------------------------------------------------------------------


def cast_inputs(device_type: str, *tensors: Tensor | None) -> list[Tensor | None]:
    """Floats but float64 in the autocast dtype, as PyTorch does for its own attention."""
    dtype = torch.get_autocast_dtype(device_type)
    return [
        tensor.to(dtype)
        if tensor is not None and tensor.is_floating_point() and tensor.dtype is not torch.float64
        else tensor
        for tensor in tensors
    ]


def _autocast(device_type: str, key: torch._C.DispatchKey) -> Any:
    def forward(
        query: Tensor, key_: Tensor, value: Tensor, rng: Tensor, *side: Any, **kw: Any
    ) -> Any:
        mask, *rest = side
        *cast, mask = cast_inputs(device_type, query, key_, value, mask)
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key)):
            return _ops.forward(*cast, rng, mask, *rest, **kw)

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
