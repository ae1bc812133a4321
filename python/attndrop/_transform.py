# SPDX-License-Identifier: Apache-2.0
"""The operators as autograd functions for torch.func transforms (grad, vmap, jacrev, ...)."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from ._errors import Refusal
from ._op import backward_grads, loop_over_samples, second_backward_grads

_ops = torch.ops.attndrop


class Opaque:
    """Arguments that no transform looks into."""

    def __init__(self, options: dict[str, Any], wanted: list[int] | None = None) -> None:
        self.options = options
        self.wanted = wanted or []


def refuse_forward_mode(ctx: Any, *tangents: Any) -> Any:
    raise Refusal(
        "unsupported",
        "attention has no forward-mode derivatives (torch.func.jvp, jacfwd, hessian); use grad, "
        "vjp or jacrev, and jacrev(jacrev(f)) for second derivatives",
    )


class Forward(torch.autograd.Function):
    """attndrop::forward of its tensors."""

    @staticmethod
    def forward(opaque: Opaque, *tensors: Any) -> Any:
        return _ops.forward(*tensors, **opaque.options)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.opaque = inputs[0]
        ctx.save_for_backward(*inputs[1:], *output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor | None, grad_logsumexp: Tensor | None) -> Any:
        needed = ctx.needs_input_grad[1:]
        grads = backward_grads(
            ctx.saved_tensors, needed, ctx.opaque.options, grad_out, grad_logsumexp, _call_backward
        )
        return (None, *grads)

    @staticmethod
    def vmap(info: Any, in_dims: Any, opaque: Opaque, *tensors: Any) -> Any:
        return loop_over_samples(partial(Forward.apply, opaque), info, in_dims[1:], tensors)

    jvp = staticmethod(refuse_forward_mode)


class Backward(torch.autograd.Function):
    """attndrop::backward of its tensors."""

    @staticmethod
    def forward(opaque: Opaque, *tensors: Any) -> Any:
        return _ops.backward(*tensors, wanted=opaque.wanted, **opaque.options)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.opaque = inputs[0]
        ctx.save_for_backward(*inputs[1:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor | None) -> Any:
        opaque = ctx.opaque
        grads = second_backward_grads(ctx.saved_tensors, opaque.wanted, opaque.options, upstream)
        return (None, *grads)

    @staticmethod
    def vmap(info: Any, in_dims: Any, opaque: Opaque, *tensors: Any) -> Any:
        return loop_over_samples(partial(Backward.apply, opaque), info, in_dims[1:], tensors)

    jvp = staticmethod(refuse_forward_mode)


def _call_backward(*tensors: Any, wanted: list[int], **options: Any) -> Any:
    return Backward.apply(Opaque(options, wanted), *tensors)
