# SPDX-License-Identifier: Apache-2.0
"""Runs the built tool for the tests: files in, exit code, standard output and error, files out."""

import json
import os
import subprocess

import numpy as np

CLI = os.environ.get("ATTNDROP_CLI", "attndrop")


class Outcome:
    def __init__(self, done):
        self.code = done.returncode
        self.out = done.stdout
        self.err = done.stderr

    def json(self):
        return json.loads(self.out)


def run(*words, cwd=None, **options):
    """Any exit code; a crash (a signal) fails the test."""
    done = subprocess.run(
        [CLI, *map(str, words)], cwd=cwd, capture_output=True, text=True, timeout=300, **options
    )
    assert done.returncode >= 0, f"signal {-done.returncode}: {words}\n{done.stderr}"
    return Outcome(done)


def succeed(*words, cwd=None):
    outcome = run(*words, cwd=cwd)
    assert outcome.code == 0, f"{words}\n{outcome.err}"
    return outcome


def save(folder, **arrays):
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)


def load(folder, name):
    return np.load(folder / f"{name}.npy")
