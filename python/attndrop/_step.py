# SPDX-License-Identifier: Apache-2.0
"""What attndrop's modules have in common (what to drop, which mask), and attndrop.set_step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ._errors import raise_translated
from ._functional import optional_batch_index
from ._masks import keep_mask
from ._rng import IntLike, _signed, call_offset, make_rng


class DropoutModule(nn.Module):
    """A module that drops attention weights.

    Attributes:
        scheme, stage, empty_row, seed: as in scaled_dot_product_attention.
        layer: number of the module among those of its model, or None until set_step gives it one.
        fixed_layer: whether the number was chosen by hand; set_step keeps such numbers.
    """

    scheme: str
    stage: str
    empty_row: str
    seed: IntLike | None
    layer: int | None
    fixed_layer: bool

    # Plain attributes, no buffers: they stay on the CPU when the module moves, no state_dict holds
    # them, and no process group broadcasts them.
    _step_seed: Tensor | None
    _step_offset: Tensor | None
    _step_batch_index: tuple[Tensor, ...]

    def _init_dropout(
        self, scheme: str, stage: str, empty_row: str, seed: IntLike | None, layer: int | None
    ) -> None:
        self.scheme, self.stage, self.empty_row = scheme, stage, empty_row
        self.seed = seed
        self.layer, self.fixed_layer = layer, layer is not None
        self._step_seed = self._step_offset = None
        self._step_batch_index = ()

    def _drawn(self, dropout_p: float, training: bool) -> tuple[Tensor, tuple[Tensor, ...]]:
        """rng and batch_index (one tensor or none) of one call, as the operators read them."""
        rng = self._rng(dropout_p, training)
        return rng, self._step_batch_index if training and dropout_p != 0 else ()

    def _rng(self, dropout_p: float, training: bool) -> Tensor:
        if not training or (not isinstance(dropout_p, Tensor) and dropout_p == 0):
            return make_rng(dropout_p, 0, 0, False)
        if self._step_seed is not None and self._step_offset is not None:
            return make_rng(dropout_p, self._step_seed, self._step_offset, True)
        return make_rng(dropout_p, self.seed, 0 if self.seed is None else self.layer or 0, True)

    def _set_call(self, offset: int, batch_index: tuple[Tensor, ...]) -> None:
        """Fixes the masks of the calls that follow."""
        seed = torch.initial_seed() if self.seed is None else self.seed
        try:
            signed = seed if isinstance(seed, Tensor) else _signed("seed", seed)
            self._step_seed = torch.as_tensor(signed, dtype=torch.int64, device="cpu")
            self._step_offset = torch.tensor(
                _signed("offset", offset), dtype=torch.int64, device="cpu"
            )
        except RuntimeError as error:
            raise_translated(error)
        self._step_batch_index = batch_index

    def _dropout_repr(self) -> str:
        parts = [f"scheme={self.scheme}", f"stage={self.stage}", f"empty_row={self.empty_row}"]
        if self.seed is not None:
            parts.append(f"seed={self.seed}")
        if self.layer is not None:
            parts.append(f"layer={self.layer}")
        return ", ".join(parts)


def check_dropout(
    dropout_p: float,
    scheme: str,
    stage: str,
    empty_row: str,
    seed: IntLike | None = None,
    layer: int | None = None,
    offset: IntLike = 0,
) -> None:
    """Refuses what a call would refuse, with the same sentence, when a module is made.

    Raises:
        TypeError, ValueError: as scaled_dot_product_attention.
    """
    if layer is not None:
        call_offset(0, layer)
    # Modules are also made on other default devices; this question is for the CPU.
    with torch.device("cpu"):
        keep_mask(
            1,
            1,
            1,
            dropout_p=dropout_p,
            seed=0 if seed is None else seed,
            offset=offset,
            scheme=scheme,
            stage=stage,
            empty_row=empty_row,
        )


def number_layers(modules: Sequence[DropoutModule]) -> list[int]:
    """A number for each: the one chosen by hand, else the next that is free, in this order."""
    fixed = [module.layer for module in modules if module.fixed_layer and module.layer is not None]
    twice = sorted({number for number in fixed if fixed.count(number) > 1})
    if twice:
        raise ValueError(
            f"two modules have layer={twice[0]} and would draw the same masks; give each its own "
            "number, or none (layer=None, fixed_layer=False) to be numbered in order"
        )
    free = (number for number in range(len(modules) + len(fixed)) if number not in set(fixed))
    return [
        module.layer if module.fixed_layer and module.layer is not None else next(free)
        for module in modules
    ]


def set_step(
    model: nn.Module,
    step: int,
    micro: int = 0,
    *,
    batch_index: Tensor | Sequence[int] | None = None,
) -> None:
    """Makes the masks of a model a function of (seed, step, layer, micro) alone.

    Each attndrop module in the model gets the offset call_offset(step, layer, micro), where layer
    is its place in model.modules() unless it was made with a number. Call it before the forward of
    each step, outside compiled code, with the same model each time:

        for step, batch in enumerate(batches):
            attndrop.set_step(model, step)
            loss(model(batch)).backward()

    A recomputed forward then draws the masks of the first one, so activation checkpointing needs no
    preserve_rng_state, a resumed run goes on as if it had never stopped, and a compiled graph stays
    one graph, since the offset is an int64 tensor. The backward of a forward that is recomputed
    must come before the next set_step. A module that is called twice in a step draws the same mask
    twice.

    A module made without a seed takes torch.initial_seed(), the number given to
    torch.manual_seed; nothing is drawn from the generator. Give the modules a seed if a run is to
    be resumed in a process that does not call torch.manual_seed.

    Args:
        model: a module with attndrop.MultiheadAttention or attndrop.Head somewhere inside, or
            one of them; DistributedDataParallel and compiled modules too.
        step: optimizer step, 0 .. 2^40 - 1.
        micro: micro-batch inside the step, 0 .. 4095.
        batch_index: int64 or int32 (batch): where the entries of the batches that follow stand in
            a batch that several processes share. Without it every process that has the same seed
            draws the same masks for its own entries.

    Raises:
        TypeError: model is no module, or a number is no integer.
        ValueError: a number is out of its range, there is no attndrop module in the model, two have
            the same number, or one draws its masks from PyTorch's generator
            (mask_format="torch-cpu").
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    modules = [module for module in model.modules() if isinstance(module, DropoutModule)]
    if not modules:
        raise ValueError(
            f"{type(model).__name__} holds no attndrop module, so there is nothing to set a step "
            "for; attndrop.replace_attention(model) puts them in"
        )
    for module in modules:
        mask_format = getattr(module, "mask_format", "attndrop")
        if mask_format != "attndrop":
            raise ValueError(
                f'a module has mask_format="{mask_format}" and draws its masks from PyTorch\'s '
                'generator, which knows no steps; make it with mask_format="attndrop"'
            )
    try:
        named = optional_batch_index(batch_index)
    except RuntimeError as error:
        raise_translated(error)
    layers = number_layers(modules)
    offsets = [call_offset(step, layer, micro) for layer in layers]
    for module, layer, offset in zip(modules, layers, offsets, strict=True):
        module.layer = layer
        module._set_call(offset, named)
