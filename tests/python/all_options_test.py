# SPDX-License-Identifier: Apache-2.0
"""Every option at once against PyTorch in double: its math path, and dense attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import attndrop
import hypothesis
import pytest
import torch
from attndrop import scaled_dot_product_attention as sdpa
from hypothesis import strategies as st
from support import POLICIES, SCHEMES, dense, grads, is_legal, largest_difference
from torch import Tensor

LIMIT = {torch.float64: 1e-11, torch.float32: 2e-5, torch.bfloat16: 6e-2, torch.float16: 8e-3}
LAYOUTS = ("dense", "heads inside rows", "columns outside", "every second row")


@dataclass(frozen=True)
class Case:
    batch: int
    heads: int
    kv_heads: int
    lengths_q: tuple[int, ...]  # one per sequence of a ragged batch, else one
    lengths_k: tuple[int, ...]
    head_dim: int
    head_dim_v: int
    ragged: bool
    dtype: torch.dtype
    layout: str
    attn_mask: str
    alibi: str
    batch_index: tuple[int, ...] | None
    options: dict[str, Any]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    scheme = draw(st.sampled_from(SCHEMES))
    policies = [*(p for p in POLICIES if is_legal(scheme, p))]
    if scheme == "element":
        policies.append("at_least_one:attempts=3")
    empty_row = draw(st.sampled_from(policies))
    ragged = draw(st.booleans())
    sequences = draw(st.integers(1, 3))
    count = sequences if ragged else 1
    lengths_q = tuple(draw(st.integers(0, 9)) for _ in range(count))
    lengths_k = lengths_q
    if scheme != "symmetric":
        lengths_k = tuple(draw(st.integers(0, 9)) for _ in range(count))
    kv_heads = draw(st.integers(1, 2))
    options: dict[str, Any] = {
        "scheme": scheme,
        "stage": draw(st.sampled_from(["weights", "logits"])),
        "empty_row": empty_row,
        "dropout_p": draw(st.sampled_from([0.0, 0.1, 0.5, 0.9])),
        "seed": draw(st.integers(0, 2**64 - 1)),
        "offset": draw(st.integers(0, 2**64 - 1)),
        "is_causal": draw(st.booleans()),
        "causal_align": draw(st.sampled_from(["top-left", "bottom-right"])),
        "window": draw(st.sampled_from([None, (3, 2), (0, 0), (-1, 4), (5, -1)])),
        "scale": draw(st.sampled_from([0.3, 0.0, -0.7, 2.0])),
    }
    if empty_row == "zero" and draw(st.booleans()):
        options["dropout_p"] = 1.0
    numbered = draw(st.booleans())
    numbers = draw(st.lists(st.integers(0, 99), min_size=sequences, max_size=sequences))
    attn_mask = draw(st.sampled_from(["none", "bool", "float", "one row"]))
    alibi = draw(st.sampled_from(["none", "heads", "batch"]))
    if not ragged and draw(st.booleans()):
        plain = attn_mask == alibi == "none"
        first = 0 if numbered else 5
        # Policies that look at whole rows take a mask of whole rows only.
        options["origin"] = (first, 2, 4, 3 if plain else 0)
        options["total"] = (20, 30 if plain else lengths_k[0])
        if scheme == "symmetric":
            options["origin"], options["total"] = (first, 2, 0, 0), None
    return Case(
        batch=sequences,
        heads=kv_heads * draw(st.integers(1, 2)),
        kv_heads=kv_heads,
        lengths_q=lengths_q,
        lengths_k=lengths_k,
        head_dim=draw(st.integers(1, 9)),
        head_dim_v=draw(st.integers(1, 9)),
        ragged=ragged,
        dtype=draw(st.sampled_from(list(LIMIT))),
        layout=draw(st.sampled_from(LAYOUTS)),
        attn_mask=attn_mask,
        alibi=alibi,
        batch_index=tuple(numbers) if numbered else None,
        options=options,
    )


def laid_out(shape: tuple[int, ...], case: Case) -> Tensor:
    """A leaf of this shape whose elements lie in memory as the layout says."""
    batch, heads, rows, columns = shape
    if case.layout == "heads inside rows":
        tensor = torch.randn(batch, rows, heads, columns).transpose(1, 2)
    elif case.layout == "columns outside":
        tensor = torch.randn(batch, heads, columns, rows).transpose(2, 3)
    elif case.layout == "every second row":
        tensor = torch.randn(batch, heads, 2 * rows, columns)[:, :, ::2]
    else:
        tensor = torch.randn(shape)
    return tensor.to(case.dtype).requires_grad_()


def make_tensors(case: Case) -> list[Tensor]:
    batch = 1 if case.ragged else case.batch
    rows_q, rows_k = sum(case.lengths_q), sum(case.lengths_k)
    return [
        laid_out((batch, case.heads, rows_q, case.head_dim), case),
        laid_out((batch, case.kv_heads, rows_k, case.head_dim), case),
        laid_out((batch, case.kv_heads, rows_k, case.head_dim_v), case),
    ]


def make_mask(case: Case) -> Tensor | None:
    if case.attn_mask == "none":
        return None
    shape = (case.batch, 1, max(case.lengths_q), max(case.lengths_k))
    if case.attn_mask == "one row":
        shape = (1, case.heads, 1, shape[3])
    hidden = torch.rand(shape) < 0.3
    if case.attn_mask == "bool":
        return ~hidden
    # Numbers that every dtype holds.
    numbers = torch.randint(-8, 9, shape) / 4
    return numbers.masked_fill(hidden, -torch.inf).to(case.dtype).requires_grad_()


def make_slopes(case: Case) -> Tensor | None:
    if case.alibi == "none":
        return None
    return torch.rand((case.heads,) if case.alibi == "heads" else (case.batch, case.heads))


def alibi_bias(case: Case, slopes: Tensor, sequence: int, rows: int, columns: int) -> Tensor:
    """-slope * distance, (batch or 1, heads, rows, columns)."""
    _, _, first_q, first_k = case.options.get("origin", (0, 0, 0, 0))
    total_q, total_k = case.options.get("total") or (first_q + rows, first_k + columns)
    shift = total_k - total_q if case.options["causal_align"] == "bottom-right" else 0
    i = torch.arange(rows).view(-1, 1) + first_q + shift
    distance = (i - torch.arange(columns) - first_k).abs()
    if slopes.dim() == 1:
        slopes = slopes.unsqueeze(0)
    elif case.ragged:
        slopes = slopes[sequence : sequence + 1]
    return -slopes.double().view(-1, case.heads, 1, 1) * distance


def expected_piece(
    case: Case, tensors: list[Tensor], sequence: int, attn_mask: Tensor | None, slopes: Any
) -> tuple[Tensor, Tensor]:
    """dense() of one sequence, or of a batch that is not ragged."""
    options = dict(case.options)
    rows, columns = tensors[0].size(2), tensors[1].size(2)
    numbers = case.batch_index
    if case.ragged:
        options["origin"] = (numbers[sequence] if numbers else sequence, 0, 0, 0)
    elif numbers:
        options["batch_index"] = numbers
    if slopes is None:
        return dense(*tensors, attn_mask=attn_mask, **options)
    bias = alibi_bias(case, slopes, sequence, rows, columns)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros(attn_mask.shape).double().masked_fill(~attn_mask, -torch.inf)
    return dense(*tensors, attn_mask=bias if attn_mask is None else bias + attn_mask, **options)


def expected(
    case: Case, tensors: list[Tensor], attn_mask: Tensor | None, slopes: Tensor | None
) -> tuple[Tensor, Tensor]:
    if not case.ragged:
        return expected_piece(case, tensors, 0, attn_mask, slopes)
    outs, logsumexps, first_q, first_k = [], [], 0, 0
    for sequence, (rows, columns) in enumerate(zip(case.lengths_q, case.lengths_k, strict=True)):
        query = tensors[0][:, :, first_q : first_q + rows]
        key, value = (t[:, :, first_k : first_k + columns] for t in tensors[1:])
        mask = attn_mask
        if mask is not None:
            chosen = mask if mask.size(0) == 1 else mask[sequence : sequence + 1]
            mask = chosen[:, :, :rows, :columns]
        out, logsumexp = expected_piece(case, [query, key, value], sequence, mask, slopes)
        outs.append(out)
        logsumexps.append(logsumexp)
        first_q, first_k = first_q + rows, first_k + columns
    return torch.cat(outs, 2), torch.cat(logsumexps, 2)


def ends(lengths: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(dtype)


@hypothesis.settings(max_examples=150, deadline=None, derandomize=True)
@hypothesis.given(cases())
def test_every_option_at_once(case: Case) -> None:
    tensors, attn_mask, slopes = make_tensors(case), make_mask(case), make_slopes(case)
    options = dict(case.options)
    if case.ragged:
        options["cu_seqlens_q"] = ends(case.lengths_q, torch.int32)
        options["cu_seqlens_k"] = ends(case.lengths_k, torch.int64)
    out, logsumexp = sdpa(
        *tensors,
        attn_mask=attn_mask,
        enable_gqa=True,
        return_logsumexp=True,
        alibi_slopes=slopes,
        batch_index=case.batch_index,
        **options,
    )
    wanting = [*tensors]
    double_mask = attn_mask
    doubles = [t.detach().double().requires_grad_() for t in tensors]
    if attn_mask is not None and attn_mask.requires_grad:
        double_mask = attn_mask.detach().double().requires_grad_()
        wanting.append(attn_mask)
        doubles.append(double_mask)
    theirs, their_logsumexp = expected(case, doubles[:3], double_mask, slopes)
    limit = LIMIT[case.dtype]
    assert out.dtype == case.dtype
    assert largest_difference(out, theirs) <= limit
    finite = their_logsumexp > -torch.inf
    assert torch.equal(logsumexp > -torch.inf, finite)
    assert largest_difference(logsumexp[finite], their_logsumexp[finite]) <= limit
    upstream = torch.randn_like(out).detach()
    mine = grads(out, wanting, upstream)
    for a, b in zip(mine, grads(theirs, doubles, upstream.double()), strict=True):
        assert largest_difference(a, b) <= limit


def math_path(
    tensors: list[Tensor], keep: Tensor, keep_prob: float, attn_mask: Tensor | None, scale: Any
) -> Tensor:
    """PyTorch's own composition, given the mask of the dropout."""
    out, _ = torch.ops.aten._scaled_dot_product_attention_math(
        *tensors, attn_mask, 1.0 - keep_prob, False, keep, scale=scale, enable_gqa=True
    )
    return out


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("stage", ["weights", "logits"])
@pytest.mark.parametrize("window", [None, (5, 2)])
def test_against_pytorchs_math_path(scheme: str, stage: str, window: Any) -> None:
    """With the exported mask; dropped logits are hidden keys there."""
    p, keep_q32 = 0.3, round(0.7 * 2**32)
    query = torch.randn(2, 4, 21, 8, dtype=torch.float64, requires_grad=True)
    key, value = (torch.randn(2, 2, 21, 8, dtype=torch.float64) for _ in range(2))
    tensors = [query, key.requires_grad_(), value.requires_grad_()]
    bias = torch.randn(1, 4, 1, 21, dtype=torch.float64, requires_grad=True)
    options = {"window": window, "scheme": scheme, "stage": stage, "seed": 5, "offset": 6}
    sizes = (2, 4, 21, 21)
    keep, factors = attndrop.keep_mask(*sizes, dropout_p=p, factors=True, **options)
    visible = attndrop.keep_mask(*sizes, dropout_p=0.0, **options)
    out = sdpa(*tensors, attn_mask=bias, dropout_p=p, scale=0.4, enable_gqa=True, **options)
    if stage == "weights":
        keep_prob = keep_q32 / 2**32
        torch.testing.assert_close(factors, keep.double() / keep_prob, rtol=1e-15, atol=0.0)
        hidden = bias.masked_fill(~visible, -torch.inf)
    else:
        keep_prob = 1.0
        hidden = bias.masked_fill(~keep, -torch.inf)
    theirs = math_path(tensors, keep, keep_prob, hidden, 0.4)
    assert largest_difference(out, theirs) < 1e-12
    upstream = torch.randn_like(out)
    wanting = [*tensors, bias]
    for a, b in zip(grads(out, wanting, upstream), grads(theirs, wanting, upstream), strict=True):
        assert largest_difference(a, b) < 1e-11
