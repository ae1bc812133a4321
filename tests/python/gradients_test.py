# SPDX-License-Identifier: Apache-2.0
"""Gradients of first and second order, of output and logsumexp together."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attndrop import scaled_dot_product_attention as sdpa
from support import dense, inputs
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"dropout_p": 0.5, "is_causal": True},
    "key": {"dropout_p": 0.4, "scheme": "key", "empty_row": "undropped"},
    "logits": {"dropout_p": 0.5, "stage": "logits", "empty_row": "redraw", "is_causal": True},
    "empty rows": {"dropout_p": 0.9, "is_causal": True},
    "all dropped": {"dropout_p": 1.0},
}


def call(options: dict[str, Any]) -> Any:
    def function(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Any:
        out, logsumexp = sdpa(
            query,
            key,
            value,
            attn_mask=attn_mask,
            seed=11,
            enable_gqa=True,
            return_logsumexp=True,
            **options,
        )
        return out, logsumexp.masked_fill(logsumexp == -torch.inf, 0.0)

    return function


@pytest.mark.parametrize("name", list(CASES))
def test_gradcheck_and_gradgradcheck(name: str) -> None:
    tensors = inputs(1, 2, 4, 3, kv=(1, 1, 5, 3))
    function = call(CASES[name])
    assert gradcheck(function, tensors)
    assert gradgradcheck(function, tensors)


@pytest.mark.parametrize("name", ["plain", "causal", "logits"])
def test_with_a_float_mask(name: str) -> None:
    tensors = inputs(2, 1, 4, 3)
    attn_mask = torch.randn(2, 1, 1, 4, dtype=torch.float64)
    attn_mask[0, 0, 0, 2] = -torch.inf
    function = call(CASES[name])

    def masked(*tensors: Tensor) -> Any:
        hidden = torch.zeros_like(attn_mask).masked_fill(attn_mask == -torch.inf, -torch.inf)
        return function(*tensors[:3], tensors[3] + hidden)

    bias = attn_mask.masked_fill(attn_mask == -torch.inf, 0.0).requires_grad_()
    assert gradcheck(masked, (*tensors, bias))
    assert gradgradcheck(masked, (*tensors, bias))


def test_ragged_second_derivatives() -> None:
    tensors = inputs(1, 2, 5, 3)
    cu = torch.tensor([0, 2, 2, 5])
    function = call({"dropout_p": 0.5, "cu_seqlens_q": cu, "cu_seqlens_k": cu, "is_causal": True})
    assert gradcheck(function, tensors)
    assert gradgradcheck(function, tensors)


def test_shard_second_derivatives() -> None:
    tensors = inputs(1, 1, 3, 3)
    function = call(
        {"dropout_p": 0.7, "origin": (3, 2, 1, 2), "total": (9, 9), "empty_row": "undropped"}
    )
    assert gradcheck(function, tensors)
    assert gradgradcheck(function, tensors)


def test_third_derivatives_exist() -> None:
    tensors = inputs(1, 1, 3, 2)

    def norm_of_gradient(*tensors: Tensor) -> Tensor:
        out = sdpa(*tensors, dropout_p=0.5, seed=11)
        grads = torch.autograd.grad((out**2).sum(), tensors, create_graph=True)
        return sum((grad**2).sum() for grad in grads)

    def dense_norm(*tensors: Tensor) -> Tensor:
        out, _ = dense(*tensors, dropout_p=0.5, seed=11)
        grads = torch.autograd.grad((out**2).sum(), tensors, create_graph=True)
        return sum((grad**2).sum() for grad in grads)

    assert gradgradcheck(norm_of_gradient, tensors)
    mine = torch.autograd.grad(norm_of_gradient(*tensors), tensors)
    theirs = torch.autograd.grad(dense_norm(*tensors), tensors)
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_only_logsumexp() -> None:
    tensors = inputs(1, 2, 4, 3)
    _, logsumexp = sdpa(*tensors, dropout_p=0.5, seed=11, return_logsumexp=True)
    _, expected = dense(*tensors, dropout_p=0.5, seed=11)
    upstream = torch.randn_like(expected)
    mine = torch.autograd.grad(logsumexp, tensors, upstream, allow_unused=True)
    theirs = torch.autograd.grad(expected, tensors[:2], upstream)
    for a, b in zip(mine[:2], theirs, strict=True):
        torch.testing.assert_close(a, b)
    assert mine[2] is None or not mine[2].any()


@pytest.mark.parametrize("needed", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 1)])
def test_only_what_is_needed(needed: tuple[int, ...]) -> None:
    tensors = inputs(1, 2, 4, 3)
    all_grads = torch.autograd.grad(sdpa(*tensors, dropout_p=0.5, seed=1).sum(), tensors)
    some = [t.detach().requires_grad_(bool(n)) for t, n in zip(tensors, needed, strict=True)]
    sdpa(*some, dropout_p=0.5, seed=1).sum().backward()
    for tensor, grad, n in zip(some, all_grads, needed, strict=True):
        assert torch.equal(tensor.grad, grad) if n else tensor.grad is None
