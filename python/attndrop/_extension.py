# SPDX-License-Identifier: Apache-2.0
"""Loads the operators: compiled ones where there are any, else the composite path for all."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch

from ._schemas import SCHEMAS

_LIBRARY = Path(__file__).with_name("_C.so")


def _load() -> str:
    """Empty on success, else why the extension is not used."""
    if not _LIBRARY.exists():
        return f"{_LIBRARY} does not exist"
    try:
        torch.ops.load_library(str(_LIBRARY))
    except (OSError, RuntimeError) as error:
        return str(error).splitlines()[0]
    return ""


#: Why the compiled kernels are not used; empty when they are.
MISSING = _load()

#: Keeps the registrations alive.
definitions = torch.library.Library("attndrop", "FRAGMENT")
if MISSING:
    for schema in SCHEMAS:
        definitions.define(schema)
    warnings.warn(
        "attndrop runs without its compiled kernels, in PyTorch operations with quadratic memory: "
        f"{MISSING}",
        RuntimeWarning,
        stacklevel=2,
    )
