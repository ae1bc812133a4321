# SPDX-License-Identifier: Apache-2.0
"""attndrop.analyze: exact statistics of dropout, and their check by simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ._errors import raise_translated, refuse_type
from ._extension import MISSING
from ._functional import check_optional
from ._masks import check_sizes, mask_with_four_axes
from ._options import make_options
from ._rng import IntLike, make_rng


@dataclass(frozen=True)
class RowStatistics:
    """One query. The row sum is the sum of its weights after dropout.

    Attributes:
        row: query.
        visible: keys that it sees, n.
        distinct_points: different draws among them, m.
        p_zero: chance that no visible key is kept; 1 without visible keys.
        inclusion: chance that a key is kept, averaged over the visible keys.
        mean_row_sum, var_row_sum: mean and variance of the row sum.
        effective_keys: 1 / sum of squared weights.
    """

    row: int
    visible: int
    distinct_points: int
    p_zero: float
    inclusion: float
    mean_row_sum: float
    var_row_sum: float
    effective_keys: float


@dataclass(frozen=True)
class Check:
    """An exact figure beside what the drawn masks gave for it, both in the unit of the figure.

    Attributes:
        exact: by the formula.
        estimate: over the draws.
        z: (estimate - exact) / standard error, in standard errors; NaN where there is no score.
    """

    exact: float
    estimate: float
    z: float


@dataclass(frozen=True)
class RowChecks:
    """The figures of RowStatistics that a simulation can check.

    Attributes:
        row: query.
        p_zero, inclusion: chances, in [0, 1].
        mean_row_sum, var_row_sum: of the row sum, which has no unit.
    """

    row: int
    p_zero: Check
    inclusion: Check
    mean_row_sum: Check
    var_row_sum: Check


@dataclass(frozen=True)
class OutputChecks:
    """Check for every output: float64 (seqlen_q, head_dim_v) each.

    Attributes:
        exact, estimate: in the unit of value (mean), or in its square (variance).
        z: in standard errors; NaN where there is no score.
    """

    exact: Tensor
    estimate: Tensor
    z: Tensor


@dataclass(frozen=True)
class SimulationCheck:
    """The exact figures against masks that were really drawn.

    With correct formulas the scores are close to standard normal, so max_abs_z grows slowly with
    num_checks: about 3 of a thousand figures lie beyond 3.

    Attributes:
        draws: masks drawn.
        rows: one entry for each query.
        expected_zero_rows: rows of the head.
        out_mean, out_var: None without value.
        max_abs_z: largest |z|, in standard errors.
        num_checks: figures with a score.
    """

    draws: int
    rows: list[RowChecks]
    expected_zero_rows: Check
    out_mean: OutputChecks | None
    out_var: OutputChecks | None
    max_abs_z: float
    num_checks: int


@dataclass(frozen=True)
class HeadAnalysis:
    """One head.

    Attributes:
        rows: one entry for each query.
        expected_zero_rows: sum of p_zero.
        out_mean, out_var: float64 (seqlen_q, head_dim_v), or None without value.
        out_var_note: why some variances are NaN; empty when none is.
        check: the simulation, or None without draws.
    """

    rows: list[RowStatistics]
    expected_zero_rows: float
    out_mean: Tensor | None
    out_var: Tensor | None
    out_var_note: str
    check: SimulationCheck | None = None

    def expected_zero_rows_of_model(self, num_heads: int, layers: int) -> float:
        """Expected zero rows of a model whose layers each have num_heads heads like this one."""
        return self.expected_zero_rows * num_heads * layers


def analyze(
    seqlen_q: int | None = None,
    seqlen_k: int | None = None,
    *,
    dropout_p: float,
    is_causal: bool = False,
    scheme: str = "element",
    stage: str = "weights",
    empty_row: str = "zero",
    query: Tensor | None = None,
    key: Tensor | None = None,
    value: Tensor | None = None,
    attn_mask: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    scale: float | None = None,
    window: Sequence[int] | None = None,
    causal_align: str = "top-left",
    batch: int = 0,
    head: int = 0,
    draws: int | None = None,
    draw_seed: IntLike = 0,
) -> HeadAnalysis:
    """Exact chance of a zero row, mean and variance of what dropout does to a head.

    The figures come from formulas; draws=N also checks each of them by simulation.

    Args:
        seqlen_q, seqlen_k: lengths; seqlen_k defaults to seqlen_q; not needed with query and key.
        query, key: (batch, heads, seqlen, head_dim) on the CPU; without them the weights of a row
            are equal.
        value: (batch, heads, seqlen_k, head_dim_v); with it also the mean and variance of every
            output.
        batch, head: which head of the tensors.
        draws: also draw so many masks, 2 .. 10^9, and compare; the time is that of drawing them.
        draw_seed: seed of these masks, 0 .. 2^64 - 1; their offsets are 0 .. draws - 1.
        Others: as in scaled_dot_product_attention.

    Raises:
        TypeError, ValueError: as scaled_dot_product_attention.
        NotImplementedError: the compiled kernels are not installed.

    Source: docs/math/README.md lists the formula of each figure, docs/math/simulation.md those of
    the scores.
    """
    if MISSING:
        raise NotImplementedError(f"attndrop.analyze needs the compiled kernels: {MISSING}")
    try:
        sizes = _sizes(seqlen_q, seqlen_k, query, key, value, attn_mask, alibi_slopes)
        check_optional(attn_mask, alibi_slopes, None, None)
        for tensor in (query, key, value):
            check_optional(tensor, None, None, None)
        options = make_options(
            scale, is_causal, causal_align, window, scheme, stage, empty_row, None, None
        )
        arguments = (
            _detached(query),
            _detached(key),
            _detached(value),
            make_rng(dropout_p, draw_seed, 0, True),
            mask_with_four_axes(_detached(attn_mask)),
            alibi_slopes,
            None,
            None,
        )
        chosen = {"sizes": sizes, "batch": batch, "head": head, **options}
        rows, out_mean, out_var, note = torch.ops.attndrop.analyze(*arguments, **chosen)
        shape = None if value is None else tuple(out_mean.shape)
        check = None if draws is None else _simulate(draws, shape, arguments, chosen)
    except RuntimeError as error:
        raise_translated(error)
    statistics = [RowStatistics(*map(int, row[:3]), *row[3:]) for row in rows.tolist()]
    return HeadAnalysis(
        statistics,
        sum(row.p_zero for row in statistics),
        None if value is None else out_mean,
        None if value is None else out_var,
        note,
        check,
    )


def _simulate(
    draws: int, shape: tuple[int, ...] | None, arguments: tuple[Any, ...], options: dict[str, Any]
) -> SimulationCheck:
    """shape: that of the outputs, None without value."""
    if not isinstance(draws, int) or isinstance(draws, bool):
        refuse_type(f"draws must be an integer or None, got {draws!r}")
    rows, zero_rows, out_mean, out_var, summary = torch.ops.attndrop.simulate(
        *arguments, draws=draws, **options
    )
    max_abs_z, num_checks = summary[0].tolist()
    return SimulationCheck(
        draws,
        [
            RowChecks(row, *(Check(*figures) for figures in checks))
            for row, checks in enumerate(rows.view(-1, 4, 3).tolist())
        ],
        Check(*zero_rows[0].tolist()),
        None if shape is None else OutputChecks(*out_mean.T.reshape(3, *shape)),
        None if shape is None else OutputChecks(*out_var.T.reshape(3, *shape)),
        max_abs_z,
        int(num_checks),
    )


def _detached(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach()


def _sizes(
    seqlen_q: int | None,
    seqlen_k: int | None,
    query: Tensor | None,
    key: Tensor | None,
    value: Tensor | None,
    attn_mask: Tensor | None,
    alibi_slopes: Tensor | None,
) -> list[int]:
    """Sizes of the arrays; those of one head where no tensor says more."""
    if query is not None and key is not None:
        seqlen_q, seqlen_k = query.size(-2), key.size(-2)
    elif seqlen_q is None:
        raise TypeError("analyze needs seqlen_q, or query and key")
    kv_heads = 1 if value is None else value.size(1)
    batches = 1 if value is None else value.size(0)
    heads = kv_heads
    if attn_mask is not None and attn_mask.dim() == 4:
        batches = max(batches, attn_mask.size(0))
        heads = max(heads, attn_mask.size(1))
    if alibi_slopes is not None:
        heads = max(heads, alibi_slopes.size(-1))
    return check_sizes(
        batch=batches,
        num_heads=heads,
        num_kv_heads=kv_heads,
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_q if seqlen_k is None else seqlen_k,
        head_dim=0,
        head_dim_v=0 if value is None else value.size(-1),
    )
