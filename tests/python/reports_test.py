# SPDX-License-Identifier: Apache-2.0
"""Public reports about dropout in attention, each as a test named after the reporting project."""

from __future__ import annotations

import attndrop
import pytest
import torch
import torch.nn.functional as F
from attndrop import scaled_dot_product_attention as sdpa
from support import dense, grads, inputs, largest_difference
from torch.utils.checkpoint import checkpoint


def test_pytorch_124464_evaluation_drops_nothing_and_draws_nothing() -> None:
    """B26: dropout_p stayed on in evaluation."""
    tensors = inputs(1, 2, 8, 4)
    state = torch.get_rng_state()
    out = sdpa(*tensors, dropout_p=0.5, training=False)
    assert torch.equal(out, sdpa(*tensors, dropout_p=0.0))
    assert torch.equal(torch.get_rng_state(), state)


def test_pytorch_42929_one_key_gives_zero_or_more_than_one() -> None:
    """B27: the weights of a row do not sum to one; logits-stage dropout and redraw do."""
    query, key, value = inputs(1, 1, 200, 4, kv=(1, 1, 1, 4))
    value = torch.ones_like(value)
    outs = sdpa(query, key, value, dropout_p=0.2, seed=3)[0, 0, :, 0]
    assert {round(x, 6) for x in outs.tolist()} == {0.0, 1.25}
    for options in ({"empty_row": "redraw"}, {"stage": "logits", "empty_row": "redraw"}):
        outs = sdpa(query, key, value, dropout_p=0.2, seed=3, **options)
        torch.testing.assert_close(outs, torch.ones_like(outs))


def test_transformers_31468_rows_do_not_sum_to_one_and_analyze_says_so() -> None:
    """B28."""
    rows = attndrop.analyze(4, dropout_p=0.2, is_causal=True).rows
    assert rows[0].p_zero == pytest.approx(0.2)
    for row in rows:
        assert row.mean_row_sum == pytest.approx(1.0)
        assert row.var_row_sum == pytest.approx(0.25 / row.visible)
    for row in attndrop.analyze(4, dropout_p=0.2, stage="logits", empty_row="redraw").rows:
        assert row.var_row_sum == pytest.approx(0.0, abs=1e-15)


def test_apex_816_backward_scales_by_the_inverse_rate() -> None:
    """B29: backward multiplied by p."""
    tensors = inputs(1, 1, 4, 3)
    assert torch.autograd.gradcheck(lambda *t: sdpa(*t, dropout_p=0.1, seed=2), tensors)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_nki_samples_81_backward_uses_the_weights_before_dropout(p: float) -> None:
    """B30."""
    tensors = inputs(2, 2, 24, 8)
    out, (expected, _) = sdpa(*tensors, dropout_p=p, seed=2), dense(*tensors, dropout_p=p, seed=2)
    upstream = torch.randn_like(out)
    for a, b in zip(grads(out, tensors, upstream), grads(expected, tensors, upstream), strict=True):
        assert largest_difference(a, b) < 1e-12


@pytest.mark.parametrize("seqlen_k", [64, 65, 128, 130])
def test_xformers_724_causal_with_dropout_beyond_64_keys(seqlen_k: int) -> None:
    """B31: backward drew another mask for more than 64 keys."""
    tensors = inputs(1, 2, seqlen_k, 8, dtype=torch.float32)
    out = sdpa(*tensors, dropout_p=0.1, seed=2, is_causal=True)
    upstream = torch.randn_like(out)
    doubles = [t.detach().double().requires_grad_() for t in tensors]
    expected, _ = dense(*doubles, dropout_p=0.1, seed=2, is_causal=True)
    theirs = grads(expected, doubles, upstream.double())
    for a, b in zip(grads(out, tensors, upstream), theirs, strict=True):
        assert largest_difference(a, b) < 1e-5


def test_flash_attention_771_the_mask_can_be_had_and_compared() -> None:
    """B32: no way to compare with PyTorch."""
    tensors = inputs(1, 2, 9, 4)
    keep = attndrop.keep_mask(1, 2, 9, dropout_p=0.17, seed=0)
    weights = (tensors[0] @ tensors[1].transpose(-2, -1) / 2).softmax(-1)
    q = round((1 - 0.17) * 2**32) / 2**32
    assert (
        largest_difference(
            sdpa(*tensors, dropout_p=0.17, seed=0), (weights * keep / q) @ tensors[2]
        )
        < 1e-13
    )


