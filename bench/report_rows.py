# SPDX-License-Identifier: Apache-2.0
"""The rows of the table in docs/benchmarks.md: what is promised, and how it is computed."""

from collections.abc import Callable
from dataclasses import dataclass

FORWARD, BACKWARD, BOTH = "forward", "backward", "forward+backward"
D64 = "q2048 k2048 d64"


@dataclass
class Row:
    """floor, aim and values have one number per figure of the row."""

    what: str
    floor: list
    aim: list
    values: Callable
    source: str
    at_least: bool = True  # a larger figure is better


def percent(fraction):
    return 100 * fraction


def with_dropout(figures):
    return [
        figures.peer_ratio(case, direction, "torch, dropout")
        for direction in (FORWARD, BOTH)
        for case in ("full", "causal")
    ]


def without_dropout(figures):
    return [figures.peer_ratio("full", way, "torch, no dropout") for way in (FORWARD, BOTH)]


def dropout_cost(figures):
    lines = [f"q2048 k2048 d{head_dim} p=0.1" for head_dim in (32, 64, 128)]
    both = figures.seconds(f"{D64} p=0.1", FORWARD, BACKWARD)
    return [
        *[figures.to_p0(line, FORWARD) for line in lines],
        both / figures.seconds(D64, FORWARD, BACKWARD),
    ]


def beside_element(figures):
    words = ["empty_row=redraw", "empty_row=keep_self", "stage=logits", "scheme=symmetric"]
    element = figures.seconds(f"{D64} p=0.1", FORWARD)
    return [
        figures.seconds(f"{D64} {word} p=0.1", FORWARD) / element
        for word in [*words, "scheme=shared"]
    ]


def dropped_keys(stage):
    def values(figures):
        return [
            figures.to_p0(f"{D64} scheme={scheme} stage={stage} p=0.5", direction)
            for direction in (FORWARD, BACKWARD)
            for scheme in ("key", "word", "block")
        ]

    return values


def dropped_queries(figures):
    lines = [f"{D64} scheme=query p=0.5", f"h8 {D64} scheme=head p=0.5 seed=2"]
    return [figures.to_p0(line, way) for way in (FORWARD, BACKWARD) for line in lines]


def two_threads(figures):
    runs = [(f"h8 {D64}", FORWARD), (D64, BACKWARD)]
    return [figures.fraction("D", *run) / figures.fraction("C", *run) for run in runs]


def memory(figures):
    scratch = figures.scratch
    return [max(scratch["forward_scratch_bytes"], scratch["backward_scratch_bytes"]) / 1e6]


def megabytes(copies, extra):
    """copies x N x d + 4 x N floats and so many bytes, at seqlen 65536 and head_dim 64."""
    return round((4 * 65536 * (copies * 64 + 4) + extra) / 1e6, 1)


ROWS = [
    Row(
        "forward, p = 0, % of peak: head_dim 64 / 128 / causal 64",
        [85, 88, 82],
        [92, 95, 90],
        lambda f: [
            percent(f.fraction("A", line, FORWARD))
            for line in (D64, "q2048 k2048 d128", f"{D64} causal")
        ],
        "A",
    ),
    Row(
        "backward, p = 0, % of peak: head_dim 64 / 128",
        [82, 80],
        [93, 93],
        lambda f: [percent(f.fraction("A", line, BACKWARD)) for line in (D64, "q2048 k2048 d128")],
        "A",
    ),
    Row(
        "time at p = 0.1 beside p = 0: forward, head_dim 32 / 64 / 128; forward+backward 64",
        [1.10, 1.06, 1.04, 1.04],
        [1.05, 1.025, 1.015, 1.02],
        dropout_cost,
        "A",
        at_least=False,
    ),
    Row(
        "times faster than PyTorch SDPA with dropout: forward / causal; forward+backward / causal",
        [6, 12, 3.5, 7],
        [9, 17, 5, 10],
        with_dropout,
        "F",
    ),
    Row(
        "with dropout, times faster than PyTorch SDPA without: forward / forward+backward",
        [1.8, 1.8],
        [2.4, 2.5],
        without_dropout,
        "F",
    ),
    Row(
        "AVX2, % of its peak, head_dim 64: forward / backward",
        [80, 80],
        [90, 90],
        lambda f: [percent(f.fraction("B", D64, way)) for way in (FORWARD, BACKWARD)],
        "B",
    ),
    Row(
        "bfloat16 forward, times faster than float32, head_dim 128",
        [1.5],
        [1.8],
        lambda f: [
            f.seconds("q2048 k2048 d128", FORWARD) / f.seconds("q2048 k2048 d128 bf16", FORWARD)
        ],
        "A",
    ),
    Row(
        "time beside element, forward: redraw / keep_self / stage logits / symmetric / shared",
        [1.15] * 5,
        [1.05] * 5,
        beside_element,
        "A",
        at_least=False,
    ),
    Row(
        "time at p = 0.5 beside p = 0, stage logits: forward of key / word / block; backward",
        [0.60] * 3 + [0.62] * 3,
        [0.52] * 3 + [0.54] * 3,
        dropped_keys("logits"),
        "A",
        at_least=False,
    ),
    Row(
        "the same at stage weights, where the softmax needs all keys",
        [0.83] * 3 + [0.88] * 3,
        [0.78] * 3 + [0.83] * 3,
        dropped_keys("weights"),
        "A",
        at_least=False,
    ),
    Row(
        "query / head at p = 0.5 beside p = 0: forward; backward",
        [0.83] * 2 + [0.60] * 2,
        [0.78] * 2 + [0.52] * 2,
        dropped_queries,
        "A",
        at_least=False,
    ),
    Row(
        "speed-up of two threads beside the peak's: forward of 8 heads / backward of one",
        [0.90, 0.85],
        [0.97, 0.95],
        two_threads,
        "C, D",
    ),
    Row(
        "scratch, MB, one head of seqlen 65536 and head_dim 64, forward+backward",
        [megabytes(4, 1e6)],
        [megabytes(3, 0.5e6)],
        memory,
        "E",
        at_least=False,
    ),
    Row(
        "small causal calls, times faster than PyTorch SDPA with dropout, forward+backward: "
        "(64,4,64,16) / (64,4,4,10)",
        [3, 1],
        [5, 2],
        lambda f: [
            f.peer_ratio(f"small ({shape})", BOTH, "torch, dropout")
            for shape in ("64,4,64,16", "64,4,4,10")
        ],
        "F",
    ),
    Row(
        "generation (seqlen_q 1, 8 heads over 2, seqlen_k 4096): times faster than PyTorch SDPA",
        [1.0],
        [None],
        lambda f: [f.peer_ratio("generation", FORWARD, "torch, no dropout")],
        "F",
    ),
    Row(
        "the same, % of the read bandwidth",
        [None],
        [80],
        lambda f: [percent(f.peer_ratio("generation", FORWARD, "read of as many bytes"))],
        "F",
    ),
    Row(
        "keep mask into memory, element, 10^9 cells a second",
        [1.0],
        [4.0],
        lambda f: [f.keep_cells / 1e9],
        "G",
    ),
]
