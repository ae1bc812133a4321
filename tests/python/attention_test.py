# SPDX-License-Identifier: Apache-2.0
"""Values and first gradients against dense attention with the exported factors, in double."""

from __future__ import annotations

import attndrop
import hypothesis
import pytest
import torch
import torch.nn.functional as F
from attndrop import scaled_dot_product_attention as sdpa
from hypothesis import strategies as st
from support import POLICIES, SCHEMES, dense, grads, inputs, is_legal, largest_difference
from torch import Tensor

LIMIT = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}


def agree(tensors: list[Tensor], limit: float = 1e-12, **options: object) -> None:
    """Output, logsumexp and gradients of all tensors."""
    extra = [t for t in (options.get("attn_mask"),) if isinstance(t, Tensor) and t.requires_grad]
    out, logsumexp = sdpa(*tensors, enable_gqa=True, return_logsumexp=True, **options)
    doubles = [t.detach().double().requires_grad_() for t in tensors]
    double_extra = [t.detach().double().requires_grad_() for t in extra]
    if extra:
        options["attn_mask"] = double_extra[0]
    expected, expected_logsumexp = dense(*doubles, **options)
    upstream = torch.randn_like(expected)
    assert largest_difference(out, expected) <= limit
    finite = expected_logsumexp > -torch.inf
    assert torch.equal(logsumexp > -torch.inf, finite)
    assert largest_difference(logsumexp[finite], expected_logsumexp[finite]) <= limit
    got = grads(out, [*tensors, *extra], upstream.to(out.dtype))
    for mine, theirs in zip(got, grads(expected, [*doubles, *double_extra], upstream), strict=True):
        assert largest_difference(mine, theirs) <= limit


def test_without_dropout_it_is_pytorch() -> None:
    tensors = inputs(2, 3, 17, 8)
    for causal in (False, True):
        expected = F.scaled_dot_product_attention(*tensors, is_causal=causal)
        assert largest_difference(sdpa(*tensors, is_causal=causal), expected) < 1e-13


