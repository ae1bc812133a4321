# SPDX-License-Identifier: Apache-2.0
"""Refusals: the operators fail with "[attndrop KIND] sentence", functions with the fitting type."""

from __future__ import annotations

import re
from typing import NoReturn

_PATTERN = re.compile(r"\[attndrop (\w+)\] ([^\n]*)")
_TYPES: dict[str, type[Exception]] = {
    "type": TypeError,
    "value": ValueError,
    "unsupported": NotImplementedError,
    "memory": MemoryError,
    "internal": RuntimeError,
}


class Refusal(RuntimeError):
    """What an operator written in Python raises, in the form that the compiled ones use."""

    def __init__(self, kind: str, sentence: str) -> None:
        super().__init__(f"[attndrop {kind}] {sentence}")


def refuse_type(sentence: str) -> NoReturn:
    raise Refusal("type", sentence)


def refuse_value(sentence: str) -> NoReturn:
    raise Refusal("value", sentence)


def raise_translated(error: RuntimeError) -> NoReturn:
    """Raises the exception of the type that a caller expects; other errors stay as they are."""
    match = _PATTERN.search(str(error))
    if match is None:
        raise error
    raise _TYPES[match[1]](match[2]) from None
