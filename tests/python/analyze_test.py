# SPDX-License-Identifier: Apache-2.0
"""attndrop.analyze(draws=...): the estimates are those of the masks that attention draws."""

from __future__ import annotations

import math

import attndrop
import pytest
import torch
from support import POLICIES, SCHEMES, inputs, is_legal, largest_difference, mask_of

DRAWS, SEED = 200, 11


@pytest.mark.parametrize("stage", ["weights", "logits"])
@pytest.mark.parametrize("empty_row", ["zero", "redraw"])
def test_estimates_come_from_the_masks_of_offsets_0_to_draws(stage: str, empty_row: str) -> None:
    query, key, value = inputs(2, 2, 5, 4, grad=False)
    options = {"dropout_p": 0.5, "is_causal": True, "stage": stage, "empty_row": empty_row}
    check = attndrop.analyze(
        query=query, key=key, value=value, batch=1, head=1, draws=DRAWS, draw_seed=SEED, **options
    ).check
    assert check is not None
    keeps, outs = [], []
    for offset in range(DRAWS):
        drawn = {**options, "seed": SEED, "offset": offset}
        keeps.append(mask_of(query, key, **drawn)[0][1, 1])
        outs.append(attndrop.scaled_dot_product_attention(query, key, value, **drawn)[1, 1])
    keep, out = torch.stack(keeps), torch.stack(outs)
    zero = (~keep.any(-1)).double()
    for row, checks in enumerate(check.rows):
        assert checks.row == row
        assert checks.p_zero.estimate == zero[:, row].mean()
        assert math.isclose(
            checks.inclusion.estimate, keep[:, row, : row + 1].double().mean().item()
        )
    assert math.isclose(check.expected_zero_rows.estimate, zero.sum(-1).mean().item())
    assert check.out_mean is not None
    assert check.out_var is not None
    assert largest_difference(check.out_mean.estimate, out.mean(0)) < 1e-12
    assert largest_difference(check.out_var.estimate, out.var(0)) < 1e-12
    assert check.draws == DRAWS


def test_exact_figures_are_those_of_the_analysis() -> None:
    query, key, value = inputs(1, 1, 4, 3, grad=False)
    result = attndrop.analyze(
        query=query, key=key, value=value, dropout_p=0.3, is_causal=True, draws=50
    )
    check = result.check
    assert check is not None
    assert check.out_mean is not None
    assert check.out_var is not None
    assert torch.equal(check.out_mean.exact, result.out_mean)
    assert torch.equal(check.out_var.exact, result.out_var)
    assert check.expected_zero_rows.exact == pytest.approx(result.expected_zero_rows, rel=1e-15)
    for exact, checks in zip(result.rows, check.rows, strict=True):
        for name in ("p_zero", "inclusion", "mean_row_sum", "var_row_sum"):
            assert getattr(checks, name).exact == getattr(exact, name), name
    scores = [getattr(row, name).z for row in check.rows for name in ("p_zero", "mean_row_sum")]
    scores += check.out_mean.z.flatten().tolist() + check.out_var.z.flatten().tolist()
    assert max(abs(z) for z in scores if not math.isnan(z)) <= check.max_abs_z


@pytest.mark.parametrize(
    ("scheme", "empty_row"), [(s, e) for s in SCHEMES for e in POLICIES if is_legal(s, e)]
)
def test_the_formulas_stand_up_to_the_draws(scheme: str, empty_row: str) -> None:
    check = attndrop.analyze(
        8,
        dropout_p=0.4,
        is_causal=True,
        scheme=scheme,
        empty_row=empty_row,
        draws=2000,
        draw_seed=2**64 - 1,
    ).check
    assert check is not None
    # 33 scores at most: beyond 4.5 lies a chance of 2e-4, and the draws are fixed.
    assert 0 < check.max_abs_z < 4.5
    assert 0 < check.num_checks <= 33
    assert check.out_mean is None
    assert check.out_var is None


def test_another_seed_draws_other_masks() -> None:
    def estimates(draw_seed: int) -> list[float]:
        check = attndrop.analyze(6, dropout_p=0.5, draws=100, draw_seed=draw_seed).check
        assert check is not None
        return [row.inclusion.estimate for row in check.rows]

    assert estimates(1) == estimates(1)
    assert estimates(1) != estimates(2)


def test_a_variance_without_a_formula_has_no_score() -> None:
    query, key, value = inputs(1, 1, 20, 2, grad=False)
    result = attndrop.analyze(
        query=query, key=key, value=value, dropout_p=0.5, stage="logits", draws=20
    )
    assert result.out_var_note
    assert result.check is not None
    assert result.check.out_var is not None
    assert result.check.out_var.z.isnan().all()
    assert not result.check.out_var.estimate.isnan().any()


def test_without_draws_nothing_is_drawn() -> None:
    assert attndrop.analyze(4, dropout_p=0.5).check is None


def test_refusals() -> None:
    with pytest.raises(ValueError, match=r"draws must be in \[2, "):
        attndrop.analyze(4, dropout_p=0.5, draws=1)
    with pytest.raises(TypeError, match="draws must be an integer or None, got 10.0"):
        attndrop.analyze(4, dropout_p=0.5, draws=10.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="seed must be in 0"):
        attndrop.analyze(4, dropout_p=0.5, draws=10, draw_seed=-1)
