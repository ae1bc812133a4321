# SPDX-License-Identifier: Apache-2.0
"""replace_attention: torch's models with attndrop's dropout."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import attndrop
import pytest
import torch
from attndrop import MultiheadAttention, replace_attention, set_step
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle


def encoder(layers: int = 2, **options: Any) -> nn.TransformerEncoder:
    options = {"dropout": 0.0, "batch_first": True, **options}
    layer = nn.TransformerEncoderLayer(8, 2, 16, **options)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=not options.get("norm_first"))


def attention_of(model: nn.Module) -> list[MultiheadAttention]:
    return [module for module in model.modules() if isinstance(module, MultiheadAttention)]


class Calls:
    """Counts the calls of the operator."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        original = attndrop._multihead.attend

        def counted(*arguments: Any) -> Any:
            self.count += 1
            return original(*arguments)

        monkeypatch.setattr(attndrop._multihead, "attend", counted)


def test_modules_stay_the_same_objects() -> None:
    model = encoder().double()
    model.layers[1].eval()
    parameters = dict(model.named_parameters())
    modules = list(model.modules())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert replace_attention(model, scheme="key", stage="logits", empty_row="keep_self") is model
    assert list(model.modules()) == modules
    assert all(parameters[name] is value for name, value in model.named_parameters())
    mine = attention_of(model)
    assert [module.layer for module in mine] == [0, 1]
    assert [module.training for module in mine] == [True, False]
    assert {(m.scheme, m.stage, m.empty_row) for m in mine} == {("key", "logits", "keep_self")}
    before = copy.deepcopy(model.state_dict())
    model(torch.randn(2, 5, 8, dtype=torch.float64)).square().sum().backward()
    optimizer.step()
    name = "layers.0.self_attn.in_proj_weight"
    assert not torch.equal(before[name], model.state_dict()[name])


def test_hooks_stay_and_can_be_removed() -> None:
    model, calls = nn.MultiheadAttention(8, 2), []
    handle = model.register_forward_hook(lambda *_: calls.append("forward"))
    before = model.register_forward_pre_hook(lambda *_: calls.append("pre"))
    replace_attention(model)
    x = torch.randn(3, 1, 8)
    model(x, x, x)
    assert calls == ["pre", "forward"]
    handle.remove()
    before.remove()
    model(x, x, x)
    assert calls == ["pre", "forward"]


def test_a_model_that_is_attention_itself() -> None:
    model = nn.MultiheadAttention(8, 2, dropout=0.5)
    state = copy.deepcopy(model.state_dict())
    turned = replace_attention(model, seed=3, weights="before")
    assert turned is model
    assert type(turned) is MultiheadAttention
    assert (turned.dropout, turned.seed, turned.weights) == (0.5, 3, "before")
    nn.MultiheadAttention(8, 2).load_state_dict(turned.state_dict())
    turned.load_state_dict(state)


def test_a_shared_module_is_one_layer() -> None:
    shared = nn.MultiheadAttention(8, 2)
    model = nn.ModuleList([shared, nn.MultiheadAttention(8, 2), shared])
    replace_attention(model)
    assert model[0] is model[2]
    assert [module.layer for module in model] == [0, 1, 0]


def test_a_second_call_changes_the_choice() -> None:
    model = replace_attention(encoder(), scheme="key", seed=2)
    hooks = [len(module._forward_pre_hooks) for module in attention_of(model)]
    set_step(model, 5)
    replace_attention(model, scheme="word")
    assert {module.scheme for module in attention_of(model)} == {"word"}
    assert {module.seed for module in attention_of(model)} == {None}
    assert [len(module._forward_pre_hooks) for module in attention_of(model)] == hooks == [1, 1]


class Special(nn.MultiheadAttention):
    pass


def test_what_is_left_is_said() -> None:
    with pytest.warns(UserWarning, match="found no torch.nn.MultiheadAttention in Linear"):
        replace_attention(nn.Linear(2, 2))
    model = nn.ModuleDict({"a": Special(8, 2), "b": nn.MultiheadAttention(8, 2)})
    with pytest.warns(UserWarning, match=r"left subclasses .*: a \(Special\)"):
        replace_attention(model)
    assert type(model["a"]) is Special
    assert type(model["b"]) is MultiheadAttention


def test_refusals_change_nothing() -> None:
    model = nn.ModuleList([nn.MultiheadAttention(8, 2), nn.MultiheadAttention(8, 2, dropout=1.5)])
    with pytest.raises(ValueError, match="dropout_p must be .* got 1.5"):
        replace_attention(model)
    model[1].dropout = 0.5
    for options, sentence in (
        ({"scheme": "keys"}, "did you mean .*key"),
        ({"weights": "during"}, 'weights must be "after" or "before" dropout, got \'during\''),
        ({"seed": 2**64}, "seed must be in 0"),
    ):
        with pytest.raises(ValueError, match=sentence):
            replace_attention(model, **options)
    with pytest.raises(TypeError, match="model must be a torch.nn.Module, got NoneType"):
        replace_attention(None)
    assert all(type(module) is nn.MultiheadAttention for module in model)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("masks", ["none", "padding", "causal", "both"])
