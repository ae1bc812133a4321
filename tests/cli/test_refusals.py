# SPDX-License-Identifier: Apache-2.0
"""What is refused, word by word and file by file: exit 2, one sentence, nothing written."""

import os

import numpy as np
import pytest
from tool import run, save

SMALL = ["mask", "--seqlen-q", "4", "--at", "0,0,2,1", "--dropout-p", "0.5"]
QKV = ["--query", "query.npy", "--key", "key.npy", "--value", "value.npy"]


@pytest.fixture
def arrays(tmp_path):
    rng = np.random.default_rng(3)
    shape = (1, 2, 5, 4)
    names = ["query", "key", "value", "grad_out"]
    save(tmp_path, **{name: rng.standard_normal(shape).astype(np.float32) for name in names})
    return tmp_path


# ---- Refusals of words and values: exit 2, nothing on standard output  ----


@pytest.mark.parametrize(
    "words, pieces",
    [
        ([], ["command is missing"]),
        (["frobnicate"], ["command frobnicate is unknown"]),
        (["fowrard"], ["did you mean forward?"]),
        (
            ["forward", "--qery", "x"],
            ["--qery", "did you mean --query?", "attndrop forward --help"],
        ),
        (["mask", "--dropout_p", "1"], ["did you mean --dropout-p?"]),
        (["mask", "--seqlen-q=4", "--qqqqqq=3"], ["flag --qqqqqq is unknown"]),
        (["mask", "foo"], ["word foo"]),
        (["mask", "forward"], ["word forward"]),
        (["--frob"], ["flag --frob is unknown"]),
        ([*SMALL, "--seed"], ["--seed needs a value"]),
        ([*SMALL, "--seed", "--causal"], ["--seed must be", "missing before --causal"]),
        ([*SMALL, "--seed", "1", "--seed", "2"], ["--seed is given 2 times"]),
        ([*SMALL, "--causal", "--causal"], ["--causal is given 2 times"]),
        ([*SMALL, "--causal=false"], ["--causal takes no value"]),
        ([*SMALL, "--seed", "-1"], ["[0, 18446744073709551615]", '"-1"']),
        ([*SMALL, "--seed", "18446744073709551616"], ["18446744073709551615"]),
        ([*SMALL, "--seed", "1.5"], ['"1.5"']),
        ([*SMALL, "--seed", "1e3"], ['"1e3"']),
        ([*SMALL, "--seed", ""], ["got nothing"]),
        ([*SMALL, "--seed", " 1"], ['" 1"']),
        ([*SMALL, "--seed", "0x10"], ['"0x10"']),
        ([*SMALL, "--offset", "-1"], ["--offset must be"]),
        ([*SMALL, "--scale", "abc"], ["--scale must be a number"]),
        ([*SMALL, "--scale", "nan"], ["scale must be a finite number", "nan"]),
        ([*SMALL, "--scale", "-inf"], ["scale must be a finite number", "-inf"]),
        ([*SMALL, "--scale", "1e999"], ["--scale must be a number"]),
        ([*SMALL, "--window", "3"], ["--window must be left,right"]),
        ([*SMALL, "--window", "3,-2"], ["--window must be left,right", "at least -1"]),
        ([*SMALL, "--window", "3,4,5"], ["--window must be left,right"]),
        ([*SMALL, "--window", "3, 4"], ["without spaces"]),
        ([*SMALL, "--origin", "0,0,0"], ["--origin must be batch,head,query,key"]),
        ([*SMALL, "--origin", "0,0,0,4294967296"], ["[0, 4294967295]"]),
        ([*SMALL, "--origin", "0,0,0,4294967295"], ["2^32"]),
        ([*SMALL, "--total", "4"], ["--total must be seqlen_q,seqlen_k"]),
        ([*SMALL, "--total", "2,2"], ["total"]),
        ([*SMALL, "--causal-align", "left"], ["--causal-align must be top-left", '"left"']),
        ([*SMALL, "--scheme", "Element"], ['"Element"', 'did you mean "element"?']),
        ([*SMALL, "--scheme", "block:block_q=0"], ["block_q"]),
        ([*SMALL, "--stage", "logit"], ["logits"]),
        ([*SMALL, "--empty-row", "redraws"], ["redraw"]),
        ([*SMALL, "--empty-row", "at_least_one:attempts=0"], ["attempts"]),
        ([*SMALL, "--scheme", "key", "--empty-row", "redraw"], ["key"]),
        ([*SMALL, "--threads", "-1"], ["--threads must be an integer in [0, 4096]"]),
        ([*SMALL, "--threads", "4097"], ["--threads must be an integer in [0, 4096]"]),
        ([*SMALL, "--heads", "3", "--kv-heads", "2"], ["3", "2"]),
        ([*SMALL, "--batch", "-1"], ["--batch must be an integer of at least 0"]),
        ([*SMALL, "--cu-seqlens-q", "x.npy"], ["belong together"]),
        ([*SMALL, "--problem", "b1 h1 q4 k4 d8 f32"], ["--problem", "beside it"]),
        ([*SMALL, "--output", "m.npy"], ["--at b,h,i,j"]),
        (["mask", "--seqlen-q", "4"], ["--at b,h,i,j"]),
        (["mask", "--at", "0,0,0,0"], ["--seqlen-q is missing"]),
        (["mask", "--at", "0,0,0,0", "--problem", "b1 frob"], ["frob"]),
        (["mask", "--seqlen-q", "4", "--at", "0,0,0,4"], ["key", "4"]),
        (["mask", "--seqlen-q", "4", "--at", "0,0,0"], ["--at must be batch,head,query,key"]),
        (["mask", "--seqlen-q", "4294967297", "--at", "0,0,0,0"], ["2^32"]),
        (["forward"], ["--query is missing"]),
        (["forward", *QKV], ["nothing to write"]),
        (["forward", *QKV, "--out", "o.npy", "--path", "quick"], ["--path must be fused", "quick"]),
        (["backward", *QKV], ["--grad-out is missing"]),
        (["backward", *QKV, "--grad-out", "grad_out.npy"], ["nothing to write"]),
        (
            ["backward", *QKV, "--grad-out", "grad_out.npy", "--grad-attn-mask", "g.npy"],
            ["needs a float --attn-mask"],
        ),
        (["analyze", "--seqlen-q", "4", "--draws", "1"], ["--draws must be"]),
        (["analyze", "--seqlen-q", "4", "--layers", "0"], ["--layers must be"]),
        (["analyze", "--seqlen-q", "4", "--select", "0,1"], ["head"]),
        (["analyze", "--seqlen-q", "4", "--query", "q.npy"], ["belong together"]),
        (["analyze", *QKV, "--seqlen-q", "4"], ["sizes are those of the files"]),
        (["rng", "--kind", "uniform", "--count", "3"], ["--format is missing"]),
        (["rng", "--format", "torch-cpu", "--count", "3"], ["--kind is missing"]),
        (["rng", "--format", "torch-cpu", "--kind", "uniform"], ["--count is missing"]),
        (["rng", "--format", "cuda", "--kind", "uniform", "--count", "1"], ['"cuda"']),
        (["rng", "--format", "torch-cpu", "--kind", "poisson", "--count", "1"], ['"poisson"']),
        (["rng", "--format", "torch-cpu", "--kind", "bernoulli", "--count", "1"], ["--dropout-p"]),
        (["rng", "--format", "attndrop", "--kind", "normal", "--count", "1"], ["keep flags only"]),
        (
            ["rng", "--format", "torch-cpu", "--kind", "normal", "--count", "-1"],
            ["--count must be"],
        ),
    ],
)
def test_refusals(words, pieces, arrays):
    before = sorted(os.listdir(arrays))
    outcome = run(*words, cwd=arrays)
    assert outcome.code == 2, outcome.err
    assert outcome.out == ""
    assert outcome.err.startswith("attndrop: error: ") and outcome.err.count("\n") == 1
    for piece in pieces:
        assert piece in outcome.err, outcome.err
    assert sorted(os.listdir(arrays)) == before


