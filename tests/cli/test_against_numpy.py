# SPDX-License-Identifier: Apache-2.0
"""`attndrop forward` and `backward` against dense NumPy on the masks of `attndrop mask`."""

import numpy as np
import pytest
from dense import Attention, band, sum_to
from tool import load, save, succeed

SHAPE = (2, 3, 257, 40)
TOLERANCE = {np.float64: 1e-12, np.float32: 1e-6}
SCHEMES = [
    "element",
    "shared",
    "key",
    "word",
    "query",
    "head",
    "block:block_q=64,block_k=64",
    "symmetric",
]
ALWAYS_LEGAL = ["zero", "keep_self", "keep_first", "undropped"]
REDRAWS = ["keep_one", "redraw", "at_least_one:attempts=3"]
LEGAL = [
    (scheme, policy)
    for scheme in SCHEMES
    for policy in ALWAYS_LEGAL + (REDRAWS if scheme in ("element", "shared") else [])
]


def check(got, want, dtype, what, allowed=0.0):
    """To the tolerance of the file's type, relative to the array's largest magnitude.

    allowed: an absolute error that is right as well.
    """
    assert got.dtype == dtype and got.shape == want.shape, what
    finite = np.isfinite(want)
    assert (got[~finite] == want[~finite]).all(), what
    if not finite.any():
        return
    error = np.abs(got[finite] - want[finite]).max()
    bound = max(TOLERANCE[dtype] * np.abs(want)[finite].max(), allowed)
    assert error <= bound, f"{what}: {error}, allowed {bound}"


class Case:
    """Random arrays in files, and the words for the tool."""

    def __init__(self, folder, dtype, shape, kv_shape, value_dim=None, seed=1):
        self.folder, self.dtype = folder, dtype
        rng = np.random.default_rng(seed)
        value_shape = kv_shape[:3] + (value_dim or kv_shape[3],)
        self.query = rng.standard_normal(shape).astype(dtype)
        self.key = rng.standard_normal(kv_shape).astype(dtype)
        self.value = rng.standard_normal(value_shape).astype(dtype)
        self.grad_out = rng.standard_normal(shape[:3] + value_shape[3:]).astype(dtype)
        self.grad_logsumexp = rng.standard_normal(shape[:3]).astype(dtype)
        save(
            folder,
            query=self.query,
            key=self.key,
            value=self.value,
            grad_out=self.grad_out,
            grad_logsumexp=self.grad_logsumexp,
        )
        self.rng = rng

    def mask(self, *flags):
        batch, heads, seqlen_q = self.query.shape[:3]
        kv_heads, seqlen_k = self.key.shape[1:3]
        ragged = "--cu-seqlens-q" in flags
        sizes = ["--batch", batch, "--seqlen-q", seqlen_q, "--seqlen-k", seqlen_k]
        self.tool(
            "mask",
            *([] if ragged else sizes),
            *("--heads", heads, "--kv-heads", kv_heads, "--force"),
            *("--output", "keep.npy", "--factors", "factors.npy", *flags),
        )
        return load(self.folder, "keep"), load(self.folder, "factors")

    def tool(self, *words):
        return succeed(*words, cwd=self.folder)

    def forward(self, *flags):
        self.tool(
            *("forward", "--query", "query.npy", "--key", "key.npy", "--value", "value.npy"),
            *("--out", "out.npy", "--logsumexp", "logsumexp.npy", "--force", *flags),
        )
        return load(self.folder, "out"), load(self.folder, "logsumexp")

    def backward(self, *flags):
        self.tool(
            *("backward", "--query", "query.npy", "--key", "key.npy", "--value", "value.npy"),
            *("--grad-out", "grad_out.npy", "--grad-logsumexp", "grad_logsumexp.npy"),
            *("--grad-query", "grad_query.npy", "--grad-key", "grad_key.npy"),
            *("--grad-value", "grad_value.npy", "--force", *flags),
        )
        return [load(self.folder, f"grad_{name}") for name in ("query", "key", "value")]

    def compare(self, want, *flags, allowed_in_grads=(0.0, 0.0, 0.0)):
        out, logsumexp = self.forward(*flags)
        check(out, want.out, self.dtype, "out")
        check(logsumexp, want.logsumexp, self.dtype, "logsumexp")
        grads = want.backward(self.grad_out, self.grad_logsumexp)
        for got, grad, name, allowed in zip(
            self.backward(*flags), grads, ["query", "key", "value"], allowed_in_grads
        ):
            check(got, grad, self.dtype, f"grad_{name}", allowed)
        return grads[3]


def errors_of(computed, want):
    return [np.abs(a - b).max() for a, b in zip(computed, want)]


