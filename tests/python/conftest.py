# SPDX-License-Identifier: Apache-2.0
"""Tests of the Python package; skipped, saying so, without PyTorch or without the package."""

from __future__ import annotations

import importlib.util
import random

import pytest

_REASON = "".join(
    f"{name} is not installed; "
    for name in ("torch", "attndrop")
    if not importlib.util.find_spec(name)
)

if _REASON:
    collect_ignore_glob = ["*_test.py", "test_*.py"]

    def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.write_line(f"tests/python skipped: {_REASON}see pyproject.toml")

    def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: takes half a minute or more")


@pytest.fixture(autouse=True)
def _same_numbers_each_time() -> None:
    if _REASON:
        return
    import torch

    torch.manual_seed(20240229)
    random.seed(20240229)
