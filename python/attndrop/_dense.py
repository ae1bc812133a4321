# SPDX-License-Identifier: Apache-2.0
"""The keep mask of mask format 1 as dense tensors: visibility, policies, factors (section 5)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ._errors import refuse_value
from ._format import ONE32, Field, Point
from ._problem import Config, Shape


@dataclass(frozen=True)
class DenseMask:
    """Tensors (batch, heads, seqlen_q, seqlen_k)."""

    visible: Tensor  # bool
    keep: Tensor  # bool: visible and kept
    factors: Tensor  # float64: what multiplies the weight


class _Geometry:
    """Global indices of one sequence, as broadcastable int64 tensors."""

    def __init__(self, config: Config, shape: Shape, device: torch.device) -> None:
        batch, head, query, key = config.origin
        total_q, total_k = config.total or (query + shape.seqlen_q, key + shape.seqlen_k)
        _check_axes(config, shape, (total_q, total_k))
        self.first_key = key
        self.total_k = total_k
        self.shift = total_k - total_q if config.bottom_right else 0
        if config.batch_index is None:
            batches = _range(batch, shape.batch, device)
        else:
            batches = torch.tensor(config.batch_index, dtype=torch.int64, device=device)
        self.b = batches.view(-1, 1, 1, 1)
        self.h = _range(head, shape.num_heads, device).view(1, -1, 1, 1)
        self.i = _range(query, shape.seqlen_q, device).view(1, 1, -1, 1)
        self.j = _range(key, shape.seqlen_k, device).view(1, 1, 1, -1)
        self.whole_j = _range(0, total_k, device).view(1, 1, 1, -1)

    def visible(self, config: Config, j: Tensor) -> Tensor:
        position = self.i + self.shift
        left, right = config.window
        visible = torch.ones_like(position + j, dtype=torch.bool)
        if config.is_causal:
            visible = visible & (j <= position)
        if left >= 0:
            visible = visible & (j >= position - left)
        if right >= 0:
            visible = visible & (j <= position + right)
        return visible


def _range(start: int, length: int, device: torch.device) -> Tensor:
    return torch.arange(start, start + length, dtype=torch.int64, device=device)


def _check_axes(config: Config, shape: Shape, total: tuple[int, int]) -> None:
    batch, head, query, key = config.origin
    axes = (
        ("batch", batch, shape.batch, ONE32),
        ("head", head, shape.num_heads, ONE32),
        ("query", query, shape.seqlen_q, total[0]),
        ("key", key, shape.seqlen_k, total[1]),
    )
    for name, origin, length, whole in axes:
        if origin + length > ONE32:
            refuse_value(
                f"origin {name} + length must be at most 2^32, got {origin} + {length} = "
                f"{origin + length}; coordinates of the mask are 32-bit"
            )
        if not origin + length <= whole <= ONE32:
            refuse_value(
                f"total {name} must be in {origin + length} (origin + length here) .. 2^32, got "
                f"{whole}; it is the length of the whole sequence that this problem is a part of"
            )
    if config.rule.requires_square and total[0] != total[1]:
        refuse_value(
            f'scheme "{config.scheme}" needs seqlen_q == seqlen_k, got {total[0]} and '
            f'{total[1]}; use "element" for cross attention'
        )


def visible_by_mask(attn_mask: Tensor) -> Tensor:
    """Which weights an attn_mask lets take part."""
    if attn_mask.dtype == torch.bool:
        return attn_mask
    return attn_mask != -torch.inf


def dense_mask(
    config: Config, shape: Shape, attn_mask: Tensor | None, device: torch.device
) -> DenseMask:
    """The mask of one sequence, or of a batch of equal ones."""
    geometry = _Geometry(config, shape, device)
    partial = shape.seqlen_k != geometry.total_k
    whole = config.reads_whole_row and partial
    if whole and attn_mask is not None:
        refuse_value(
            f"empty_row {config.policy} looks at all keys of a row, and an attn_mask of a part of "
            f"the keys ({shape.seqlen_k} of {geometry.total_k}) does not tell which of the others "
            "are visible; use empty_row zero, keep_self or keep_first, or pass all keys"
        )
    j = geometry.whole_j if whole else geometry.j
    visible = geometry.visible(config, j)
    if attn_mask is not None:
        visible = visible & visible_by_mask(attn_mask)
    visible = visible.expand(shape.batch, shape.num_heads, shape.seqlen_q, j.shape[-1])
    mask = _Policy(config, geometry, j, visible, device).mask()
    if not whole:
        return mask
    keys = slice(geometry.first_key, geometry.first_key + shape.seqlen_k)
    return DenseMask(mask.visible[..., keys], mask.keep[..., keys], mask.factors[..., keys])


class _Policy:
    def __init__(
        self,
        config: Config,
        geometry: _Geometry,
        j: Tensor,
        visible: Tensor,
        device: torch.device,
    ) -> None:
        self.config = config
        self.geometry = geometry
        self.j = j
        self.visible = visible
        self.device = device
        self.count = visible.sum(-1, keepdim=True)

    def mask(self) -> DenseMask:
        config = self.config
        if config.drops_nothing or config.keep_q32 == 0:
            keep = self.visible if config.drops_nothing else torch.zeros_like(self.visible)
            return DenseMask(self.visible, keep, keep.double())
        self.field = Field(config.seed, config.offset, config.keep_q32, config.scheme, self.device)
        point = self._point(self.geometry.b, self.geometry.h, self.geometry.i, self.j)
        keep = self.field.bits(point, 0).expand(self.visible.shape) & self.visible
        keep, factor = getattr(self, f"_{config.policy}")(keep)
        if config.stage == "logits":
            factor = torch.ones((), dtype=torch.float64, device=self.device)
        return DenseMask(self.visible, keep, torch.where(keep, factor, 0.0))

    def _point(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Point:
        return self.config.rule.point_of(self.config.params, i, j, h, b)

    def _inverse_rate(self) -> Tensor:
        return torch.tensor(1.0 / self.config.keep_prob, dtype=torch.float64, device=self.device)

    def _zero(self, keep: Tensor) -> tuple[Tensor, Tensor]:
        return keep, self._inverse_rate()

    def _keep_key(self, keep: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        forced = (self.j == key) & self.visible
        return keep | forced, torch.where(forced, 1.0, self._inverse_rate())

    def _keep_self(self, keep: Tensor) -> tuple[Tensor, Tensor]:
        return self._keep_key(keep, self.geometry.i + self.geometry.shift)

    def _keep_first(self, keep: Tensor) -> tuple[Tensor, Tensor]:
        return self._keep_key(keep, torch.zeros_like(self.geometry.i))

    def _undropped(self, keep: Tensor) -> tuple[Tensor, Tensor]:
        empty_chance = (1.0 - self.config.keep_prob) ** self._distinct_points().double()
        empty = ~keep.any(-1, keepdim=True)
        factor = torch.where(empty, empty_chance.new_ones(()), self._inverse_rate())
        factor = factor / (1.0 + empty_chance)
        return torch.where(empty, self.visible, keep), factor

    def _distinct_points(self) -> Tensor:
        """m of section 4, per row."""
        axis = self.config.rule.key_axis
        if axis == "constant":
            return self.count.clamp(max=1)
        if axis == "identity":
            return self.count
        block = (self.j // self.config.params[1]).flatten()
        if block.numel() == 0:
            return self.count
        block = block - block[0]
        seen = self.visible.new_zeros(
            (*self.visible.shape[:-1], int(block[-1]) + 1), dtype=torch.int64
        )
        seen = seen.index_add(-1, block, self.visible.long())
        return (seen > 0).sum(-1, keepdim=True)

    def _at_least_one(self, keep: Tensor) -> tuple[Tensor, Tensor]:
        keep = keep.clone()
        for attempt in range(1, self.config.attempts):
            rows = self._empty_rows(keep)
            if rows[0].numel() == 0:
                break
            point = self._point_of_rows(rows)
            keep[rows] = self.field.bits(point, attempt) & self.visible[rows]
        rows = self._empty_rows(keep)
        if rows[0].numel() > 0:
            keep[rows] = self._forced(rows)
        return keep, 1.0 / self._inclusion()

    def _empty_rows(self, keep: Tensor) -> tuple[Tensor, ...]:
        empty = ~keep.any(-1) & (self.count[..., 0] > 0)
        return empty.nonzero(as_tuple=True)

    def _point_of_rows(self, rows: tuple[Tensor, ...]) -> Point:
        """Points of all keys of single rows, as (rows, keys)."""
        geometry = self.geometry
        b, h, i = (
            axis.flatten()[index].view(-1, 1)
            for index, axis in zip(rows, (geometry.b, geometry.h, geometry.i), strict=True)
        )
        return self._point(b, h, i, self.j.view(1, -1))

    def _forced(self, rows: tuple[Tensor, ...]) -> Tensor:
        """One visible key of each row: number floor(word * n / 2^32)."""
        r, _, h, b = self._point_of_rows(rows)
        word = self.field.forced_word(r, h.expand_as(r), b.expand_as(r))
        index = (word * self.count[rows]) >> 32
        visible = self.visible[rows]
        return visible & (visible.cumsum(-1) == index + 1)

    def _inclusion(self) -> Tensor:
        """pi of section 5, per row."""
        q = self.config.keep_prob
        n = self.count.double()
        draws = n * self.config.attempts

        def chance_of_any(count: Tensor) -> Tensor:
            return -torch.expm1(count * math.log1p(-q))

        pi = q * chance_of_any(draws) / chance_of_any(n) + (1.0 - q) ** draws / n
        return torch.where(n * q > 45.0, q, torch.where(n > 0, pi, 1.0))
