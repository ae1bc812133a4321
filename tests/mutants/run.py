# SPDX-License-Identifier: Apache-2.0
"""Breaks the fused path on purpose, one fault at a time, and shows that a test notices each.

Usage: run.py [NAME...]   (default: all mutants of mutants.json)

Works on a copy of the tree; a mutant is one exact text replaced by another. Exit 1: a mutant
survived, does not apply, or does not build.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEST_LIMIT_S = 300  # an endless loop is noticed too
COPIED = ["CMakeLists.txt", "cmake", "include", "src", "tests"]


def copy_tree(to):
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, to / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, to / name)
    # A fault may leave a variable unused: it need not be pretty.
    flags = to / "cmake/build_flags.cmake"
    flags.write_text(flags.read_text().replace("-Werror", ""))


def configure(tree):
    subprocess.run(
        ["cmake", "-G", "Ninja", "-S", tree, "-B", tree / "build",
         f"-DCMAKE_TOOLCHAIN_FILE={tree}/cmake/toolchain.cmake",
         "-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1",
         "-DATTNDROP_DEVELOPER=ON", "-DATTNDROP_WITH_CLI=OFF", "-DATTNDROP_INSTALL=OFF"],
        check=True, stdout=subprocess.DEVNULL)


def build(tree):
    done = subprocess.run(["cmake", "--build", tree / "build", "--target", "fused_tests"],
                          capture_output=True, text=True)
    errors = [line for line in done.stdout.splitlines() if "error:" in line]
    return done.returncode == 0, errors[0] if errors else done.stdout[-1000:]


def failing_test(tree):
    """The first test that fails, or None when all pass."""
    command = [tree / "build/tests/fused_tests", "--gtest_fail_fast", "--gtest_brief=1"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TEST_LIMIT_S,
                              errors="replace")
    except subprocess.TimeoutExpired:
        return "(no end)"
    if done.returncode == 0:
        return None
    for line in done.stdout.splitlines():
        if line.startswith("[  FAILED  ]"):
            return line.split()[3].rstrip(",")
    return f"(ended with status {done.returncode})"


def run_mutant(tree, mutant):
    """(outcome, detail); outcome is killed, survived, or why there was nothing to test."""
    path = tree / mutant["file"]
    text = path.read_text()
    if text.count(mutant["search"]) != 1:
        return "does not apply", f"the text occurs {text.count(mutant['search'])} times"
    path.write_text(text.replace(mutant["search"], mutant["replace"]))
    try:
        built, log = build(tree)
        if not built:
            return "does not build", log
        test = failing_test(tree)
        return ("killed", test) if test else ("survived", mutant["file"])
    finally:
        path.write_text(text)


def main():
    mutants = json.loads((ROOT / "tests/mutants/mutants.json").read_text())
    names = sys.argv[1:]
    unknown = set(names) - {mutant["name"] for mutant in mutants}
    if unknown:
        sys.exit(f"no such mutant: {', '.join(sorted(unknown))}")
    chosen = [mutant for mutant in mutants if not names or mutant["name"] in names]
    with tempfile.TemporaryDirectory(prefix="attndrop-mutants-") as folder:
        tree = pathlib.Path(folder)
        copy_tree(tree)
        configure(tree)
        built, log = build(tree)
        if not built:
            sys.exit(f"the unchanged tree does not build:\n{log}")
        if test := failing_test(tree):
            sys.exit(f"{test} fails on the unchanged tree")
        bad = 0
        for mutant in chosen:
            start = time.monotonic()
            outcome, detail = run_mutant(tree, mutant)
            bad += outcome != "killed"
            print(f"{outcome:9} {mutant['name']}: {detail} ({time.monotonic() - start:.0f} s)",
                  flush=True)
    print(f"{len(chosen) - bad} of {len(chosen)} mutants killed")
    return 1 if bad else 0


if __name__ == "__main__":
    os.environ["CCACHE_NOHASHDIR"] = "1"
    sys.exit(main())
