# SPDX-License-Identifier: Apache-2.0
"""attndrop.keep_mask and attndrop.schemes: what is kept, and what there is to choose from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, overload

import torch
from torch import Tensor

from ._errors import raise_translated, refuse_type, refuse_value
from ._extension import MISSING
from ._format import SCHEMES
from ._functional import check_optional, optional_batch_index
from ._options import MaskOptions, make_options
from ._rng import IntLike, make_rng

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True)
class SchemeInfo:
    """A scheme: its name, one line about it, and its parameters with their defaults."""

    name: str
    summary: str
    params: dict[str, int] = field(default_factory=dict)


def schemes() -> list[SchemeInfo]:
    """The schemes that dropout can follow, sorted by name."""
    if MISSING:
        return [
            SchemeInfo(name, "", dict(zip(rule.params, rule.defaults, strict=True)))
            for name, rule in SCHEMES.items()
        ]
    infos = []
    for line in torch.ops.attndrop.schemes().split("\n"):
        name, summary, *params = line.split("\t")
        pairs = (param.split("=") for param in params)
        infos.append(SchemeInfo(name, summary, {key: int(value) for key, value in pairs}))
    return infos


def check_sizes(**sizes: int) -> list[int]:
    """Sizes of a problem as the operators take them."""
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool):
            refuse_type(f"{name} must be an integer, got {size!r}")
        if not 0 <= size <= 1 << 32:
            refuse_value(f"{name} must be in 0 .. 2^32, got {size}")
    return list(sizes.values())


def mask_with_four_axes(attn_mask: Tensor | None) -> Tensor | None:
    if attn_mask is None or attn_mask.dim() >= 4:
        return attn_mask
    return attn_mask[(None,) * (4 - attn_mask.dim())]


@overload
def keep_mask(
    batch: int,
    num_heads: int,
    seqlen_q: int,
    seqlen_k: int | None = ...,
    *,
    dropout_p: float | Tensor,
    seed: IntLike,
    is_causal: bool = ...,
    attn_mask: Tensor | None = ...,
    factors: Literal[False] = ...,
    **options: Unpack[MaskOptions],
) -> Tensor: ...


@overload
def keep_mask(
    batch: int,
    num_heads: int,
    seqlen_q: int,
    seqlen_k: int | None = ...,
    *,
    dropout_p: float | Tensor,
    seed: IntLike,
    is_causal: bool = ...,
    attn_mask: Tensor | None = ...,
    factors: Literal[True],
    **options: Unpack[MaskOptions],
) -> tuple[Tensor, Tensor]: ...


def keep_mask(
    batch: int,
    num_heads: int,
    seqlen_q: int,
    seqlen_k: int | None = None,
    *,
    dropout_p: float | Tensor,
    seed: IntLike,
    offset: IntLike = 0,
    is_causal: bool = False,
    attn_mask: Tensor | None = None,
    scheme: str = "element",
    stage: str = "weights",
    empty_row: str = "zero",
    window: Sequence[int] | None = None,
    causal_align: str = "top-left",
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    origin: Sequence[int] | None = None,
    total: Sequence[int] | None = None,
    batch_index: Tensor | Sequence[int] | None = None,
    factors: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """The mask that attention draws for the same arguments, as a tensor on the CPU.

    Args:
        batch, num_heads, seqlen_q, seqlen_k: sizes of the arrays; seqlen_k defaults to seqlen_q.
            With cu_seqlens_q and cu_seqlens_k the batch is 1 and the lengths are those of the
            packed rows.
        factors: also return what multiplies each weight, float64; 0 where nothing is kept.
        Others: as in scaled_dot_product_attention; seed is an integer here.

    Returns:
        keep, bool (batch, num_heads, seqlen_q, seqlen_k): true where a weight is visible and kept.
        With cu_seqlens the first axis counts sequences, and shorter ones are padded with false.

    Raises:
        TypeError, ValueError: as scaled_dot_product_attention.

    Source: docs/mask-format.md.
    """
    try:
        if seed is None:
            refuse_type("seed must be an integer in 0 .. 2^64 - 1, got None")
        sizes = check_sizes(
            batch=batch,
            num_heads=num_heads,
            seqlen_q=seqlen_q,
            seqlen_k=seqlen_q if seqlen_k is None else seqlen_k,
        )
        check_optional(attn_mask, None, cu_seqlens_q, cu_seqlens_k)
        options = make_options(
            None, is_causal, causal_align, window, scheme, stage, empty_row, origin, total
        )
        keep, weights = torch.ops.attndrop.keep_mask(
            make_rng(dropout_p, seed, offset, True),
            mask_with_four_axes(attn_mask),
            None,
            cu_seqlens_q,
            cu_seqlens_k,
            *optional_batch_index(batch_index),
            sizes=sizes,
            with_factors=factors,
            **options,
        )
    except RuntimeError as error:
        raise_translated(error)
    return (keep, weights) if factors else keep
