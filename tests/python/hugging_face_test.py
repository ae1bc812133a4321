# SPDX-License-Identifier: Apache-2.0
"""Small random models of Hugging Face transformers beside their eager attention."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from typing import Any

import attndrop
import pytest
import torch
from torch import Tensor

transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed, attndrop.register_hf cannot be tried"
)

_DROPOUT = 0.3
_LENGTH = 9
#: Of the models, where their configurations have these names.
_SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
_SIZES.update(vocab_size=40, num_attention_heads=4)
_CONFIGS = ({}, {"scheme": "key"}, {"name": "attndrop_self", "empty_row": "keep_self"})


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    for options in _CONFIGS:
        attndrop.register_hf(**options)


def _gpt2() -> Any:
    config = transformers.GPT2Config(
        vocab_size=40,
        n_positions=32,
        n_embd=24,
        n_layer=2,
        n_head=3,
        attn_pdrop=_DROPOUT,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        scale_attn_by_inverse_layer_idx=True,
        bos_token_id=1,
        eos_token_id=2,
    )
    return transformers.GPT2LMHeadModel(config)


def _llama() -> Any:
    config = transformers.LlamaConfig(**_SIZES, num_key_value_heads=2, attention_dropout=_DROPOUT)
    return transformers.LlamaForCausalLM(config)


def _bert() -> Any:
    config = transformers.BertConfig(
        **_SIZES, attention_probs_dropout_prob=_DROPOUT, hidden_dropout_prob=0.0
    )
    return transformers.BertForMaskedLM(config)


_DECODERS = (_gpt2, _llama)
_MODELS = (*_DECODERS, _bert)


def _pair(make: Callable[[], Any], name: str = "attndrop") -> tuple[Any, Any]:
    """The same weights with attndrop and with eager attention, in training mode."""
    torch.manual_seed(1)
    model = make()
    eager = copy.deepcopy(model)
    model.set_attn_implementation(name)
    eager.set_attn_implementation("eager")
    return model.train(), eager.train()


def _tokens() -> Tensor:
    return torch.randint(3, 40, (3, _LENGTH))


def _padding(left: bool) -> Tensor:
    """1 where there is a token; rows of 9, 6 and 2 tokens."""
    kept = torch.arange(_LENGTH) < torch.tensor([[9], [6], [2]])
    return (kept.flip(1) if left else kept).long()


def _paddings(make: Callable[[], Any]) -> list[Tensor | None]:
    return [None, _padding(False), *([] if make is _bert else [_padding(True)])]


@pytest.mark.parametrize("make", _MODELS)
def test_eval_equals_eager(make: Callable[[], Any]) -> None:
    model, eager = _pair(make)
    tokens = _tokens()
    for padding in _paddings(make):
        ours = model.eval()(tokens, attention_mask=padding).logits
        theirs = eager.eval()(tokens, attention_mask=padding).logits
        real = torch.ones(3, _LENGTH) if padding is None else padding
        torch.testing.assert_close(ours[real == 1], theirs[real == 1], atol=1e-5, rtol=0)


@pytest.mark.parametrize("make", _DECODERS)
@pytest.mark.parametrize("training", [False, True])
def test_later_tokens_change_nothing_before(make: Callable[[], Any], training: bool) -> None:
    model, _ = _pair(make)
    model.train(training)
    for padding in (None, _padding(True)):
        tokens = _tokens()
        changed = tokens.clone()
        changed[:, 6] = (changed[:, 6] + 1) % 37 + 3
        first = model(tokens, attention_mask=padding, attndrop_seed=5).logits
        second = model(changed, attention_mask=padding, attndrop_seed=5).logits
        assert torch.equal(first[:, :6], second[:, :6])
        assert not torch.equal(first[:, 6:], second[:, 6:])


@pytest.mark.parametrize("make", _MODELS)
def test_training_is_repeatable(make: Callable[[], Any]) -> None:
    tokens = _tokens()

    def losses(seed: int | None) -> list[float]:
        model, _ = _pair(make)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(7)
        values = []
        for step in range(3):
            extra = {} if seed is None else {"attndrop_seed": seed}
            loss = model(
                tokens, labels=tokens, attndrop_offset=attndrop.call_offset(step, 0), **extra
            ).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            values.append(float(loss.detach()))
        return values

    assert losses(None) == losses(None)
    assert losses(3) == losses(3)
    assert losses(3) != losses(4)
    assert losses(3)[2] < losses(3)[0]


@pytest.fixture
def same_masks(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Makes eager attention multiply its weights by attndrop's factors, layer by layer."""
    options: dict[str, Any] = {}
    original = torch.nn.functional.dropout
    calls = 0

    def dropout(
        weights: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Any:
        nonlocal calls
        if weights.dim() != 4:
            assert p == 0
            return original(weights, p, training, inplace)
        _, factors = attndrop.keep_mask(
            *weights.shape,
            dropout_p=p,
            factors=True,
            **{**options, "offset": options["offset"] + calls},
        )
        calls += 1
        return weights * factors.to(weights.dtype)

    monkeypatch.setattr(torch.nn.functional, "dropout", dropout)
    yield options
    assert calls == 2


@pytest.mark.parametrize("config", _CONFIGS, ids=lambda config: "-".join(config.values()) or "-")
@pytest.mark.parametrize("make", _MODELS)
def test_gradients_equal_eager_given_the_mask(
    make: Callable[[], Any], config: dict[str, str], same_masks: dict[str, Any]
) -> None:
    name = attndrop.register_hf(**config)
    model, eager = _pair(make, name)
    tokens, padding = _tokens(), _padding(False)
    labels = torch.where(padding == 1, tokens, -100)
    arguments = {"attention_mask": padding, "labels": labels}
    same_masks.update({key: value for key, value in config.items() if key != "name"})
    same_masks.update(seed=11, offset=1 << 24)
    visible = padding[:, None, None, :].bool()
    same_masks.update(attn_mask=visible, is_causal=make is not _bert)
    theirs = eager(tokens, **arguments)
    ours = model(tokens, **arguments, attndrop_seed=11, attndrop_offset=1 << 24)
    torch.testing.assert_close(ours.loss, theirs.loss, atol=1e-5, rtol=0)
    theirs.loss.backward()
    ours.loss.backward()
    for (parameter, mine), other in zip(model.named_parameters(), eager.parameters(), strict=True):
        if other.grad is None:
            assert mine.grad is None, parameter
            continue
        torch.testing.assert_close(mine.grad, other.grad, atol=1e-5, rtol=1e-4, msg=parameter)


@pytest.mark.parametrize("make", _DECODERS)
@pytest.mark.parametrize("cache", [None, "static"])
def test_generation_with_a_cache_equals_eager(make: Callable[[], Any], cache: str | None) -> None:
    model, eager = _pair(make)
    for padding in (torch.ones(3, _LENGTH, dtype=torch.long), _padding(True)):
        results = [
            each.eval().generate(
                _tokens_of_seed(2),
                attention_mask=padding,
                max_new_tokens=6,
                do_sample=False,
                pad_token_id=0,
                cache_implementation=cache,
                return_dict_in_generate=True,
                output_logits=True,
            )
            for each in (model, eager)
        ]
        assert torch.equal(results[0].sequences, results[1].sequences)
        for ours, theirs in zip(results[0].logits, results[1].logits, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def _tokens_of_seed(seed: int) -> Tensor:
    torch.manual_seed(seed)
    return _tokens()


@pytest.mark.parametrize("make", _MODELS)
def test_seed_and_offset_of_a_call(make: Callable[[], Any]) -> None:
    model, _ = _pair(make)
    tokens = _tokens()

    def logits(**extra: Any) -> Tensor:
        return model(tokens, **extra).logits

    drawn = logits(attndrop_seed=5)
    assert torch.equal(drawn, logits(attndrop_seed=5))
    assert torch.equal(
        drawn, logits(attndrop_seed=torch.tensor(5), attndrop_offset=torch.tensor(0))
    )
    assert not torch.equal(drawn, logits(attndrop_seed=6))
    assert not torch.equal(drawn, logits(attndrop_seed=5, attndrop_offset=1 << 12))
    assert not torch.equal(logits(), logits())
    model.eval()
    assert torch.equal(logits(attndrop_seed=5), logits())


@pytest.mark.parametrize("make", _MODELS)
def test_part_of_a_batch_draws_the_masks_of_the_whole(make: Callable[[], Any]) -> None:
    model, _ = _pair(make)
    tokens, index = _tokens(), torch.tensor([2, 0])
    whole = model(tokens, attndrop_seed=5).logits
    part = model(tokens[index], attndrop_seed=5, attndrop_batch_index=index).logits
    torch.testing.assert_close(part, whole[index])
    assert not torch.equal(model(tokens[index], attndrop_seed=5).logits, part)
    model.eval()(tokens, attndrop_batch_index=index)


class _Module(torch.nn.Module):
    """An attention module, as far as the function looks at it."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.__dict__.update(attributes)


def _inputs() -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    return torch.randn(3, 1, 2, 5, 4).unbind()


def _call(module: torch.nn.Module, mask: Tensor | None = None, **arguments: Any) -> Tensor:
    query, key, value = _inputs()
    function = transformers.AttentionInterface()["attndrop"]
    out, weights = function(module, query, key, value, mask, **arguments)
    assert weights is None
    return out


def test_every_attention_of_a_model_has_a_mask_of_its_own() -> None:
    modules = [
        _Module(layer_idx=0, is_causal=False, is_decoder=False),  # of an encoder
        _Module(layer_idx=1, is_causal=False, is_decoder=False),
        _Module(layer_idx=0, is_causal=False, is_decoder=True),  # from the decoder to the encoder
        _Module(layer_idx=0, is_causal=False, is_cross_attention=True),
        _Module(layer_idx=0, is_causal=True, is_decoder=True),
    ]
    mask = torch.ones(1, 1, 5, 5, dtype=torch.bool)
    outs = [_call(module, mask, dropout=0.5, attndrop_seed=1) for module in modules]
    assert torch.equal(outs[2], outs[3])
    distinct = [outs[0], outs[1], outs[2], outs[4]]
    for i, out in enumerate(distinct):
        assert all(not torch.equal(out, other) for other in distinct[:i])


def test_a_seed_needs_layers_with_numbers() -> None:
    with pytest.raises(ValueError, match="has no layer_idx"):
        _call(_Module(), dropout=0.5, attndrop_seed=1)
    _call(_Module(), dropout=0.5)
    undropped = _call(_Module().eval(), dropout=0.5, attndrop_seed=1)
    assert torch.equal(undropped, _call(_Module()))
    with pytest.raises(ValueError, match="layer_idx must be in 0 .. 1023, got 1024"):
        _call(_Module(layer_idx=1024), dropout=0.5, attndrop_seed=1)
    with pytest.raises(TypeError, match="attndrop_offset must be an integer"):
        _call(_Module(layer_idx=0), dropout=0.5, attndrop_seed=1, attndrop_offset="3")


@pytest.mark.parametrize("masked", [False, True])
def test_a_position_bias_is_added_and_keeps_causality(masked: bool) -> None:
    bias = torch.randn(1, 2, 5, 5, requires_grad=True)
    visible = torch.ones(5, 5, dtype=torch.bool).tril()
    mask = visible[None, None] if masked else None
    out = _call(_Module(is_causal=True), mask, position_bias=bias)
    query, key, value = _inputs()
    logits = query @ key.mT / 2 + bias.masked_fill(~visible, -torch.inf)
    expected = (logits.softmax(-1) @ value).transpose(1, 2)
    torch.testing.assert_close(out, expected)
    weights = torch.randn_like(out)
    ours, theirs = (torch.autograd.grad((o * weights).sum(), bias)[0] for o in (out, expected))
    torch.testing.assert_close(ours, theirs)


def test_a_float_mask_and_a_bias_add_up() -> None:
    bias, mask = torch.randn(1, 2, 5, 5), torch.randn(1, 1, 5, 5)
    both = _call(_Module(), mask, position_bias=bias)
    torch.testing.assert_close(both, _call(_Module(), mask + bias))


@pytest.mark.parametrize("make", _MODELS)
def test_weights_are_refused(make: Callable[[], Any]) -> None:
    model, _ = _pair(make)
    for training in (False, True):
        with pytest.raises(ValueError, match="output_attentions=True needs all weights"):
            model.train(training)(_tokens(), output_attentions=True)
    model(_tokens(), output_attentions=False, output_hidden_states=True)


@pytest.mark.parametrize("name", ["softcap", "s_aux", "sinks", "head_mask", "cu_seq_lens_q"])
def test_arguments_that_would_change_the_result_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} changes the attention and attndrop does not"):
        _call(_Module(), **{name: torch.ones(2)})
    _call(_Module(), **{name: None, "position_ids": torch.arange(5), "use_cache": True})


def test_a_sliding_window_must_be_in_the_mask() -> None:
    with pytest.raises(ValueError, match="a sliding_window of 4 must come with an attention mask"):
        _call(_Module(), sliding_window=4)
    assert torch.equal(_call(_Module(), sliding_window=5), _call(_Module()))
    config = transformers.MistralConfig(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=3,
    )
    model, eager = _pair(lambda: transformers.MistralModel(config))
    tokens = _tokens()
    ours, theirs = (each.eval()(tokens).last_hidden_state for each in (model, eager))
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def test_misspelt_arguments_of_a_call_are_refused() -> None:
    model, _ = _pair(_llama)
    with pytest.raises(TypeError, match="attndrop_sead is unknown; the model takes attndrop_seed"):
        model(_tokens(), attndrop_sead=1)


def test_names_of_registrations(monkeypatch: pytest.MonkeyPatch) -> None:
    assert attndrop.register_hf() == "attndrop"
    assert attndrop.register_hf(scheme="block:block_q=2,block_k=2") == "attndrop_block"
    for name in ("", "a/b", "a|b", "a:b", "my_flash"):
        with pytest.raises(ValueError, match="name must not be empty or contain"):
            attndrop.register_hf(name)
    with pytest.raises(TypeError, match="name must be a string"):
        attndrop.register_hf(3)  # type: ignore[arg-type]
    for name in ("eager", "sdpa", "attndrop_key"):
        with pytest.raises(ValueError, match="already; choose another one"):
            attndrop.register_hf(name, scheme="word")
    with pytest.raises(ValueError, match='scheme "elemnt" is unknown'):
        attndrop.register_hf(scheme="elemnt")
    with pytest.raises(ValueError, match="empty_row"):
        attndrop.register_hf("attndrop_x", scheme="key", empty_row="redraw")
    assert "attndrop_x" not in transformers.AttentionInterface()
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match="attndrop.register_hf needs transformers"):
        attndrop.register_hf()


def test_a_compiled_model_draws_the_same_masks() -> None:
    model, _ = _pair(_gpt2)
    tokens = _tokens()
    eager = model(tokens, attndrop_seed=5, use_cache=False).logits
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(tokens, attndrop_seed=5, use_cache=False).logits, eager)
