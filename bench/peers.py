# SPDX-License-Identifier: Apache-2.0
"""attndrop beside PyTorch (and Flax, if installed) in one process, interleaved.

python bench/peers.py              the table of ratios
python bench/peers.py --json       the same as JSON
python bench/peers.py --check      200 random problems beside PyTorch, no timing
"""

import argparse
import contextlib
import json
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from agreement import check, check_random, line_of, tensors_of
from interleaved import beside, measure
from native import Native


def case(name, dtype="f32", dropout_p=0.1, causal=False, gradients=True, **sizes):
    problem = {
        "batch": 1,
        "heads": 1,
        "kv_heads": None,
        "seqlen_q": 2048,
        "seqlen_k": None,
        "head_dim": 64,
        "mask": "none",
        "scheme": "element",
        "stage": "weights",
        "empty_row": "zero",
        "seed": 1,
        **sizes,
    }
    problem["kv_heads"] = problem["kv_heads"] or problem["heads"]
    problem["seqlen_k"] = problem["seqlen_k"] or problem["seqlen_q"]
    return name, gradients, {**problem, "dtype": dtype, "dropout_p": dropout_p, "causal": causal}


CASES = [
    case("full"),
    case("causal", causal=True),
    case("full, bf16", dtype="bf16"),
    case("causal, bf16", dtype="bf16", causal=True),
    case("small (64,4,64,16)", causal=True, batch=64, heads=4, seqlen_q=64, head_dim=16),
    case("small (64,4,4,10)", causal=True, batch=64, heads=4, seqlen_q=4, head_dim=10),
    case(
        "generation", dropout_p=0.0, gradients=False, heads=8, kv_heads=2, seqlen_q=1, seqlen_k=4096
    ),
]


class Torch:
    """What PyTorch does for the same problem."""

    def __init__(self, problem, tensors):
        self.problem = problem
        self.inputs = [tensors[n].clone().requires_grad_() for n in ("query", "key", "value")]
        self.grad_out = tensors["grad_out"]

    def _sdpa(self, dropout_p):
        return F.scaled_dot_product_attention(
            *self.inputs,
            dropout_p=dropout_p,
            is_causal=self.problem["causal"],
            enable_gqa=self.problem["heads"] != self.problem["kv_heads"],
        )

    def forward(self, dropout_p):
        with torch.no_grad():
            self._sdpa(dropout_p)

    def both(self, dropout_p):
        torch.autograd.grad(self._sdpa(dropout_p), self.inputs, self.grad_out)

    def products(self):
        """The two matrix products alone, on all weights."""
        with torch.no_grad():
            query, key, value = self.inputs
            (query @ key.transpose(-1, -2)) @ value


def flax_forward(problem, tensors):
    """A call of Flax's attention with dropout, compiled; None where Flax is not installed."""
    try:
        import jax
        from flax import linen
    except ImportError:
        return None
    kind = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}[problem["dtype"]]
    arrays = [
        jax.numpy.asarray(tensors[n].float().transpose(1, 2).numpy(), dtype=kind)
        for n in ("query", "key", "value")
    ]
    mask = None
    if problem["causal"]:
        mask = linen.make_causal_mask(jax.numpy.ones((1, problem["seqlen_q"])))

    @jax.jit
    def run(query, key, value, rng):
        return linen.dot_product_attention(
            query,
            key,
            value,
            mask=mask,
            broadcast_dropout=False,
            dropout_rng=rng,
            dropout_rate=problem["dropout_p"],
            deterministic=problem["dropout_p"] == 0.0,
        )

    rng = jax.random.PRNGKey(1)
    return lambda: run(*arrays, rng).block_until_ready()


def contestants(problem, gradients, threads):
    """{direction: {name: function}}; `attndrop` is the first of each."""
    tensors = tensors_of(problem, seed=1)
    check(line_of(problem), problem, tensors, threads)
    native = Native(line_of(problem), tensors, threads)
    peer = Torch(problem, tensors)
    p = problem["dropout_p"]
    forward = {"attndrop": native.forward}
    both = {"attndrop": native.both}
    if p > 0.0:
        forward["torch, dropout"] = lambda: peer.forward(p)
        both["torch, dropout"] = lambda: peer.both(p)
    forward["torch, no dropout"] = lambda: peer.forward(0.0)
    both["torch, no dropout"] = lambda: peer.both(0.0)
    if problem["heads"] == problem["kv_heads"]:
        forward["two products"] = peer.products
        if threads == 1 and (flax := flax_forward(problem, tensors)):
            forward["flax, dropout"] = flax
    if problem["seqlen_q"] == 1:
        memory = torch.randn(tensors["key"].numel() + tensors["value"].numel())
        forward["read of as many bytes"] = lambda: memory.sum()
    return {"forward": forward, **({"forward+backward": both} if gradients else {})}


def results(repeats, threads, clock, wanted):
    for name, gradients, problem in CASES:
        if wanted and wanted not in name:
            continue
        for direction, functions in contestants(problem, gradients, threads).items():
            times = measure(functions, repeats, clock)
            ours = times.pop("attndrop")
            yield {
                "case": name,
                "problem": line_of(problem),
                "direction": direction,
                "threads": threads,
                "attndrop_s": statistics.median(ours),
                "peers": beside(times, ours),
            }


def print_row(row):
    peers = "   ".join(f"{name} {peer['ratio']:.2f}" for name, peer in row["peers"].items())
    print(
        f"{row['case']:<20} {row['direction']:<17} {1e3 * row['attndrop_s']:>8.3f} ms   {peers}",
        flush=True,
    )


def parse_arguments():
    parser = argparse.ArgumentParser(description="attndrop beside PyTorch and Flax")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--case", default="", help="only cases whose name holds this")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true", help="compare results, measure nothing")
    parser.add_argument("--count", type=int, default=200, help="problems of --check")
    parser.add_argument("--seed", type=int, default=1, help="which problems --check takes")
    arguments = parser.parse_args()
    if arguments.clock == "cpu" and arguments.threads != 1:
        parser.error("--clock cpu adds up the time of all threads, so it needs --threads 1")
    return arguments


def main():
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    if arguments.check:
        check_random(arguments.count, arguments.seed, arguments.threads)
        return
    clock = time.perf_counter if arguments.clock == "wall" else time.process_time
    rows = results(arguments.repeats, arguments.threads, clock, arguments.case)
    if arguments.json:
        json.dump(list(rows), sys.stdout, indent=2)
        print()
        return
    print(
        f"PyTorch {torch.__version__}, {arguments.threads} thread(s); time of attndrop with "
        "dropout, and times of the others divided by it"
    )
    for row in rows:
        print_row(row)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main()
