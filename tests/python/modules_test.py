# SPDX-License-Identifier: Apache-2.0
"""Head and set_step."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
from typing import Any

import attndrop
import pytest
import torch
from attndrop import Head, call_offset, set_step
from attndrop import scaled_dot_product_attention as sdpa
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class UsualHead(nn.Module):
    """The head of a causal language model as it is usually written."""

    def __init__(
        self, head_size: int = 10, n_embd: int = 20, block_size: int = 4, p: float = 0.5
    ) -> None:
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))
        self.dropout = nn.Dropout(p)

    def forward(self, x: Tensor) -> Tensor:
        length, width = x.shape[-2:]
        weights = self.query(x) @ self.key(x).transpose(-2, -1) * width**-0.5
        weights = weights.masked_fill(self.tril[:length, :length] == 0, float("-inf"))
        return self.dropout(weights.softmax(-1)) @ self.value(x)


def both(**options: Any) -> tuple[UsualHead, Head]:
    torch.manual_seed(3)
    usual = UsualHead()
    torch.manual_seed(3)
    return usual, Head(**options)


# ---- Head -----------------------------------------------------------------------------------


def test_head_starts_from_the_usual_values() -> None:
    usual, head = both()
    state = head.state_dict()
    assert list(state) == list(usual.state_dict())
    assert all(torch.equal(state[name], value) for name, value in usual.state_dict().items())
    assert state["tril"].equal(torch.ones(4, 4).tril())
    head.load_state_dict(usual.state_dict())
    usual.load_state_dict(head.state_dict())


@pytest.mark.parametrize("mask_format", ["attndrop", "torch-cpu"])
@pytest.mark.parametrize("shape", [(3, 4, 20), (2, 2, 20), (4, 20), (0, 4, 20)])
def test_head_in_evaluation(mask_format: str, shape: tuple[int, ...]) -> None:
    usual, head = both(mask_format=mask_format)
    x = torch.randn(shape)
    out = head.eval()(x)
    assert out.shape == (*shape[:-1], 10)
    torch.testing.assert_close(out, usual.eval()(x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("p", [0.0, 0.3, 0.5, 1.0])
def test_head_trains_as_usual_with_the_generator_of_torch(p: float) -> None:
    usual, head = both(mask_format="torch-cpu", dropout=p)
    usual.dropout.p = p
    x = torch.randn(5, 4, 20)
    results = []
    for module in (usual, head):
        torch.manual_seed(11)
        out = module(x)
        module.zero_grad()
        out.square().sum().backward()
        grads = [parameter.grad for parameter in module.parameters()]
        results.append([out, *grads, torch.rand(1)])
    for mine, theirs in zip(*results, strict=True):
        assert torch.equal(mine, theirs)


def test_head_drops_with_the_published_mask() -> None:
    _, head = both(dropout=0.4, seed=8, scheme="key", stage="logits", empty_row="keep_self")
    x = torch.randn(3, 4, 20)
    query, key, value = (layer(x).unsqueeze(1) for layer in (head.query, head.key, head.value))
    expected = sdpa(
        query,
        key,
        value,
        dropout_p=0.4,
        is_causal=True,
        scale=20**-0.5,
        scheme="key",
        stage="logits",
        empty_row="keep_self",
        seed=8,
    )
    assert torch.equal(head(x), expected.squeeze(1))


def test_head_follows_its_dropout_module() -> None:
    _, head = both(seed=1)
    x = torch.randn(4, 20)
    dropped = head(x)
    head.dropout.p = 0.0
    kept = head(x)
    head.dropout.p = 0.5
    head.dropout.eval()
    assert torch.equal(head(x), kept)
    head.eval()
    head.dropout.train()
    assert torch.equal(head(x), dropped)
    assert not torch.equal(dropped, kept)


def test_head_without_a_seed_repeats_after_manual_seed() -> None:
    _, head = both()
    x = torch.randn(2, 4, 20)
    torch.manual_seed(5)
    first, second = head(x), head(x)
    torch.manual_seed(5)
    assert torch.equal(head(x), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"dropout": 1.5}, "dropout_p must be a finite number in .0, 1., got 1.5"),
        ({"scheme": "elemnt"}, "did you mean .*element"),
        ({"stage": "weight"}, "stage .*weights.*logits"),
        ({"empty_row": "zeros"}, "did you mean .*zero"),
        ({"scheme": "key", "empty_row": "redraw"}, "draws one row again"),
        ({"mask_format": "torch"}, 'must be "attndrop" or "torch-cpu", got \'torch\''),
        ({"mask_format": "torch-cpu", "scheme": "key"}, "needs scheme='element', got 'key'"),
        ({"mask_format": "torch-cpu", "seed": 0}, "needs seed=None, got 0"),
        ({"layer": 4096}, "layer must be in 0 .. 4095"),
        ({"seed": -1}, "seed must be in 0 .. 2.64 - 1, got -1"),
        ({"head_size": 0}, "head_size must be a whole number from 1, got 0"),
    ],
)
def test_head_refuses_when_it_is_made(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Head(**options)


def test_head_refuses_inputs_and_other_triangles() -> None:
    _, head = both()
    for shape in ((1, 5, 20), (4, 19), (20,), (1, 1, 4, 20)):
        with pytest.raises(ValueError, match="block_size = 4, got shape"):
            head(torch.randn(shape))
    with pytest.raises(TypeError, match="x must be a torch.Tensor, got list"):
        head([1.0])
    for tril in (torch.ones(4, 4), torch.zeros(4, 4)):
        state = {**head.state_dict(), "tril": tril}
        with pytest.raises(RuntimeError, match="tril must be 1 on and below the diagonal"):
            head.load_state_dict(state)


def test_head_on_other_devices_and_dtypes() -> None:
    with torch.device("meta"):
        assert Head().tril.is_meta
    head = Head(dtype=torch.float64, seed=2)
    assert head(torch.randn(4, 20, dtype=torch.float64)).dtype == torch.float64


# ---- set_step -------------------------------------------------------------------------------


class Blocks(nn.Module):
    """Heads behind one another; each sees what the one before it made."""

    def __init__(self, count: int = 3, **options: Any) -> None:
        super().__init__()
        self.heads = nn.ModuleList(
            Head(8, n_embd=8, block_size=16, **options) for _ in range(count)
        )

    def forward(self, x: Tensor, recompute: bool = False) -> Tensor:
        for head in self.heads:
            if recompute:
                x = x + checkpoint(head, x, use_reentrant=False, preserve_rng_state=False)
            else:
                x = x + head(x)
        return x


def keeps_of(head: Head) -> Tensor:
    """What a head keeps, seen through values that are the unit vectors."""
    seen = copy.deepcopy(head)
    length = seen.tril.shape[0]
    with torch.no_grad():
        seen.query.weight.zero_()
        seen.value.weight.copy_(torch.eye(*seen.value.weight.shape))
    return seen(torch.eye(length, seen.key.weight.shape[1])) != 0


def test_offsets_are_those_of_call_offset() -> None:
    model = nn.ModuleList(Head(16, n_embd=16, block_size=16, seed=9) for _ in range(3))
    for step, micro in ((0, 0), (5, 0), (5, 2), (2**40 - 1, 4095)):
        set_step(model, step, micro)
        for layer, head in enumerate(model):
            keep = attndrop.keep_mask(
                1,
                1,
                16,
                dropout_p=0.5,
                seed=9,
                offset=call_offset(step, layer, micro),
                is_causal=True,
            )
            assert torch.equal(keeps_of(head), keep[0, 0])


def test_without_a_seed_the_step_goes_with_manual_seed() -> None:
    model, x = Blocks(), torch.randn(2, 16, 8)
    torch.manual_seed(2**63 + 21)
    set_step(model, 4)
    state = torch.get_rng_state()
    first = model(x)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(5)
    set_step(model, 4)
    assert torch.equal(model(x), first)
    set_step(model, 5)
    assert not torch.equal(model(x), first)
    torch.manual_seed(22)
    set_step(model, 4)
    assert not torch.equal(model(x), first)


def test_evaluation_draws_nothing_whatever_the_step() -> None:
    model, x = Blocks().eval(), torch.randn(2, 16, 8)
    before = model(x)
    set_step(model, 1)
    assert torch.equal(model(x), before)


def grads_of(model: nn.Module, x: Tensor, recompute: bool) -> list[Tensor]:
    model.zero_grad()
    model(x, recompute).square().sum().backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def test_recomputed_activations_have_the_mask_of_the_step() -> None:
    model, x = Blocks(), torch.randn(2, 16, 8)
    set_step(model, 3)
    plain, recomputed = grads_of(model, x, False), grads_of(model, x, True)
    assert all(torch.equal(a, b) for a, b in zip(plain, recomputed, strict=True))


def test_recomputed_activations_without_a_step_have_other_masks() -> None:
    model, x = Blocks(), torch.randn(2, 16, 8)
    results = []
    for recompute in (False, True):
        torch.manual_seed(7)
        results.append(grads_of(model, x, recompute))
    assert not all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("named", ["contiguous", "strided"])
def test_parts_of_a_batch_draw_the_masks_of_the_whole(named: str) -> None:
    model, x = Blocks(), torch.randn(6, 16, 8)
    set_step(model, 3)
    whole = model(x)
    assert not torch.equal(model(x[3:]), whole[3:])
    index = torch.arange(3, 6) if named == "contiguous" else torch.arange(1, 6, 2)
    set_step(model, 3, batch_index=index)
    torch.testing.assert_close(model(x[index]), whole[index])
    # Evaluation takes any batch; the next step without batch_index forgets it.
    model.eval()(x)
    set_step(model.train(), 3)
    assert torch.equal(model(x), whole)
    with pytest.raises(TypeError, match="batch_index must hold integers"):
        set_step(model, 3, batch_index=[0.5])  # type: ignore[list-item]


def test_weights_of_a_part_are_those_of_the_whole() -> None:
    module = attndrop.MultiheadAttention(8, 2, dropout=0.5, batch_first=True, seed=4)
    x, index = torch.randn(4, 5, 8), [3, 1]
    set_step(module, 1)
    _, whole = module(x, x, x)
    set_step(module, 1, batch_index=index)
    _, weights = module(x[index], x[index], x[index])
    torch.testing.assert_close(weights, whole[index])


def test_other_parts_are_the_same_graph() -> None:
    torch._dynamo.reset()
    model, x = Blocks(2, seed=1), torch.randn(2, 16, 8)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for step in range(3):
            set_step(compiled, step, batch_index=torch.tensor([step, 7]))
            torch.testing.assert_close(compiled(x), model(x))


def test_steps_of_few_bits_do_not_wrap() -> None:
    head = Head(seed=1)
    set_step(head, torch.tensor(200, dtype=torch.uint8))  # type: ignore[arg-type]
    assert head._step_offset is not None
    assert head._step_offset.item() == call_offset(200, 0)


@pytest.mark.parametrize("seed", [None, 3])
def test_twenty_steps_are_one_graph(seed: int | None) -> None:
    torch._dynamo.reset()
    model, x = Blocks(2, seed=seed), torch.randn(2, 16, 8)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    outs = []
    with torch._dynamo.config.patch(error_on_recompile=True):
        for step in range(20):
            set_step(compiled, step)
            outs.append(compiled(x))
            torch.testing.assert_close(outs[-1], model(x))
    assert all(not torch.equal(a, b) for a, b in itertools.pairwise(outs))


def test_steps_are_in_no_state_dict_and_no_buffer() -> None:
    model = Blocks()
    names = list(model.state_dict()), [name for name, _ in model.named_buffers()]
    set_step(model, 3)
    assert (list(model.state_dict()), [name for name, _ in model.named_buffers()]) == names
    Blocks().load_state_dict(model.state_dict())


def test_numbers_chosen_by_hand_stay_and_others_fill_up() -> None:
    model = nn.ModuleList([Head(), Head(layer=0), Head(), Head(layer=7)])
    set_step(model, 0)
    assert [head.layer for head in model] == [1, 0, 2, 7]
    clones = nn.ModuleList(copy.deepcopy(model[0]) for _ in range(3))
    set_step(clones, 0)
    assert [head.layer for head in clones] == [0, 1, 2]
    before = clones[0]._step_offset
    with pytest.raises(ValueError, match="two modules have layer=7"):
        set_step(nn.ModuleList([clones[0], model[3], copy.deepcopy(model[3])]), 9)
    assert clones[0]._step_offset is before


def test_set_step_refuses() -> None:
    model = Blocks()
    with pytest.raises(TypeError, match="model must be a torch.nn.Module, got list"):
        set_step([model], 1)
    with pytest.raises(ValueError, match="Linear holds no attndrop module.*replace_attention"):
        set_step(nn.Linear(2, 2), 1)
    with pytest.raises(ValueError, match="step must be in 0 .. 1099511627775, got -1"):
        set_step(model, -1)
    with pytest.raises(TypeError, match="step must be an integer, got 1.5"):
        set_step(model, 1.5)
    with pytest.raises(ValueError, match="micro must be in 0 .. 4095, got 4096"):
        set_step(model, 1, 4096)
    assert all(head._step_offset is None for head in model.heads)
    with pytest.raises(ValueError, match='mask_format="torch-cpu".*knows no steps'):
        set_step(Blocks(mask_format="torch-cpu"), 1)


def test_modules_copy_pickle_and_save() -> None:
    model, x = Blocks(scheme="key", seed=torch.tensor(5)), torch.randn(2, 16, 8)
    set_step(model, 6)
    expected = model(x)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    copies = [
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(file, weights_only=False),
    ]
    for other in copies:
        assert torch.equal(other(x), expected)
        set_step(other, 7)
        assert not torch.equal(other(x), expected)
    assert torch.equal(model(x), expected)


def test_modules_say_what_they_are() -> None:
    head = Head(seed=4)
    set_step(head, 1)
    assert "scheme=element, stage=weights, empty_row=zero, seed=4, layer=0" in repr(head)
