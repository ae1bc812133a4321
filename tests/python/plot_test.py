# SPDX-License-Identifier: Apache-2.0
"""attndrop.plot: the numbers that are drawn, what they are called, and life without matplotlib."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import attndrop
import pytest
import torch
from support import mask_of
from torch import Tensor

numpy = pytest.importorskip("numpy")
matplotlib = pytest.importorskip("matplotlib", reason="attndrop.plot needs matplotlib")
matplotlib.use("Agg")

from attndrop import plot  # noqa: E402
from matplotlib import colors, pyplot  # noqa: E402


@pytest.fixture(autouse=True)
def _close_figures() -> Iterator[None]:
    yield
    pyplot.close("all")


def image_of(ax: Any) -> Any:
    (image,) = ax.get_images()
    return image.get_array()


def render(ax: Any) -> None:
    ax.figure.canvas.draw()


# ---- keep_mask -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scheme": "word", "empty_row": "undropped"},
        {"stage": "logits", "window": (3, 0)},
        {"empty_row": "redraw", "causal_align": "bottom-right"},
    ],
)
@pytest.mark.parametrize(("batch", "head"), [(0, 0), (1, 2)])
def test_the_picture_is_the_mask_of_its_head(
    options: dict[str, Any], batch: int, head: int
) -> None:
    common = {"is_causal": True, "seed": 5, "offset": 9, **options}
    kept = attndrop.keep_mask(2, 3, 6, 8, dropout_p=0.4, **common)[batch, head]
    visible = attndrop.keep_mask(2, 3, 6, 8, dropout_p=0.0, **common)[batch, head]
    assert visible.any()
    assert not visible.all()
    ax = plot.keep_mask(6, 8, dropout_p=0.4, batch=batch, head=head, **common)
    expected = torch.where(visible, torch.where(kept, plot.KEPT, plot.DROPPED), plot.HIDDEN)
    assert (image_of(ax) == expected.numpy()).all()
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("key", "query")
    assert f"{kept.sum()} of {visible.sum()} weights kept" in ax.get_title()
    render(ax)


def test_cells_stand_where_their_numbers_say() -> None:
    ax = plot.keep_mask(4, 7, dropout_p=0.5, seed=1)
    (image,) = ax.get_images()
    assert image.get_extent() == [-0.5, 6.5, 3.5, -0.5]  # query 0 on top, key 0 on the left
    assert ax.get_xlim() == (-0.5, 6.5)
    assert ax.get_ylim() == (3.5, -0.5)


def test_a_part_of_a_mask_is_that_of_its_head() -> None:
    mask = torch.rand(2, 3, 5, 5) < 0.5
    kept = attndrop.keep_mask(2, 3, 5, dropout_p=0.5, seed=1, attn_mask=mask)[1, 2]
    ax = plot.keep_mask(5, dropout_p=0.5, seed=1, batch=1, head=2, attn_mask=mask)
    assert ((image_of(ax) != plot.HIDDEN) == mask[1, 2].numpy()).all()
    assert ((image_of(ax) == plot.KEPT) == kept.numpy()).all()


def test_zero_rows_are_marked() -> None:
    kept = attndrop.keep_mask(1, 1, 12, dropout_p=0.7, seed=2, is_causal=True)[0, 0]
    rows = (~kept.any(-1)).nonzero()[:, 0].tolist()
    assert 0 < len(rows) < 12
    ax = plot.keep_mask(12, dropout_p=0.7, seed=2, is_causal=True)
    (marks,) = ax.get_lines()
    assert list(marks.get_ydata()) == rows
    assert f"zero row ({len(rows)})" in [text.get_text() for text in ax.get_legend().get_texts()]
    assert not plot.keep_mask(4, dropout_p=0.0, seed=2, is_causal=True).get_lines()


def grey(color: Any) -> float:
    red, green, blue = colors.to_rgb(color)
    return 0.299 * red + 0.587 * green + 0.114 * blue


def test_cells_differ_in_grey_and_the_legend_has_their_colours() -> None:
    ax = plot.keep_mask(4, dropout_p=0.5, seed=1, is_causal=True)
    (image,) = ax.get_images()
    shades = sorted(grey(image.cmap(image.norm(v))) for v in (plot.HIDDEN, plot.DROPPED, plot.KEPT))
    assert min(b - a for a, b in itertools.pairwise(shades)) > 0.25
    legend = ax.get_legend()
    labels = [text.get_text() for text in legend.get_texts()]
    for value, label in ((plot.HIDDEN, "not visible"), (plot.DROPPED, "dropped"), (2, "kept")):
        patch = legend.legend_handles[labels.index(label)]
        assert patch.get_facecolor() == image.cmap(image.norm(value))


# ---- zero_row_chance -----------------------------------------------------------------------------


def lines_of(ax: Any) -> dict[str, list[float]]:
    assert all(list(line.get_xdata()) == list(range(6)) for line in ax.get_lines())
    return {line.get_label(): list(line.get_ydata()) for line in ax.get_lines()}


def exact(**options: Any) -> list[float]:
    return [row.p_zero for row in attndrop.analyze(6, is_causal=True, **options).rows]


def test_policies_have_the_exact_chances() -> None:
    ax = plot.zero_row_chance(6, dropout_p=0.3)
    assert lines_of(ax) == {
        "zero": exact(dropout_p=0.3),
        "keep_one, redraw, keep_self, keep_first, undropped (never)": [0.0] * 6,
    }
    assert lines_of(ax)["zero"] == pytest.approx([0.3**n for n in range(1, 7)], rel=1e-8)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("query", "chance of a zero row")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == list(lines_of(ax))
    render(ax)


def test_schemes_with_equal_chances_share_a_line() -> None:
    block = "block:block_q=2,block_k=2"
    ax = plot.zero_row_chance(6, dropout_p=0.5, scheme=["element", block, "key"], empty_row="zero")
    assert lines_of(ax) == {
        "element, key": exact(dropout_p=0.5),
        block: exact(dropout_p=0.5, scheme=block),
    }
    assert exact(dropout_p=0.5) != exact(dropout_p=0.5, scheme=block)


def test_names_tell_scheme_and_policy_where_both_vary() -> None:
    ax = plot.zero_row_chance(
        6, dropout_p=0.5, scheme=["element", "query"], empty_row=["zero", "undropped"]
    )
    assert lines_of(ax) == {
        "element zero": exact(dropout_p=0.5),
        "element undropped, query undropped (never)": [0.0] * 6,
        "query zero": exact(dropout_p=0.5, scheme="query"),
    }


def test_geometry_reaches_the_analysis() -> None:
    mask = torch.rand(1, 2, 6, 6) < 0.6
    options: dict[str, Any] = {"dropout_p": 0.5, "window": (1, 0)}
    windowed = plot.zero_row_chance(6, empty_row="zero", **options)
    assert lines_of(windowed)["element zero"] == exact(**options)
    masked = plot.zero_row_chance(6, dropout_p=0.5, empty_row="zero", attn_mask=mask, head=1)
    assert lines_of(masked)["element zero"] == exact(dropout_p=0.5, attn_mask=mask, head=1)
    assert exact(dropout_p=0.5, attn_mask=mask, head=1) != exact(dropout_p=0.5)
    free = plot.zero_row_chance(6, dropout_p=0.5, empty_row="zero", is_causal=False)
    assert lines_of(free)["element zero"] == [0.5**6] * 6


# ---- weights -------------------------------------------------------------------------------------


def softmax_and_factors(
    query: Tensor, key: Tensor, **options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Weights before and after dropout at stage weights, and what is visible."""
    _, factors = mask_of(query, key, **options)
    visible, _ = mask_of(query, key, **{**options, "dropout_p": 0.0})
    key = key.repeat_interleave(query.size(1) // key.size(1), 1)
    logits = query.double() @ key.double().transpose(-2, -1) * query.size(-1) ** -0.5
    before = logits.masked_fill(~visible, -torch.inf).softmax(-1).nan_to_num()
    return before, before * factors, visible


@pytest.mark.parametrize("empty_row", ["zero", "keep_self"])
@pytest.mark.parametrize(("batch", "head"), [(0, 0), (1, 3)])
def test_weights_are_softmax_and_softmax_times_factors(
    empty_row: str, batch: int, head: int
) -> None:
    query, key = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 7, 8)
    options = {"dropout_p": 0.5, "seed": 3, "is_causal": True, "empty_row": empty_row}
    before, after, visible = softmax_and_factors(query, key, **options)
    axes = plot.weights(query, key, batch=batch, head=head, **options)
    for ax, expected in zip(axes, (before, after), strict=True):
        drawn = image_of(ax)
        assert (drawn.mask == ~visible[batch, head].numpy()).all()
        assert drawn.filled(0.0) == pytest.approx(expected[batch, head].numpy(), abs=1e-14)
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("key", "query")
        sums = [f"{total:.2f}" for total in expected[batch, head].sum(-1).tolist()]
        assert [text.get_text() for text in ax.texts] == ["sum", *sums]
        render(ax)
    assert not torch.equal(before, after)