def test_encoder_equals_torch(training: bool, grad: bool, masks: str) -> None:
    model, x = encoder().train(training), torch.randn(2, 5, 8)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    options: dict[str, Any] = {}
    if masks in ("padding", "both"):
        options["src_key_padding_mask"] = padding
    if masks in ("causal", "both"):
        options["mask"] = torch.ones(5, 5, dtype=torch.bool).triu(1)
    with torch.set_grad_enabled(grad):
        expected = model(x, **options)
        out = replace_attention(model)(x, **options)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("norm_first", [True, False])
def test_fast_path_of_the_layer_does_not_pass_the_module_by(
    norm_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, calls = replace_attention(encoder(norm_first=norm_first).eval()), Calls(monkeypatch)
    x, padding = torch.randn(2, 5, 8), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    for other in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        calls.count = 0
        with torch.no_grad():
            other(x)
            other(x, src_key_padding_mask=padding)
        assert calls.count == 4


def test_hooks_of_a_later_process_do_not_take_the_place_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(RemovableHandle, "next_id", 3)
    pickled = pickle.dumps(replace_attention(encoder()))
    # Numbers of hooks start anew in each process.
    monkeypatch.setattr(RemovableHandle, "next_id", 0)
    for module in attention_of(pickle.loads(pickled)):
        handles = [module.register_forward_pre_hook(lambda *_: None) for _ in range(9)]
        for handle in handles:
            handle.remove()
        assert len(module._forward_pre_hooks) == 1


def test_dropout_in_evaluation_when_asked_for() -> None:
    model = replace_attention(encoder(dropout=0.5).eval())
    x = torch.randn(2, 5, 8)
    with torch.no_grad():
        assert torch.equal(model(x), model(x))
        for module in attention_of(model):
            module.train()
        assert not torch.equal(model(x), model(x))


@pytest.mark.parametrize("batch_first", [True, False])
def test_transformer_with_a_decoder_equals_torch(batch_first: bool) -> None:
    model = nn.Transformer(8, 2, 2, 2, 16, dropout=0.0, batch_first=batch_first).double()
    source, target = torch.randn(2, 6, 8).double(), torch.randn(2, 4, 8).double()
    if not batch_first:
        source, target = source.transpose(0, 1), target.transpose(0, 1)
    padding = torch.tensor([[False] * 6, [False] * 3 + [True] * 3])
    causal = nn.Transformer.generate_square_subsequent_mask(4, dtype=torch.float64)
    options = {
        "tgt_mask": causal,
        "tgt_is_causal": True,
        "src_key_padding_mask": padding.double().masked_fill(padding, -torch.inf),
        "memory_key_padding_mask": padding.double().masked_fill(padding, -torch.inf),
    }
    results: list[list[Tensor]] = []
    for turn in (False, True):
        if turn:
            replace_attention(model)
        model.zero_grad()
        out = model(source, target, **options)
        out.square().sum().backward()
        results.append([out.detach(), *(p.grad.clone() for p in model.parameters())])
    assert len(attention_of(model)) == 6
    for theirs, mine in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_dropout_is_repeatable_by_step_in_an_encoder() -> None:
    model = replace_attention(encoder(3), scheme="key")
    for module in attention_of(model):
        module.dropout = 0.5
    x = torch.randn(2, 5, 8)
    set_step(model, 1)
    first = model(x)
    assert torch.equal(model(x), first)
    set_step(model, 2)
    assert not torch.equal(model(x), first)


def test_clones_of_a_turned_layer_get_numbers_of_their_own() -> None:
    layer = replace_attention(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True))
    model = nn.TransformerEncoder(layer, 3)
    set_step(model, 1)
    offsets = [int(module._step_offset) for module in attention_of(model)]
    assert offsets == [attndrop.call_offset(1, layer) for layer in range(3)]


def test_save_and_load() -> None:
    model = replace_attention(encoder(dropout=0.3), scheme="key", seed=4).train()
    file = io.BytesIO()
    torch.save(model, file)
    torch.save(model.state_dict(), states := io.BytesIO())
    file.seek(0)
    states.seek(0)
    loaded = torch.load(file, weights_only=False)
    plain = encoder()
    plain.load_state_dict(torch.load(states, weights_only=True))
    x = torch.randn(2, 5, 8)
    torch.manual_seed(1)
    expected = model(x)
    torch.manual_seed(1)
    assert torch.equal(loaded(x), expected)
    torch.testing.assert_close(plain.eval()(x), model.eval()(x))
