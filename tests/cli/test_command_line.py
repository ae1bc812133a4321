# SPDX-License-Identifier: Apache-2.0
"""What a shell user sees: help, exit codes, standard output as data, notes, JSON, no half files."""

import json
import os
import re
import resource
import shlex
import subprocess

import numpy as np
import pytest
from tool import CLI, load, run, save, succeed

COMMANDS = ["demo", "forward", "backward", "mask", "schemes", "analyze", "rng", "bench"]
POST_OUT = [
    [0.0] * 10,
    [0.0] * 10,
    [0.4227, 1.1676, 0.1916, 0.7144, 1.0432, 0.5021, 0.1680, 0.1247, 1.1446, 0.2948],
    [2.3534, 2.1808, 1.3240, 2.1463, 2.5636, 0.9744, 2.2360, 1.6751, 1.3820, 2.3454],
]
SMALL = ["mask", "--seqlen-q", "4", "--at", "0,0,2,1", "--dropout-p", "0.5"]
QKV = ["--query", "query.npy", "--key", "key.npy", "--value", "value.npy"]


@pytest.fixture
def arrays(tmp_path):
    rng = np.random.default_rng(3)
    shape = (1, 2, 5, 4)
    names = ["query", "key", "value", "grad_out"]
    save(tmp_path, **{name: rng.standard_normal(shape).astype(np.float32) for name in names})
    return tmp_path


# ---- Help and version ----------------------------------------------------------------------------


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_begins_with_two_examples(command, flag):
    outcome = succeed(*command, flag)
    assert outcome.err == ""
    lines = outcome.out.splitlines()
    assert lines[2] == "Examples:"
    assert sum(line.startswith("  attndrop ") for line in lines[3:8]) == 2
    assert [line for line in lines if len(line) > 100] == []
    if not command:
        assert re.findall(r"^  (\w+)  ", outcome.out.split("Commands:")[1], re.M) == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_the_examples_are_accepted(command, arrays):
    for short, name in [("q", "query"), ("k", "key"), ("v", "value"), ("go", "grad_out")]:
        (arrays / f"{name}.npy").rename(arrays / f"{short}.npy")
    text = succeed(command, "--help").out.split("Usage:")[0].split("Examples:\n")[1]
    for example in text.replace("\\\n", " ").strip().splitlines():
        words = shlex.split(example)
        if command == "bench" and "--explain" not in words:
            words.append("--explain")  # the plan, without the time that measuring takes
        assert words[0] == "attndrop"
        for path in arrays.iterdir():
            if path.stem not in ("q", "k", "v", "go"):
                path.unlink()
        succeed(*words[1:], cwd=arrays)


def test_version():
    text = succeed("--version").out
    assert re.fullmatch(r"attndrop \d+\.\d+\.\d+\nmask format 1\ncompiler \S.*\ntargets .*\n", text)
    fields = succeed("--version", "--json").json()
    assert fields["mask_format"] == 1 and fields["version"] in text


# ---- Output files --------------------------------------------------------------------------------


def test_an_output_is_replaced_only_by_force(arrays):
    words = ["forward", *QKV, "--out", "out.npy", "--logsumexp", "logsumexp.npy"]
    (arrays / "logsumexp.npy").write_text("mine")
    outcome = run(*words, cwd=arrays)
    assert outcome.code == 2 and "--logsumexp" in outcome.err and "--force" in outcome.err
    assert not (arrays / "out.npy").exists()
    assert (arrays / "logsumexp.npy").read_text() == "mine"
    assert succeed(*words, "--force", cwd=arrays).out == ""
    assert load(arrays, "logsumexp").shape == (1, 2, 5)


def test_an_input_may_be_replaced_by_force(arrays):
    query = load(arrays, "query")
    succeed("forward", *QKV, "--out", "query.npy", "--force", cwd=arrays)
    assert load(arrays, "query").shape == query.shape
    assert (load(arrays, "query") != query).any()


def test_two_outputs_need_two_names(arrays):
    outcome = run("forward", *QKV, "--out", "x.npy", "--logsumexp", "./x.npy", cwd=arrays)
    assert outcome.code == 2 and "same file" in outcome.err


def limit_files_to_200_bytes():
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))


def test_a_full_disk_leaves_no_file(arrays):
    before = sorted(os.listdir(arrays))
    words = ["forward", *QKV, "--logsumexp", "logsumexp.npy", "--out", "out.npy"]
    outcome = run(*words, cwd=arrays, preexec_fn=limit_files_to_200_bytes)
    assert outcome.code == 1
    assert "out.npy: cannot be written" in outcome.err
    assert sorted(os.listdir(arrays)) == before