def test_weights_before_the_softmax_sum_to_one_again() -> None:
    query, key = torch.randn(2, 1, 1, 6, 4)
    _, after = plot.weights(query, key, None, 0.5, seed=4, stage="logits", empty_row="redraw")
    kept = attndrop.keep_mask(1, 1, 6, dropout_p=0.5, seed=4, stage="logits", empty_row="redraw")[
        0, 0
    ]
    assert not kept.all()
    assert ((image_of(after).filled(0.0) != 0) == kept.numpy()).all()
    assert image_of(after).sum(-1).tolist() == pytest.approx([1.0] * 6)


def test_both_pictures_have_one_scale() -> None:
    query, key = torch.randn(2, 1, 1, 6, 4)
    before, after = plot.weights(query, key, None, 0.5, True, seed=1)
    largest = max(image_of(before).max(), image_of(after).max())
    assert {ax.get_images()[0].get_clim() for ax in (before, after)} == {(0.0, largest)}


def test_masks_slopes_and_scale_reach_the_weights() -> None:
    query, key = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 5, 4)
    bias, slopes = torch.randn(2, 1, 5, 5), torch.tensor([0.5, 1.0, 2.0])
    before, _ = plot.weights(
        query, key, bias, 0.5, seed=1, batch=1, head=2, scale=0.3, alibi_slopes=slopes
    )
    position = torch.arange(5.0)
    distance = (position[:, None] - position).abs()
    logits = 0.3 * query[1, 2].double() @ key[1, 2].double().T + bias[1, 0] - 2.0 * distance
    assert image_of(before).filled(0.0) == pytest.approx(logits.softmax(-1).numpy(), abs=1e-13)