@pytest.mark.parametrize("stage", ["weights", "logits"])
@pytest.mark.parametrize("empty_row", POLICIES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_schemes_stages_policies(scheme: str, stage: str, empty_row: str) -> None:
    if not is_legal(scheme, empty_row):
        with pytest.raises(ValueError, match="other rows share its draws"):
            sdpa(*inputs(1, 1, 2, 2), dropout_p=0.5, scheme=scheme, empty_row=empty_row)
        return
    agree(
        inputs(2, 3, 13, 8),
        dropout_p=0.6,
        seed=7,
        offset=3,
        is_causal=True,
        scheme=scheme,
        stage=stage,
        empty_row=empty_row,
    )


@pytest.mark.parametrize("dtype", list(LIMIT))
def test_dtypes(dtype: torch.dtype) -> None:
    tensors = inputs(2, 4, 70, 16, kv=(2, 2, 70, 16), dtype=dtype)
    agree(tensors, LIMIT[dtype], dropout_p=0.2, seed=1, is_causal=True)


@st.composite
def problems(draw: st.DrawFn) -> dict[str, object]:
    scheme = draw(st.sampled_from(SCHEMES))
    policies = [p for p in POLICIES if is_legal(scheme, p)]
    seqlen_q = draw(st.integers(0, 20))
    seqlen_k = seqlen_q if scheme == "symmetric" else draw(st.integers(0, 20))
    kv_heads = draw(st.integers(1, 2))
    return {
        "batch": draw(st.integers(0, 2)),
        "num_heads": kv_heads * draw(st.integers(1, 2)),
        "kv_heads": kv_heads,
        "seqlen_q": seqlen_q,
        "seqlen_k": seqlen_k,
        "head_dim": draw(st.integers(0, 9)),
        "mask": draw(st.sampled_from(["none", "bool", "float"])),
        "options": {
            "dropout_p": draw(st.sampled_from([0.0, 0.1, 0.5, 0.9, 1e-9])),
            "seed": draw(st.integers(0, 2**64 - 1)),
            "offset": draw(st.integers(0, 2**64 - 1)),
            "is_causal": draw(st.booleans()),
            "causal_align": draw(st.sampled_from(["top-left", "bottom-right"])),
            "window": draw(st.sampled_from([None, (3, 2), (0, 0), (-1, 4), (5, -1)])),
            "scale": draw(st.sampled_from([None, 0.0, -0.7, 2.0])),
            "scheme": scheme,
            "stage": draw(st.sampled_from(["weights", "logits"])),
            "empty_row": draw(st.sampled_from(policies)),
        },
    }


def problem_mask(kind: str, shape: tuple[int, ...]) -> Tensor | None:
    if kind == "none":
        return None
    hidden = torch.rand(shape) < 0.3
    if kind == "bool":
        return ~hidden
    return torch.randn(shape, dtype=torch.float64).masked_fill(hidden, -torch.inf).requires_grad_()


@hypothesis.settings(max_examples=60, deadline=None, derandomize=True)
@hypothesis.given(problems())
def test_random_problems(problem: dict) -> None:
    b, h, q, k = (problem[name] for name in ("batch", "num_heads", "seqlen_q", "seqlen_k"))
    d = problem["head_dim"]
    tensors = inputs(b, h, q, d, kv=(b, problem["kv_heads"], k, d))
    options = dict(problem["options"])
    if d == 0 and options["scale"] is None:
        options["scale"] = 1.0
    agree(tensors, attn_mask=problem_mask(problem["mask"], (1, h, q, k)), **options)


@pytest.mark.parametrize(
    "shape", [(9, 9), (1, 9), (2, 1, 9, 9), (3, 9, 9), (2, 3, 1, 9), (1, 1, 1, 1)]
)
def test_attn_mask_broadcasts_and_has_a_gradient(shape: tuple[int, ...]) -> None:
    tensors = inputs(2, 3, 9, 4)
    attn_mask = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    agree(tensors, attn_mask=attn_mask, dropout_p=0.4, seed=2)


def test_alibi() -> None:
    query, key, value = inputs(2, 2, 5, 4, kv=(2, 2, 8, 4))
    slopes = torch.tensor([0.5, 0.25])
    distance = (torch.arange(5).view(-1, 1) + 3 - torch.arange(8)).abs()
    bias = (-slopes.view(2, 1, 1) * distance).double()
    options = {"dropout_p": 0.3, "seed": 4, "causal_align": "bottom-right", "is_causal": True}
    out = sdpa(query, key, value, alibi_slopes=slopes, **options)
    assert largest_difference(out, sdpa(query, key, value, attn_mask=bias, **options)) < 1e-13


def test_ragged_batch_is_its_sequences() -> None:
    query, key, value = inputs(1, 2, 12, 4)
    cu = torch.tensor([0, 5, 5, 12], dtype=torch.int32)
    options = {"dropout_p": 0.5, "seed": 9, "is_causal": True}
    out, logsumexp = sdpa(
        query, key, value, cu_seqlens_q=cu, cu_seqlens_k=cu, return_logsumexp=True, **options
    )
    upstream = torch.randn_like(out)
    mine = grads(out, [query, key, value], upstream)
    for index, (start, end) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True)):
        part = [t[:, :, start:end] for t in (query, key, value)]
        alone, alone_logsumexp = sdpa(
            *part, origin=(index, 0, 0, 0), return_logsumexp=True, **options
        )
        assert torch.equal(out[:, :, start:end], alone)
        assert torch.equal(logsumexp[:, :, start:end], alone_logsumexp)
        for whole, single in zip(mine, grads(alone, part, upstream[:, :, start:end]), strict=True):
            assert torch.equal(whole[:, :, start:end], single)


def test_shards_draw_the_mask_of_the_whole() -> None:
    tensors = inputs(2, 4, 16, 4)
    options = {"dropout_p": 0.5, "seed": 9}
    whole = sdpa(*tensors, **options)
    head = sdpa(*(t[1:, 2:] for t in tensors), origin=(1, 2, 0, 0), **options)
    assert torch.equal(whole[1:, 2:], head)
    rows = sdpa(tensors[0][:, :, 8:], *tensors[1:], origin=(0, 0, 8, 0), total=(16, 16), **options)
    assert torch.equal(whole[:, :, 8:], rows)


