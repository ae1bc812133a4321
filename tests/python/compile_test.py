# SPDX-License-Identifier: Apache-2.0
"""torch.compile, torch.export, opcheck: the operators are ordinary operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from attndrop import scaled_dot_product_attention as sdpa
from support import inputs, rng
from torch import Tensor


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch._dynamo.reset()


def attention(query: Tensor, key: Tensor, value: Tensor, p: Any, seed: Any) -> Tensor:
    return sdpa(query, key, value, dropout_p=p, seed=seed, is_causal=True)


def compiled(dynamic: bool | None) -> Callable:
    return torch.compile(attention, fullgraph=True, dynamic=dynamic, backend="aot_eager")


def one_graph() -> Any:
    """A context in which a second graph is an error."""
    return torch._dynamo.config.patch(error_on_recompile=True)


def test_a_second_graph_would_be_seen() -> None:
    function = compiled(False)
    with one_graph(), pytest.raises(RuntimeError, match="Recompiling"):
        for p in (0.25, 0.5):
            function(*inputs(1, 1, 4, 4), p, 1)


def test_opcheck() -> None:
    query, key, value = inputs(2, 4, 9, 4, kv=(2, 2, 9, 4), dtype=torch.float32)
    attn_mask = torch.randn(1, 4, 9, 9, requires_grad=True)
    side = (rng(0.3, 5), attn_mask, None, None, None)
    forward, backward = torch.ops.attndrop.forward, torch.ops.attndrop.backward
    options = {"is_causal": True, "scheme": "key"}
    torch.library.opcheck(forward.default, (query, key, value, *side), options)
    permuted = [
        t.detach().transpose(1, 2).contiguous().transpose(1, 2) for t in (query, key, value)
    ]
    torch.library.opcheck(forward.default, (*permuted, *side), options)
    out, logsumexp = (t.detach() for t in forward(query, key, value, *side, **options))
    upstream = torch.randn_like(out).requires_grad_()
    torch.library.opcheck(
        backward.default,
        (upstream, torch.randn_like(logsumexp), query, key, value, out, logsumexp, *side),
        {"wanted": [1, 1, 0, 1], **options},
    )
    torch.library.opcheck(
        torch.ops.attndrop.keep_mask.default,
        side,
        {"sizes": [2, 4, 9, 9], "with_factors": True},
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )


@pytest.mark.parametrize("dynamic", [False, True, None])
def test_twenty_rates_and_seeds_in_tensors_are_one_graph(dynamic: bool | None) -> None:
    tensors, function = inputs(2, 3, 8, 4), compiled(dynamic)
    with one_graph():
        for number in range(20):
            p, seed = torch.tensor(number / 21, dtype=torch.float64), torch.tensor(number)
            assert torch.equal(
                function(*tensors, p, seed), attention(*tensors, number / 21, number)
            )


def test_twenty_python_rates_are_one_dynamic_graph() -> None:
    tensors, function = inputs(2, 3, 8, 4), compiled(True)
    with one_graph():
        for number in range(20):
            p = number / 21
            assert torch.equal(function(*tensors, p, 2**63 + 5), attention(*tensors, p, 2**63 + 5))


def test_lengths_are_dynamic() -> None:
    function = compiled(True)
    with one_graph():
        for length in (17, 18, 33, 7):
            tensors = inputs(2, 3, length, 4)
            out, expected = (f(*tensors, 0.5, 3) for f in (function, attention))
            assert torch.equal(out, expected)
            mine, theirs = (torch.autograd.grad(o.sum(), tensors) for o in (out, expected))
            assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def test_inductor_in_a_block_with_permuted_heads() -> None:
    torch.manual_seed(3)
    linear = torch.nn.Linear(8, 24)

    def block(x: Tensor, seed: Tensor) -> Tensor:
        query, key, value = linear(x).view(2, -1, 3, 2, 4).permute(2, 0, 3, 1, 4)
        out = sdpa(query, key, value, dropout_p=0.25, seed=seed, is_causal=True)
        return out.transpose(1, 2).reshape(2, -1, 8)

    x = torch.randn(2, 10, 8, requires_grad=True)
    function = torch.compile(block, fullgraph=True)
    out, expected = function(x, torch.tensor(9)), block(x, torch.tensor(9))
    torch.testing.assert_close(out, expected)
    mine, theirs = (torch.autograd.grad(o.sum(), x)[0] for o in (out, expected))
    torch.testing.assert_close(mine, theirs)


def test_drawn_seeds_differ_from_eager_unless_inductor_falls_back() -> None:
    tensors = inputs(1, 2, 16, 4, grad=False)

    def draw(function: Callable) -> Tensor:
        torch.manual_seed(5)
        return function(*tensors, 0.5, None)

    eager = draw(attention)
    assert torch.equal(draw(attention), eager)
    assert not torch.equal(draw(torch.compile(attention, fullgraph=True)), eager)
    torch._dynamo.reset()
    with torch._inductor.config.patch(fallback_random=True):
        assert torch.equal(draw(torch.compile(attention, fullgraph=True)), eager)


def test_refusals_inside_a_graph_keep_their_sentence() -> None:
    tensors = inputs(1, 1, 4, 4, grad=False)
    function = torch.compile(
        lambda q, k, v, p: sdpa(q, k, v, dropout_p=p, seed=1), fullgraph=True, backend="aot_eager"
    )
    with pytest.raises(RuntimeError, match="rng must hold seed, offset and keep_q32"):
        function(*tensors, torch.tensor(1.5))


def test_export() -> None:
    class Attention(torch.nn.Module):
        def forward(self, query: Tensor, key: Tensor, value: Tensor, seed: Tensor) -> Tensor:
            return attention(query, key, value, 0.5, seed)

    tensors = inputs(2, 3, 8, 4, grad=False)
    length = torch.export.Dim("length", min=2, max=64)
    shapes = {name: {2: length} for name in ("query", "key", "value")}
    program = torch.export.export(
        Attention(), (*tensors, torch.tensor(3)), dynamic_shapes={**shapes, "seed": None}
    )
    longer = inputs(2, 3, 13, 4, grad=False)
    for seed in (3, 4):
        out = program.module()(*longer, torch.tensor(seed))
        assert torch.equal(out, attention(*longer, 0.5, seed))