@pytest.mark.parametrize("scheme, policy", LEGAL)
def test_every_scheme_policy_and_stage(tmp_path, scheme, policy):
    """float64, and float32 on both paths.

    Gradients that cancel are lost in any float32 arithmetic, so those of the fused path may also
    have three times the error of the same formulas in dense float32.
    """
    case = Case(tmp_path, np.float64, SHAPE, SHAPE)
    flags = ["--causal", "--dropout-p", 0.3, "--seed", 7, "--offset", 3]
    flags += ["--scheme", scheme, "--empty-row", policy]
    keep, factors = case.mask(*flags)
    visible = band(257, 257, causal=True)
    assert 0.5 < keep.sum() / (6 * visible.sum()) < 0.9 or scheme in ("head", "query")
    for stage in ("weights", "logits"):
        want = Attention(case.query, case.key, case.value, visible, keep, factors, stage)
        case.compare(want, *flags, "--stage", stage)
    case = Case(tmp_path, np.float32, SHAPE, SHAPE)
    for stage in ("weights", "logits"):
        rest = (visible, keep, factors, stage)
        want = Attention(case.query, case.key, case.value, *rest)
        case.compare(want, *flags, "--stage", stage, "--path", "reference")
        dense = Attention(case.query, case.key, case.value, *rest, dtype="f4")
        upstream = (case.grad_out, case.grad_logsumexp)
        errors = errors_of(dense.backward(*upstream), want.backward(*upstream))
        allowed = [3 * error for error in errors[:3]]
        case.compare(want, *flags, "--stage", stage, allowed_in_grads=allowed)


def test_an_illegal_scheme_and_policy_is_refused(tmp_path):
    from tool import run

    for scheme in set(SCHEMES) - {"element", "shared"}:
        words = ["mask", "--seqlen-q", 4, "--at", "0,0,0,0", "--dropout-p", 0.5]
        outcome = run(*words, "--scheme", scheme, "--empty-row", "redraw", cwd=tmp_path)
        assert outcome.code == 2 and scheme.split(":")[0] in outcome.err


@pytest.mark.parametrize("stage", ["weights", "logits"])
def test_grouped_heads_unequal_lengths_and_dims(tmp_path, stage):
    case = Case(tmp_path, np.float64, (2, 6, 33, 16), (2, 2, 50, 16), value_dim=9)
    flags = ["--dropout-p", 0.4, "--seed", 2, "--empty-row", "redraw", "--scale", -0.7]
    keep, factors = case.mask(*flags)
    want = Attention(
        case.query, case.key, case.value, True, keep, factors, stage, scale=-0.7
    )
    case.compare(want, *flags, "--stage", stage)


@pytest.mark.parametrize("lengths", [(20, 31), (31, 20)])
@pytest.mark.parametrize("align", ["top-left", "bottom-right"])
def test_causal_and_window_with_both_alignments(tmp_path, align, lengths):
    seqlen_q, seqlen_k = lengths
    shift = seqlen_k - seqlen_q if align == "bottom-right" else 0
    case = Case(tmp_path, np.float64, (1, 2, seqlen_q, 8), (1, 2, seqlen_k, 8))
    for bounds, visible in [
        (["--causal"], band(seqlen_q, seqlen_k, causal=True, shift=shift)),
        (["--window", "5,3"], band(seqlen_q, seqlen_k, left=5, right=3, shift=shift)),
        (["--causal", "--window", "4,-1"], band(seqlen_q, seqlen_k, True, 4, shift=shift)),
    ]:
        flags = [*bounds, "--causal-align", align, "--dropout-p", 0.3, "--empty-row", "keep_self"]
        keep, factors = case.mask(*flags)
        want = Attention(case.query, case.key, case.value, visible, keep, factors, "weights")
        case.compare(want, *flags)


@pytest.mark.parametrize(
    "shape", [(2, 3, 17, 23), (2, 1, 1, 23), (1, 3, 17, 1), (17, 23), (1, 23), (23,)]
)
@pytest.mark.parametrize("kind", ["bool", "uint8", "float64", "float32", "float16"])
def test_attn_mask_of_every_type_and_shape(tmp_path, kind, shape):
    case = Case(tmp_path, np.float64, (2, 3, 17, 8), (2, 3, 23, 8))
    allowed = case.rng.random(shape) < 0.7
    if kind in ("bool", "uint8"):
        mask, bias = allowed.astype(kind), 0.0
    else:
        mask = np.where(allowed, case.rng.standard_normal(shape), -np.inf).astype(kind)
        bias = np.where(allowed, mask.astype(np.float64), 0.0)
    save(tmp_path, mask=mask)
    flags = ["--attn-mask", "mask.npy", "--dropout-p", 0.3, "--empty-row", "undropped"]
    keep, factors = case.mask(*flags)
    want = Attention(
        case.query, case.key, case.value, allowed, keep, factors, "weights", bias=bias
    )
    grad_logits = case.compare(want, *flags)
    if kind.startswith("float"):
        case.backward(*flags, "--grad-attn-mask", "grad_mask.npy")
        got = load(tmp_path, "grad_mask")
        assert got.dtype == mask.dtype and got.shape == mask.shape
        grad = sum_to(grad_logits, shape)
        bound = {"float64": 1e-12, "float32": 1e-6, "float16": 1e-3}[kind] * np.abs(grad).max()
        assert np.abs(got.astype(np.float64) - grad).max() <= bound


