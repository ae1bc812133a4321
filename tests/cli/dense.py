# SPDX-License-Identifier: Apache-2.0
"""Attention with dropout and its gradients as dense NumPy: no code of the library."""

import numpy as np


def softmax(logits, visible):
    """Over the visible keys; a row without any is zero. Also the logsumexp."""
    masked = np.where(visible, logits, -np.inf)
    top = masked.max(axis=-1, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0.0)
    powers = np.exp(masked - top)
    total = powers.sum(axis=-1, keepdims=True)
    weights = np.divide(powers, total, out=np.zeros_like(powers), where=total > 0)
    with np.errstate(divide="ignore"):
        return weights, (np.log(total) + top)[..., 0]


class Attention:
    """query, key, value as in the files; keep and factors as `attndrop mask` writes them.

    dtype: of every step of the computation.
    """

    def __init__(
        self, query, key, value, visible, keep, factors, stage, scale=None, bias=0.0, dtype="f8"
    ):
        self.dtype = dtype
        query, key, value = (np.asarray(x, dtype) for x in (query, key, value))
        self.groups = query.shape[1] // key.shape[1]
        self.query = query
        self.key = np.repeat(key, self.groups, axis=1)
        self.value = np.repeat(value, self.groups, axis=1)
        scale = 1.0 / np.sqrt(query.shape[-1]) if scale is None else scale
        self.scale = np.asarray(scale, dtype)
        bias = np.asarray(bias, dtype)
        self.kv_shape = key.shape
        visible = np.broadcast_to(visible, keep.shape)
        keep = keep.astype(bool)
        assert not (keep & ~visible).any(), "a key that is not visible is kept"
        logits = self.scale * self.query @ self.key.swapaxes(-1, -2) + bias
        if stage == "weights":
            self.weights, self.logsumexp = softmax(logits, visible)
            self.factors = np.where(keep, factors, 0.0).astype(dtype)
        else:
            self.weights, self.logsumexp = softmax(logits, keep)
            self.factors = keep.astype(dtype)
        self.dropped = self.factors * self.weights
        self.out = self.dropped @ self.value

    def backward(self, grad_out, grad_logsumexp=None):
        """Gradients of query, key, value and of what is added to the logits."""
        grad_out = np.asarray(grad_out, self.dtype)
        delta = (grad_out * self.out).sum(axis=-1, keepdims=True)
        if grad_logsumexp is not None:
            delta = delta - np.asarray(grad_logsumexp, self.dtype)[..., None]
        grad_factored = self.factors * (grad_out @ self.value.swapaxes(-1, -2))
        grad_logits = self.weights * (grad_factored - delta)
        grad_query = self.scale * grad_logits @ self.key
        grad_key = self.scale * grad_logits.swapaxes(-1, -2) @ self.query
        grad_value = self.dropped.swapaxes(-1, -2) @ grad_out
        return grad_query, self._sum_heads(grad_key), self._sum_heads(grad_value), grad_logits

    def _sum_heads(self, array):
        batch, kv_heads = self.kv_shape[:2]
        return array.reshape(batch, kv_heads, self.groups, *array.shape[2:]).sum(axis=2)


def sum_to(array, shape):
    """The gradient of a broadcast array: summed over the axes of length 1."""
    padded = (1,) * (array.ndim - len(shape)) + tuple(shape)
    axes = tuple(i for i, n in enumerate(padded) if n == 1 and array.shape[i] != 1)
    return array.sum(axis=axes, keepdims=True).reshape(shape)


def band(seqlen_q, seqlen_k, causal=False, left=-1, right=-1, shift=0):
    """Which keys a query sees."""
    position = np.arange(seqlen_q)[:, None] + shift
    key = np.arange(seqlen_k)[None, :]
    visible = np.ones((seqlen_q, seqlen_k), bool)
    if causal:
        visible &= key <= position
    if left >= 0:
        visible &= key >= position - left
    if right >= 0:
        visible &= key <= position + right
    return visible
