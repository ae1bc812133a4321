# SPDX-License-Identifier: Apache-2.0
"""Where the part of a batch that one process holds stands in the whole batch.

With origin or batch_index from here, and one seed and offset, all ranks together draw the masks
that a single process draws for the whole batch.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_TWO32 = 1 << 32


def _integer(name: str, value: Any, least: int) -> int:
    try:
        number = operator.index("" if isinstance(value, bool) else value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r}") from None
    if not least <= number <= _TWO32:
        raise ValueError(f"{name} must be in {least} .. 2^32, got {number}")
    return number


def _place(rank: int | None, world_size: int | None, group: Any) -> tuple[int, int]:
    """Rank and world size, where not given those of torch.distributed."""
    if rank is None or world_size is None:
        if not (dist.is_available() and dist.is_initialized()):
            raise ValueError(
                "rank and world_size must be given where torch.distributed is not initialized; "
                "call torch.distributed.init_process_group first, or pass both"
            )
        rank = dist.get_rank(group) if rank is None else rank
        world_size = dist.get_world_size(group) if world_size is None else world_size
    world_size = _integer("world_size", world_size, 1)
    rank = _integer("rank", rank, 0)
    if rank >= world_size:
        raise ValueError(f"rank must be in 0 .. {world_size - 1}, got {rank}")
    return rank, world_size


def _local_batches(local_batch: int | Sequence[int], rank: int, world_size: int) -> list[int]:
    """What each rank before this one holds, and this one."""
    if not isinstance(local_batch, Sequence):
        return [_integer("local_batch", local_batch, 0)] * (rank + 1)
    if len(local_batch) != world_size:
        raise ValueError(
            f"local_batch must be one number, or one for each of the {world_size} ranks, got "
            f"{len(local_batch)} numbers"
        )
    return [_integer("local_batch", size, 0) for size in local_batch][: rank + 1]


def batch_origin(
    local_batch: int | Sequence[int],
    *,
    rank: int | None = None,
    world_size: int | None = None,
    group: Any = None,
) -> tuple[int, int, int, int]:
    """The origin of a rank's slice of a batch that lies rank after rank.

    Rank r holds entries r * local_batch .. (r + 1) * local_batch - 1 of the whole batch. Pass the
    result as origin=.

    Args:
        local_batch: entries that every rank holds. Where they differ, as in a last batch that does
            not divide evenly: what each rank holds, in the order of the ranks. One number that
            differs between ranks cannot be noticed here and gives overlapping masks.
        rank, world_size: default: those of torch.distributed.
        group: a process group; default: all processes.

    Returns:
        (batch, 0, 0, 0): batch, head, query and key where the slice starts.

    Raises:
        TypeError: an argument is no integer.
        ValueError: an argument is out of its range; there is no rank.
    """
    rank, world_size = _place(rank, world_size, group)
    sizes = _local_batches(local_batch, rank, world_size)
    if sum(sizes) > _TWO32:
        raise ValueError(f"the whole batch must be at most 2^32 entries, got {sum(sizes)}")
    return sum(sizes[:rank]), 0, 0, 0


def strided_batch_index(
    local_batch: int,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    group: Any = None,
) -> Tensor:
    """The batch_index of a rank whose entries are dealt out in turn.

    Rank r holds entries r, r + world_size, r + 2 * world_size, ... of the whole batch, as with
    torch.utils.data.DistributedSampler: its loaders of local_batch entries read, together, what one
    loader of world_size * local_batch entries reads. A shorter last batch is right too, since the
    sampler gives all ranks equally many entries.

    Args:
        local_batch: entries that this rank holds.
        rank, world_size, group: as in batch_origin.

    Returns:
        int64 (local_batch) on the CPU, for batch_index=.

    Raises:
        TypeError, ValueError: as batch_origin.
    """
    rank, world_size = _place(rank, world_size, group)
    size = _integer("local_batch", local_batch, 0)
    if size * world_size > _TWO32:
        raise ValueError(f"the whole batch must be at most 2^32 entries, got {size * world_size}")
    return torch.arange(size, dtype=torch.int64) * world_size + rank