def test_a_folder_that_is_not_there(arrays):
    outcome = run("forward", *QKV, "--out", "none/out.npy", cwd=arrays)
    assert outcome.code == 2 and "there is no folder none" in outcome.err


@pytest.mark.parametrize("words", [["schemes"], ["demo"], ["--version"], ["--help"]])
def test_a_full_standard_output_is_a_failure(words):
    with open("/dev/full", "w") as full:
        done = subprocess.run([CLI, *words], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and "standard output cannot be written" in done.stderr


def test_a_mask_larger_than_the_memory_is_refused(tmp_path):
    words = ["mask", "--heads", 1000, "--seqlen-q", 10**6, "--dropout-p", 0.1]
    outcome = run(*words, "--output", "m.npy", cwd=tmp_path)
    assert outcome.code == 1 and "--at" in outcome.err and os.listdir(tmp_path) == []


# ---- Data on standard output ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["demo"],
        ["schemes"],
        ["analyze", "--seqlen-q", "5", "--causal", "--dropout-p", "0.5", "--draws", "100"],
        ["mask", "--seqlen-q", "5", "--seqlen-k", "9", "--causal", "--at", "0,0,1,0"],
        ["mask", "--seqlen-q", "5", "--output", "m.npy", "--factors", "f.npy"],
        ["rng", "--format", "torch-cpu", "--kind", "normal", "--count", "3"],
        ["rng", "--format", "attndrop", "--kind", "bernoulli", "--dropout-p", "0.5", "--count", 9],
        ["forward", *QKV, "--out", "out.npy", "--causal", "--verbose"],
        ["backward", *QKV, "--grad-out", "grad_out.npy", "--grad-key", "gk.npy"],
        ["--version"],
    ],
)
def test_json_is_all_of_standard_output(words, arrays):
    assert isinstance(succeed(*words, "--json", cwd=arrays).json(), dict)


