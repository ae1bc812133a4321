# SPDX-License-Identifier: Apache-2.0
"""The shortest way from a function to the operators, with gradients.

The gradient rules registered with the operators serve compiled graphs, transforms and dispatch
modes. Called eagerly they cost some 100 microseconds a step, so plain eager calls go through an
autograd function of the same meaning, below PyTorch's dispatch of gradients.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ._eager import below_autograd, is_plain_eager
from ._op import backward_grads, cast_inputs
from ._transform import Forward, Opaque, refuse_forward_mode

_forward = torch.ops.attndrop.forward.default
_in_transform = torch._C._are_functorch_transforms_active
_is_compiling = torch.compiler.is_compiling
_grad_enabled = torch.is_grad_enabled
_autocasts = torch.is_autocast_enabled
_unwrap = torch._C._functorch.unwrap_if_dead

#: rng, attn_mask, alibi_slopes, cu_seqlens_q, cu_seqlens_k, and batch_index where there is one
SideTensors = tuple[Tensor | None, ...]


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, options: dict[str, Any], *tensors: Any) -> Any:
        with below_autograd():
            out, logsumexp = _forward(*tensors, **options)
        ctx.save_for_backward(*tensors, out, logsumexp)
        ctx.options = options
        ctx.set_materialize_grads(False)
        return out, logsumexp

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor | None, grad_logsumexp: Tensor | None) -> Any:
        grads = backward_grads(
            ctx.saved_tensors, ctx.needs_input_grad[1:], ctx.options, grad_out, grad_logsumexp
        )
        return (None, *grads)

    jvp = staticmethod(refuse_forward_mode)


def _refuse_tangents(*tensors: Tensor | None) -> None:
    """PyTorch would drop them silently."""
    for tensor in tensors:
        if tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None:
            refuse_forward_mode(None)


#: What torch.autograd.Function.apply ends with. Before it looks for transforms, which plain calls
#: do not have, and for the wrappers that ended transforms leave behind.
_apply = super(torch.autograd.Function, _Attention).apply


def _call(
    query: Tensor, key: Tensor, value: Tensor, side: SideTensors, options: dict[str, Any]
) -> Any:
    if not is_plain_eager():
        if _in_transform() and not _is_compiling():
            return Forward.apply(Opaque(options), query, key, value, *side)
        return _forward(query, key, value, *side, **options)
    mask = side[1]
    if forward_ad._current_level >= 0:
        _refuse_tangents(query, key, value, mask)
    if _grad_enabled() and (
        query.requires_grad
        or key.requires_grad
        or value.requires_grad
        or (mask is not None and mask.requires_grad)
    ):
        if mask is not None:
            side = (side[0], _unwrap(mask), *side[2:])
        return _apply(options, _unwrap(query), _unwrap(key), _unwrap(value), *side)
    with below_autograd():
        return _forward(query, key, value, *side, **options)


def attend(
    query: Tensor, key: Tensor, value: Tensor, side: SideTensors, options: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """(out, logsumexp) for inputs with or without batch and an attn_mask of up to four axes."""
    mask = side[1]
    device_type = "cpu" if query.is_cpu else query.device.type
    if device_type != "meta" and _autocasts(device_type):
        cast: Any = cast_inputs(device_type, query, key, value, mask)
        query, key, value, mask = cast
    if mask is not None and mask.dim() < 4:
        mask = mask[(None,) * (4 - mask.dim())]
    if mask is not side[1]:
        side = (side[0], mask, *side[2:])
    if query.dim() != 3:
        out, logsumexp = _call(query, key, value, side, options)
        return out, logsumexp
    batched = (query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0))
    out, logsumexp = _call(*batched, side, options)
    return out.squeeze(0), logsumexp.squeeze(0)
