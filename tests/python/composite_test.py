# SPDX-License-Identifier: Apache-2.0
"""The composite path: the same bits, values and gradients as the kernels."""

from __future__ import annotations

import warnings
from typing import Any

import attndrop
import hypothesis
import pytest
import torch
from attention_test import problem_mask, problems
from attndrop import _composite as composite
from attndrop import _extension, _format, _op
from attndrop._composite import BackwardInputs, Side
from support import POLICIES, SCHEMES, inputs, is_legal, largest_difference, rng

needs_kernels = pytest.mark.skipif(bool(_extension.MISSING), reason=_extension.MISSING)


def test_known_answers_of_the_generator() -> None:
    ones = 2**32 - 1
    counter = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
    assert _format.philox((0, 0), (0, 0, 0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert _format.philox((ones, ones), (ones,) * 4)[0] == 0x408F276D
    words = (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)
    assert _format.philox((0xA4093822, 0x299F31D0), counter) == words
    tensors = tuple(torch.tensor(word) for word in counter)
    assert tuple(int(w) for w in _format.philox((0xA4093822, 0x299F31D0), tensors)) == words
    assert _format.call_key(42, 7, _format.fnv1a("element"), 0) == (0xC067585C, 0x3DC406E7)
    assert _format.call_key(-1, -1, _format.fnv1a("key"), 0) == (0x7611838F, 0xFF8BE58C)


MASKS = {
    "element": "67efdbae d4f3e7d9 fc9ea7f7 7a8fcccf ed57d58f e7b5ffe1 efdffbf7 fc8c7fdc",
    "shared": "f1afbfff 1bffeb2b bffadf74 6dedf375 999d73f2 fd5ff9ff eafa7fef fdfb72ca",
    "key": "ceeb9fcb " * 8,
    "word": "95d5bd1d " * 8,
    "query": "ffffffff 00000000 ffffffff ffffffff ffffffff 00000000 00000000 ffffffff",
    "block:block_q=2,block_k=4": "f0fff0f0 " * 2
    + "f00fff0f " * 2
    + "fffff0ff " * 2
    + "ffffff0f " * 2,
    "symmetric": "df3fd9bf 53d5dff3 cffeebbd 9336fdad 7c9edde7 ee4c823f 6feeffd2 f3ffbedf",
}


@pytest.mark.parametrize("kernels", [pytest.param(True, marks=needs_kernels), False])
@pytest.mark.parametrize("scheme", list(MASKS))
def test_known_answers_of_masks(scheme: str, kernels: bool) -> None:
    square = 32 if scheme == "symmetric" else 8
    options: dict[str, Any] = {"scheme": scheme, "origin": [1, 2, 0, 0]}
    if kernels:
        keep = attndrop.keep_mask(1, 1, square, 32, dropout_p=0.3, seed=42, offset=7, **options)
    else:
        side = Side(rng(0.3, 42, 7))
        keep, _ = composite.keep_mask(side, [1, 1, square, 32], False, options, torch.device("cpu"))
    rows = [sum(int(bit) << j for j, bit in enumerate(row)) for row in keep[0, 0, :8].tolist()]
    assert [f"{row:08x}" for row in rows] == MASKS[scheme].split()


@pytest.mark.parametrize(
    ("row", "key", "expected"),
    [
        (1, 2012, "0010"),
        (9, 608, "0110"),
        (10, 228, "0001"),
        (14, 1748, "0001"),
        (19, 1148, "1010"),
        (46, 1624, "0011"),
    ],
)
def test_known_answers_of_ties(row: int, key: int, expected: str) -> None:
    options = {"origin": [1, 2, row, key]}
    side = Side(rng(0.1, 42, 7))
    keep, _ = composite.keep_mask(side, [1, 1, 1, 4], False, options, torch.device("cpu"))
    assert "".join(str(int(bit)) for bit in keep.flatten()) == expected


@needs_kernels
def test_a_large_mask_with_its_hundreds_of_ties_equals_the_kernels() -> None:
    side, sizes = Side(rng(0.3, 5, 6)), [1, 1, 512, 4096]
    mine, _ = composite.keep_mask(side, sizes, False, {}, torch.device("cpu"))
    assert torch.equal(mine, attndrop.keep_mask(*sizes, dropout_p=0.3, seed=5, offset=6))


@needs_kernels
@pytest.mark.parametrize("empty_row", [*POLICIES, "at_least_one:attempts=3"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_masks_equal_those_of_the_kernels(scheme: str, empty_row: str) -> None:
    if not is_legal(scheme, empty_row.replace("at_least_one:attempts=3", "redraw")):
        pytest.skip("not legal")
    for stage in ("weights", "logits"):
        for p in (0.3, 0.85, 0.999):
            options = {
                "scheme": scheme,
                "empty_row": empty_row,
                "stage": stage,
                "is_causal": True,
                "window_left": 9,
                "bottom_right": True,
                "origin": [5, 2, 3, 1],
                "total": [40, 40],
            }
            side = Side(rng(p, 3, 2**40 + 1))
            sizes = [2, 3, 19, 30]
            mine = composite.keep_mask(side, sizes, True, options, torch.device("cpu"))
            theirs = torch.ops.attndrop.keep_mask(
                side.rng, None, None, None, None, sizes=sizes, with_factors=True, **options
            )
            assert torch.equal(mine[0], theirs[0])
            torch.testing.assert_close(mine[1], theirs[1], rtol=1e-13, atol=0)


@needs_kernels
@hypothesis.settings(max_examples=60, deadline=None, derandomize=True)
@hypothesis.given(problems())
def test_random_problems_equal_the_kernels(problem: dict[str, Any]) -> None:
    b, h, q, k = (problem[name] for name in ("batch", "num_heads", "seqlen_q", "seqlen_k"))
    d, given = problem["head_dim"], problem["options"]
    tensors = inputs(b, h, q, d, kv=(b, problem["kv_heads"], k, d), grad=False)
    attn_mask = problem_mask(problem["mask"], (1, h, q, k))
    attn_mask = None if attn_mask is None else attn_mask.detach()
    left, right = given["window"] or (-1, -1)
    options = {
        "is_causal": given["is_causal"],
        "bottom_right": given["causal_align"] == "bottom-right",
        "window_left": left,
        "window_right": right,
        **{name: given[name] for name in ("scale", "scheme", "stage", "empty_row")},
    }
    signed = [x - 2**64 if x >= 2**63 else x for x in (given["seed"], given["offset"])]
    side = (rng(given["dropout_p"], *signed), attn_mask, None, None, None)
    theirs = torch.ops.attndrop.forward(*tensors, *side, **options)
    mine = composite.forward(*tensors, Side(*side), options)
    for a, e in zip(mine, theirs, strict=True):
        assert a.stride() == e.stride()
        torch.testing.assert_close(a, e, rtol=1e-11, atol=1e-12)
    upstream = (torch.randn_like(theirs[0]), torch.randn_like(theirs[1]))
    wanted = [1, 1, 1, int(problem["mask"] == "float")]
    backward = (*upstream, *tensors, *theirs)
    expected = torch.ops.attndrop.backward(*backward, *side, wanted=wanted, **options)
    got = composite.backward(BackwardInputs(*backward), Side(*side), wanted, options)
    for a, e in zip(got, expected, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-10, atol=1e-11)


@needs_kernels
def test_ragged_equals_the_kernels() -> None:
    tensors = inputs(1, 4, 11, 5, kv=(1, 2, 11, 5), grad=False)
    cu = torch.tensor([0, 4, 4, 11])
    attn_mask = torch.randn(3, 1, 7, 7, dtype=torch.float64)
    slopes = torch.rand(3, 4)
    side = (rng(0.5, 3), attn_mask, slopes, cu, cu)
    options = {"is_causal": True, "empty_row": "keep_self"}
    theirs = torch.ops.attndrop.forward(*tensors, *side, **options)
    mine = composite.forward(*tensors, Side(*side), options)
    torch.testing.assert_close(mine, theirs)
    backward = (torch.randn_like(theirs[0]), None, *tensors, *theirs)
    expected = torch.ops.attndrop.backward(*backward, *side, wanted=[1, 1, 1, 1], **options)
    got = composite.backward(BackwardInputs(*backward), Side(*side), [1, 1, 1, 1], options)
    for a, e in zip(got, expected, strict=True):
        torch.testing.assert_close(a, e)
    sizes = [1, 4, 11, 11]
    keep = composite.keep_mask(Side(*side), sizes, True, options, torch.device("cpu"))
    theirs = torch.ops.attndrop.keep_mask(*side, sizes=sizes, with_factors=True, **options)
    assert torch.equal(keep[0], theirs[0])


def test_hidden_and_dropped_cells_add_nothing_even_when_not_finite() -> None:
    query, key, value = inputs(1, 1, 3, 2, grad=False)
    value[0, 0, 2] = torch.nan
    key[0, 0, 2] = torch.inf
    options = {"is_causal": True}
    out, _ = composite.forward(query, key, value, Side(rng(0.0)), options)
    assert torch.isfinite(out[0, 0, :2]).all()
    assert out[0, 0, 2].isnan().all()


def test_scheme_names_and_defaults_are_the_compiled_ones() -> None:
    params = {info.name: info.params for info in attndrop.schemes()}
    mine = {
        name: dict(zip(rule.params, rule.defaults, strict=True))
        for name, rule in _format.SCHEMES.items()
    }
    assert mine == params


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"scheme": "elemnt"}, 'scheme "elemnt" is unknown'),
        ({"scheme": "block:rows=2"}, 'has no parameter "rows"'),
        ({"scheme": "block:block_q=0"}, 'got "block_q=0"'),
        ({"scheme": "key", "empty_row": "redraw"}, "other rows share its draws"),
        ({"empty_row": "none"}, 'empty_row "none" is unknown'),
        ({"empty_row": "at_least_one:attempts=0"}, "attempts in 1 .. 1024, got 0"),
        ({"stage": "early"}, 'stage must be weights or logits, got "early"'),
        ({"scale": float("nan")}, "scale must be a finite number"),
        ({"window_left": -2}, "window left must be"),
        ({"origin": [0, 0]}, "origin must hold"),
        ({"origin": [0, 0, 0, -1]}, "origin key must be in"),
        ({"total": [1, 1]}, "total query must be in 3"),
        ({"total": [1]}, "total must hold"),
        ({"origin": [2**32 - 1, 0, 0, 0]}, "coordinates of the mask are 32-bit"),
    ],
)
def test_refusals(options: dict[str, Any], sentence: str) -> None:
    tensors = inputs(2, 1, 3, 2, grad=False)
    with pytest.raises(RuntimeError) as error:
        composite.forward(*tensors, Side(rng(0.5)), options)
    assert sentence in str(error.value)
    if not _extension.MISSING and "attempts=0" not in str(options):
        with pytest.raises(RuntimeError, match=r"\[attndrop value\]"):
            torch.ops.attndrop.forward(*tensors, rng(0.5), None, None, None, None, **options)


def test_another_device_says_once_that_it_has_no_kernels() -> None:
    assert largest_difference(torch.ones(2), torch.ones(2)) == 0.0
    meta = [t.to("meta") for t in inputs(1, 2, 4, 3, grad=False)]
    out = attndrop.scaled_dot_product_attention(*meta, dropout_p=0.5, seed=1)
    assert out.device.type == "meta"
    assert out.shape == (1, 2, 4, 3)


def test_the_name_of_a_device_without_kernels_is_given_once() -> None:
    _op._warned_devices.discard("xpu")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for device in ("cpu", "xpu:0", "xpu:1", "xpu:0"):
            _op._say_once(torch.device(device))
    assert len(caught) == 1
    assert "no kernels for xpu" in str(caught[0].message)