@pytest.mark.parametrize("p", ["nan", "-0.1", "1.5", "inf", "50%", "abc", "", "1,5"])
@pytest.mark.parametrize("command", ["mask", "rng"])
def test_a_bad_dropout_p_is_never_taken_for_another(p, command):
    words = {
        "mask": ["mask", "--seqlen-q", "4", "--at", "0,0,0,0"],
        "rng": ["rng", "--format", "torch-cpu", "--kind", "bernoulli", "--count", "3"],
    }[command]
    outcome = run(*words, "--dropout-p", p)
    assert outcome.code == 2 and "must be a" in outcome.err and outcome.out == ""
    if p == "50%":
        assert "write 0.5" in outcome.err


# ---- Refusals of files ---------------------------------------------------------------------------


def replaced(name, array):
    return lambda folder: save(folder, **{name: array})


F32 = np.float32
MASK = ["--attn-mask", "mask.npy"]


@pytest.mark.parametrize(
    "damage, extra, pieces",
    [
        (lambda d: (d / "key.npy").unlink(), [], ["--key key.npy", "cannot be opened"]),
        (lambda d: (d / "key.npy").write_bytes(b""), [], ["--key key.npy, byte 0", "empty"]),
        (lambda d: (d / "key.npy").write_bytes(b"PK\3\4"), [], ["byte 0", "numpy.save"]),
        (
            lambda d: (d / "key.npy").write_bytes((d / "query.npy").read_bytes()[:-3]),
            [],
            ["key.npy, byte 285", "truncated"],
        ),
        (
            lambda d: (d / "key.npy").write_bytes((d / "query.npy").read_bytes() + b"x"),
            [],
            ["key.npy, byte 288", "1 bytes follow"],
        ),
        (replaced("key", np.zeros((1, 2, 5, 4), "i8")), [], ["int64", "numpy.float32"]),
        (replaced("key", np.zeros((1, 2, 5, 4), ">f4")), [], ["big-endian", "byte 20"]),
        (replaced("key", np.zeros((1, 2, 5, 4), "c8")), [], ["'<c8'"]),
        (replaced("key", np.array([{}], dtype=object)), [], ["Python objects"]),
        (replaced("key", np.zeros(3, [("a", "f4")])), [], ["structured"]),
        (replaced("key", np.asfortranarray(np.ones((1, 2, 5, 4), F32))), [], ["ascontiguousarray"]),
        (replaced("key", np.zeros((2, 5, 4), F32)), [], ["(2, 5, 4) has 3 axes", "array[None]"]),
        (replaced("key", np.zeros((1, 2, 5, 4))), [], ["float32", "float64", "one type"]),
        (replaced("key", np.zeros((2, 2, 5, 4), F32)), [], ["(1, 2, 5, 4)", "same batch"]),
        (replaced("key", np.zeros((1, 1, 5, 4), F32)), [], ["same heads"]),
        (replaced("value", np.zeros((1, 2, 6, 4), F32)), [], ["(1, 2, 6, 4)", "same seqlen"]),
        (replaced("key", np.zeros((1, 2, 5, 3), F32)), [], ["same head_dim"]),
        (replaced("mask", np.zeros((5, 6), bool)), MASK, ["(5, 6)", "does not fit"]),
        (replaced("mask", np.zeros((1, 1, 1, 5, 5), bool)), MASK, ["does not fit"]),
        (replaced("mask", np.zeros((5, 5), "i4")), MASK, ["int32", "bool or uint8"]),
        (
            replaced("mask", np.array([0, 1, np.nan, 0, 0], F32)),
            MASK,
            ["element (2,) is nan", "byte 136"],
        ),
        (
            replaced("mask", np.array([[0, 0, 0, 0, np.inf]])),
            MASK,
            ["element (0, 4) is inf"],
        ),
        (replaced("a", np.ones(3, F32)), ["--alibi-slopes", "a.npy"], ["(3,)", "(2,)", "(1, 2)"]),
        (replaced("a", np.ones(2)), ["--alibi-slopes", "a.npy"], ["float64", "numpy.float32"]),
        (
            replaced("a", np.array([1, np.inf], F32)),
            ["--alibi-slopes", "a.npy"],
            ["element (1,) is inf"],
        ),
        (
            replaced("c", np.array([0, 2, 4])),
            ["--cu-seqlens-q", "c.npy", "--cu-seqlens-k", "c.npy"],
            ["--query query.npy", "ends at row 4"],
        ),
        (
            replaced("c", np.array([0, 6, 5])),
            ["--cu-seqlens-q", "c.npy", "--cu-seqlens-k", "c.npy"],
            ["cu_seqlens_q"],
        ),
        (
            replaced("c", np.array([0.0, 5.0])),
            ["--cu-seqlens-q", "c.npy", "--cu-seqlens-k", "c.npy"],
            ["float64", "int64 or int32"],
        ),
        (
            replaced("c", np.array([[0, 5]])),
            ["--cu-seqlens-q", "c.npy", "--cu-seqlens-k", "c.npy"],
            ["(1, 2) has 2 axes"],
        ),
        (
            replaced("grad_out", np.zeros((1, 2, 5, 3), F32)),
            ["backward"],
            ["(1, 2, 5, 3)", "(1, 2, 5, 4) of float32 is expected"],
        ),
        (replaced("grad_out", np.zeros((1, 2, 5, 4))), ["backward"], ["float64", "of float32"]),
        (
            replaced("mask", np.ones((5, 5), bool)),
            ["backward", "--attn-mask", "mask.npy", "--grad-attn-mask", "gm.npy"],
            ["a boolean one has no gradient"],
        ),
    ],
)
def test_bad_files(damage, extra, pieces, arrays):
    damage(arrays)
    before = sorted(os.listdir(arrays))
    words = ["forward", *QKV, "--out", "out.npy"]
    if extra[:1] == ["backward"]:
        words = ["backward", *QKV, "--grad-out", "grad_out.npy", "--grad-query", "gq.npy"]
        extra = extra[1:]
    outcome = run(*words, *extra, cwd=arrays)
    assert outcome.code == 2, outcome.err
    for piece in pieces:
        assert piece in outcome.err, outcome.err
    assert outcome.out == "" and sorted(os.listdir(arrays)) == before
