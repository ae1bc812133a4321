# SPDX-License-Identifier: Apache-2.0
"""attndrop's PyTorch package beside PyTorch's own attention, in one process, interleaved.

python bench/python_peers.py                  everything, for people
python bench/python_peers.py --json           the same as JSON
python bench/python_peers.py --part small     one part of it; see --help

Takes a Python with torch and attndrop, and one thread.
"""

import argparse
import functools
import json
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
from attndrop import scaled_dot_product_attention as attend
from gpt import training_step
from interleaved import beside, measure

P = 0.1
DROPOUT, PLAIN = "torch, dropout", "torch, no dropout"
CALL = (1, 1, 4, 8)  # where a call computes next to nothing
LARGE = {  # name: (batch, heads, seqlen, head_dim), causal
    "full": ((1, 1, 2048, 64), False),
    "causal": ((1, 1, 2048, 64), True),
    "small (64,4,64,16)": ((64, 4, 64, 16), True),
    "small (64,4,4,10)": ((64, 4, 4, 10), True),
}
SMALL = [
    *[(1, 1, n, d) for n, d in ((1, 8), (4, 8), (16, 16), (32, 32), (64, 16), (64, 128))],
    *[(4, 4, 4, 10), (16, 4, 4, 10), (1, 8, 16, 64), (64, 1, 1, 16)],
    *[(64, 4, 4, 10), (256, 1, 4, 8), (4, 4, 16, 16), (1, 16, 16, 64), (2, 8, 32, 64)],
    *[(1, 1, 128, 64), (8, 6, 32, 64), (1, 12, 64, 64), (256, 16, 1, 16)],
]
LENGTHS = [2048, 4096, 8192, 16384, 32768]
CONTEXTS = [256, 1024]


def leaves(shape, requires_grad=True):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator).requires_grad_(requires_grad) for _ in range(3)]


def both(function, tensors, grad_out, **options):
    """A function that goes forward and back."""
    return lambda: torch.autograd.grad(function(*tensors, **options), tensors, grad_out)


def contestants(shape, causal):
    tensors = leaves(shape)
    sdpa, grad_out = F.scaled_dot_product_attention, torch.randn(shape)
    return {
        "attndrop": both(attend, tensors, grad_out, dropout_p=P, is_causal=causal),
        DROPOUT: both(sdpa, tensors, grad_out, dropout_p=P, is_causal=causal),
        PLAIN: both(sdpa, tensors, grad_out, is_causal=causal),
    }


def compared(functions, options, most_repeats=99):
    """Seconds of the first of the functions, and the others beside it."""
    times = measure(functions, min(options.repeats, most_repeats), options.clock)
    ours = times.pop(next(iter(functions)))
    return {"attndrop_s": statistics.median(ours), "peers": beside(times, ours)}


# ---- Parts ----------------------------------------------------------------------------------


def overhead(options):
    """A call that computes next to nothing: alone, recording for gradients, and with them."""
    sdpa = F.scaled_dot_product_attention
    for name, requires_grad in (("forward", False), ("forward, recorded", True)):
        call = functools.partial(lambda f, t: f(*t, dropout_p=P), t=leaves(CALL, requires_grad))
        functions = {
            "attndrop": functools.partial(call, attend),
            DROPOUT: functools.partial(call, sdpa),
        }
        yield {"case": name, **compared(functions, options)}
    yield {"case": "forward+backward", **compared(contestants(CALL, False), options)}


def large(options):
    for name, (shape, causal) in LARGE.items():
        yield {"case": name, **compared(contestants(shape, causal), options)}


def small(options):
    for shape in SMALL:
        for causal in (False, True):
            batch, heads, seqlen, _ = shape
            yield {
                "case": f"{shape}{', causal' * causal}",
                "seqlen": seqlen,
                "weights": batch * heads * seqlen * seqlen,
                **compared(contestants(shape, causal), options),
            }


def evaluation(options):
    """Configured dropout that does not take place, beside none."""
    for shape in (CALL, (1, 1, 1024, 64)):
        tensors, grad_out = leaves(shape), torch.randn(shape)
        functions = {
            "attndrop": both(attend, tensors, grad_out, dropout_p=P, training=False),
            "p = 0": both(attend, tensors, grad_out),
        }
        for a, b in zip(*(function() for function in functions.values()), strict=True):
            assert torch.equal(a, b), "training=False differs from p = 0"
        yield {"case": str(shape), **compared(functions, options)}


def peak_growth(seqlen):
    """Bytes by which the largest resident size of this process exceeds that before the call."""
    tensors, grad_out = leaves((1, 1, seqlen, 64)), torch.randn(1, 1, seqlen, 64)
    both(attend, leaves((1, 1, 64, 64)), torch.randn(1, 1, 64, 64), dropout_p=P)()
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")  # the largest size starts again from the present one
    before = resident("VmRSS")
    both(attend, tensors, grad_out, dropout_p=P, is_causal=True)()
    return resident("VmHWM") - before


def resident(field):
    with open("/proc/self/status", encoding="ascii") as file:
        line = next(line for line in file if line.startswith(field))
    return 1024 * int(line.split()[1])


def memory(options):
    """A process of its own for each length."""
    for seqlen in LENGTHS:
        done = subprocess.run(
            [sys.executable, __file__, "--peak-growth", str(seqlen)],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        yield {"case": f"seqlen {seqlen}", "seqlen": seqlen, "bytes": int(done.stdout)}


def training(options):
    """A whole step of a GPT of 6 layers, 6 heads and width 384, batch 8, dropout 0.1 throughout."""
    sdpa = F.scaled_dot_product_attention
    for context in CONTEXTS:
        functions = {
            "attndrop": training_step(functools.partial(attend, dropout_p=P), context),
            DROPOUT: training_step(functools.partial(sdpa, dropout_p=P), context),
            PLAIN: training_step(sdpa, context),
        }
        yield {"case": f"context {context}", **compared(functions, options, 3)}


PARTS = {part.__name__: part for part in (overhead, large, small, evaluation, memory, training)}


# ---- Output ---------------------------------------------------------------------------------


def text_of(row):
    if "bytes" in row:
        return f"{row['case']:<28} {row['bytes'] / 1e6:>10.1f} MB"
    peers = "   ".join(
        f"{name} {peer['ratio']:.2f} ({1e6 * peer['extra_s']:+.1f} us)"
        for name, peer in row["peers"].items()
    )
    return f"{row['case']:<28} {1e6 * row['attndrop_s']:>10.1f} us   {peers}"


def parse_arguments():
    parser = argparse.ArgumentParser(description="attndrop from Python beside PyTorch")
    parser.add_argument("--part", choices=[*PARTS], action="append", help="only this part")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--peak-growth", type=int, metavar="SEQLEN", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.clock = time.perf_counter if options.clock == "wall" else time.process_time
    return options


def main():
    options = parse_arguments()
    torch.set_num_threads(1)
    if options.peak_growth is not None:
        print(peak_growth(options.peak_growth))
        return
    found = {}
    for name in options.part or PARTS:
        if not options.json:
            print(f"{name}: {PARTS[name].__doc__ or ''}".rstrip(": "), flush=True)
        found[name] = []
        for row in PARTS[name](options):
            found[name].append(row)
            if not options.json:
                print(f"  {text_of(row)}", flush=True)
    if options.json:
        json.dump(found, sys.stdout, indent=2)
        print()


if __name__ == "__main__":
    main()
