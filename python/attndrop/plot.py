# SPDX-License-Identifier: Apache-2.0
"""Pictures of dropout: the mask of a head, the chance of a zero row, weights before and after.

Every function draws into the Axes that it is given, or into a new figure, and returns the Axes, so
that titles, limits and files are the caller's:

    attndrop.plot.keep_mask(16, dropout_p=0.5, seed=1).figure.savefig("mask.png")

matplotlib is imported when a function is called. Colours differ for colour-blind eyes and in grey.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from . import _masks
from ._analyze import analyze
from ._errors import raise_translated, refuse_type, refuse_value
from ._functional import check_inputs, check_optional, scaled_dot_product_attention
from ._masks import mask_with_four_axes
from ._rng import IntLike

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: The policies for empty rows that every figure about them shows unless told otherwise.
POLICIES = ("zero", "keep_one", "redraw", "keep_self", "keep_first", "undropped")

#: Cells of keep_mask's picture, and the number that stands for each in its data.
HIDDEN, DROPPED, KEPT = 0, 1, 2

_CELLS = {HIDDEN: ("not visible", "#f2f2f2"), DROPPED: ("dropped", "#e69f00")}
_CELLS[KEPT] = ("kept", "#0072b2")
# The palette of Okabe and Ito (2008) without its yellow, which is faint on white.
_LINES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_MOST_GRID_LINES, _MOST_MARKERS, _MOST_ROW_SUMS = 64, 40, 24


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"attndrop.plot needs matplotlib, which cannot be imported ({error}); install it, for "
            'example with pip install "matplotlib>=3.7"'
        ) from error


def _new_axes(columns: int = 1, size: tuple[float, float] = (6.4, 4.8)) -> Any:
    pyplot = _import("matplotlib.pyplot")
    return pyplot.subplots(1, columns, figsize=size, layout="constrained")[1]


def _at(name: str, index: Any, size: int) -> int:
    if not isinstance(index, int) or isinstance(index, bool):
        refuse_type(f"{name} must be an integer, got {index!r}")
    if not 0 <= index < size:
        refuse_value(f"{name} must be in 0 .. {size - 1}, got {index}")
    return index


def _of_head(attn_mask: Tensor | None, batch: int, head: int) -> Tensor | None:
    """The part of a mask that one head of one batch entry sees, with four axes."""
    check_optional(attn_mask, None, None, None)
    if attn_mask is None:
        return None
    mask = mask_with_four_axes(attn_mask.detach().cpu())
    assert mask is not None
    b = 0 if mask.size(0) == 1 else _at("batch", batch, mask.size(0))
    h = 0 if mask.size(1) == 1 else _at("head", head, mask.size(1))
    return mask[b : b + 1, h : h + 1]


def keep_mask(
    seqlen_q: int,
    seqlen_k: int | None = None,
    *,
    dropout_p: float,
    seed: IntLike,
    offset: IntLike = 0,
    batch: int = 0,
    head: int = 0,
    is_causal: bool = False,
    attn_mask: Tensor | None = None,
    scheme: str = "element",
    stage: str = "weights",
    empty_row: str = "zero",
    window: Sequence[int] | None = None,
    causal_align: str = "top-left",
    ax: Axes | None = None,
) -> Axes:
    """Which weights of a head are kept, dropped, or not visible at all.

    Rows that keep nothing are marked at their right end.

    Args:
        seqlen_q, seqlen_k: lengths; seqlen_k defaults to seqlen_q.
        batch, head: which head of which batch entry.
        attn_mask: broadcastable to (batch, num_heads, seqlen_q, seqlen_k).
        ax: where to draw; default: a new figure.
        Others: as in attndrop.keep_mask.

    Returns:
        The Axes. Its image holds HIDDEN, DROPPED or KEPT for each (query, key).

    Raises:
        ImportError: matplotlib is missing.
        TypeError, ValueError: as attndrop.keep_mask.
    """
    seqlen_k = seqlen_q if seqlen_k is None else seqlen_k
    try:
        mask = _of_head(attn_mask, batch, head)
    except RuntimeError as error:
        raise_translated(error)

    def keeps(p: float) -> Tensor:
        return _masks.keep_mask(
            1,
            1,
            seqlen_q,
            seqlen_k,
            dropout_p=p,
            seed=seed,
            offset=offset,
            is_causal=is_causal,
            attn_mask=mask,
            scheme=scheme,
            stage=stage,
            empty_row=empty_row,
            window=window,
            causal_align=causal_align,
            origin=(batch, head, 0, 0),
        )[0, 0]

    visible, kept = keeps(0.0), keeps(dropout_p)
    cells = visible.to(torch.int8) + kept.to(torch.int8)
    ax = _new_axes() if ax is None else ax
    _draw_cells(ax, cells)
    _mark_zero_rows(ax, visible & ~kept, kept)
    ax.set_title(
        f"{scheme}, {empty_row}{'' if stage == 'weights' else ', before the softmax'}, "
        f"p = {dropout_p:g}: {int(kept.sum())} of {int(visible.sum())} weights kept"
    )
    _legend_beside(ax)
    return ax


def _draw_cells(ax: Axes, cells: Tensor) -> None:
    colors = _import("matplotlib.colors")
    ax.imshow(
        cells.numpy(),
        cmap=colors.ListedColormap([color for _, color in _CELLS.values()]),
        vmin=HIDDEN - 0.5,
        vmax=KEPT + 0.5,
        interpolation="nearest",
        aspect=_aspect(cells),
    )
    _label_axes(ax, cells)


def _aspect(cells: Tensor) -> Literal["equal", "auto"]:
    longest, shortest = max(cells.shape), max(min(cells.shape), 1)
    return "equal" if longest <= 8 * shortest else "auto"


def _label_axes(ax: Axes, cells: Tensor) -> None:
    ticker = _import("matplotlib.ticker")
    ax.set_xlabel("key")
    ax.set_ylabel("query")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(ticker.MaxNLocator(integer=True))
    if max(cells.shape) <= _MOST_GRID_LINES:
        ax.set_xticks([x - 0.5 for x in range(cells.shape[1] + 1)], minor=True)
        ax.set_yticks([y - 0.5 for y in range(cells.shape[0] + 1)], minor=True)
        ax.grid(which="minor", color="white", linewidth=1)
        ax.tick_params(which="minor", length=0)


def _mark_zero_rows(ax: Axes, dropped: Tensor, kept: Tensor) -> None:
    rows = (dropped.any(-1) & ~kept.any(-1)).nonzero()[:, 0].tolist()
    if not rows:
        return
    right = kept.shape[1] - 0.5
    ax.plot(
        [right + 0.015 * kept.shape[1]] * len(rows),
        rows,
        linestyle="none",
        marker=5,  # a triangle that points right, its left side at the point
        markersize=6,
        color="black",
        clip_on=False,
        label=f"zero row ({len(rows)})",
    )
    ax.set_xlim(-0.5, right)


def _legend_beside(ax: Axes) -> None:
    patch = _import("matplotlib.patches").Patch
    cells = [
        patch(facecolor=color, edgecolor="#666666", label=label)
        for label, color in reversed(_CELLS.values())
    ]
    marked = ax.get_legend_handles_labels()[0]
    ax.legend(
        handles=[*cells, *marked], loc="upper left", bbox_to_anchor=(1.05, 1.0), borderaxespad=0.0
    )


class _Choice(NamedTuple):
    scheme: str
    empty_row: str


def _choices(scheme: str | Sequence[str], empty_row: str | Sequence[str]) -> dict[_Choice, str]:
    """All pairs, with the part of their names that varies."""
    schemes = [scheme] if isinstance(scheme, str) else list(scheme)
    policies = [empty_row] if isinstance(empty_row, str) else list(empty_row)
    if not schemes or not policies:
        raise ValueError("scheme and empty_row must name at least one each, got none")
    pairs = [_Choice(s, e) for s in schemes for e in policies]
    if len(schemes) > 1 and len(policies) == 1:
        return {pair: pair.scheme for pair in pairs}
    if len(schemes) == 1 and len(policies) > 1:
        return {pair: pair.empty_row for pair in pairs}
    return {pair: f"{pair.scheme} {pair.empty_row}" for pair in pairs}


def zero_row_chance(
    seqlen_q: int,
    seqlen_k: int | None = None,
    *,
    dropout_p: float,
    scheme: str | Sequence[str] = "element",
    empty_row: str | Sequence[str] = POLICIES,
    is_causal: bool = True,
    window: Sequence[int] | None = None,
    causal_align: str = "top-left",
    attn_mask: Tensor | None = None,
    batch: int = 0,
    head: int = 0,
    ax: Axes | None = None,
) -> Axes:
    """The chance that a row loses all its keys, by position, for schemes and policies.

    The chances are exact (attndrop.analyze). Choices with equal chances share one line, whose label
    names them all. For small chances, ax.set_yscale("log") on the result.

    Args:
        seqlen_q, seqlen_k: lengths; seqlen_k defaults to seqlen_q.
        scheme, empty_row: a name or several; every scheme is shown with every policy.
        is_causal: true here unless told otherwise.
        batch, head: which part of attn_mask.
        ax: where to draw; default: a new figure.
        Others: as in attndrop.analyze.

    Returns:
        The Axes, with one line of seqlen_q points for each set of equal choices.

    Raises:
        ImportError: matplotlib is missing.
        NotImplementedError: the compiled kernels are not installed.
        TypeError, ValueError: as attndrop.analyze, also for a policy that a scheme does not have.

    Source: docs/math/README.md, (Z1) and what follows it.
    """
    try:
        mask = _of_head(attn_mask, batch, head)
    except RuntimeError as error:
        raise_translated(error)
    names: dict[tuple[float, ...], list[str]] = {}
    for choice, name in _choices(scheme, empty_row).items():
        head_of_choice = analyze(
            seqlen_q,
            seqlen_k,
            dropout_p=dropout_p,
            is_causal=is_causal,
            scheme=choice.scheme,
            empty_row=choice.empty_row,
            attn_mask=mask,
            window=window,
            causal_align=causal_align,
        )
        chances = tuple(row.p_zero for row in head_of_choice.rows)
        names.setdefault(chances, []).append(name)
    ax = _new_axes() if ax is None else ax
    for number, (chances, equal) in enumerate(names.items()):
        never = "" if any(chances) else " (never)"
        ax.plot(
            range(len(chances)),
            chances,
            color=_LINES[number % len(_LINES)],
            marker=_MARKERS[number % len(_MARKERS)] if len(chances) <= _MOST_MARKERS else "",
            linestyle=("-", "--", "-.", ":")[number % 4],
            label=", ".join(equal) + never,
        )
    ax.xaxis.set_major_locator(_import("matplotlib.ticker").MaxNLocator(integer=True))
    ax.set_xlabel("query")
    ax.set_ylabel("chance of a zero row")
    ax.set_title(f"p = {dropout_p:g}")
    ax.grid(color="#dddddd")
    ax.set_axisbelow(True)
    ax.legend()
    return ax


def weights(
    query: Tensor,
    key: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    seed: IntLike,
    offset: IntLike = 0,
    batch: int = 0,
    head: int = 0,
    scale: float | None = None,
    scheme: str = "element",
    stage: str = "weights",
    empty_row: str = "zero",
    window: Sequence[int] | None = None,
    causal_align: str = "top-left",
    alibi_slopes: Tensor | None = None,
    ax: Sequence[Axes] | None = None,
) -> tuple[Axes, Axes]:
    """The weights of a head before and after dropout, side by side, with the sums of the rows.

    Both pictures have one scale of colours; keys that a query does not see are white. The sums are
    written for up to 24 rows. What is drawn is what attention multiplies value by.

    Args:
        query: (batch, num_heads, seqlen_q, head_dim) or without batch.
        key: (batch, num_kv_heads, seqlen_k, head_dim); num_heads is a multiple of num_kv_heads.
        seed, offset: of the call that is to be shown.
        batch, head: which head of which batch entry.
        ax: two Axes, before and after; default: a new figure.
        Others: as in attndrop.scaled_dot_product_attention.

    Returns:
        The two Axes. Their images hold the weights as float64 (seqlen_q, seqlen_k), masked where a
        key is not visible.

    Raises:
        ImportError: matplotlib is missing.
        TypeError, ValueError: as attndrop.scaled_dot_product_attention.
    """
    try:
        check_inputs(query, key, key, True)
        query, key, slopes = _one_head(query, key, alibi_slopes, batch, head)
        mask = _of_head(attn_mask, batch, head)
    except RuntimeError as error:
        raise_translated(error)
    if seed is None:
        raise TypeError("seed must be an integer in 0 .. 2^64 - 1, got None")
    if ax is not None and len(ax) != 2:
        raise ValueError(f"ax must be two Axes, for before and after, got {len(ax)}")
    place: dict[str, Any] = {
        "scheme": scheme,
        "stage": stage,
        "empty_row": empty_row,
        "window": window,
        "causal_align": causal_align,
        "origin": (batch, head, 0, 0),
    }
    hidden = ~_masks.keep_mask(
        1,
        1,
        query.size(2),
        key.size(2),
        dropout_p=0.0,
        seed=0,
        is_causal=is_causal,
        attn_mask=mask,
        **place,
    )[0, 0]
    # Attention over the rows of the unit matrix is its weights.
    unit = torch.eye(key.size(2), dtype=torch.float64)[None, None]
    pictures = []
    for p in (0.0, dropout_p):
        out = scaled_dot_product_attention(
            query,
            key,
            unit,
            mask,
            p,
            is_causal,
            scale=scale,
            seed=seed,
            offset=offset,
            alibi_slopes=slopes,
            **place,
        )
        pictures.append(out[0, 0])
    before, after = _new_axes(2, (10.0, 4.8)) if ax is None else ax
    _draw_weights((before, after), pictures, hidden)
    before.set_title("before dropout")
    after.set_title(f"after: {scheme}, {empty_row}, p = {dropout_p:g}")
    return before, after


def _one_head(
    query: Tensor, key: Tensor, alibi_slopes: Tensor | None, batch: int, head: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """float64 on the CPU, for one head of one batch entry."""
    query, key = (t.detach().cpu().double() for t in (query, key))
    if query.dim() == 3:
        query, key = query[None], key[None]
    b, h = _at("batch", batch, query.size(0)), _at("head", head, query.size(1))
    if key.size(0) != query.size(0) or key.size(1) == 0 or query.size(1) % key.size(1) != 0:
        refuse_value(
            "query and key must have the same batch, and num_heads must be a multiple of "
            f"num_kv_heads, got shapes {tuple(query.shape)} and {tuple(key.shape)}"
        )
    check_optional(None, alibi_slopes, None, None)
    slopes = alibi_slopes
    if slopes is not None:
        slopes = slopes.detach().cpu()
        slopes = slopes[b, h : h + 1] if slopes.dim() == 2 else slopes[h : h + 1]
    h_kv = h * key.size(1) // query.size(1)
    return query[b : b + 1, h : h + 1], key[b : b + 1, h_kv : h_kv + 1], slopes


def _draw_weights(axes: tuple[Axes, Axes], pictures: list[Tensor], hidden: Tensor) -> None:
    numpy_ma = importlib.import_module("numpy.ma")
    largest = max(float(picture.max()) if picture.numel() else 0.0 for picture in pictures)
    for ax, picture in zip(axes, pictures, strict=True):
        image = ax.imshow(
            numpy_ma.masked_array(picture.numpy(), hidden.numpy()),
            cmap="viridis",
            vmin=0.0,
            vmax=largest or 1.0,
            interpolation="nearest",
            aspect=_aspect(picture),
        )
        _label_axes(ax, picture)
        if picture.shape[0] <= _MOST_ROW_SUMS:
            ax.annotate("sum", (1.02, 1.01), xycoords="axes fraction", fontsize="small")
            for row, total in enumerate(picture.sum(-1).tolist()):
                where = (1.02, row)
                across = ("axes fraction", "data")
                ax.annotate(f"{total:.2f}", where, xycoords=across, va="center", fontsize="small")
    axes[0].figure.colorbar(image, ax=list(axes), label="weight", pad=0.06, shrink=0.8)