def test_json_survives_a_file_name_that_is_not_text(arrays):
    name = os.fsdecode(b"\xff.npy")
    done = subprocess.run(
        [CLI, "forward", *QKV, "--json", "--out", name], cwd=arrays, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["outputs"][0]["shape"] == [1, 2, 5, 4]


def test_no_color_and_no_progress_without_a_terminal(arrays):
    outcome = run("forward", "--frob", cwd=arrays)
    assert "\x1b" not in outcome.err and "\r" not in outcome.err


@pytest.mark.parametrize(
    "environment, colored", [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_color_on_a_terminal_unless_refused(environment, colored):
    try:
        ours, theirs = os.openpty()
    except OSError as error:
        pytest.skip(f"no pseudo-terminal on this system: {error}")
    env = {**os.environ, "TERM": "xterm", **environment}
    if "NO_COLOR" not in environment:
        env.pop("NO_COLOR", None)
    subprocess.run([CLI, "frobnicate"], stderr=theirs, env=env)
    os.close(theirs)
    text = os.read(ours, 4096).decode()
    os.close(ours)
    assert "frobnicate" in text and ("\x1b[" in text) == colored


def test_verbose_prints_a_line_that_gives_the_same_mask(tmp_path):
    flags = ["--heads", 4, "--kv-heads", 2, "--seqlen-q", 7, "--seqlen-k", 9, "--causal"]
    flags += ["--causal-align", "bottom-right", "--window", "5,-1", "--dropout-p", 0.3]
    flags += ["--seed", 2**64 - 1, "--offset", 9, "--scheme", "block:block_q=2,block_k=3"]
    first = succeed("mask", *flags, "--output", "a.npy", "--verbose", cwd=tmp_path)
    line = re.fullmatch(r"attndrop: note: problem: (.*)\n", first.err).group(1)
    second = succeed("mask", "--problem", line, "--output", "b.npy", "--verbose", cwd=tmp_path)
    assert second.err == first.err
    assert (load(tmp_path, "a") == load(tmp_path, "b")).all()


def test_a_line_with_a_mask_takes_that_mask_only(tmp_path):
    save(tmp_path, mask=np.tri(5, dtype=bool), other=np.ones((1, 5), bool))
    flags = ["--seqlen-q", 5, "--dropout-p", 0.3, "--attn-mask", "mask.npy"]
    first = succeed("mask", *flags, "--output", "a.npy", "--verbose", cwd=tmp_path)
    line = first.err.split("problem: ")[1].strip()
    words = ["mask", "--problem", line, "--output", "b.npy"]
    assert "exactly when" in run(*words, cwd=tmp_path).err
    assert "not the form" in run(*words, "--attn-mask", "other.npy", cwd=tmp_path).err
    succeed(*words, "--attn-mask", "mask.npy", cwd=tmp_path)
    assert (load(tmp_path, "a") == load(tmp_path, "b")).all()


@pytest.mark.parametrize(
    "flags", [["--causal"], ["--window", "2,0"], ["--empty-row", "keep_self"]]
)
def test_the_alignment_is_said_where_it_matters_and_was_not_chosen(flags):
    words = ["mask", "--seqlen-q", 4, "--seqlen-k", 6, "--dropout-p", 0.3, "--at", "0,0,0,0"]
    assert "top-left alignment is used" in succeed(*words, *flags).err
    assert succeed(*words).err == ""
    assert succeed(*words, *flags, "--causal-align", "top-left").err == ""
    equal = ["mask", "--seqlen-q", 4, "--dropout-p", 0.3, "--at", "0,0,0,0"]
    assert succeed(*equal, *flags).err == ""


# ---- mask ----------------------------------------------------------------------------------------


def test_one_cell_equals_the_mask(tmp_path):
    flags = ["--batch", 2, "--heads", 2, "--seqlen-q", 6, "--causal", "--dropout-p", 0.4]
    flags += ["--seed", 3, "--empty-row", "redraw"]
    succeed("mask", *flags, "--output", "m.npy", "--factors", "f.npy", cwd=tmp_path)
    keep, factors = load(tmp_path, "m"), load(tmp_path, "f")
    for at in [(0, 0, 0, 0), (1, 1, 5, 2), (1, 0, 3, 3), (0, 1, 2, 5)]:
        text = ",".join(map(str, at))
        assert succeed("mask", *flags, "--at", text).out == f"{keep[at]}\n"
        cell = succeed("mask", *flags, "--at", text, "--json").json()
        assert cell["keep"] == bool(keep[at]) and cell["factor"] == factors[at]


@pytest.mark.parametrize(
    "at, kept", [("0,0,2147483647,2147483648", 1), ("3,31,69999,69999", 1)]
)
def test_far_cells(at, kept):
    flags = ["--batch", 4, "--heads", 32, "--seqlen-q", 2**32, "--seqlen-k", 2**32]
    flags += ["--dropout-p", 0.1, "--seed", 42, "--offset", 7]
    assert succeed("mask", *flags, "--at", at).out == f"{kept}\n"


def test_the_mask_of_everything_dropped_and_of_nothing(tmp_path):
    for p, value in [(1, 0), (0, 1), (1e-16, 1)]:
        words = ["mask", "--seqlen-q", 5, "--dropout-p", p, "--output", "m.npy", "--force"]
        succeed(*words, cwd=tmp_path)
        assert (load(tmp_path, "m") == value).all()
    outcome = run(*SMALL[:-1], "1", "--empty-row", "redraw")
    assert outcome.code == 2 and "dropout_p" in outcome.err


def test_sizes_of_zero(tmp_path):
    succeed("mask", "--seqlen-q", 0, "--seqlen-k", 5, "--output", "m.npy", cwd=tmp_path)
    assert load(tmp_path, "m").shape == (1, 1, 0, 5)


# ---- demo, schemes, analyze, rng -----------------------------------------------------------------


def test_demo_reproduces_the_post():
    demo = succeed("demo", "--json").json()
    assert demo["post"]["keep"] == ["0", "00", "100", "0111"]
    assert np.round(demo["post"]["out"], 4).tolist() == POST_OUT
    assert [policy["name"] for policy in demo["policies"]] == [
        *("zero", "keep_one", "redraw", "keep_self", "keep_first", "undropped")
    ]
    zero = demo["policies"][0]["rows"]
    assert [row["p_zero"] for row in zero] == [0.5, 0.25, 0.125, 0.0625]
    for policy in demo["policies"] + demo["schemes"]:
        for row in policy["rows"]:
            assert abs(row["mean_row_sum"] - 1) < 1e-14 and row["out_bias"] < 1e-14
            assert policy["name"] == "zero" or policy in demo["schemes"] or row["p_zero"] == 0
    assert len(demo["schemes"]) == len(succeed("schemes", "--json").json()["schemes"])


def test_demo_fits_a_terminal_and_is_quick():
    outcome = succeed("demo")
    lines = outcome.out.splitlines()
    assert max(map(len, lines)) <= 100 and all(line == line.rstrip() for line in lines)
    for row in POST_OUT:
        assert " ".join(f"{x:7.4f}" for x in row) in outcome.out
    assert outcome.err == "" and outcome.out.isascii()


def test_schemes_lists_everything():
    table = succeed("schemes", "--json").json()
    names = [scheme["name"] for scheme in table["schemes"]]
    assert {"element", "shared", "key", "word", "query", "head", "block", "symmetric"} <= set(names)
    assert [stage["name"] for stage in table["stages"]] == ["weights", "logits"]
    text = succeed("schemes").out
    for row in table["schemes"] + table["stages"] + table["empty_row"]:
        assert row["name"] in text and row["summary"] in text
    assert max(map(len, text.splitlines())) <= 100


def test_analyze_prints_the_formulas():
    words = ["analyze", "--seqlen-q", 6, "--causal", "--dropout-p", 0.5, "--heads", 3]
    result = succeed(*words, "--layers", 4, "--json").json()
    for n, row in enumerate(result["rows"], 1):
        assert row["row"] == n - 1 and row["visible"] == n and row["inclusion"] == 0.5
        assert row["p_zero"] == 0.5**n and abs(row["mean_row_sum"] - 1) < 1e-15
        assert abs(row["var_row_sum"] - 1 / n) < 1e-15 and abs(row["effective_keys"] - n) < 1e-12
    assert result["expected_zero_rows"] == 1 - 0.5**6
    assert result["expected_zero_rows_model"]["value"] == 12 * (1 - 0.5**6)
    text = succeed(*words, "--layers", 4).out
    assert "expected_zero_rows: 0.984375 per head of 6 rows, 11.8125 in 4 layers of 3 heads" in text


def test_analyze_of_files_and_by_simulation(arrays):
    words = ["analyze", *QKV, "--causal", "--dropout-p", 0.3, "--select", "0,1"]
    result = succeed(*words, "--draws", 2000, "--json", cwd=arrays).json()
    assert len(result["rows"][0]["out_mean"]) == 4
    assert result["check"]["draws"] == 2000 and 0 < result["check"]["max_abs_z"] < 6
    plain = ["forward", *QKV, "--causal", "--out", "out.npy"]
    succeed(*plain, cwd=arrays)
    means = np.array([row["out_mean"] for row in result["rows"]])
    assert np.abs(means - load(arrays, "out")[0, 1]).max() < 1e-6
    text = succeed(*words, "--draws", 100, cwd=arrays).out
    assert "mean_out_var" in text and "largest |z|" in text
    without_value = succeed("analyze", *QKV[:4], "--dropout-p", 0.3, "--json", cwd=arrays).json()
    assert "out_mean" not in without_value["rows"][0]


def test_analyze_names_draws_where_the_variance_has_no_formula(tmp_path):
    rng = np.random.default_rng(5)
    names = ["query", "key", "value"]
    save(tmp_path, **{name: rng.standard_normal((1, 1, 20, 4)) for name in names})
    words = ["analyze", *QKV, "--dropout-p", 0.3, "--stage", "logits", "--json"]
    outcome = succeed(*words, cwd=tmp_path)
    assert "--draws" in outcome.err
    assert outcome.json()["rows"][0]["out_var"] == [None] * 4


def test_rng_known_answers(tmp_path):
    torch = ["rng", "--kind", "bernoulli", "--seed", 123, "--dropout-p", 0.5, "--count", 36]
    mkl = succeed(*torch, "--format", "torch-cpu-mkl").out.replace("\n", "")
    assert mkl == "111111010000001010110001100001010000"
    plain = succeed(*torch, "--format", "torch-cpu").out.replace("\n", "")
    assert plain == "110110000101111101011001010101011110"
    uniform = ["rng", "--format", "torch-cpu", "--kind", "uniform", "--seed", 0, "--count", 4]
    succeed(*uniform, "--output", "u.npy", cwd=tmp_path)
    values = load(tmp_path, "u")
    assert values.dtype == np.float32 and np.allclose(
        values, [0.49625659, 0.768221796, 0.0884774327, 0.132030487], rtol=1e-7
    )
    printed = [np.float32(x) for x in succeed(*uniform).out.split()]
    assert (np.array(printed) == values).all()
    field = ["--dropout-p", 0.3, "--seed", 42]
    succeed("mask", "--seqlen-q", 1, "--seqlen-k", 99, *field, "--output", "m.npy", cwd=tmp_path)
    words = ["rng", "--format", "attndrop", "--kind", "bernoulli", "--count", 99, *field]
    succeed(*words, "--output", "r.npy", cwd=tmp_path)
    assert (load(tmp_path, "r") == load(tmp_path, "m")[0, 0, 0]).all()


def test_rng_warns_of_the_ignored_half_of_a_seed():
    words = ["rng", "--format", "torch-cpu", "--kind", "uniform", "--count", 3, "--seed"]
    wide, narrow = succeed(*words, 2**32 + 5), succeed(*words, 5)
    assert wide.out == narrow.out and narrow.err == ""
    assert "low 32 bits" in wide.err and "numbers of 5" in wide.err
