# SPDX-License-Identifier: Apache-2.0
"""Draws the pictures of the documents again: python docs/figures/make.py [FOLDER]."""

from __future__ import annotations

import sys
from pathlib import Path

import attndrop
import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot


def masks(folder: Path) -> None:
    """One seed, two policies: where "zero" loses rows, "redraw" draws them again."""
    _, axes = pyplot.subplots(1, 2, figsize=(8.6, 3.9), layout="constrained")
    for ax, empty_row in zip(axes, ("zero", "redraw"), strict=True):
        attndrop.plot.keep_mask(
            16, dropout_p=0.5, seed=9, is_causal=True, empty_row=empty_row, ax=ax
        )
        ax.set_title(f'empty_row="{empty_row}"')
    axes[0].get_legend().remove()
    save(axes[0].figure, folder / "masks.png")


def zero_rows(folder: Path) -> None:
    figure, axes = pyplot.subplots(1, 2, figsize=(8.6, 3.4), layout="constrained", sharey=True)
    attndrop.plot.zero_row_chance(8, dropout_p=0.5, ax=axes[0])
    attndrop.plot.zero_row_chance(
        8,
        dropout_p=0.5,
        scheme=["element", "word", "block:block_q=2,block_k=2", "query"],
        empty_row="zero",
        ax=axes[1],
    )
    axes[0].set_title("policies of scheme element, p = 0.5")
    axes[1].set_title("schemes under policy zero, p = 0.5")
    axes[1].set_ylabel("")
    for ax, place in zip(axes, ("center right", (0.36, 0.6)), strict=True):
        ax.legend(fontsize="small", loc=place)
    save(figure, folder / "zero_rows.png")


def save(figure: object, path: Path) -> None:
    figure.savefig(path, dpi=90, metadata={"Software": None})  # type: ignore[attr-defined]


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    masks(folder)
    zero_rows(folder)


if __name__ == "__main__":
    main()
