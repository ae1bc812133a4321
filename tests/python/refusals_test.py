# SPDX-License-Identifier: Apache-2.0
"""More that is refused: arguments of a near type, numbers beyond machine words, places, memory."""

from __future__ import annotations

from typing import Any

import attndrop
import numpy as np
import pytest
import torch
from attndrop import _extension
from attndrop import scaled_dot_product_attention as sdpa
from support import inputs, rng

needs_kernels = pytest.mark.skipif(bool(_extension.MISSING), reason=_extension.MISSING)
HUGE = 10**400


def good() -> list[torch.Tensor]:
    return inputs(1, 2, 3, 4, dtype=torch.float32, grad=False)


@pytest.mark.parametrize("flag", [None, "no", 0, torch.tensor(True)])
@pytest.mark.parametrize("name", ["training", "enable_gqa", "return_logsumexp"])
def test_switches_are_not_guessed(name: str, flag: Any) -> None:
    with pytest.raises(TypeError, match=f"{name} must be True or False, got"):
        sdpa(*good(), dropout_p=0.5, **{name: flag})


@pytest.mark.parametrize("is_causal", [None, "yes", 2, torch.tensor(True)])
def test_is_causal(is_causal: Any) -> None:
    with pytest.raises(TypeError, match="is_causal must be True or False, got"):
        sdpa(*good(), is_causal=is_causal)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"dropout_p": HUGE}, "dropout_p must be a finite number"),
        ({"scale": HUGE}, "scale must be a finite number"),
        ({"window": (2**63, 0)}, "window must be 2 integers .* of 64 bits"),
        ({"window": (2**62, 0)}, "window left must be"),
        ({"origin": (2**64, 0, 0, 0)}, "origin must be 4 integers .* of 64 bits"),
        ({"total": (2**64, 3)}, "total must be 2 integers .* of 64 bits"),
        ({"batch_index": [2**63]}, "batch_index must"),
        ({"batch_index": [2**62]}, "batch_index must"),
    ],
)
def test_numbers_beyond_machine_words(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises((TypeError, ValueError), match=sentence):
        sdpa(*good(), **options)


@pytest.mark.parametrize("name", ["scheme", "stage", "empty_row"])
@pytest.mark.parametrize("text", ["element\0", "\ud800", "é", "a\nb"])
def test_names_that_no_terminal_shows(name: str, text: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a name in printable ASCII, got"):
        sdpa(*good(), **{name: text})


@pytest.mark.parametrize("causal_align", [None, ["top-left"], 3, "Top-Left"])
def test_causal_align(causal_align: Any) -> None:
    with pytest.raises(ValueError, match="causal_align must be"):
        sdpa(*good(), causal_align=causal_align)


def test_rates_of_numpy() -> None:
    tensors = good()
    expected = sdpa(*tensors, dropout_p=0.5, seed=1)
    for rate in (np.float32(0.5), np.float64(0.5)):
        assert torch.equal(sdpa(*tensors, dropout_p=rate, seed=1), expected)
    with pytest.raises(TypeError, match="dropout_p must be a number"):
        sdpa(*tensors, dropout_p=np.bool_(True))


def test_seeds_of_numpy() -> None:
    tensors = good()
    expected = sdpa(*tensors, dropout_p=0.5, seed=7, offset=2)
    got = sdpa(*tensors, dropout_p=0.5, seed=np.uint64(7), offset=np.int8(2))
    assert torch.equal(got, expected)
    with pytest.raises(ValueError, match=r"seed must be in 0 \.\. 2\^64 - 1, got -1"):
        sdpa(*tensors, dropout_p=0.5, seed=np.int64(-1))
    with pytest.raises(TypeError, match="seed must be an integer"):
        sdpa(*tensors, dropout_p=0.5, seed=torch.Generator())


def test_tensors_that_hold_no_number() -> None:
    for name in ("seed", "offset"):
        with pytest.raises(TypeError, match=f"{name} must hold one integer, got torch.bool"):
            sdpa(*good(), **{"dropout_p": 0.5, "seed": 1, name: torch.tensor(True)})
        with pytest.raises(ValueError, match=f"{name} must hold a number, got a tensor on meta"):
            on_meta = torch.tensor(1, device="meta")
            sdpa(*good(), **{"dropout_p": 0.5, "seed": 1, name: on_meta})
    with pytest.raises(ValueError, match="dropout_p must hold a number, got a tensor on meta"):
        sdpa(*good(), dropout_p=torch.tensor(0.5, device="meta"))


def test_gradients_that_do_not_exist_are_refused_and_not_left_out() -> None:
    with pytest.raises(TypeError, match="seed must hold one integer"):
        sdpa(*good(), dropout_p=0.5, seed=torch.tensor(1.0, requires_grad=True))
    with pytest.raises(ValueError, match="dropout_p has no gradient"):
        sdpa(*good(), dropout_p=torch.tensor(0.5, requires_grad=True))
    slopes = torch.ones(2, requires_grad=True)
    with pytest.raises(ValueError, match="alibi_slopes has no gradient"):
        sdpa(*good(), alibi_slopes=slopes)
    with torch.no_grad():
        assert sdpa(*good(), alibi_slopes=slopes).shape == (1, 2, 3, 4)


def test_optional_tensors_on_another_device() -> None:
    ends = torch.tensor([0, 3])
    on_meta = {
        "attn_mask": torch.ones(3, 3, device="meta"),
        "alibi_slopes": torch.ones(2, device="meta"),
        "batch_index": torch.zeros(1, dtype=torch.int64, device="meta"),
    }
    for name, tensor in on_meta.items():
        with pytest.raises(ValueError, match=f"{name} must be on"):
            sdpa(*good(), **{name: tensor})
    for name, other in (("cu_seqlens_q", "cu_seqlens_k"), ("cu_seqlens_k", "cu_seqlens_q")):
        with pytest.raises(ValueError, match=f"{name} must be on"):
            sdpa(*good(), **{name: ends.to("meta"), other: ends})
    with pytest.raises(RuntimeError, match="rng must be on"):
        torch.ops.attndrop.forward(*good(), rng(0.5).to("meta"), None, None, None, None)


@pytest.mark.parametrize("attn_mask", ["sparse", "nested"])
def test_masks_without_strides(attn_mask: str) -> None:
    dense = torch.ones(3, 3)
    mask = dense.to_sparse() if attn_mask == "sparse" else torch.nested.nested_tensor([dense])
    with pytest.raises(TypeError, match="attn_mask must be a strided tensor"):
        sdpa(*good(), attn_mask=mask)


def test_default_devices_do_not_reach_what_is_drawn() -> None:
    """Under a device context numbers of a call were made there, and read as if on the CPU."""
    tensors = good()
    plain = sdpa(*tensors, dropout_p=0.5, seed=3)
    torch.manual_seed(7)
    drawn = sdpa(*tensors, dropout_p=0.5)
    rate, seed = torch.tensor(0.5), torch.tensor(3)
    with torch.device("meta"):
        assert torch.equal(sdpa(*tensors, dropout_p=0.5, seed=3), plain)
        assert torch.equal(sdpa(*tensors, dropout_p=rate, seed=seed), plain)
        torch.manual_seed(7)
        assert torch.equal(sdpa(*tensors, dropout_p=0.5), drawn)


@needs_kernels
def test_tensors_off_their_alignment() -> None:
    query = torch.frombuffer(bytearray(97), dtype=torch.float32, offset=1, count=24)
    with pytest.raises(ValueError, match="query must be aligned to its 4-byte elements"):
        sdpa(query.view(1, 2, 3, 4), *good()[1:])


@needs_kernels
def test_results_beyond_memory() -> None:
    large = [torch.zeros(1).expand(2**16, 2**16, 2**12, 64) for _ in range(3)]
    with pytest.raises(MemoryError, match=r"no memory for a result of shape \(65536, 65536, 4096"):
        sdpa(*large)
    with pytest.raises(MemoryError, match="no memory for a result of shape"):
        attndrop.keep_mask(2**16, 2**16, 2**16, 2**16, dropout_p=0.5, seed=0)
    with pytest.raises(ValueError, match=r"seqlen_q must be in 0 \.\. 2\^32"):
        sdpa(*(torch.zeros(1).expand(1, 1, 2**33, 1) for _ in range(3)))


def test_refusals_of_the_places_of_operators_have_a_kind() -> None:
    query, key, value = good()
    with pytest.raises(RuntimeError, match=r"\[attndrop value\] attn_mask must"):
        torch.ops.attndrop.forward(
            query, key, value, rng(0.5), torch.ones(1, 1, 2, 2), None, None, None
        )
