# SPDX-License-Identifier: Apache-2.0
"""attndrop.register_hf: models of Hugging Face transformers through attndrop."""

from __future__ import annotations

import importlib
import operator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ._functional import scaled_dot_product_attention
from ._masks import keep_mask
from ._rng import IntLike

_FORBIDDEN = ("/", "|", ":", "flash")  # transformers reads these in a name as something else

#: Arguments of a call that change the result and that no mask holds, with what to do about them.
_REFUSED = {
    "softcap": "the logits would have to be capped",
    "s_aux": "attention sinks are not built",
    "sinks": "attention sinks are not built",
    "head_mask": "multiply the output of the heads instead",
    "block_indices": "selected blocks of keys are not built",
    "cu_seq_lens_q": "leave it out: restarting position_ids put packed sequences into the mask",
    "cu_seq_lens_k": "leave it out: restarting position_ids put packed sequences into the mask",
}

_LAYERS = 1024  # of one kind in a model
_DECODER, _CROSS = 1, 2  # kinds of attention that may share a layer index with another one


def _import_transformers() -> Any:
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise ImportError(
            "attndrop.register_hf needs transformers, which cannot be imported "
            f'({error}); install it, for example with pip install "transformers>=5"'
        ) from error


def _check_name(name: str) -> None:
    if not isinstance(name, str):
        raise TypeError(f"name must be a string, got {name!r}")
    if not name or any(part in name for part in _FORBIDDEN):
        raise ValueError(
            "name must not be empty or contain '/', '|', ':' or \"flash\", which mean something "
            f"else to transformers, got {name!r}"
        )


def _layer(module: torch.nn.Module) -> int:
    """What tells this attention of a model from the others, 0 .. 4095.

    An encoder, its decoder, and the decoder's attention to the encoder count layers from 0 each.
    """
    index = getattr(module, "layer_idx", None)
    if not isinstance(index, int):
        raise ValueError(
            f"{type(module).__name__} has no layer_idx, so that with attndrop_seed all layers "
            "would draw one mask; set layer_idx in these modules, or leave out attndrop_seed"
        )
    if not 0 <= index < _LAYERS:
        raise ValueError(f"layer_idx must be in 0 .. {_LAYERS - 1}, got {index}")
    kind = 0
    if getattr(module, "is_decoder", False):
        kind = _DECODER if getattr(module, "is_causal", False) else _CROSS
    elif getattr(module, "is_cross_attention", False) or "Cross" in type(module).__name__:
        kind = _CROSS
    return kind * _LAYERS + index


def _call_offset(module: torch.nn.Module, offset: IntLike) -> IntLike:
    if isinstance(offset, Tensor):
        return offset + _layer(module)
    try:
        return operator.index(offset) + _layer(module)
    except TypeError:
        raise TypeError(
            f"attndrop_offset must be an integer in 0 .. 2^64 - 1 or an integer tensor, got "
            f"{offset!r}"
        ) from None


def _check_arguments(arguments: dict[str, Any]) -> None:
    for name, why in _REFUSED.items():
        if arguments.get(name) is not None:
            raise ValueError(
                f"{name} changes the attention and attndrop does not support it: {why}; or use "
                'attn_implementation="eager"'
            )
    for name in arguments:
        if name.startswith("attndrop_"):
            raise TypeError(
                f"{name} is unknown; the model takes attndrop_seed, attndrop_offset and "
                "attndrop_batch_index, and attndrop.register_hf takes scheme, stage and empty_row"
            )


def _with_position_bias(mask: Tensor | None, bias: Tensor) -> Tensor:
    if mask is None:
        return bias
    if mask.dtype == torch.bool:
        return torch.where(mask, bias, -torch.inf)
    return mask + bias


