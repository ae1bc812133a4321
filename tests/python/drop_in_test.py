# SPDX-License-Identifier: Apache-2.0
"""flash-attention's functions, patch_sdpa, arrays, masks and statistics."""

from __future__ import annotations

import inspect

import attndrop
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from attndrop import flash_attn_func, flash_attn_varlen_func
from attndrop import scaled_dot_product_attention as sdpa
from support import inputs, largest_difference

# Names and defaults of flash-attention 2.8.
FLASH = (
    "q k v dropout_p=0.0 softmax_scale=None causal=False window_size=(-1,-1) softcap=0.0 "
    "alibi_slopes=None deterministic=False return_attn_probs=False"
)
FLASH_VARLEN = (
    "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k dropout_p=0.0 softmax_scale=None "
    "causal=False window_size=(-1,-1) softcap=0.0 alibi_slopes=None deterministic=False "
    "return_attn_probs=False block_table=None"
)


@pytest.mark.parametrize(
    ("function", "expected"), [(flash_attn_func, FLASH), (flash_attn_varlen_func, FLASH_VARLEN)]
)
def test_signatures_of_flash_attention(function: object, expected: str) -> None:
    words = [
        p.name if p.default is p.empty else f"{p.name}={p.default}".replace(", ", ",")
        for p in inspect.signature(function).parameters.values()
        if p.kind is p.POSITIONAL_OR_KEYWORD
    ]
    assert " ".join(words) == expected


def test_signature_of_sdpa() -> None:
    parameters = list(inspect.signature(sdpa).parameters)
    assert parameters[:8] == [
        "query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"
    ]  # fmt: skip


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [(-1, -1), (3, 0), (2, 4)])
def test_flash_attn_func(causal: bool, window: tuple[int, int]) -> None:
    query, key, value = inputs(2, 4, 5, 8, kv=(2, 2, 9, 8))
    swapped = [t.transpose(1, 2) for t in (query, key, value)]
    slopes = torch.rand(4)
    out, logsumexp, probs = flash_attn_func(
        *swapped, 0.4, 0.3, causal, window, alibi_slopes=slopes, return_attn_probs=True, seed=6
    )
    expected, expected_logsumexp = sdpa(
        query,
        key,
        value,
        dropout_p=0.4,
        scale=0.3,
        is_causal=causal,
        window=window,
        causal_align="bottom-right",
        alibi_slopes=slopes,
        enable_gqa=True,
        seed=6,
        return_logsumexp=True,
    )
    assert torch.equal(out, expected.transpose(1, 2))
    assert torch.equal(logsumexp, expected_logsumexp)
    q = round(0.6 * 2**32) / 2**32
    again = probs.clamp(min=0).double() / q @ value.repeat_interleave(2, 1)
    assert largest_difference(again.transpose(1, 2), out) < 1e-6
    torch.testing.assert_close(
        probs.abs().sum(-1), torch.ones_like(probs[..., 0]), rtol=1e-5, atol=0
    )


def test_flash_attn_func_draws_and_has_gradients() -> None:
    tensors = [t.transpose(1, 2) for t in inputs(1, 2, 6, 4)]
    torch.manual_seed(1)
    first = flash_attn_func(*tensors, dropout_p=0.5)
    assert not torch.equal(first, flash_attn_func(*tensors, dropout_p=0.5))
    assert first.requires_grad
    assert flash_attn_func(*tensors, return_attn_probs=True)[2] is None


def test_flash_attn_varlen_func() -> None:
    query, key, value = (torch.randn(11, 2, 4, dtype=torch.float64) for _ in range(3))
    cu = torch.tensor([0, 4, 11], dtype=torch.int32)
    out, logsumexp, probs = flash_attn_varlen_func(
        query, key, value, cu, cu, 7, 7, 0.5, causal=True, seed=2, return_attn_probs=True
    )
    assert out.shape == (11, 2, 4)
    assert logsumexp.shape == (2, 11)
    assert probs is None
    for index, rows in enumerate((slice(0, 4), slice(4, 11))):
        alone = sdpa(
            *(t[rows].transpose(0, 1).unsqueeze(0) for t in (query, key, value)),
            dropout_p=0.5,
            is_causal=True,
            seed=2,
            origin=(index, 0, 0, 0),
        )
        assert torch.equal(out[rows], alone[0].transpose(0, 1))


def test_what_flash_attention_has_and_this_has_not_is_refused() -> None:
    tensors = [t.transpose(1, 2) for t in inputs(1, 2, 6, 4)]
    with pytest.raises(ValueError, match="softcap must be 0"):
        flash_attn_func(*tensors, softcap=30.0)
    with pytest.raises(ValueError, match="q must have the shape"):
        flash_attn_func(tensors[0][0], *tensors[1:])
    with pytest.raises(TypeError, match="k must be a torch.Tensor"):
        flash_attn_func(tensors[0], None, tensors[2])
    rows, cu = [t[0] for t in tensors], torch.tensor([0, 6])
    with pytest.raises(ValueError, match="block_table must be None"):
        flash_attn_varlen_func(*rows, cu, cu, 6, 6, block_table=torch.zeros(1))
    with pytest.raises(
        ValueError, match="max_seqlen_k must be at least the longest sequence, 6, got 5"
    ):
        flash_attn_varlen_func(*rows, cu, cu, 6, 5)


@pytest.mark.parametrize("window", [3, None, (1,), (1, 2, 3)])
def test_window_size_is_two_integers(window: object) -> None:
    tensors = [t.transpose(1, 2) for t in inputs(1, 2, 6, 4)]
    with pytest.raises(TypeError, match="window_size must be two integers"):
        flash_attn_func(*tensors, window_size=window)  # type: ignore[arg-type]


