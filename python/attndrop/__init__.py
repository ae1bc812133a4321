# SPDX-License-Identifier: Apache-2.0
"""Softmax attention with dropout, exact, reproducible, and with the choice of what to drop."""

from __future__ import annotations

from . import arrays, distributed, plot
from ._analyze import (
    Check,
    HeadAnalysis,
    OutputChecks,
    RowChecks,
    RowStatistics,
    SimulationCheck,
    analyze,
)
from ._flash import flash_attn_func, flash_attn_varlen_func
from ._functional import scaled_dot_product_attention
from ._head import Head
from ._hugging_face import register_hf
from ._masks import SchemeInfo, keep_mask, schemes
from ._multihead import MultiheadAttention
from ._patch import patch_sdpa
from ._replace import replace_attention
from ._rng import call_offset
from ._step import set_step

__version__ = "0.1.0"

#: Which published definition of the keep mask this version follows.
MASK_FORMAT = 1

__all__ = [
    "MASK_FORMAT",
    "Check",
    "Head",
    "HeadAnalysis",
    "MultiheadAttention",
    "OutputChecks",
    "RowChecks",
    "RowStatistics",
    "SchemeInfo",
    "SimulationCheck",
    "__version__",
    "analyze",
    "arrays",
    "call_offset",
    "distributed",
    "flash_attn_func",
    "flash_attn_varlen_func",
    "keep_mask",
    "patch_sdpa",
    "plot",
    "register_hf",
    "replace_attention",
    "scaled_dot_product_attention",
    "schemes",
    "set_step",
]