@dataclass(frozen=True)
class _Attention:
    """What transformers calls; one configuration."""

    scheme: str
    stage: str
    empty_row: str
    collector: Any = field(compare=False)  # of transformers; None where it has none

    def __call__(
        self,
        module: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,
        position_bias: Tensor | None = None,
        sliding_window: int | None = None,
        attndrop_seed: IntLike | None = None,
        attndrop_offset: IntLike = 0,
        attndrop_batch_index: Tensor | None = None,
        **arguments: Any,
    ) -> tuple[Tensor, None]:
        """(batch, seqlen_q, heads, head_dim_v) and no weights, of (batch, heads, seqlen, head_dim).

        A mask holds everything that hides a key. Without one, and with several queries, query i
        stands at key i (longer keys are the empty rest of a static cache).
        """
        _check_arguments(arguments)
        self._refuse_weights(arguments.get("output_attentions"))
        seqlen_q, seqlen_k = query.size(2), key.size(2)
        causal_module = getattr(module, "is_causal", True) if is_causal is None else is_causal
        if attention_mask is None and sliding_window is not None and seqlen_k > sliding_window:
            raise ValueError(
                f"a sliding_window of {sliding_window} must come with an attention mask that holds "
                f"it, got none for {seqlen_k} keys"
            )
        drops = module.training and dropout != 0
        offset = attndrop_offset
        if drops and attndrop_seed is not None:
            offset = _call_offset(module, attndrop_offset)
        causal = bool(causal_module) and attention_mask is None and seqlen_q > 1
        if position_bias is not None:
            attention_mask = _with_position_bias(attention_mask, position_bias)
        out = scaled_dot_product_attention(
            query,
            key,
            value,
            attention_mask,
            dropout,
            causal,
            scale=scaling,
            enable_gqa=query.size(1) != key.size(1),
            scheme=self.scheme,
            stage=self.stage,
            empty_row=self.empty_row,
            seed=attndrop_seed,
            offset=offset,
            training=module.training,
            batch_index=attndrop_batch_index if drops else None,
            causal_align="bottom-right" if causal_module and not causal else "top-left",
        )
        return out.transpose(1, 2).contiguous(), None

    def _refuse_weights(self, output_attentions: Any) -> None:
        """Also where a model takes the argument out before it calls, and collects by hooks."""
        collected = () if self.collector is None else self.collector.get() or ()
        if output_attentions or any("attentions" in name for name in collected):
            raise ValueError(
                "output_attentions=True needs all weights, which attndrop does not store; leave it "
                'out, or use attn_implementation="eager"'
            )


def _collector_of_outputs() -> Any:
    try:
        module = importlib.import_module("transformers.utils.output_capturing")
    except ImportError:
        return None
    return getattr(module, "_active_collector", None)


def register_hf(
    name: str | None = None,
    *,
    scheme: str = "element",
    stage: str = "weights",
    empty_row: str = "zero",
) -> str:
    """Makes attn_implementation=name of Hugging Face transformers mean attndrop.

    The rate is the model's own (attn_pdrop, attention_dropout, attention_probs_dropout_prob, ...),
    and nothing is dropped in evaluation. A call of the model takes more arguments: attndrop_seed,
    0 .. 2^64 - 1 or an integer tensor, which needs a layer_idx in the attention modules,
    attndrop_offset, to which every attention adds its own number below 4096, so that
    call_offset(step, 0) is one, and attndrop_batch_index, which is batch_index of
    scaled_dot_product_attention. Without attndrop_seed every attention draws a seed from PyTorch's
    default generator. A model that does not pass them on to an attention (the cross attention of
    GPT-2) leaves that one without them.

    Args:
        name: for attn_implementation; without '/', '|', ':' and "flash". Default: "attndrop" for
            scheme "element", else "attndrop_SCHEME".
        scheme, stage, empty_row: as in scaled_dot_product_attention.

    Returns:
        The name.

    Raises:
        ImportError: transformers is missing.
        TypeError, ValueError: a wrong name, scheme, stage or empty_row; a name that is taken, also
            by another configuration.
        ValueError, when a model is called: output_attentions=True, and arguments that change the
            attention in a way that is not built (softcap, sinks, packed sequences without a mask).

    Source: the attention interface of transformers 5.24.
    """
    transformers = _import_transformers()
    keep_mask(1, 1, 1, 1, dropout_p=0.5, seed=0, scheme=scheme, stage=stage, empty_row=empty_row)
    if name is None:
        name = "attndrop" if scheme == "element" else f"attndrop_{scheme.partition(':')[0]}"
    _check_name(name)
    attention = _Attention(scheme, stage, empty_row, _collector_of_outputs())
    registered = transformers.AttentionInterface().get(name)
    if name == "eager" or (registered is not None and registered != attention):
        raise ValueError(
            f"the name {name!r} means {registered or 'eager attention'} already; choose another one"
        )
    masks = importlib.import_module("transformers.masking_utils")
    transformers.AttentionInterface.register(name, attention)
    transformers.AttentionMaskInterface.register(name, masks.sdpa_mask)
    return name
