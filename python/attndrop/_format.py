# SPDX-License-Identifier: Apache-2.0
"""Mask format 1 in PyTorch's integer operations: the generator, the Bernoulli field, the schemes.

Section numbers are those of docs/mask-format.md. 32-bit words are held in int64 tensors; a product
of two wraps modulo 2^64, and its halves are right all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

ONE32 = 1 << 32
_MASK32 = ONE32 - 1
_CAPACITY = 1 << 44
_TIE_DOMAIN = 1 << 30

# An int or an int64 tensor: the generator serves both.
Word = Any
Words = tuple[Word, Word, Word, Word]


def philox(key: tuple[int, int], counter: Words) -> Words:
    """Philox4x32-10 (section 1)."""
    k0, k1 = key
    c0, c1, c2, c3 = counter
    for _ in range(10):
        even = c0 * 0xD2511F53
        odd = c2 * 0xCD9E8D57
        c0 = ((odd >> 32) & _MASK32) ^ c1 ^ k0
        c2 = ((even >> 32) & _MASK32) ^ c3 ^ k1
        c1 = odd & _MASK32
        c3 = even & _MASK32
        k0 = (k0 + 0x9E3779B9) & _MASK32
        k1 = (k1 + 0xBB67AE85) & _MASK32
    return c0, c1, c2, c3


def fnv1a(name: str) -> int:
    """32-bit FNV-1a of an ASCII name: the tag of a scheme (section 1)."""
    tag = 0x811C9DC5
    for byte in name.encode("ascii"):
        tag = ((tag ^ byte) * 0x01000193) & _MASK32
    return tag


def call_key(seed: int, offset: int, tag: int, attempt: int) -> tuple[int, int]:
    """The key of one call (section 1); seed and offset are taken modulo 2^64."""
    seed_key = (seed & _MASK32, (seed >> 32) & _MASK32)
    counter = (offset & _MASK32, (offset >> 32) & _MASK32, tag, attempt)
    words = philox(seed_key, counter)
    return words[0], words[1]


def outcome_probabilities(keep_q32: int) -> list[int]:
    """In units of 2^-48, of an outcome with k of its four bits kept, k = 0..4 (section 3)."""
    if keep_q32 < ONE32 // 2:
        return outcome_probabilities(ONE32 - keep_q32)[::-1]
    q, r = keep_q32, ONE32 - keep_q32
    a0, a1, a2 = r**4 >> 80, q * r**3 >> 80, q**2 * r**2 >> 80
    a3 = (1 << 48) - (q << 16) - a0 - 3 * a1 - 3 * a2
    return [a0, a1, a2, a3, (q << 16) - a1 - 3 * a2 - 3 * a3]


def alias_table(keep_q32: int) -> tuple[list[int], list[int]]:
    """Thresholds in units of 2^-44 and aliases of the sixteen outcomes (section 3)."""
    probability = outcome_probabilities(keep_q32)
    left = [probability[outcome.bit_count()] for outcome in range(16)]
    threshold, alias = [_CAPACITY] * 16, list(range(16))
    small = [o for o in range(16) if left[o] < _CAPACITY]
    large = [o for o in range(16) if left[o] >= _CAPACITY]
    while small and large:
        column, donor = small.pop(0), large[0]
        threshold[column], alias[column] = left[column], donor
        left[donor] -= _CAPACITY - left[column]
        if left[donor] < _CAPACITY:
            small.append(large.pop(0))
    return threshold, alias


Point = tuple[Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class SchemeRule:
    """A scheme of section 4: the point that weight (i, j, h, b) reads."""

    point_of: Callable[[tuple[int, ...], Tensor, Tensor, Tensor, Tensor], Point]
    params: tuple[str, ...] = ()
    defaults: tuple[int, ...] = ()
    row_redraw: bool = False
    requires_square: bool = False
    key_axis: str = "identity"  # how c depends on the key: identity, constant or div


def _zero(tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor)


SCHEMES: dict[str, SchemeRule] = {
    "block": SchemeRule(
        lambda p, i, j, h, b: (i // p[0], j // p[1], h, b),
        params=("block_q", "block_k"),
        defaults=(64, 64),
        key_axis="div",
    ),
    "element": SchemeRule(lambda p, i, j, h, b: (i, j, h, b), row_redraw=True),
    "head": SchemeRule(lambda p, i, j, h, b: (_zero(i), _zero(j), h, b), key_axis="constant"),
    "key": SchemeRule(lambda p, i, j, h, b: (_zero(i), j, h, b)),
    "query": SchemeRule(lambda p, i, j, h, b: (i, _zero(j), h, b), key_axis="constant"),
    "shared": SchemeRule(lambda p, i, j, h, b: (i, j, _zero(h), _zero(b)), row_redraw=True),
    "symmetric": SchemeRule(
        lambda p, i, j, h, b: (torch.maximum(i, j), torch.minimum(i, j), h, b),
        requires_square=True,
    ),
    "word": SchemeRule(lambda p, i, j, h, b: (_zero(i), j, _zero(h), b)),
}


class Field:
    """The Bernoulli field of one call on one device (section 2)."""

    def __init__(
        self, seed: int, offset: int, keep_q32: int, scheme: str, device: torch.device
    ) -> None:
        self._call = (seed, offset, fnv1a(scheme))
        threshold, alias = alias_table(keep_q32)
        self._threshold = torch.tensor(threshold, dtype=torch.int64, device=device)
        self._alias = torch.tensor(alias, dtype=torch.int64, device=device)

    def bits(self, point: Point, attempt: int) -> Tensor:
        """The keep bits of the points, which may broadcast against one another."""
        key = call_key(*self._call, attempt)
        r, c, h, b = torch.broadcast_tensors(*point)
        group, row = (c >> 2) & 1, r & 3
        words = philox(key, (r >> 2, c >> 3, h, b))
        low = torch.where(row < 2, words[0], words[1])
        high = torch.where(row < 2, words[2], words[3])
        half = (torch.where(group == 0, low, high) >> (16 * (row & 1))) & 0xFFFF
        column, draw = half & 15, half >> 4
        threshold = self._threshold[column]
        accept = draw < (threshold >> 32)
        tie = (draw == (threshold >> 32)).nonzero(as_tuple=True)
        accept[tie] = self._tie_word(key, r[tie], c[tie], h[tie], b[tie]) < (
            threshold[tie] & _MASK32
        )
        outcome = torch.where(accept, column, self._alias[column])
        return ((outcome >> (c & 3)) & 1).bool()

    @staticmethod
    def _tie_word(key: tuple[int, int], r: Tensor, c: Tensor, h: Tensor, b: Tensor) -> Tensor:
        group = 1 + ((c >> 2) & 1)
        words = philox(key, ((r >> 2) + group * _TIE_DOMAIN, c >> 3, h, b))
        return _word_of_row(words, r)

    def forced_word(self, r: Tensor, h: Tensor, b: Tensor) -> Tensor:
        """The word that chooses the key of a row whose draws were all empty (section 5)."""
        counter = ((r >> 2) + 3 * _TIE_DOMAIN, torch.zeros_like(r), h, b)
        return _word_of_row(philox(call_key(*self._call, 0), counter), r)


def _word_of_row(words: Words, r: Tensor) -> Tensor:
    stacked = torch.stack(torch.broadcast_tensors(*words))
    return stacked.gather(0, (r & 3).expand(stacked.shape[1:]).unsqueeze(0))[0]
