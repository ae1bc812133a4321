# SPDX-License-Identifier: Apache-2.0
"""MultiheadAttention beside torch.nn.MultiheadAttention."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import attndrop
import pytest
import torch
from attndrop import MultiheadAttention, set_step
from hypothesis import given, settings
from hypothesis import strategies as st
from support import POLICIES, SCHEMES, is_legal
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode


@dataclasses.dataclass
class Case:
    """Arguments of a module and of one call of it."""

    module: dict[str, Any]
    batch: int | None
    seqlen_q: int
    seqlen_k: int
    inputs: str
    attn_mask: str
    key_padding_mask: str
    call: dict[str, Any]

    def modules(self, **options: Any) -> tuple[nn.MultiheadAttention, MultiheadAttention]:
        mine = MultiheadAttention(6, 2, **self.module, **options, dtype=torch.float64)
        torch.nn.init.normal_(mine.out_proj.weight)
        if mine.in_proj_bias is not None:
            torch.nn.init.normal_(mine.in_proj_bias)
        theirs = nn.MultiheadAttention(6, 2, **self.module, dtype=torch.float64)
        theirs.load_state_dict(mine.state_dict())
        return theirs, mine

    def tensors(self) -> list[Tensor]:
        """query, key, value; one tensor or two where the inputs are."""

        def one(seqlen: int, width: int) -> Tensor:
            shape = [seqlen] if self.batch is None else [seqlen, self.batch]
            if self.module["batch_first"]:
                shape.reverse()
            return torch.randn(*shape, width, dtype=torch.float64, requires_grad=True)

        query = one(self.seqlen_q, 6)
        if self.inputs == "self":
            return [query, query, query]
        key = one(self.seqlen_k, self.module["kdim"] or 6)
        if self.inputs == "memory":
            return [query, key, key]
        return [query, key, one(self.seqlen_k, self.module["vdim"] or 6)]

    def masks(self) -> dict[str, Tensor | None]:
        rows = (self.seqlen_q, self.seqlen_k)
        batch = 1 if self.batch is None else self.batch
        kind, _, axes = self.attn_mask.partition(" ")
        attn_mask = make_mask(kind, rows if axes == "2" else (batch * 2, *rows))
        padding_shape = rows[1:] if self.batch is None else (batch, rows[1])
        padding = make_mask(self.key_padding_mask, padding_shape)
        return {"attn_mask": attn_mask, "key_padding_mask": padding}


def make_mask(kind: str, shape: tuple[int, ...]) -> Tensor | None:
    """No row of it hides the first key."""
    if kind == "none":
        return None
    if kind == "causal":
        return torch.ones(shape, dtype=torch.bool).triu(1)
    hidden = torch.rand(shape) < 0.4
    hidden[..., 0] = False
    if kind == "bool":
        return hidden
    return torch.randn(shape, dtype=torch.float64).masked_fill(hidden, -torch.inf)


@st.composite
def cases(draw: Any) -> Case:
    inputs = draw(st.sampled_from(["self", "memory", "three"]))
    seqlen_q = draw(st.integers(1, 5))
    # Torch's key_padding_mask and attn_mask are of one kind.
    kind = draw(st.sampled_from(["bool", "float"]))
    attn_mask = draw(st.sampled_from(["none 2", f"{kind} 2", f"{kind} 3", "causal 2"]))
    extra = {"add_bias_kv": draw(st.booleans()), "add_zero_attn": draw(st.booleans())}
    call = {"need_weights": draw(st.booleans()), "average_attn_weights": draw(st.booleans())}
    if attn_mask == "causal 2":
        kind = "bool"
        # Torch's causal order hides the keys that add_bias_kv and add_zero_attn append.
        call["is_causal"] = not any(extra.values()) and draw(st.booleans())
    kdim, vdim = None, None
    if inputs == "three":
        kdim, vdim = draw(st.sampled_from([(None, None), (3, None), (None, 4), (5, 7)]))
    return Case(
        module={
            "bias": draw(st.booleans()),
            **extra,
            "batch_first": draw(st.booleans()),
            "kdim": kdim,
            "vdim": vdim,
        },
        batch=draw(st.sampled_from([None, 1, 2, 3])),
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_q if inputs == "self" else draw(st.integers(1, 5)),
        inputs=inputs,
        attn_mask=attn_mask,
        key_padding_mask=draw(st.sampled_from(["none", kind])),
        call=call,
    )


def results_of(module: nn.Module, tensors: list[Tensor], call: dict[str, Any]) -> list[Any]:
    """out, weights and all gradients of a sum that both enter."""
    out, weights = module(*tensors, **call)
    total = (out * torch.arange(out.numel()).view(out.shape).cos()).sum()
    if weights is not None:
        total = total + (weights * torch.arange(weights.numel()).view(weights.shape).sin()).sum()
    wanted = [*dict.fromkeys(tensors), *module.parameters()]
    return [out, weights, *torch.autograd.grad(total, wanted, allow_unused=True)]


def assert_all_close(mine: list[Any], theirs: list[Any]) -> None:
    for a, b in zip(mine, theirs, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-11)


# ---- Beside torch ---------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(cases(), st.booleans())
def test_without_dropout_all_arguments_mean_what_they_mean_in_torch(
    case: Case, training: bool
) -> None:
    theirs, mine = case.modules()
    tensors, call = case.tensors(), {**case.call, **case.masks()}
    expected = results_of(theirs.train(training), tensors, call)
    assert_all_close(results_of(mine.train(training), tensors, call), expected)
    with torch.no_grad():
        out, _ = mine.eval()(*tensors, **call)
        again, _ = theirs.eval()(*tensors, **call)
    torch.testing.assert_close(out, again, rtol=1e-10, atol=1e-11)


@settings(max_examples=60, deadline=None)
@given(cases(), st.sampled_from(SCHEMES), st.sampled_from(POLICIES))
def test_with_dropout_it_is_the_math_of_torch_with_the_mask(
    case: Case, scheme: str, empty_row: str
) -> None:
    if not is_legal(scheme, empty_row):
        empty_row = "zero"
    extra = case.module["add_bias_kv"] + case.module["add_zero_attn"]
    if scheme == "symmetric" and case.seqlen_q != case.seqlen_k + extra:
        scheme = "element"
    theirs, mine = case.modules(dropout=0.4, seed=5, scheme=scheme, empty_row=empty_row)
    theirs.dropout = 0.4
    tensors, call = case.tensors(), {**case.call, "need_weights": True, **case.masks()}
    masks = visible_to_all_heads(case, call, extra)
    _, factors = attndrop.keep_mask(
        case.batch or 1,
        2,
        case.seqlen_q,
        case.seqlen_k + extra,
        dropout_p=0.4,
        seed=5,
        scheme=scheme,
        empty_row=empty_row,
        attn_mask=masks,
        factors=True,
    )

    def multiply(weights: Tensor, p: float) -> Tensor:
        assert p == 0.4
        return weights * factors.reshape(weights.shape)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, "dropout", multiply)
        expected = results_of(theirs, tensors, call)
    assert_all_close(results_of(mine, tensors, call), expected)


def visible_to_all_heads(case: Case, call: dict[str, Any], extra: int) -> Tensor:
    """True where a key takes part: (batch, heads, seqlen_q, seqlen_k + extra)."""
    batch = case.batch or 1
    visible = torch.ones(batch, 2, case.seqlen_q, case.seqlen_k + extra, dtype=torch.bool)
    rows = visible[..., : case.seqlen_k]
    for name, shape in (
        ("attn_mask", (-1, 2, case.seqlen_q, case.seqlen_k)),
        ("key_padding_mask", (batch, 1, 1, case.seqlen_k)),
    ):
        mask = call[name]
        if mask is None:
            continue
        hidden = mask if mask.dtype == torch.bool else mask == -torch.inf
        if name == "attn_mask" and mask.dim() == 2:
            hidden = hidden.expand(2, *hidden.shape)
        rows &= ~hidden.reshape(shape)
    return visible


@pytest.mark.parametrize("kind", ["causal", "bool", "float"])
@pytest.mark.parametrize("padding", ["none", "bool"])
@pytest.mark.parametrize("extra", [False, True])
@pytest.mark.parametrize("need_weights", [False, True])
def test_is_causal_and_masks_all_count(
    kind: str, padding: str, extra: bool, need_weights: bool
) -> None:
    mine = MultiheadAttention(6, 2, add_zero_attn=extra, batch_first=True, dtype=torch.float64)
    x = torch.randn(2, 300, 6, dtype=torch.float64)
    attn_mask, padding_mask = make_mask(kind, (300, 300)), make_mask(padding, (2, 300))
    call = {"key_padding_mask": padding_mask, "need_weights": need_weights}
    out, weights = mine(x, x, x, attn_mask=attn_mask, is_causal=True, **call)
    causal = torch.ones(300, 300, dtype=torch.bool).triu(1)
    both = causal | attn_mask if kind != "float" else attn_mask.masked_fill(causal, -torch.inf)
    expected, expected_weights = mine(x, x, x, attn_mask=both, **call)
    torch.testing.assert_close(out, expected)
    if need_weights:
        torch.testing.assert_close(weights, expected_weights)


def test_is_causal_needs_no_mask() -> None:
    mine = MultiheadAttention(6, 2, seed=1, dropout=0.3)
    x = torch.randn(5, 2, 6)
    causal = torch.ones(5, 5, dtype=torch.bool).triu(1)
    out, weights = mine(x, x, x, is_causal=True)
    expected = mine(x, x, x, attn_mask=causal)
    torch.testing.assert_close(out, expected[0])
    torch.testing.assert_close(weights, expected[1])
    assert not weights[:, causal].any()


def test_a_learnt_mask_keeps_its_gradient() -> None:
    mine = MultiheadAttention(6, 2)
    x = torch.randn(5, 2, 6)
    mask = torch.full((5, 5), -torch.inf).triu(1).requires_grad_()
    mine(x, x, x, attn_mask=mask, is_causal=True, need_weights=False)[0].sum().backward()
    assert mask.grad.tril().any()
    assert not mask.grad.triu(1).any()


# ---- Weights --------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["weights", "logits"])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("empty_row", POLICIES)
def test_weights_after_dropout_times_value_are_the_output(
    stage: str, scheme: str, empty_row: str
) -> None:
    if not is_legal(scheme, empty_row):
        return
    mine = MultiheadAttention(
        6, 2, 0.6, batch_first=True, dtype=torch.float64, scheme=scheme, stage=stage,
        empty_row=empty_row, seed=2,
    )  # fmt: skip
    x = torch.randn(3, 5, 6, dtype=torch.float64)
    padding = torch.tensor([[False] * 5, [True] * 5, [False, True, False, True, False]])
    out, weights = mine(
        x, x, x, key_padding_mask=padding, is_causal=True, average_attn_weights=False
    )
    values = x @ mine.in_proj_weight[12:].T + mine.in_proj_bias[12:]
    heads = weights @ values.unflatten(-1, (2, 3)).transpose(1, 2)
    torch.testing.assert_close(out, mine.out_proj(heads.transpose(1, 2).flatten(2)))
    mine.weights = "before"
    _, before = mine(x, x, x, key_padding_mask=padding, is_causal=True)
    sums = torch.ones(3, 5, dtype=torch.float64)
    sums[1] = 0.0
    torch.testing.assert_close(before.sum(-1), sums)
    mine.eval()
    torch.testing.assert_close(before, mine(x, x, x, padding, is_causal=True)[1])


@pytest.mark.parametrize("stage", ["weights", "logits"])
@pytest.mark.parametrize("weights", ["after", "before"])
@pytest.mark.parametrize("p", [0.5, 1.0])
def test_gradients_of_weights(stage: str, weights: str, p: float) -> None:
    mine = MultiheadAttention(
        4, 2, p, dtype=torch.float64, stage=stage, seed=3, weights=weights, batch_first=True
    )
    x = torch.randn(2, 4, 4, dtype=torch.float64, requires_grad=True)
    mask = torch.randn(4, 4, dtype=torch.float64).masked_fill(torch.eye(4).bool(), -torch.inf)
    assert torch.autograd.gradcheck(lambda x: mine(x, x, x, attn_mask=mask), (x,))


def test_weights_in_half_precision_and_autocast() -> None:
    mine = MultiheadAttention(16, 2, add_bias_kv=True, seed=1)
    x = torch.randn(40, 2, 16)
    out, weights = mine(x, x, x)
    with torch.autocast("cpu", torch.bfloat16):
        cast_out, cast_weights = mine(x, x, x)
    half_out, half_weights = copy.deepcopy(mine).bfloat16()(*(x.bfloat16(),) * 3)
    for dtype_out, dtype_weights in ((cast_out, cast_weights), (half_out, half_weights)):
        assert dtype_out.dtype == dtype_weights.dtype == torch.bfloat16
        torch.testing.assert_close(dtype_out.float(), out, rtol=0.05, atol=0.02)
        torch.testing.assert_close(dtype_weights.float(), weights, rtol=0.05, atol=0.001)


# ---- Memory, seeds, compilation -------------------------------------------------------------


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that is made."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(result):
            if isinstance(tensor, Tensor):
                self.numel = max(self.numel, tensor.numel())
        return result


@pytest.mark.parametrize("need_weights", [False, True])
def test_memory_is_linear_without_weights(need_weights: bool) -> None:
    mine = MultiheadAttention(4, 2, 0.5, batch_first=True, add_bias_kv=True)
    x, padding = torch.randn(1, 2000, 4), torch.zeros(1, 2000, dtype=torch.bool)
    with Largest() as largest:
        mine(x, x, x, padding, need_weights=need_weights)[0].sum().backward()
    assert (largest.numel > 2000 * 2000) == need_weights
    assert largest.numel > 2000


def test_a_causal_mask_is_not_merged_with_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, masks = MultiheadAttention(4, 2, batch_first=True), []
    original = attndrop._multihead.attend

    def seen(*arguments: Any) -> Any:
        masks.append(arguments[3][1])
        return original(*arguments)

    monkeypatch.setattr(attndrop._multihead, "attend", seen)
    x, padding = torch.randn(3, 300, 4), torch.zeros(3, 300, dtype=torch.bool)
    for mask in (
        torch.ones(300, 300, dtype=torch.bool).triu(1),
        nn.Transformer.generate_square_subsequent_mask(300),
    ):
        mine(x, x, x, padding, False, mask, is_causal=True)
        assert masks.pop().shape == (3, 1, 1, 300)
    mask[299, 0] = -1.0
    mine(x, x, x, padding, False, mask, is_causal=True)
    assert masks.pop().shape == (3, 1, 300, 300)


def test_seeds_and_steps() -> None:
    mine = MultiheadAttention(6, 2, 0.5)
    x = torch.randn(5, 2, 6)
    torch.manual_seed(4)
    first, second = mine(x, x, x), mine(x, x, x)
    torch.manual_seed(4)
    assert torch.equal(mine(x, x, x)[0], first[0])
    assert not torch.equal(first[1], second[1])
    seeded = MultiheadAttention(6, 2, 0.5, seed=2**64 - 1)
    seeded.load_state_dict(mine.state_dict())
    for step, micro in ((0, 0), (3, 2)):
        set_step(seeded, step, micro)
        keep = attndrop.keep_mask(
            2, 2, 5, dropout_p=0.5, seed=2**64 - 1, offset=attndrop.call_offset(step, 0, micro)
        )
        _, weights = seeded(x, x, x, average_attn_weights=False)
        assert torch.equal(weights != 0, keep)


def test_compiled_whole_with_every_input() -> None:
    torch._dynamo.reset()
    mine = MultiheadAttention(8, 2, 0.5, add_bias_kv=True, add_zero_attn=True, scheme="key")
    compiled = torch.compile(mine, fullgraph=True, backend="aot_eager")
    x, padding, mask = torch.randn(5, 2, 8), make_mask("float", (2, 5)), make_mask("float", (5, 5))
    set_step(mine, 0)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for step in range(20):
            set_step(compiled, step)
            call = {"key_padding_mask": padding.float(), "attn_mask": mask.float()}
            out, weights = compiled(x, x, x, is_causal=True, **call)
            expected = mine(x, x, x, is_causal=True, **call)
            torch.testing.assert_close(out, expected[0])
            torch.testing.assert_close(weights, expected[1])


@pytest.mark.parametrize("empty_row", ["zero", "redraw"])
@pytest.mark.parametrize("weights", ["before", "after", None])
def test_lengths_are_dynamic(weights: str | None, empty_row: str) -> None:
    torch._dynamo.reset()
    mine = MultiheadAttention(8, 2, 0.5, batch_first=True, seed=2, empty_row=empty_row)
    mine.weights, need_weights = weights or "after", weights is not None
    compiled = torch.compile(mine, fullgraph=True, dynamic=True, backend="aot_eager")
    call = {"need_weights": need_weights, "is_causal": True}
    with torch._dynamo.config.patch(error_on_recompile=True):
        for length in (17, 18, 33, 7):
            x, padding = torch.randn(2, length, 8), make_mask("bool", (2, length))
            for mine_, theirs in zip(
                compiled(x, x, x, padding, **call), mine(x, x, x, padding, **call), strict=True
            ):
                torch.testing.assert_close(mine_, theirs)


def test_weights_are_exported_with_dynamic_lengths() -> None:
    mine = MultiheadAttention(8, 2, 0.5, batch_first=True, seed=2)
    x, length = torch.randn(2, 9, 8), torch.export.Dim("length", max=32)
    program = torch.export.export(mine, (x, x, x), dynamic_shapes=({1: length},) * 3)
    y = torch.randn(2, 5, 8)
    for ours, theirs in zip(program.module()(y, y, y), mine(y, y, y), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("with_factors", [False, True])
def test_the_operator_of_weights(with_factors: bool) -> None:
    logits, rng = torch.randn(2, 3, 5, 4), torch.tensor([1, 2, 1 << 31])
    call = {"with_factors": with_factors, "scheme": "key", "is_causal": True}
    side = (rng, torch.rand(1, 1, 5, 4) > 0.3, torch.tensor([3, 1]))
    torch.library.opcheck(torch.ops.attndrop.keep_mask_of.default, (logits, *side), call)


def test_inductor_trains_a_replaced_encoder() -> None:
    torch._dynamo.reset()
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    layer.self_attn.dropout = 0.5
    model = attndrop.replace_attention(nn.TransformerEncoder(layer, 2))
    compiled = torch.compile(model, fullgraph=True)
    x = torch.randn(2, 5, 8)
    set_step(model, 3)
    results = []
    for function in (compiled, model):
        model.zero_grad()
        out = function(x)
        out.square().sum().backward()
        results.append([out.detach(), *(p.grad.clone() for p in model.parameters())])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
