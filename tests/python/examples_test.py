# SPDX-License-Identifier: Apache-2.0
"""The examples run, and their losses fall. Building the one in C++ takes half a minute: -m slow."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import attndrop
import pytest
import torch

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PACKAGES = str(Path(attndrop.__file__).parents[1])
pytestmark = pytest.mark.skipif(not EXAMPLES.is_dir(), reason="there is no folder examples")


def run(*command: str | Path) -> str:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "PYTHONPATH": PACKAGES, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def fall_of(output: str) -> tuple[float, float]:
    match = re.search(r"fell from ([\d.]+) to ([\d.]+)", output)
    assert match, output
    return float(match[1]), float(match[2])


def test_gpt() -> None:
    first, last = fall_of(run(sys.executable, EXAMPLES / "gpt_training_step.py", "--steps", "40"))
    assert first > 3.0  # log of 37 letters
    assert last < 0.7 * first


def test_gpt_takes_a_scheme_and_a_policy() -> None:
    options = ["--steps", "3", "--scheme", "word", "--empty-row", "undropped"]
    assert fall_of(run(sys.executable, EXAMPLES / "gpt_training_step.py", *options))[0] > 3.0


def test_hugging_face() -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    output = run(sys.executable, EXAMPLES / "hugging_face_gpt2.py", "--steps", "20")
    first, last = fall_of(output)
    assert last < 0.7 * first
    assert "[3, 5, 7, 9, 11, 13] goes on with [" in output


# ---- C++ -----------------------------------------------------------------------------------------


def program(*names: str) -> str:
    for name in names:
        if found := name and shutil.which(name):
            return found
    pytest.skip(f"none of {', '.join(filter(None, names))} is installed")


def newest_header() -> float:
    return max(header.stat().st_mtime for header in (ROOT / "include").rglob("*.h"))


def installed_attndrop(cmake: str, prefix: Path) -> str:
    """ATTNDROP_PREFIX, or what a build in build/ installs."""
    if given := os.environ.get("ATTNDROP_PREFIX"):
        return given
    for build in ("python", "release", "dev"):
        library = ROOT / "build" / build / "libattndrop.a"
        if library.is_file() and library.stat().st_mtime > newest_header():
            options = ["--component", "development", "--prefix", str(prefix)]
            run(cmake, "--install", str(library.parent), *options)
            return str(prefix)
    pytest.skip(
        "no attndrop to build against: ATTNDROP_PREFIX names none, and build/ holds no "
        "libattndrop.a that is newer than the headers (./dev build makes one)"
    )


@pytest.mark.slow
def test_cpp(tmp_path: Path) -> None:
    cmake = program("cmake")
    ninja = program("ninja")
    compiler = program(os.environ.get("CXX", ""), "clang++-19", "c++", "g++", "clang++")
    prefix = installed_attndrop(cmake, tmp_path / "prefix")
    found = f"{prefix};{torch.utils.cmake_prefix_path}"
    run(
        cmake,
        "-G",
        "Ninja",
        "-S",
        EXAMPLES / "cpp",
        "-B",
        tmp_path / "build",
        f"-DCMAKE_MAKE_PROGRAM={ninja}",
        f"-DCMAKE_CXX_COMPILER={compiler}",
        "-DCMAKE_BUILD_TYPE=Release",
        f"-DCMAKE_PREFIX_PATH={found}",
    )
    run(cmake, "--build", tmp_path / "build", "--parallel", "2")
    output = run(tmp_path / "build" / "train_head", "200")
    first, last = fall_of(output)
    assert last < 0.3 * first
    difference = re.search(r"largest difference .*: ([\d.e+-]+)", output)
    assert difference
    assert 0.0 < float(difference[1]) < 1e-5
