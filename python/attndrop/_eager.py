# SPDX-License-Identifier: Apache-2.0
"""Whether a call is plain eager code, which may take the shortest way to an operator."""

from __future__ import annotations

import torch

_num_modes = torch._C._len_torch_dispatch_stack
_in_transform = torch._C._are_functorch_transforms_active
_is_compiling = torch.compiler.is_compiling

#: A context in which operators skip PyTorch's dispatch of gradients.
below_autograd = torch._C._AutoDispatchBelowAutograd


def is_plain_eager() -> bool:
    """Nothing watches the operators: no compiler, no transform, no dispatch mode."""
    return not (_is_compiling() or _num_modes() or _in_transform())