def test_lengths_of_other_types_are_refused() -> None:
    rows, cu = torch.randn(3, 6, 2, 4).unbind(), torch.tensor([0, 6])
    with pytest.raises(TypeError, match="cu_seqlens_q must be an int32 or int64 tensor, got list"):
        flash_attn_varlen_func(*rows, [0, 6], cu, 6, 6)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="max_seqlen_k must be an integer, got None"):
        flash_attn_varlen_func(*rows, cu, cu, 6, None)  # type: ignore[arg-type]


def test_probabilities_of_double_inputs_are_double() -> None:
    query, key, value = (t.transpose(1, 2) for t in inputs(1, 2, 6, 4, grad=False))
    out, _, probs = flash_attn_func(query, key, value, 0.5, return_attn_probs=True, seed=1)
    again = 2 * probs.clamp(min=0) @ value.transpose(1, 2)
    torch.testing.assert_close(again.transpose(1, 2), out, rtol=1e-13, atol=1e-13)


def test_patch_sdpa() -> None:
    tensors = inputs(1, 2, 8, 4)
    original = F.scaled_dot_product_attention
    with attndrop.patch_sdpa(scheme="key", seed=4, offset=10):
        first = F.scaled_dot_product_attention(*tensors, dropout_p=0.5, is_causal=True)
        second = F.scaled_dot_product_attention(*tensors, None, 0.5, True)
    assert F.scaled_dot_product_attention is original
    for out, offset in ((first, 10), (second, 11)):
        expected = sdpa(
            *tensors, dropout_p=0.5, is_causal=True, scheme="key", seed=4, offset=offset
        )
        assert torch.equal(out, expected)


def test_patch_sdpa_reaches_multihead_attention_and_ends_after_an_error() -> None:
    module = torch.nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
    x = torch.randn(2, 5, 8)
    original = F.scaled_dot_product_attention
    with attndrop.patch_sdpa(seed=4):
        first, _ = module(x, x, x, need_weights=False)
    with attndrop.patch_sdpa(seed=4):
        second, _ = module(x, x, x, need_weights=False)
    assert torch.equal(first, second)
    with pytest.raises(ValueError, match='did you mean "key"'), attndrop.patch_sdpa(scheme="kei"):
        pass
    with pytest.raises(ValueError, match="offset must be in 0"), attndrop.patch_sdpa(offset=-1):
        pass
    with pytest.raises(ZeroDivisionError), attndrop.patch_sdpa():
        _ = 1 / 0
    assert F.scaled_dot_product_attention is original


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_arrays_of_numpy(dtype: str) -> None:
    arrays = [
        np.random.default_rng(i).standard_normal((1, 2, 5, 4)).astype(dtype) for i in range(3)
    ]
    mask = np.tri(5, dtype=bool)
    out, logsumexp = attndrop.arrays.attention(
        *arrays, attn_mask=mask, dropout_p=0.5, seed=3, return_logsumexp=True
    )
    assert isinstance(out, np.ndarray)
    assert out.dtype == dtype
    assert logsumexp.shape == (1, 2, 5)
    expected = sdpa(*(torch.from_numpy(a) for a in arrays), is_causal=True, dropout_p=0.5, seed=3)
    assert np.array_equal(out, expected.numpy())


def test_arrays_that_cannot_be_shared_are_copied_and_others_refused() -> None:
    array = np.ones((1, 1, 3, 2), dtype="f4")
    array.setflags(write=False)
    assert attndrop.arrays.attention(array, array, array[:, :, ::-1]).shape == (1, 1, 3, 2)
    with pytest.raises(TypeError, match="query must be an array with __dlpack__.*got list"):
        attndrop.arrays.attention([[1.0]], array, array)
    tensor = torch.ones(1, 1, 3, 2)
    assert isinstance(attndrop.arrays.attention(tensor, tensor, tensor), torch.Tensor)


def test_analyze_agrees_with_masks() -> None:
    query, key, value = inputs(1, 2, 5, 3, grad=False)
    options = {"dropout_p": 0.5, "is_causal": True, "empty_row": "undropped"}
    exact = attndrop.analyze(query=query, key=key, value=value, head=1, **options)
    assert exact.out_var_note == ""
    assert exact.out_mean.shape == (5, 3)
    torch.testing.assert_close(exact.out_mean, sdpa(query, key, value, is_causal=True)[0, 1])
    many = [t.expand(4000, *t.shape[1:]) for t in (query, key, value)]
    outs = sdpa(*many, seed=1, **options)[:, 1]
    z = (outs.mean(0) - exact.out_mean) / (exact.out_var / 4000).sqrt().clamp(min=1e-12)
    assert z.abs().max() < 5
    assert exact.expected_zero_rows == 0.0
    zero = attndrop.analyze(5, dropout_p=0.5, is_causal=True)
    assert zero.expected_zero_rows == pytest.approx(sum(0.5**n for n in range(1, 6)))
    assert zero.expected_zero_rows_of_model(4, 6) == pytest.approx(24 * zero.expected_zero_rows)


def test_analyze_takes_a_value_alone_and_a_mask() -> None:
    value = torch.randn(1, 1, 4, 2, dtype=torch.float64)
    mask = torch.tensor([True, True, False, True])
    exact = attndrop.analyze(2, 4, dropout_p=0.5, value=value, attn_mask=mask)
    assert [row.visible for row in exact.rows] == [3, 3]
    torch.testing.assert_close(exact.out_mean[0], value[0, 0][mask].mean(0))


def test_schemes() -> None:
    infos = {info.name: info for info in attndrop.schemes()}
    assert infos["block"].params == {"block_q": 64, "block_k": 64}
    assert all(info.summary for info in infos.values())
    assert sorted(infos) == list(infos)
