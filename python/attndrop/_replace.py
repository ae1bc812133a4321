# SPDX-License-Identifier: Apache-2.0
"""attndrop.replace_attention: attndrop's dropout in a model made of torch's modules."""

from __future__ import annotations

import warnings
from typing import TypeVar, cast

from torch import nn

from ._multihead import MultiheadAttention, check_weights
from ._rng import IntLike
from ._step import DropoutModule, check_dropout, number_layers

_Model = TypeVar("_Model", bound=nn.Module)


def replace_attention(
    model: _Model,
    *,
    scheme: str = "element",
    stage: str = "weights",
    empty_row: str = "zero",
    seed: IntLike | None = None,
    weights: str = "after",
) -> _Model:
    """Turns each torch.nn.MultiheadAttention of a model into attndrop.MultiheadAttention.

    The modules stay the same objects and change their class, so that parameters and optimizers,
    hooks, the training flag, device and dtype, and modules that occur in several places all stay as
    they are. copy.deepcopy(model) first keeps an original. The rates of dropout stay those of the
    modules.

        model = attndrop.replace_attention(torch.nn.TransformerEncoder(layer, 6), scheme="key")

    Modules of exactly torch's class are turned. Those that are attndrop.MultiheadAttention already
    get the new choice. Other subclasses are left alone, with a warning that names them, since their
    code may not do what torch's does. Call it before torch.distributed.fsdp.fully_shard, which
    makes subclasses.

    Args:
        model: any module; it may itself be a torch.nn.MultiheadAttention.
        scheme, stage, empty_row: what is dropped; as in scaled_dot_product_attention.
        seed: of all modules; with attndrop.set_step their masks differ all the same.
        weights: what need_weights=True returns, "after" or "before" dropout.

    Returns:
        The model. Each of its attndrop modules has a number, `layer`.

    Raises:
        TypeError: model is no module.
        ValueError: an unknown name, or a module whose dropout is outside [0, 1], which torch does
            not check. Nothing is changed then.

    Warns:
        UserWarning: there is no torch.nn.MultiheadAttention in the model, or a subclass is left.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    check_weights(weights)
    check_dropout(0.0, scheme, stage, empty_row, seed)
    found, left = _find(model)
    for module in found:
        check_dropout(module.dropout, scheme, stage, empty_row, seed)
    _say_what_is_left(model, found, left)
    for module in found:
        turned = _turn(module)
        turned.scheme, turned.stage, turned.empty_row = scheme, stage, empty_row
        turned.seed, turned.weights = seed, weights
    numbered = [module for module in model.modules() if isinstance(module, DropoutModule)]
    for numbered_module, layer in zip(numbered, number_layers(numbered), strict=True):
        numbered_module.layer = layer
    return model


def _find(model: nn.Module) -> tuple[list[nn.MultiheadAttention], list[str]]:
    """The modules to turn, and the names and classes of subclasses that are left."""
    found, left = [], []
    for name, module in model.named_modules():
        if type(module) in (nn.MultiheadAttention, MultiheadAttention):
            found.append(module)
        elif isinstance(module, nn.MultiheadAttention):
            left.append(f"{name or 'the model'} ({type(module).__name__})")
    return found, left


def _say_what_is_left(
    model: nn.Module, found: list[nn.MultiheadAttention], left: list[str]
) -> None:
    if left:
        warnings.warn(
            f"replace_attention left subclasses of torch.nn.MultiheadAttention: {', '.join(left)}; "
            "their own dropout stays",
            UserWarning,
            stacklevel=3,
        )
    elif not found:
        warnings.warn(
            f"replace_attention found no torch.nn.MultiheadAttention in {type(model).__name__}, so "
            "nothing was changed; attention that calls torch.nn.functional's "
            "scaled_dot_product_attention is reached by attndrop.patch_sdpa",
            UserWarning,
            stacklevel=3,
        )


def _turn(module: nn.MultiheadAttention) -> MultiheadAttention:
    if isinstance(module, MultiheadAttention):
        return module
    module.__class__ = MultiheadAttention
    turned = cast(MultiheadAttention, module)
    turned._init_dropout("element", "weights", "zero", None, None)
    turned._leave_fast_path()
    return turned
