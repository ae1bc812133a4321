# SPDX-License-Identifier: Apache-2.0
"""attndrop from Python for the benchmarks: dense PyTorch tensors in place, no copies."""

import ctypes
import os
import pathlib

import torch

ROOT = pathlib.Path(__file__).resolve().parents[1]
POINTERS = [
    "query",
    "key",
    "value",
    "attn_mask",
    "out",
    "logsumexp",
    "grad_out",
    "grad_query",
    "grad_key",
    "grad_value",
]


class Arrays(ctypes.Structure):
    """AttndropArrays of attndrop_c.cc."""

    _fields_ = [(name, ctypes.c_void_p) for name in POINTERS]


def load_library():
    """The library named by ATTNDROP_C, else that of the preset bench."""
    path = os.environ.get("ATTNDROP_C", str(ROOT / "build/bench/bench/libattndrop_c.so"))
    library = ctypes.CDLL(path)
    library.attndrop_open.restype = ctypes.c_void_p
    library.attndrop_error.restype = ctypes.c_char_p
    library.attndrop_error.argtypes = [ctypes.c_void_p]
    library.attndrop_close.argtypes = [ctypes.c_void_p]
    for name in ("attndrop_forward", "attndrop_backward"):
        getattr(library, name).argtypes = [ctypes.c_void_p, ctypes.POINTER(Arrays)]
    library.attndrop_keep_mask.argtypes = [
        ctypes.c_void_p,
        ctypes.POINTER(Arrays),
        ctypes.c_void_p,
        ctypes.c_void_p,
    ]
    return library


class Native:
    """A problem, given as a line, with the tensors that it reads and writes."""

    library = None

    def __init__(self, line, tensors, threads=1):
        """tensors: query, key, value, and where wanted attn_mask and grad_out."""
        Native.library = Native.library or load_library()
        error = ctypes.create_string_buffer(1000)
        self.call = Native.library.attndrop_open(line.encode(), b"", threads, error, len(error))
        if not self.call:
            raise ValueError(f"{line}: {error.value.decode()}")
        query, key, value = (tensors[name] for name in ("query", "key", "value"))
        rows = (*query.shape[:-1],)
        self.tensors = {
            **tensors,
            "out": query.new_empty(*rows, value.shape[-1]),
            "logsumexp": torch.empty(rows),
            "grad_query": torch.empty_like(query),
            "grad_key": torch.empty_like(key),
            "grad_value": torch.empty_like(value),
        }
        for name, tensor in self.tensors.items():
            if not tensor.is_contiguous():
                raise ValueError(f"{name} must be dense")
        self.arrays = Arrays(
            **{n: self.tensors[n].data_ptr() for n in POINTERS if n in self.tensors}
        )
        self.shape = (*rows, key.shape[-2])

    def __del__(self):
        if getattr(self, "call", None):
            Native.library.attndrop_close(self.call)

    def _run(self, function, *more):
        if function(self.call, ctypes.byref(self.arrays), *more):
            raise RuntimeError(Native.library.attndrop_error(self.call).decode())

    def forward(self):
        self._run(Native.library.attndrop_forward)
        return self.tensors["out"]

    def backward(self):
        """Gradients of query, key and value; after forward."""
        self._run(Native.library.attndrop_backward)
        return [self.tensors[name] for name in ("grad_query", "grad_key", "grad_value")]

    def both(self):
        self.forward()
        self.backward()

    def keep_mask(self):
        """(keep, factors): which weights are kept, and what each is multiplied with."""
        keep = torch.empty(self.shape, dtype=torch.uint8)
        factors = torch.empty(self.shape, dtype=torch.float64)
        self._run(Native.library.attndrop_keep_mask, keep.data_ptr(), factors.data_ptr())
        return keep.bool(), factors
