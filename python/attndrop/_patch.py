# SPDX-License-Identifier: Apache-2.0
"""attndrop.patch_sdpa: an experiment with a model that calls PyTorch's function."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ._functional import scaled_dot_product_attention
from ._rng import IntLike
from ._step import check_dropout


@contextlib.contextmanager
def patch_sdpa(
    *,
    scheme: str = "element",
    stage: str = "weights",
    empty_row: str = "zero",
    seed: IntLike | None = None,
    offset: IntLike = 0,
) -> Iterator[None]:
    """Inside, torch.nn.functional.scaled_dot_product_attention is attndrop's function.

    It reaches code that looks the function up when it calls (F.scaled_dot_product_attention, and
    torch.nn.MultiheadAttention in training). It does not reach names that were imported by value
    before (from torch.nn.functional import scaled_dot_product_attention), the fast path that
    torch.nn.TransformerEncoderLayer takes in evaluation, or graphs that are compiled already.
    It is not for several threads at once.

    Args:
        scheme, stage, empty_row: as in scaled_dot_product_attention.
        seed: None draws one for each call. With a seed, call number n uses offset + n, so that
            layers differ; calls repeated by activation checkpointing then count again.

    Raises:
        TypeError, ValueError: a wrong argument, before anything is replaced; and inside, what
            scaled_dot_product_attention refuses and torch's does not: inputs with other than 3 or 4
            axes, batches that broadcast, key heads shared without enable_gqa.
    """
    check_dropout(0.0, scheme, stage, empty_row, seed, offset=offset)
    original = torch.nn.functional.scaled_dot_product_attention
    calls = 0

    def patched(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        nonlocal calls
        number, calls = calls, calls + 1
        return scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask,
            dropout_p,
            is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
            scheme=scheme,
            stage=stage,
            empty_row=empty_row,
            seed=seed,
            offset=0 if seed is None else offset + number,
        )

    torch.nn.functional.scaled_dot_product_attention = patched
    try:
        yield
    finally:
        torch.nn.functional.scaled_dot_product_attention = original
