# SPDX-License-Identifier: Apache-2.0
"""attndrop.Head: one causal head with dropout, as small language models are taught."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ._call import attend
from ._errors import raise_translated
from ._options import make_options
from ._rng import IntLike
from ._step import DropoutModule, check_dropout

_MASK_FORMATS = ("attndrop", "torch-cpu")
_OF_TORCH = {"scheme": "element", "stage": "weights", "empty_row": "zero", "seed": None}


class Head(DropoutModule):
    """A causal self-attention head: softmax(query key^T * n_embd^-0.5), dropout, times value.

    The layers key, query and value are made in this order and have no bias, so that they start from
    the same values as the usual code for the same torch.manual_seed; the state_dict has the same
    names: tril, key.weight, query.weight, value.weight. The scale is that of n_embd, not of
    head_size, as in that code. `dropout` is a torch.nn.Dropout: its p and its training flag count.

    Args:
        head_size: width of the output.
        n_embd: width of the input.
        block_size: longest sequence.
        dropout: chance of dropping a weight, in [0, 1].
        scheme, stage, empty_row: what is dropped; as in scaled_dot_product_attention.
        mask_format: "attndrop": the published mask, in memory linear in the length, for every
            processor the same. "torch-cpu": the mask that torch.nn.functional.dropout draws on
            the weights from PyTorch's default generator, so that training is equal to the usual
            code after the same torch.manual_seed. It takes memory quadratic in the length, since
            that generator must be walked through weight by weight, and only scheme "element",
            stage "weights", empty_row "zero" and no seed. It is what the installed PyTorch draws on
            this processor: PyTorch's x86 builds draw another mask on Intel than on AMD, and Arm
            builds draw as on AMD.
        seed: None draws one in each call from PyTorch's default generator. With a seed and without
            attndrop.set_step each call draws the same mask, which is good for tests.
        layer: number of the module for attndrop.set_step, 0 .. 4095; None: its place in the model.
        device, dtype: of the parameters and of tril.

    Raises:
        TypeError, ValueError: a wrong argument, as scaled_dot_product_attention.

    Source: docs/mask-format.md.
    """

    tril: Tensor

    def __init__(
        self,
        head_size: int = 10,
        *,
        n_embd: int = 20,
        block_size: int = 4,
        dropout: float = 0.5,
        scheme: str = "element",
        stage: str = "weights",
        empty_row: str = "zero",
        mask_format: str = "attndrop",
        seed: IntLike | None = None,
        layer: int | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        for name, size in (
            ("head_size", head_size),
            ("n_embd", n_embd),
            ("block_size", block_size),
        ):
            if not isinstance(size, int) or size < 1:
                raise ValueError(f"{name} must be a whole number from 1, got {size!r}")
        check_dropout(dropout, scheme, stage, empty_row, seed, layer)
        super().__init__()
        self._init_dropout(scheme, stage, empty_row, seed, layer)
        self.mask_format = _checked_format(mask_format, self)
        self.key = nn.Linear(n_embd, head_size, bias=False, device=device, dtype=dtype)
        self.query = nn.Linear(n_embd, head_size, bias=False, device=device, dtype=dtype)
        self.value = nn.Linear(n_embd, head_size, bias=False, device=device, dtype=dtype)
        ones = torch.ones(block_size, block_size, device=device, dtype=dtype)
        self.register_buffer("tril", torch.tril(ones))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Attends to x and what comes before.

        Args:
            x: (batch, length, n_embd) or (length, n_embd), length at most block_size.

        Returns:
            (batch, length, head_size) or (length, head_size).

        Raises:
            TypeError, ValueError: x has a wrong type or shape.
        """
        self._check(x)
        query, key, value = self.query(x), self.key(x), self.value(x)
        scale = x.shape[-1] ** -0.5
        if self.mask_format == "torch-cpu" and self.dropout.training:
            return self._forward_of_torch(query, key, value, scale)
        try:
            options = make_options(
                scale, True, "top-left", None, self.scheme, self.stage, self.empty_row, None, None
            )
            rng, named = self._drawn(self.dropout.p, self.dropout.training)
            tensors = [t.unsqueeze(-3) for t in (query, key, value)]
            side = (rng, None, None, None, None, *named)
            out, _ = attend(tensors[0], tensors[1], tensors[2], side, options)
        except RuntimeError as error:
            raise_translated(error)
        return out.squeeze(-3)

    def _forward_of_torch(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        length = query.shape[-2]
        weights = query @ key.transpose(-2, -1) * scale
        weights = weights.masked_fill(self.tril[:length, :length] == 0, -torch.inf)
        return self.dropout(weights.softmax(-1)) @ value

    def _check(self, x: Any) -> None:
        if not isinstance(x, Tensor):
            raise TypeError(f"x must be a torch.Tensor, got {type(x).__name__}")
        width, block_size = self.key.weight.shape[1], self.tril.shape[0]
        if x.dim() not in (2, 3) or x.shape[-1] != width or x.shape[-2] > block_size:
            raise ValueError(
                f"x must have the shape (batch, length, {width}) or (length, {width}) with a "
                f"length up to block_size = {block_size}, got shape {tuple(x.shape)}"
            )

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        tril = state_dict.get(f"{prefix}tril")
        super()._load_from_state_dict(state_dict, prefix, *rest)
        if not isinstance(tril, Tensor) or tril.is_meta:
            return
        if not torch.equal(tril, torch.ones_like(tril).tril()):
            error_msgs: list[str] = rest[-1]
            error_msgs.append(
                f"{prefix}tril must be 1 on and below the diagonal and 0 above it: this head is "
                "causal and reads no other mask."
            )

    def extra_repr(self) -> str:
        return f"{self._dropout_repr()}, mask_format={self.mask_format}"


def _checked_format(mask_format: str, head: DropoutModule) -> str:
    if mask_format not in _MASK_FORMATS:
        raise ValueError(
            f'mask_format must be "attndrop" or "torch-cpu", got {mask_format!r}; "torch-cpu" '
            "draws what the installed PyTorch draws on this processor"
        )
    if mask_format == "attndrop":
        return mask_format
    for name, only in _OF_TORCH.items():
        given = getattr(head, name)
        if given is not only and given != only:
            raise ValueError(
                f'mask_format="torch-cpu" draws as torch.nn.functional.dropout does and needs '
                f'{name}={only!r}, got {given!r}; mask_format="attndrop" has the choice'
            )
    return mask_format
