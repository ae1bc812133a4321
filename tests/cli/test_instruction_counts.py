# SPDX-License-Identifier: Apache-2.0
"""The kernels execute as many instructions as recorded: what slows them down shows here, on any
machine, however busy. Counted by callgrind, which knows AVX2 but not AVX-512.

After a change that is meant to alter them: ATTNDROP_RECORD_COUNTS=1 ./dev test instruction_counts
"""

import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest
from tool import CLI, succeed

RECORD = pathlib.Path(__file__).resolve().parents[1] / "golden/instruction_counts.json"
RECORDED = json.loads(RECORD.read_text(encoding="utf-8"))
BUILD = os.environ.get("ATTNDROP_BUILD", "unknown")
TOLERANCE = 0.03

PROBLEMS = {
    "causal forward": ("forward", "q256 k256 d64 causal p=0.1"),
    "backward": ("backward", "q256 k256 d64 p=0.1"),
    "dropped keys, bf16": (
        "forward",
        "h4 kv2 q200 k300 d40 bf16 window=100,-1 scheme=key stage=logits p=0.5",
    ),
}


def why_not():
    """What makes counts of this build incomparable; None when they are comparable."""
    version = json.loads(succeed("--version", "--json").out)
    for program in ("valgrind", "strip"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    if version["compiler"].split(".")[0] != RECORDED["compiler"].split(".")[0]:
        return f"recorded for {RECORDED['compiler']}, this is {version['compiler']}"
    if BUILD != RECORDED["build"]:
        return f'recorded for the build "{RECORDED["build"]}", this is "{BUILD}"'
    if "avx2" not in version["targets"]:
        return "this machine has no AVX2"
    return None


@pytest.fixture(scope="module")
def tool(tmp_path_factory):
    """The tool with its symbols but without line numbers, which valgrind 3.19 cannot read."""
    if reason := why_not():
        pytest.skip(reason)
    path = tmp_path_factory.mktemp("tool") / "attndrop"
    subprocess.run(["strip", "--strip-debug", "-o", str(path), CLI], check=True)
    return path


def count(tool, direction, problem, folder):
    """Instructions inside Forward or Backward."""
    done = subprocess.run(
        [
            "valgrind",
            "--tool=callgrind",
            f"--callgrind-out-file={folder}/callgrind.out",
            f"--toggle-collect=attndrop::{direction.capitalize()}(*",
            *[str(tool), "bench", "--once", "--target", "avx2"],
            *["--direction", direction, "--problem", problem],
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(re.search(r"^==\d+== Collected : (\d+)$", done.stderr, flags=re.M).group(1))


@pytest.mark.parametrize("name", PROBLEMS)
def test_instruction_counts_are_as_recorded(name, tool, tmp_path):
    counted = count(tool, *PROBLEMS[name], tmp_path)
    if os.environ.get("ATTNDROP_RECORD_COUNTS"):
        RECORDED["counts"][name] = counted
        RECORD.write_text(json.dumps(RECORDED, indent=2) + "\n", encoding="utf-8")
    recorded = RECORDED["counts"][name]
    assert abs(counted / recorded - 1) <= TOLERANCE, (
        f"{PROBLEMS[name]}: {counted} instructions, recorded {recorded} "
        f"({counted / recorded - 1:+.1%}); if that is meant: "
        "ATTNDROP_RECORD_COUNTS=1 ./dev test instruction_counts"
    )
