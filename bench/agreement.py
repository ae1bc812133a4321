# SPDX-License-Identifier: Apache-2.0
"""Does attndrop compute what PyTorch computes? Softmax, mask and products in float64, with the
exported keep mask; without dropout also F.scaled_dot_product_attention."""

import random

import torch
import torch.nn.functional as F
from native import Native

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
# Beside the largest magnitude of the arrays; half-precision inputs are exact, results are rounded.
TOLERANCE = {"f32": 1e-5, "bf16": 2e-2, "f16": 3e-3}
SIZES = [1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 300]


def visible_keys(problem, tensors):
    """(additive mask in float64); -inf where a query does not see a key."""
    shape = problem["seqlen_q"], problem["seqlen_k"]
    bias = torch.zeros(shape, dtype=torch.float64)
    if problem["causal"]:
        bias.masked_fill_(torch.ones(shape, dtype=torch.bool).triu(1), float("-inf"))
    mask = tensors.get("attn_mask")
    if mask is None:
        return bias
    if mask.dtype == torch.uint8:
        return bias + torch.zeros(mask.shape, dtype=torch.float64).masked_fill(
            mask == 0, float("-inf")
        )
    return bias + mask.double()


def attention(query, key, value, bias, keep, factors, stage):
    """Plain formulas; heads of key and value repeat for groups of query heads."""
    group = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
    logits = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5 + bias
    if stage == "logits":
        logits = logits.masked_fill(~keep, float("-inf"))
    empty = (logits == float("-inf")).all(-1, keepdim=True)
    weights = torch.softmax(logits.masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0)
    return (weights * factors if stage == "weights" else weights) @ value


def largest_of(*tensors):
    return max(tensor.abs().max().item() for tensor in tensors)


def check(line, problem, tensors, threads=1):
    """The largest error over out and the gradients; raises where it is over the tolerance."""
    native = Native(line, tensors, threads)
    out = native.forward()
    gradients = native.backward()
    keep, factors = native.keep_mask()
    inputs = [tensors[name].double().requires_grad_() for name in ("query", "key", "value")]
    bias = visible_keys(problem, tensors)
    want = attention(*inputs, bias, keep, factors, problem["stage"])
    # Errors count beside the largest value, and those of gradients beside the largest of all three:
    # with one visible key the gradient of query is zero, a difference of large terms.
    scale = largest_of(inputs[2].detach(), want.detach())
    pairs = [("out", out, want.detach(), scale)]
    if problem["dropout_p"] == 0.0:
        with torch.no_grad():
            theirs = F.scaled_dot_product_attention(*inputs, attn_mask=bias, enable_gqa=True)
        pairs.append(("out beside SDPA", out, theirs, scale))
    wanted = torch.autograd.grad(want, inputs, tensors["grad_out"].double())
    scale = max(1e-3, largest_of(*wanted))
    for name, got, expected in zip(
        ("grad_query", "grad_key", "grad_value"), gradients, wanted, strict=True
    ):
        pairs.append((name, got, expected, scale))
    worst = 0.0
    for name, got, expected, scale in pairs:
        error = largest_of(got.double() - expected) / scale
        worst = max(worst, error)
        if not error <= TOLERANCE[problem["dtype"]]:
            raise AssertionError(f"{name} is off by {error:.1e} of its largest element: {line}")
    return worst


def random_problem(source):
    kv_heads, group = source.randint(1, 3), source.randint(1, 3)
    problem = {
        "batch": source.randint(1, 2),
        "heads": kv_heads * group,
        "kv_heads": kv_heads,
        "seqlen_q": source.choice(SIZES),
        "seqlen_k": source.choice(SIZES),
        "head_dim": source.choice([1, 8, 16, 33, 64, 80]),
        "dtype": source.choice(["f32", "f32", "bf16", "f16"]),
        "causal": source.random() < 0.4,
        "mask": source.choice(["none", "none", "bool:bhqk", "bool:bk", "f32:hqk", "f32:qk"]),
        "dropout_p": source.choice([0.0, 0.1, 0.5, 0.9]),
        "scheme": source.choice(["element", "key", "query", "block", "shared"]),
        "stage": source.choice(["weights", "weights", "logits"]),
        "empty_row": "zero",
        "seed": source.randrange(2**32),
    }
    if problem["scheme"] == "element":
        problem["empty_row"] = source.choice(["zero", "keep_one", "redraw", "keep_first"])
    return problem


def line_of(problem):
    """The one-line form."""
    words = [
        f"b{problem['batch']} h{problem['heads']} kv{problem['kv_heads']}",
        f"q{problem['seqlen_q']} k{problem['seqlen_k']} d{problem['head_dim']} {problem['dtype']}",
    ]
    words += ["causal"] * problem["causal"]
    words += [f"mask={problem['mask']}"] * (problem["mask"] != "none")
    words.append(f"scheme={problem['scheme']} stage={problem['stage']}")
    words.append(
        f"empty_row={problem['empty_row']} p={problem['dropout_p']} seed={problem['seed']}"
    )
    return " ".join(words)


def tensors_of(problem, seed):
    generator = torch.Generator().manual_seed(seed)

    def normal(heads, rows):
        shape = problem["batch"], heads, rows, problem["head_dim"]
        return torch.randn(shape, generator=generator).to(DTYPES[problem["dtype"]])

    tensors = {
        "query": normal(problem["heads"], problem["seqlen_q"]),
        "key": normal(problem["kv_heads"], problem["seqlen_k"]),
        "value": normal(problem["kv_heads"], problem["seqlen_k"]),
        "grad_out": normal(problem["heads"], problem["seqlen_q"]),
    }
    if problem["mask"] != "none":
        kind, axes = problem["mask"].split(":")
        names = {"b": "batch", "h": "heads", "q": "seqlen_q", "k": "seqlen_k"}
        shape = [problem[names[axis]] if axis in axes else 1 for axis in "bhqk"]
        if kind == "bool":
            tensors["attn_mask"] = (torch.rand(shape, generator=generator) < 0.8).byte()
        else:
            tensors["attn_mask"] = torch.randn(shape, generator=generator)
    return tensors


def check_random(count, seed, threads=1):
    """Prints one line; raises at the first problem that differs."""
    source = random.Random(seed)
    worst = {}
    for number in range(count):
        problem = random_problem(source)
        error = check(line_of(problem), problem, tensors_of(problem, number), threads)
        worst[problem["dtype"]] = max(error, worst.get(problem["dtype"], 0.0))
    found = ", ".join(f"{dtype} {error:.1e}" for dtype, error in sorted(worst.items()))
    print(f"{count} random problems agree with PyTorch; largest error of any array: {found}")
