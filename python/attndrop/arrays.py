# SPDX-License-Identifier: Apache-2.0
"""Attention for arrays of NumPy and of anything else that speaks DLPack."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._functional import scaled_dot_product_attention

_ARRAY_ARGUMENTS = ("attn_mask", "alibi_slopes", "cu_seqlens_q", "cu_seqlens_k", "batch_index")


def _to_torch(name: str, array: Any) -> Tensor:
    """A view of the array where its library allows one, else a copy."""
    if isinstance(array, Tensor):
        return array
    if not hasattr(array, "__dlpack__"):
        raise TypeError(
            f"{name} must be an array with __dlpack__ (NumPy, JAX, CuPy, PyTorch), got "
            f"{type(array).__name__}; numpy.asarray makes one of a list"
        )
    if _is_numpy(array):
        # PyTorch knows no negative strides, read-only memory or other byte orders: copy these.
        if not array.flags.writeable or min(array.strides, default=0) < 0:
            array = array.copy()
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))
    return torch.from_dlpack(array)


def _is_numpy(array: Any) -> bool:
    return type(array).__module__.split(".")[0] == "numpy" and hasattr(array, "flags")


def _from_torch(tensor: Tensor, like: Any) -> Any:
    """In the library of `like`."""
    if isinstance(like, Tensor):
        return tensor
    tensor = tensor.detach()
    if _is_numpy(like):
        return tensor.numpy()
    if hasattr(like, "__array_namespace__"):
        return like.__array_namespace__().from_dlpack(tensor)
    return tensor


def attention(query: Any, key: Any, value: Any, **options: Any) -> Any:
    """attndrop.scaled_dot_product_attention for arrays; without gradients.

    Args:
        query, key, value: arrays (batch, heads, seqlen, head_dim) or (heads, seqlen, head_dim) of
            float64, float32 or float16, with __dlpack__.
        **options: those of scaled_dot_product_attention; attn_mask and the other tensors among them
            may be arrays too.

    Returns:
        An array of query's library, or two with return_logsumexp=True.

    Raises:
        TypeError: an argument is no array, or as scaled_dot_product_attention.
        ValueError: as scaled_dot_product_attention.
    """
    query_tensor, key_tensor, value_tensor = [
        _to_torch(name, array) for name, array in (("query", query), ("key", key), ("value", value))
    ]
    for name in _ARRAY_ARGUMENTS:
        if options.get(name) is not None:
            options[name] = _to_torch(name, options[name])
    with torch.no_grad():
        result: Any = scaled_dot_product_attention(
            query_tensor, key_tensor, value_tensor, **options
        )
    if isinstance(result, tuple):
        return tuple(_from_torch(tensor, query) for tensor in result)
    return _from_torch(result, query)
