# SPDX-License-Identifier: Apache-2.0
"""The schemas of the operators, the same text as in python/src/schemas.cc."""

from __future__ import annotations

_SIDE = (
    "Tensor rng, Tensor? attn_mask, Tensor? alibi_slopes, Tensor? cu_seqlens_q, "
    "Tensor? cu_seqlens_k, Tensor? batch_index=None"
)
_OPTIONS = (
    "float? scale=None, bool is_causal=False, bool bottom_right=False, int window_left=-1, "
    'int window_right=-1, str scheme="element", str stage="weights", str empty_row="zero", '
    "int[] origin=[], int[] total=[]"
)


def _schema(name: str, tensors: str, own: str, results: str) -> str:
    return f"{name}({tensors}{_SIDE}, *, {own}{_OPTIONS}) -> ({results})"


SCHEMAS = (
    _schema(
        "forward",
        "Tensor query, Tensor key, Tensor value, ",
        "",
        "Tensor out, Tensor logsumexp",
    ),
    _schema(
        "backward",
        "Tensor grad_out, Tensor? grad_logsumexp, Tensor query, Tensor key, Tensor value, "
        "Tensor out, Tensor logsumexp, ",
        "int[] wanted, ",
        "Tensor grad_query, Tensor grad_key, Tensor grad_value, Tensor grad_attn_mask",
    ),
    _schema(
        "keep_mask",
        "",
        "int[] sizes, bool with_factors, ",
        "Tensor keep, Tensor factors",
    ),
    _schema(
        "analyze",
        "Tensor? query, Tensor? key, Tensor? value, ",
        "int[] sizes, int batch, int head, ",
        "Tensor rows, Tensor out_mean, Tensor out_var, str note",
    ),
    _schema(
        "simulate",
        "Tensor? query, Tensor? key, Tensor? value, ",
        "int[] sizes, int batch, int head, int draws, ",
        "Tensor rows, Tensor zero_rows, Tensor out_mean, Tensor out_var, Tensor summary",
    ),
    "schemes() -> str",
)
