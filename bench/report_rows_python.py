# SPDX-License-Identifier: Apache-2.0
"""The rows of the second table in docs/benchmarks.md: the PyTorch package."""

from report_rows import Row

DROPOUT, PLAIN = "torch, dropout", "torch, no dropout"
LARGE = ["full", "causal", "small (64,4,64,16)"]
MANY_WEIGHTS = 4096


def micro(seconds):
    return 1e6 * seconds


def cases(figures, part):
    return {row["case"]: row for row in figures.python[part]}


def overhead(figures):
    return [micro(row["attndrop_s"]) for row in figures.python["overhead"]]


def overhead_of_torch(figures):
    return [micro(row["peers"][DROPOUT]["seconds"]) for row in figures.python["overhead"]]


def large(peer):
    def values(figures):
        found = cases(figures, "large")
        return [found[name]["peers"][peer]["ratio"] for name in LARGE]

    return values


def slowest(figures):
    """Of heads with several queries, and of those with one."""
    rows = [row for row in figures.python["small"] if row["weights"] >= MANY_WEIGHTS]
    return [
        min(row["peers"][DROPOUT]["ratio"] for row in rows if (row["seqlen"] == 1) == single)
        for single in (False, True)
    ]


def most_extra(figures):
    rows = [row for row in figures.python["small"] if row["weights"] < MANY_WEIGHTS]
    return [micro(max(row["peers"][DROPOUT]["extra_s"] for row in rows))]


def evaluation(figures):
    return [1 / row["peers"]["p = 0"]["ratio"] for row in figures.python["evaluation"]]


def memory(figures):
    return [row["bytes"] / 1e6 for row in figures.python["memory"]]


def memory_growth(figures):
    sizes = memory(figures)
    return [sizes[-1] / sizes[-2]]


def step_seconds(figures):
    return [row["attndrop_s"] for row in figures.python["training"]]


def step_ratio(peer):
    return lambda f: [row["peers"][peer]["ratio"] for row in f.python["training"]]


PYTHON_ROWS = [
    Row(
        "a call on (1,1,4,8), microseconds: forward / forward, recorded for gradients / "
        "forward+backward",
        [20, 45, None],
        [None] * 3,
        overhead,
        "H",
        at_least=False,
    ),
    Row(
        "PyTorch SDPA with dropout for the same, microseconds",
        [None] * 3,
        [None] * 3,
        overhead_of_torch,
        "H",
    ),
    Row(
        "forward+backward, times faster than PyTorch SDPA with dropout: full / causal / "
        "(64,4,64,16) causal",
        [4, 7, 2.5],
        [None] * 3,
        large(DROPOUT),
        "H",
    ),
    Row("the same beside PyTorch SDPA without dropout", [None] * 3, [None] * 3, large(PLAIN), "H"),
    Row(
        "the least of that ratio (with dropout) of small problems from 4,096 weights up: seqlen 4 "
        "and more / 4,096 heads of seqlen 1",
        [1] * 2,
        [None] * 2,
        slowest,
        "H",
    ),
    Row(
        "most microseconds that a problem below 4,096 weights takes longer than with PyTorch SDPA "
        "with dropout, forward+backward",
        [30],
        [None],
        most_extra,
        "H",
        at_least=False,
    ),
    Row(
        "time with training=False and dropout_p=0.1 beside dropout_p=0, forward+backward: "
        "(1,1,4,8) / (1,1,1024,64)",
        [1.03] * 2,
        [None] * 2,
        evaluation,
        "H",
        at_least=False,
    ),
    Row(
        "peak memory of a causal forward+backward beyond its inputs, head_dim 64, MB: seqlen 2048 "
        "/ 4096 / 8192 / 16384 / 32768",
        [None] * 5,
        [None] * 5,
        memory,
        "H",
    ),
    Row(
        "the last of them beside the one before, where linear is 2",
        [2.1],
        [None],
        memory_growth,
        "H",
        at_least=False,
    ),
    Row(
        "a training step of a GPT (6 layers, 6 heads, width 384, batch 8, dropout 0.1), seconds: "
        "context 256 / 1024",
        [None] * 2,
        [None] * 2,
        step_seconds,
        "H",
    ),
    Row(
        "times faster than the same step on PyTorch SDPA with dropout",
        [None] * 2,
        [None] * 2,
        step_ratio(DROPOUT),
        "H",
    ),
    Row(
        "times faster than the same step on PyTorch SDPA without dropout in the attention",
        [None] * 2,
        [None] * 2,
        step_ratio(PLAIN),
        "H",
    ),
]