def test_mxnet_15659_the_mask_is_the_one_that_is_applied() -> None:
    """B33: identity values show every factor."""
    query, key, _ = inputs(1, 2, 12, 4)
    value = torch.eye(12, dtype=torch.float64).expand(1, 2, 12, 12)
    out = sdpa(query, key, value, dropout_p=0.4, seed=8, scheme="block:block_q=2,block_k=3")
    keep = attndrop.keep_mask(1, 2, 12, dropout_p=0.4, seed=8, scheme="block:block_q=2,block_k=3")
    assert torch.equal(out != 0, keep)


def test_mxnet_16705_the_mask_does_not_depend_on_earlier_calls() -> None:
    """B34."""
    tensors = inputs(1, 1, 8, 4)
    expected = sdpa(*tensors, dropout_p=0.5, seed=1, offset=2)
    for calls in range(1, 5):
        for _ in range(calls):
            sdpa(*tensors, dropout_p=0.5)
        assert torch.equal(sdpa(*tensors, dropout_p=0.5, seed=1, offset=2), expected)


def test_pytorch_184126_the_rate_is_never_ignored() -> None:
    """B35: every rate gave the same output."""
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        tensors = inputs(1, 2, 16, 8, dtype=dtype)
        outs = [sdpa(*tensors, dropout_p=p, seed=1) for p in (0.0, 0.5, 0.9)]
        assert not torch.equal(outs[0], outs[1])
        assert not torch.equal(outs[1], outs[2])


def test_flax_2055_everything_dropped_is_zero() -> None:
    """B36: p = 1 gave NaN."""
    for dtype in (torch.float64, torch.float32):
        tensors = inputs(1, 2, 8, 4, dtype=dtype)
        out = sdpa(*tensors, dropout_p=1.0)
        assert not out.any()
        for grad in grads(out, tensors, torch.ones_like(out)):
            assert not grad.any()


def test_gpt_jax_1_dropout_changes_the_output() -> None:
    """B37: the result of dropout was thrown away."""
    tensors = inputs(1, 1, 8, 4)
    assert not torch.equal(sdpa(*tensors, dropout_p=0.9, seed=1), sdpa(*tensors))


def test_flax_masks_of_batches_and_heads_are_independent() -> None:
    """B38: one mask was broadcast to all."""
    keep = attndrop.keep_mask(2, 2, 16, dropout_p=0.5, seed=1).view(4, -1)
    for a in range(4):
        for b in range(a):
            assert not torch.equal(keep[a], keep[b])
    shared = attndrop.keep_mask(2, 2, 16, dropout_p=0.5, seed=1, scheme="shared").view(4, -1)
    assert all(torch.equal(shared[0], mask) for mask in shared)


@pytest.mark.parametrize("reentrant", [True, False])
def test_olmo_core_828_checkpointing_draws_the_same_mask(reentrant: bool) -> None:
    """B39: for an explicit seed always; for a drawn one with preserve_rng_state=True only."""
    tensors = inputs(1, 2, 16, 4)

    def backward_grads(out: torch.Tensor) -> list[torch.Tensor]:
        for tensor in tensors:
            tensor.grad = None
        out.backward(torch.ones_like(out))  # the reentrant kind knows no autograd.grad
        return [tensor.grad for tensor in tensors]

    def through_checkpoint(seed: int | None, preserve: bool) -> list[torch.Tensor]:
        torch.manual_seed(77)
        out = checkpoint(
            lambda *t: sdpa(*t, dropout_p=0.5, seed=seed),
            *tensors,
            use_reentrant=reentrant,
            preserve_rng_state=preserve,
        )
        torch.rand(3)
        return backward_grads(out)

    def plain(seed: int | None) -> list[torch.Tensor]:
        torch.manual_seed(77)
        return backward_grads(sdpa(*tensors, dropout_p=0.5, seed=seed))

    def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
        return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))

    assert same(through_checkpoint(3, False), plain(3))
    assert same(through_checkpoint(None, True), plain(None))
    assert not same(through_checkpoint(None, False), plain(None))


def test_manual_seed_makes_a_run_repeatable() -> None:
    tensors = inputs(1, 1, 16, 4)

    def run() -> list[torch.Tensor]:
        torch.manual_seed(5)
        return [sdpa(*tensors, dropout_p=0.5) for _ in range(3)]

    first, second = run(), run()
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not torch.equal(first[0], first[1])


def test_pytorch_has_the_same_default_shapes() -> None:
    tensors = inputs(2, 3, 5, 4, kv=(2, 3, 7, 4))
    assert largest_difference(sdpa(*tensors), F.scaled_dot_product_attention(*tensors)) < 1e-13
