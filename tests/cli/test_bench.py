# SPDX-License-Identifier: Apache-2.0
"""attndrop bench and --target: fields, refusals, and figures that cannot be wrong. Nothing here
depends on how fast the machine is."""

import json

import numpy as np
import pytest
from tool import load, run, save, succeed

TARGETS = json.loads(succeed("--version", "--json").out)["targets"]
SMALL = "q64 k64 d16 f32 p=0.1"
FIELDS = {
    "problem",
    "direction",
    "target",
    "threads",
    "median_s",
    "peak_fraction",
    "ratio_to_p0",
    "scratch_bytes",
    "peak_flops",
}


def bench(*words):
    return succeed("bench", "--json", *words).json()


def test_json_has_an_object_per_problem_and_direction():
    lines = [SMALL, "q33 k65 d8 bf16 causal scheme=key stage=logits p=0.5"]
    rows = bench(
        "--problem", lines[0], "--problem", lines[1], "--direction", "both", "--repeats", 2
    )
    assert [row["direction"] for row in rows] == ["forward", "backward"] * 2
    for row in rows:
        assert set(row) == FIELDS
        assert row["target"] == TARGETS[-1] and row["threads"] == 1
        assert row["median_s"] > 0 and row["peak_flops"] > 1e9
        assert row["ratio_to_p0"] > 0 and row["scratch_bytes"] > 0
        assert 0 < row["peak_fraction"] < 1
    assert rows[0]["problem"] == f"b1 h1 {SMALL}".replace("f32", "f32 scheme=element")


def test_without_dropout_the_ratio_is_one():
    assert bench("--problem", "q64 k64 d16", "--repeats", 3)[0]["ratio_to_p0"] == 1.0


def test_float64_has_no_peak():
    row = bench("--problem", "q16 k16 d4 f64", "--repeats", 1)[0]
    assert row["target"] is None and row["peak_fraction"] is None and row["peak_flops"] is None


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_of_the_machine_can_be_forced(target):
    row = bench("--problem", SMALL, "--target", target, "--repeats", 1)[0]
    assert row["target"] == target
    explained = succeed("bench", "--explain", "--problem", SMALL, "--target", target).out
    assert f"target: {target}" in explained and "path: fused" in explained


def test_only_visible_weights_count():
    """ns per weight times weights is the time: the causal half, the window, unused rows."""
    lines = {
        "q64 k64 d8 causal": 64 * 65 // 2,
        "q64 k64 d8 window=0,0": 64,
        "q4 k64 d8 causal align=bottom-right": 61 + 62 + 63 + 64,
        "h3 d8 cu_q=0,3,8 cu_k=0,4,9 used_k=4,1": 3 * (3 * 4 + 5 * 1),
    }
    words = [word for line in lines for word in ("--problem", line)]
    table = succeed("bench", "--repeats", 1, *words).out.splitlines()
    for row, weights in zip(table[1 : len(lines) + 1], lines.values(), strict=True):
        *_, milliseconds, _, _, per_weight, _ = row.split()
        assert float(per_weight) * weights == pytest.approx(1e6 * float(milliseconds), abs=600), row


def test_two_threads():
    row = bench("--problem", "h2 q64 k64 d16", "--threads", 2, "--repeats", 1)[0]
    assert row["threads"] == 2


def test_explain_says_why_and_computes_nothing():
    huge = "h64 q1000000 k1000000 d64"
    text = succeed("bench", "--explain", "--problem", huge, "--problem", "q4 k4 d4 f64").out
    assert "path: fused" in text and "path: reference" in text and "float64" in text
    rows = succeed("bench", "--explain", "--json", "--problem", huge).json()
    assert rows[0]["forward_scratch_bytes"] < rows[0]["backward_scratch_bytes"]
    assert rows[0]["path"] == "fused" and rows[0]["reason"]


def test_once_prints_nothing():
    line = "b2 h2 q9 k9 d8 mask=f32:hk alibi layout=reversed"
    assert succeed("bench", "--once", "--direction", "both", "--problem", line).out == ""


def test_scratch_does_not_depend_on_dropout():
    lines = ["q512 k512 d64", "q512 k512 d64 p=0.1"]
    rows = bench(
        "--problem", lines[0], "--problem", lines[1], "--direction", "both", "--repeats", 1
    )
    assert rows[0]["scratch_bytes"] <= rows[2]["scratch_bytes"] < rows[0]["scratch_bytes"] + 100_000
    assert rows[1]["scratch_bytes"] <= rows[3]["scratch_bytes"] < rows[1]["scratch_bytes"] + 100_000


@pytest.mark.parametrize(
    ("words", "piece"),
    [
        (["--repeats", "0"], "--repeats must be an integer in [1, 1000]"),
        (["--direction", "up"], 'forward, backward or both, got "up"'),
        (["--clock", "sun"], 'wall or cpu, got "sun"'),
        (["--clock", "cpu", "--threads", "2"], "--threads 1"),
        (["--threads", "4097"], "[0, 4096]"),
        (["--problem", "q4 k4 dd4"], "dd4"),
        (["--problem"], "needs a value"),
        (["--explain", "--once"], "--once cannot stand beside"),
        (["--target", "avx"], 'did you mean "avx2"?'),
        (["--problem", "q4 k4 d4", "--target", "neon"], "supported: sse4"),
    ],
)
def test_refusals(words, piece):
    if words[-1] == "neon" and "neon" in TARGETS:
        pytest.skip("this machine has neon")
    outcome = run("bench", *words)
    assert outcome.code == 2 and piece in outcome.err and outcome.out == "", outcome.err


def test_too_large_arrays_are_refused():
    outcome = run("bench", "--problem", "h100000 q1000000 k1000000 d64")
    assert outcome.code == 1 and "GiB" in outcome.err


def test_forward_and_backward_compute_the_same_on_every_target(tmp_path):
    rng = np.random.default_rng(1)
    names = ["q", "k", "v", "g"]
    save(tmp_path, **{n: rng.standard_normal((1, 2, 40, 8)).astype(np.float32) for n in names})
    qkv = ["--query", "q.npy", "--key", "k.npy", "--value", "v.npy", "--dropout-p", "0.3"]
    wanted = None
    for target in TARGETS:
        forced = [*qkv, "--target", target, "--force"]
        succeed("forward", *forced, "--out", "out.npy", cwd=tmp_path)
        succeed("backward", *forced, "--grad-out", "g.npy", "--grad-key", "gk.npy", cwd=tmp_path)
        got = np.concatenate([load(tmp_path, "out"), load(tmp_path, "gk")])
        wanted = got if wanted is None else wanted
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("command", ["forward", "backward"])
def test_an_unknown_target_is_refused_before_a_file_is_opened(command, tmp_path):
    words = ["--query", "q.npy", "--key", "k.npy", "--value", "v.npy", "--target", "mmx"]
    words += ["--out", "o.npy"] if command == "forward" else ["--grad-query", "o.npy"]
    words += ["--grad-out", "g.npy"] * (command == "backward")
    outcome = run(command, *words, cwd=tmp_path)
    assert outcome.code == 2 and 'target "mmx" is unknown' in outcome.err