def test_alibi_slopes_per_head_and_per_batch_and_head(tmp_path):
    case = Case(tmp_path, np.float64, (2, 3, 17, 8), (2, 3, 23, 8))
    distance = np.abs(np.arange(17)[:, None] + 6 - np.arange(23)[None, :])
    for shape in [(3,), (2, 3)]:
        slopes = case.rng.random(shape).astype(np.float32)
        save(tmp_path, slopes=slopes)
        flags = ["--alibi-slopes", "slopes.npy", "--causal-align", "bottom-right"]
        flags += ["--dropout-p", 0.3]
        keep, factors = case.mask(*flags)
        bias = -slopes.astype(np.float64)[..., None, None] * distance
        want = Attention(
            case.query, case.key, case.value, True, keep, factors, "weights", bias=bias
        )
        case.compare(want, *flags)


@pytest.mark.parametrize("int_type", [np.int32, np.int64])
def test_ragged_batch_equals_its_sequences(tmp_path, int_type):
    lengths_q, lengths_k = [5, 0, 9, 1], [7, 3, 4, 6]
    starts_q = np.concatenate([[0], np.cumsum(lengths_q)]).astype(int_type)
    starts_k = np.concatenate([[0], np.cumsum(lengths_k)]).astype(int_type)
    case = Case(tmp_path, np.float64, (1, 2, 15, 8), (1, 2, 20, 8))
    save(tmp_path, cu_q=starts_q, cu_k=starts_k)
    flags = ["--cu-seqlens-q", "cu_q.npy", "--cu-seqlens-k", "cu_k.npy", "--causal"]
    flags += ["--causal-align", "bottom-right", "--dropout-p", 0.3, "--seed", 5]
    keep, factors = case.mask(*flags)
    assert keep.shape == (4, 2, 9, 7)
    out, logsumexp = case.forward(*flags)
    grads = case.backward(*flags)
    for batch, (n_q, n_k) in enumerate(zip(lengths_q, lengths_k)):
        rows = slice(starts_q[batch], starts_q[batch + 1])
        cols = slice(starts_k[batch], starts_k[batch + 1])
        want = Attention(
            *(case.query[:, :, rows], case.key[:, :, cols], case.value[:, :, cols]),
            band(n_q, n_k, causal=True, shift=n_k - n_q),
            *(keep[batch : batch + 1, :, :n_q, :n_k], factors[batch : batch + 1, :, :n_q, :n_k]),
            "weights",
        )
        check(out[:, :, rows], want.out, np.float64, "out")
        check(logsumexp[:, :, rows], want.logsumexp, np.float64, "logsumexp")
        wanted = want.backward(case.grad_out[:, :, rows], case.grad_logsumexp[:, :, rows])
        for got, grad, part in zip(grads, wanted, [rows, cols, cols]):
            assert np.abs(got[:, :, part] - grad).max(initial=0.0) <= 1e-12 * 10


def test_float16_files(tmp_path):
    case = Case(tmp_path, np.float16, (1, 2, 19, 8), (1, 2, 19, 8))
    flags = ["--dropout-p", 0.3, "--causal"]
    keep, factors = case.mask(*flags)
    want = Attention(
        *(case.query, case.key, case.value), band(19, 19, causal=True), keep, factors, "weights"
    )
    out, logsumexp = case.forward(*flags)
    assert out.dtype == np.float16 and logsumexp.dtype == np.float32
    assert np.abs(out - want.out).max() <= 2.0**-11 * np.abs(want.out).max()
    assert np.abs(logsumexp - want.logsumexp).max() <= 1e-6 * np.abs(want.logsumexp).max()


def test_a_shard_draws_what_the_whole_draws(tmp_path):
    case = Case(tmp_path, np.float64, (2, 4, 12, 8), (2, 4, 12, 8))
    flags = ["--causal", "--dropout-p", 0.4, "--seed", 3]
    whole, _ = case.mask(*flags)
    case.tool(
        *("mask", "--heads", 2, "--seqlen-q", 5, "--seqlen-k", 7, "--output", "part.npy"),
        *("--origin", "1,2,6,4", "--total", "12,12", *flags),
    )
    assert (load(tmp_path, "part") == whole[1:, 2:, 6:11, 4:11]).all()


def test_no_training_is_plain_attention_bit_for_bit(tmp_path):
    case = Case(tmp_path, np.float32, (1, 2, 19, 8), (1, 2, 19, 8))
    plain, _ = case.forward("--causal")
    evaluated, _ = case.forward("--causal", "--dropout-p", 0.9, "--no-training")
    assert plain.tobytes() == evaluated.tobytes()


def test_threads_change_nothing(tmp_path):
    case = Case(tmp_path, np.float32, (2, 3, 65, 8), (2, 3, 65, 8))
    flags = ["--causal", "--dropout-p", 0.3]
    one = case.forward(*flags, "--threads", 1)[0], *case.backward(*flags, "--threads", 1)
    many = case.forward(*flags, "--threads", 7)[0], *case.backward(*flags, "--threads", 7)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(one, many))
