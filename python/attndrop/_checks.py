# SPDX-License-Identifier: Apache-2.0
"""Checks of tensors where no compiled operator makes them, with the same sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ._errors import refuse_type, refuse_value

if TYPE_CHECKING:
    from ._composite import BackwardInputs, Side

FLOAT_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_FLOATS = "float64, float32, bfloat16, float16"
_SHAPE = "(batch, heads, seqlen, head_dim)"


def logsumexp_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _shape(tensor: Tensor) -> str:
    return "(" + ", ".join(str(size) for size in tensor.shape) + ")"


def _check_pair(names: str, what: str, equal: bool, first: Tensor, second: Tensor) -> None:
    if not equal:
        refuse_value(
            f"{names} must have the same {what}, got shapes {_shape(first)} and {_shape(second)}"
        )


def check_attention(query: Tensor, key: Tensor, value: Tensor, side: Side) -> None:
    """Devices, dtypes and shapes of the inputs of a call."""
    named = (("query", query), ("key", key), ("value", value))
    for name, tensor in named:
        if tensor.is_nested or tensor.layout != torch.strided:
            refuse_type(
                f"{name} must be a strided tensor, got a nested or sparse one; pass its values and "
                "cu_seqlens_q, cu_seqlens_k"
            )
        if tensor.device != query.device:
            refuse_value(
                f"query, key and value must be on one device, got {query.device} and {name} on "
                f"{tensor.device}; move them all to one device"
            )
        if tensor.dim() != 4:
            refuse_value(f"{name} must have the shape {_SHAPE}, got shape {_shape(tensor)}")
        if tensor.dtype not in FLOAT_DTYPES:
            refuse_type(f"{name} must be one of {_FLOATS}, got {tensor.dtype}")
    if key.dtype != query.dtype or value.dtype != query.dtype:
        refuse_type(
            "query, key and value must have the same dtype, got "
            f"{query.dtype}, {key.dtype} and {value.dtype}"
        )
    _check_pair("query and key", "batch", query.shape[0] == key.shape[0], query, key)
    _check_pair("query and key", "head_dim", query.shape[3] == key.shape[3], query, key)
    _check_pair("key and value", "batch", key.shape[0] == value.shape[0], key, value)
    _check_pair("key and value", "number of heads", key.shape[1] == value.shape[1], key, value)
    _check_pair("key and value", "seqlen_k", key.shape[2] == value.shape[2], key, value)
    heads, kv_heads = query.shape[1], key.shape[1]
    if heads != kv_heads and (kv_heads == 0 or heads % kv_heads != 0):
        refuse_value(
            "num_heads must be a multiple of num_kv_heads, got "
            f"{heads} query heads over {kv_heads} key/value heads"
        )
    _check_side(query, key, side)


def check_batch_index(batch_index: Tensor) -> None:
    if batch_index.dim() != 1 or batch_index.dtype not in (torch.int32, torch.int64):
        refuse = refuse_value if batch_index.dim() != 1 else refuse_type
        refuse(
            "batch_index must be an int32 or int64 tensor of one axis, got "
            f"{batch_index.dtype} of shape {_shape(batch_index)}"
        )


def _check_side(query: Tensor, key: Tensor, side: Side) -> None:
    if (side.cu_seqlens_q is None) != (side.cu_seqlens_k is None):
        refuse_value("cu_seqlens_q and cu_seqlens_k come together, got only one of them")
    if side.cu_seqlens_q is not None and query.shape[0] != 1:
        refuse_value(
            "with cu_seqlens the sequences lie behind one another along seqlen and the batch of "
            f"query, key and value is 1, got {query.shape[0]}"
        )
    if side.batch_index is not None:
        check_batch_index(side.batch_index)
    for name, tensor in (("attn_mask", side.attn_mask), ("alibi_slopes", side.alibi_slopes)):
        if tensor is not None and tensor.device != query.device:
            refuse_value(
                f"{name} must be on the device of query, got {tensor.device} and {query.device}"
            )
    for name, tensor in (
        ("rng", side.rng),
        ("cu_seqlens_q", side.cu_seqlens_q),
        ("cu_seqlens_k", side.cu_seqlens_k),
        ("batch_index", side.batch_index),
    ):
        if tensor is not None and tensor.device.type not in ("cpu", query.device.type):
            refuse_value(
                f"{name} must be on the CPU or on the device of query, got {tensor.device} and "
                f"{query.device}"
            )
    _check_mask(query, key, side)


def _check_mask(query: Tensor, key: Tensor, side: Side) -> None:
    mask = side.attn_mask
    if mask is None:
        return
    if mask.dtype != torch.bool and mask.dtype not in FLOAT_DTYPES:
        refuse_type(f"attn_mask must be bool or one of {_FLOATS}, got {mask.dtype}")
    if mask.dim() != 4:
        refuse_value(
            "attn_mask must have four axes (length 1 where it does not vary), got shape "
            f"{_shape(mask)}"
        )
    if side.cu_seqlens_q is not None:
        return
    sizes = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    if any(size != wanted and size != 1 for size, wanted in zip(mask.shape, sizes, strict=True)):
        refuse_value(
            "attn_mask must be broadcastable to (batch, heads, seqlen_q, seqlen_k) = "
            f"({', '.join(str(size) for size in sizes)}), got shape {_shape(mask)}"
        )


def check_backward(inputs: BackwardInputs, side: Side, wanted: list[int]) -> None:
    """Shapes of what a backward takes beside the inputs of its forward."""
    if len(wanted) != 4:
        refuse_value("wanted must hold four numbers, 0 or 1")
    if wanted[3] and side.attn_mask is None:
        refuse_value("a gradient of attn_mask is wanted but there is none")
    rows = tuple(inputs.query.shape[:3])
    out_shape = (*rows, inputs.value.shape[3])
    checked = [("grad_out", inputs.grad_out, out_shape), ("out", inputs.out, out_shape)]
    checked.append(("logsumexp", inputs.logsumexp, rows))
    if inputs.grad_logsumexp is not None:
        checked.append(("grad_logsumexp", inputs.grad_logsumexp, rows))
    for name, tensor, shape in checked:
        if tuple(tensor.shape) != shape:
            refuse_value(f"{name} must have shape {shape}, got {_shape(tensor)}")
