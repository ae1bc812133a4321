# SPDX-License-Identifier: Apache-2.0
"""Softmax attention with dropout, exact, reproducible, and with the choice of what to drop."""

from __future__ import annotations

from ._functional import scaled_dot_product_attention
from ._rng import call_offset

__version__ = "0.1.0"

__all__ = [
    "__version__",
    "call_offset",
    "scaled_dot_product_attention",
]
