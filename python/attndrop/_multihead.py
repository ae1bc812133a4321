# SPDX-License-Identifier: Apache-2.0
"""attndrop.MultiheadAttention: torch.nn.MultiheadAttention with the choice of what to drop."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ._call import attend
from ._errors import raise_translated
from ._functional import check_inputs
from ._multihead_inputs import Sizes, Widths, check_shapes, merge_masks
from ._multihead_weights import attention_weights
from ._options import make_options
from ._rng import IntLike
from ._step import DropoutModule, check_dropout

_WEIGHTS = ("after", "before")


class MultiheadAttention(DropoutModule, nn.MultiheadAttention):
    """torch.nn.MultiheadAttention, its arguments and its state_dict, with attndrop's dropout.

    Memory is linear in the lengths unless need_weights=True or a mask that is not. Evaluation and
    training take the same kernels: torch's fast path for evaluation, which
    torch.nn.TransformerEncoderLayer too would take past this module, is not used, so that what a
    model computes does not depend on whether gradients are recorded. A hook that does nothing keeps
    the layer off it; the nested tensors that torch.nn.TransformerEncoder makes of padded batches
    are understood.

    Where it differs from torch: a row that sees no key gives zeros, with need_weights too;
    is_causal needs no attn_mask; wrong shapes are ValueErrors.

    Args:
        embed_dim, num_heads, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first, device,
            dtype: as in torch.nn.MultiheadAttention. Keys that add_bias_kv and add_zero_attn
            append are seen by every query and may be dropped like others.
        dropout: chance of dropping a weight, in [0, 1].
        scheme, stage, empty_row: what is dropped; as in scaled_dot_product_attention.
        seed: None draws one in each call from PyTorch's default generator. With a seed and without
            attndrop.set_step each call draws the same mask, which is good for tests.
        layer: number of the module for attndrop.set_step, 0 .. 4095; None: its place in the model.
        weights: which weights need_weights=True returns: those "after" dropout, as torch does,
            whose rows need not sum to 1, or those "before" it.

    Raises:
        TypeError, ValueError: a wrong argument; torch's own errors for its arguments.

    Source: Vaswani et al. 2017; docs/mask-format.md defines the mask.
    """

    weights: str

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        scheme: str = "element",
        stage: str = "weights",
        empty_row: str = "zero",
        seed: IntLike | None = None,
        layer: int | None = None,
        weights: str = "after",
    ) -> None:
        check_dropout(dropout, scheme, stage, empty_row, seed, layer)
        check_weights(weights)
        super().__init__(
            embed_dim,
            num_heads,
            dropout,
            bias,
            add_bias_kv,
            add_zero_attn,
            kdim,
            vdim,
            batch_first,
            device,
            dtype,
        )
        self._init_dropout(scheme, stage, empty_row, seed, layer)
        self.weights = weights
        self._leave_fast_path()

    def _leave_fast_path(self) -> None:
        """Layers look for hooks before they take torch's fast path past this module."""
        for number, hook in list(self._forward_pre_hooks.items()):
            if hook is _do_nothing:
                del self._forward_pre_hooks[number]
        self.register_forward_pre_hook(_do_nothing)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        # Numbers of hooks are unique in one process only.
        self._leave_fast_path()

    def extra_repr(self) -> str:
        return f"dropout={self.dropout}, {self._dropout_repr()}, weights={self.weights}"

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attention of all heads, projected.

        A key takes part where attn_mask, key_padding_mask and (with is_causal) the causal order all
        let it. Torch takes is_causal for a promise that attn_mask is the causal mask; here both are
        applied, and a mask that is exactly the causal one costs nothing more in eager code.

        Args:
            query: (seqlen_q, batch, embed_dim), (batch, seqlen_q, embed_dim) with batch_first, or
                (seqlen_q, embed_dim).
            key, value: alike, with seqlen_k and the widths kdim and vdim.
            key_padding_mask: (batch, seqlen_k) or (seqlen_k). bool: TRUE HIDES a key, the opposite
                of scaled_dot_product_attention. Float: added to the logits.
            need_weights: also return weights. This takes memory quadratic in the lengths and a
                second pass.
            attn_mask: (seqlen_q, seqlen_k) or (batch * num_heads, seqlen_q, seqlen_k); bool (true
                hides) or float (added); may require a gradient.
            average_attn_weights: return the mean over the heads.
            is_causal: query i sees keys up to i.

        Returns:
            (out, weights): out like query; weights (batch, seqlen_q, seqlen_k), with an axis of
            heads after batch if not averaged, without batch for inputs without; None unless
            need_weights. Both have gradients.

        Raises:
            TypeError, ValueError: inputs that do not fit.
        """
        if isinstance(query, Tensor) and query.is_nested:
            masks = (key_padding_mask, attn_mask)
            return self._forward_nested(
                query, key, value, masks, (need_weights, average_attn_weights, is_causal)
            )
        sizes = check_shapes(query, key, value, self._widths(), self.num_heads, self._extra_keys())
        mask, is_causal = merge_masks(attn_mask, key_padding_mask, is_causal, sizes)
        heads = self._add_keys(self._heads(*self._project(query, key, value)), sizes)
        try:
            check_inputs(*heads, False)
            options = self._options(is_causal)
            rng, named = self._drawn(self.dropout, self.training)
            side = (rng, mask, None, None, None, *named)
            out, logsumexp = attend(*heads, side, options)
            weights = None
            if need_weights:
                drawn = (rng, *named) if self.training and self.weights == "after" else ()
                weights = attention_weights(*heads[:2], mask, logsumexp, drawn, options)
                weights = weights.to(out.dtype)
        except RuntimeError as error:
            raise_translated(error)
        return self._output(out, sizes), self._shaped(weights, average_attn_weights, sizes)

    def _options(self, is_causal: bool) -> dict[str, Any]:
        policies = (self.scheme, self.stage, self.empty_row)
        return make_options(None, is_causal, "top-left", None, *policies, None, None)

    def _widths(self) -> Widths:
        return Widths(self.embed_dim, self.kdim, self.vdim, self.batch_first)

    def _extra_keys(self) -> int:
        return int(self.bias_k is not None) + int(self.add_zero_attn)

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        """The three projections, in one product where the inputs are one tensor."""
        bias = self.in_proj_bias
        biases = (None, None, None) if bias is None else bias.chunk(3)
        if self.in_proj_weight is None:
            weights: Any = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        elif query is key and key is value:
            return linear(query, self.in_proj_weight, bias).chunk(3, -1)
        else:
            weights = self.in_proj_weight.chunk(3)
        tensors = (query, key, value)
        return tuple(linear(t, w, b) for t, w, b in zip(tensors, weights, biases, strict=True))

    def _heads(self, *projected: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Views (batch, num_heads, seqlen, head_dim)."""
        split = [tensor.unflatten(-1, (self.num_heads, self.head_dim)) for tensor in projected]
        if projected[0].dim() == 2:
            views = [tensor.transpose(0, 1)[None] for tensor in split]
        elif self.batch_first:
            views = [tensor.transpose(1, 2) for tensor in split]
        else:
            views = [tensor.permute(1, 2, 0, 3) for tensor in split]
        return views[0], views[1], views[2]

    def _add_keys(
        self, heads: tuple[Tensor, Tensor, Tensor], sizes: Sizes
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The keys and values that add_bias_kv and add_zero_attn append, in this order."""
        query, key, value = heads
        if not sizes.extra:
            return heads
        shape = (sizes.batch, sizes.num_heads, 1, self.head_dim)
        keys, values = [key], [value]
        if self.bias_k is not None and self.bias_v is not None:
            # Under autocast the projections have another dtype than the parameters.
            keys.append(self.bias_k.view(1, *shape[1:]).expand(shape).to(key.dtype))
            values.append(self.bias_v.view(1, *shape[1:]).expand(shape).to(value.dtype))
        if self.add_zero_attn:
            keys.append(key.new_zeros(shape))
            values.append(value.new_zeros(shape))
        return query, torch.cat(keys, 2), torch.cat(values, 2)

    def _output(self, out: Tensor, sizes: Sizes) -> Tensor:
        """The heads behind one another, projected."""
        if not sizes.batched:
            rows = out[0].transpose(0, 1)
        elif self.batch_first:
            rows = out.transpose(1, 2)
        else:
            rows = out.permute(2, 0, 1, 3)
        return self.out_proj(rows.flatten(-2))

    @staticmethod
    def _shaped(weights: Tensor | None, average: bool, sizes: Sizes) -> Tensor | None:
        if weights is None:
            return None
        if average:
            weights = weights.mean(1)
        return weights if sizes.batched else weights[0]

    def _forward_nested(
        self, query: Tensor, key: Any, value: Any, masks: tuple[Any, Any], flags: tuple[bool, ...]
    ) -> tuple[Tensor, Tensor | None]:
        """Self-attention of a nested batch, such as torch.nn.TransformerEncoder makes of a padded
        one in evaluation: padded, and back. Weights stay padded."""
        if query is not key or key is not value or masks != (None, None) or not self.batch_first:
            raise ValueError(
                "nested inputs are understood with batch_first=True, as query, key and value at "
                "once and without masks; pass padded tensors with key_padding_mask instead"
            )
        lengths = [sequence.shape[0] for sequence in query.unbind()]
        padded = torch.nested.to_padded_tensor(query, 0.0)
        places = torch.arange(padded.shape[1], device=padded.device)
        padding = places >= torch.tensor(lengths, device=padded.device).unsqueeze(1)
        need_weights, average, is_causal = flags
        out, weights = self.forward(
            padded, padded, padded, padding, need_weights, None, average, is_causal
        )
        rows = [row[:length] for row, length in zip(out.unbind(), lengths, strict=True)]
        return torch.nested.as_nested_tensor(rows, layout=query.layout), weights


def check_weights(weights: str) -> None:
    if weights not in _WEIGHTS:
        raise ValueError(f'weights must be "after" or "before" dropout, got {weights!r}')


def _do_nothing(module: nn.Module, args: Any) -> None:
    """See MultiheadAttention._leave_fast_path."""
