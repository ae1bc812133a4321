# SPDX-License-Identifier: Apache-2.0
"""What the documents show is what the code does: C++ blocks are compiled, transcripts repeated."""

import os
import pathlib
import re
import shlex
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLI = os.environ.get("ATTNDROP_CLI")
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def blocks(language):
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for body in re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.S | re.M):
            yield pytest.param(body, id=f"{page.relative_to(ROOT)}:{body.splitlines()[0][:40]}")


def code_lines(text):
    lines = (re.sub(r"\s+", " ", line.strip()) for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#include")]


@pytest.mark.parametrize("block", list(blocks("cpp")))
def test_cpp_blocks_stand_in_the_compiled_test(block):
    compiled = code_lines((ROOT / "tests/unit/guide_test.cc").read_text(encoding="utf-8"))
    wanted = code_lines(block)
    found = any(
        compiled[start : start + len(wanted)] == wanted for start in range(len(compiled))
    )
    assert found, "not in tests/unit/guide_test.cc:\n" + block


def without_rounding(text):
    """Rounding errors may differ between mathematics libraries: one name for all of them."""
    return re.sub(r"\b\d(\.\d+)?e-1[4-7]\b", "1e-16", text)


def commands(block):
    """(command line, expected output) of a transcript whose commands stand behind `$ `."""
    parts = re.split(r"^\$ (.*)\n", block, flags=re.M)
    assert parts[0] == "", "a transcript starts with a command"
    return list(zip(parts[1::2], parts[2::2]))


@pytest.mark.skipif(CLI is None, reason="the tool is not built")
@pytest.mark.parametrize("block", list(blocks("console")))
def test_transcripts_are_what_the_tool_prints(block, tmp_path):
    for line, expected in commands(block):
        words = shlex.split(line.replace("./dev run", "attndrop").replace("./dev", "attndrop"))
        assert words[0] == "attndrop", f"not a command of the tool: {line}"
        result = subprocess.run(
            [CLI, *words[1:]],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "NO_COLOR": "1"},
            check=False,
        )
        assert result.returncode == 0, result.stderr
        assert without_rounding(result.stdout) == without_rounding(expected), line


@pytest.mark.skipif(CLI is None, reason="the tool is not built")
@pytest.mark.parametrize("block", [b for b in blocks("sh") if b.values[0].startswith("attndrop")])
def test_shell_blocks_run(block, tmp_path):
    """In a folder with query, key, value and gradient of 2 x 3 x 16 x 8."""
    numpy = pytest.importorskip("numpy")
    random = numpy.random.default_rng(1)
    for name in ("q", "k", "v", "g"):
        numpy.save(tmp_path / f"{name}.npy", random.standard_normal((2, 3, 16, 8)))
    for line in block.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        assert words[0] == "attndrop", f"not a command of the tool: {line}"
        result = subprocess.run(
            [CLI, *words[1:]],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert result.returncode == 0, f"{line}\n{result.stderr}"
