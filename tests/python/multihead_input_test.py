# SPDX-License-Identifier: Apache-2.0
"""MultiheadAttention: state dicts, refusals, rows that see nothing, nested inputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attndrop import MultiheadAttention
from torch import nn


def test_state_dicts_go_both_ways_and_initial_values_are_those_of_torch() -> None:
    for options in ({}, {"kdim": 3, "add_bias_kv": True}, {"bias": False}):
        torch.manual_seed(1)
        theirs = nn.MultiheadAttention(6, 2, **options)
        torch.manual_seed(1)
        mine = MultiheadAttention(6, 2, **options)
        state = mine.state_dict()
        assert list(state) == list(theirs.state_dict())
        assert all(torch.equal(state[name], t) for name, t in theirs.state_dict().items())
        theirs.load_state_dict(state)
        mine.load_state_dict(theirs.state_dict())


@pytest.mark.parametrize(
    ("arguments", "options", "error", "sentence"),
    [
        ((7, 2), {}, AssertionError, "embed_dim must be divisible by num_heads"),
        ((0, 2), {}, ValueError, "embed_dim and num_heads must be greater than 0"),
        ((6, 2, -0.1), {}, ValueError, "dropout_p must be a finite number in .0, 1., got -0.1"),
        ((6, 2, float("nan")), {}, ValueError, "dropout_p must be a finite number"),
        ((6, 2, "0.1"), {}, TypeError, "dropout_p must be a number"),
        ((6, 2), {"scheme": "quary"}, ValueError, "did you mean .*query"),
        ((6, 2), {"scheme": 3}, TypeError, "scheme must be a name, got 3"),
        ((6, 2), {"stage": "wights"}, ValueError, "stage .*weights"),
        ((6, 2), {"empty_row": "keepself"}, ValueError, "did you mean .*keep_self"),
        ((6, 2, 1.0), {"empty_row": "redraw"}, ValueError, "needs dropout_p below 1"),
        ((6, 2), {"seed": 1.5}, TypeError, "seed must be an integer"),
        ((6, 2), {"layer": -1}, ValueError, "layer must be in 0 .. 4095, got -1"),
        ((6, 2), {"weights": "both"}, ValueError, 'weights must be "after" or "before"'),
    ],
)
def test_refusals_of_the_constructor(
    arguments: tuple[Any, ...], options: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        MultiheadAttention(*arguments, **options)


def test_refusals_of_the_call() -> None:
    mine, x = MultiheadAttention(6, 2), torch.randn(5, 3, 6)
    cases: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
        ((x, x, None), {}, TypeError, "value must be a torch.Tensor, got NoneType"),
        ((x, x, x[0]), {}, ValueError, "must all be .seqlen, batch, width. or all"),
        ((x, x[:, :2], x[:, :2]), {}, ValueError, "must have the same batch"),
        ((x, x, x[:4]), {}, ValueError, "must have the same seqlen in key and value"),
        ((x, x, x[..., :5]), {}, ValueError, "embed_dim, kdim and vdim = 6, 6, 6, got"),
        ((x[0, 0],) * 3, {}, ValueError, "query, key and value must all be"),
        ((x, x, x), {"attn_mask": torch.zeros(5, 4)}, ValueError, "attn_mask must have the shape"),
        ((x, x, x), {"attn_mask": torch.zeros(1, 5, 5)}, ValueError, r"\(6, 5, 5\), got \(1, 5,"),
        (
            (x, x, x),
            {"attn_mask": torch.zeros(5, 5).int()},
            TypeError,
            "must be bool .*got torch.int32",
        ),
        ((x, x, x), {"attn_mask": [0]}, TypeError, "attn_mask must be a torch.Tensor, got list"),
        ((x, x, x), {"key_padding_mask": torch.zeros(5, 3)}, ValueError, r"shape \(3, 5\), got"),
        ((x[:, 0],) * 3, {"key_padding_mask": torch.zeros(1, 5)}, ValueError, r"shape \(5,\), got"),
    ]
    for tensors, options, error, sentence in cases:
        with pytest.raises(error, match=sentence):
            mine(*tensors, **options)
    mine.dropout = 2.0
    for training in (True, False):
        with pytest.raises(ValueError, match="dropout_p must be a finite number"):
            mine.train(training)(x, x, x)


def test_rows_that_see_nothing_are_zero_with_weights_too() -> None:
    mine = MultiheadAttention(6, 2, batch_first=True)
    x, padding = torch.randn(2, 5, 6), torch.tensor([[False] * 5, [True] * 5])
    out, weights = mine(x, x, x, padding)
    assert torch.equal(out, mine(x, x, x, padding, need_weights=False)[0])
    assert torch.equal(out[1], mine.out_proj.bias.expand(5, 6))
    assert not weights[1].any()
    out.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in mine.parameters())


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_batches(layout: torch.layout) -> None:
    mine, x = MultiheadAttention(6, 2, batch_first=True), torch.randn(2, 5, 6)
    nested = torch.nested.nested_tensor([x[0], x[1, :3]], layout=layout)
    out, weights = mine(nested, nested, nested)
    for row, length in ((0, 5), (1, 3)):
        expected, _ = mine(*(x[row, :length],) * 3)
        torch.testing.assert_close(out[row], expected)
    assert weights.shape == (2, 5, 5)
    with pytest.raises(ValueError, match="nested inputs are understood"):
        mine(nested, nested, nested, attn_mask=torch.zeros(5, 5))
    with pytest.raises(ValueError, match="nested inputs are understood"):
        mine(nested, x, x)