@pytest.mark.parametrize("empty_row", ["zero", "redraw", "keep_self", "keep_first", "undropped"])
def test_chunks_of_keys_merge_through_logsumexp(empty_row: str) -> None:
    query, key, value = inputs(1, 2, 16, 4)
    options = {"dropout_p": 0.8, "seed": 5, "is_causal": True, "empty_row": empty_row}
    whole, whole_logsumexp = sdpa(query, key, value, return_logsumexp=True, **options)
    parts = [
        sdpa(
            query,
            key[:, :, first : first + 4],
            value[:, :, first : first + 4],
            origin=(0, 0, 0, first),
            total=(16, 16),
            return_logsumexp=True,
            **options,
        )
        for first in range(0, 16, 4)
    ]
    logsumexps = torch.stack([part[1] for part in parts])
    total = torch.logsumexp(logsumexps, 0)
    merged = sum(part * torch.exp(logsumexp - total).unsqueeze(-1) for part, logsumexp in parts)
    assert largest_difference(merged, whole) < 1e-13
    assert largest_difference(total, whole_logsumexp) < 1e-13
    upstream = torch.randn_like(whole)
    tensors = [query, key, value]
    for mine, theirs in zip(
        grads(merged, tensors, upstream), grads(whole, tensors, upstream), strict=True
    ):
        assert largest_difference(mine, theirs) < 1e-12


def test_strided_inputs_give_the_same_and_results_keep_their_order() -> None:
    packed = torch.randn(2, 9, 3, 4, 8, dtype=torch.float64, requires_grad=True)
    query, key, value = (packed[:, :, i].transpose(1, 2) for i in range(3))
    options = {"dropout_p": 0.3, "seed": 1, "is_causal": True}
    out = sdpa(query, key, value, **options)
    assert torch.equal(out, sdpa(*(t.contiguous() for t in (query, key, value)), **options))
    assert out.transpose(1, 2).is_contiguous()
    expanded = torch.randn(1, 4, 9, 8, dtype=torch.float64).expand(2, 4, 9, 8)
    assert torch.equal(
        sdpa(query, expanded, expanded, **options),
        sdpa(query, expanded.contiguous(), expanded.contiguous(), **options),
    )


def test_three_axes() -> None:
    tensors = inputs(3, 9, 4)
    out = sdpa(*tensors, dropout_p=0.5, seed=3)
    assert torch.equal(out, sdpa(*(t.unsqueeze(0) for t in tensors), dropout_p=0.5, seed=3)[0])


def test_training_false_and_p_zero_are_the_same_bits() -> None:
    tensors = inputs(2, 2, 33, 8, dtype=torch.float32)
    plain = sdpa(*tensors)
    assert torch.equal(sdpa(*tensors, dropout_p=0.7, training=False, scheme="key"), plain)
    assert torch.equal(sdpa(*tensors, dropout_p=0.0, seed=3, empty_row="redraw"), plain)


def test_seeds_are_taken_modulo_two_to_the_64() -> None:
    for seed in (0, 1, 2**63 - 1, 2**63, 2**64 - 1):
        signed = seed - 2**64 if seed >= 2**63 else seed
        mask = attndrop.keep_mask(1, 1, 8, dropout_p=0.5, seed=seed)
        assert torch.equal(
            mask, attndrop.keep_mask(1, 1, 8, dropout_p=0.5, seed=torch.tensor(signed))
        )


def test_dropout_p_may_be_a_tensor() -> None:
    tensors = inputs(1, 1, 8, 4)
    for p in (0.0, 0.1, 0.3, 1 / 3, 0.999, 1.0):
        for dtype in (torch.float64,):
            out = sdpa(*tensors, dropout_p=torch.tensor(p, dtype=dtype), seed=torch.tensor(3))
            assert torch.equal(out, sdpa(*tensors, dropout_p=p, seed=3))