# ---- Axes, files and errors ----------------------------------------------------------------------


def test_given_axes_are_used() -> None:
    figure, axes = pyplot.subplots(2, 2)
    query = torch.randn(1, 3, 4)
    assert plot.keep_mask(4, dropout_p=0.5, seed=1, ax=axes[0, 0]) is axes[0, 0]
    assert plot.zero_row_chance(4, dropout_p=0.5, ax=axes[0, 1]) is axes[0, 1]
    drawn = plot.weights(query, query, None, 0.5, seed=1, ax=axes[1])
    assert drawn == tuple(axes[1])
    assert pyplot.get_fignums() == [figure.number]


def test_large_and_long_heads_are_drawn(tmp_path: Any) -> None:
    for sizes in ((200, 300), (1, 500)):
        ax = plot.keep_mask(*sizes, dropout_p=0.1, seed=1)
        assert image_of(ax).shape == sizes
    ax = plot.zero_row_chance(300, dropout_p=0.1)
    ax.figure.savefig(tmp_path / "chance.svg")
    assert (tmp_path / "chance.svg").read_text().startswith("<?xml")


def test_refusals() -> None:
    query = torch.randn(2, 3, 4, 8)
    with pytest.raises(ValueError, match="head must be in 0 .. 2, got 3"):
        plot.weights(query, query, dropout_p=0.5, seed=1, head=3)
    with pytest.raises(ValueError, match="batch must be in 0 .. 1, got -1"):
        plot.weights(query, query, dropout_p=0.5, seed=1, batch=-1)
    with pytest.raises(ValueError, match="head must be in 0 .. 2, got 3"):
        plot.keep_mask(4, dropout_p=0.5, seed=1, head=3, attn_mask=torch.ones(1, 3, 4, 4) > 0)
    with pytest.raises(ValueError, match="num_heads must be a multiple of num_kv_heads"):
        plot.weights(query, query[:, :2], dropout_p=0.5, seed=1)
    with pytest.raises(TypeError, match="query must be a torch.Tensor"):
        plot.weights([1.0], query, dropout_p=0.5, seed=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="ax must be two Axes"):
        plot.weights(query, query, dropout_p=0.5, seed=1, ax=[])
    with pytest.raises(ValueError, match="dropout_p must be a finite number"):
        plot.keep_mask(4, dropout_p=1.5, seed=1)
    with pytest.raises(ValueError, match="redraw"):
        plot.zero_row_chance(4, dropout_p=0.5, scheme="key", empty_row="redraw")
    with pytest.raises(ValueError, match="must name at least one"):
        plot.zero_row_chance(4, dropout_p=0.5, scheme=[])


def test_attndrop_does_not_import_matplotlib_and_says_when_it_is_missing() -> None:
    program = """
import sys
import attndrop
assert not [name for name in sys.modules if name.startswith("matplotlib")]
sys.modules["matplotlib"] = sys.modules["matplotlib.pyplot"] = None
try:
    attndrop.plot.keep_mask(4, dropout_p=0.5, seed=1)
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "attndrop.plot needs matplotlib" in done.stdout
    assert "pip install" in done.stdout
