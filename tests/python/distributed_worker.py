# SPDX-License-Identifier: Apache-2.0
"""What each of the processes of distributed_test.py runs: python distributed_worker.py FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import attndrop
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

ENTRIES, LENGTH, WIDTH, HEADS = 8, 12, 16, 2
DRAWN = {"dropout_p": 0.4, "seed": 9, "offset": 5, "empty_row": "redraw"}


class Attention(torch.nn.Module):
    """Projections around attention of (batch, LENGTH, WIDTH)."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.outer = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, **place: Any) -> Tensor:
        split = self.inner(x).view(x.shape[0], LENGTH, 3, HEADS, WIDTH // HEADS)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        out = attndrop.scaled_dot_product_attention(
            query, key, value, is_causal=True, **DRAWN, **place
        )
        return self.outer(out.transpose(1, 2).reshape(x.shape))


def make_model() -> Attention:
    torch.manual_seed(3)
    return Attention()


def make_data() -> Tensor:
    torch.manual_seed(4)
    return torch.randn(ENTRIES, LENGTH, WIDTH)


def loss_of(out: Tensor) -> Tensor:
    """The sum over the entries; the mean over the whole batch is taken by the caller."""
    return out.square().sum()


def applied_mask(batch: int, **place: Any) -> Tensor:
    """Which weights the kernels really keep: with the identity as value, weights are outputs."""
    rows = torch.zeros(batch, HEADS, LENGTH, 4)
    value = torch.eye(LENGTH).expand(batch, HEADS, LENGTH, LENGTH)
    return attndrop.scaled_dot_product_attention(rows, rows, value, **DRAWN, **place) != 0


def _step(model: torch.nn.Module, x: Tensor, place: dict[str, Any]) -> dict[str, Any]:
    """DDP and FSDP average gradients over the ranks, so the sum is scaled to the whole mean."""
    out = model(x, **place)
    (loss_of(out) * dist.get_world_size() / ENTRIES).backward()
    return {"out": out.detach(), "mask": applied_mask(x.shape[0], **place)}


def _grads(model: torch.nn.Module) -> list[Tensor]:
    grads = [parameter.grad for parameter in model.parameters()]
    return [grad.full_tensor() if hasattr(grad, "full_tensor") else grad for grad in grads]


def contiguous(rank: int, sizes: list[int]) -> dict[str, Any]:
    origin = attndrop.distributed.batch_origin(sizes if len(set(sizes)) > 1 else sizes[0])
    x = make_data()[origin[0] : origin[0] + sizes[rank]]
    model = DistributedDataParallel(make_model())
    return {**_step(model, x, {"origin": origin}), "grads": _grads(model)}


def strided(rank: int) -> dict[str, Any]:
    """One batch of a loader over DistributedSampler, shuffled."""
    sampler: DistributedSampler[Tensor] = DistributedSampler(make_data(), shuffle=True, seed=2)
    (x,) = DataLoader(make_data(), batch_size=ENTRIES // 2, sampler=sampler)
    model = DistributedDataParallel(make_model())
    index = attndrop.distributed.strided_batch_index(x.shape[0])
    return {**_step(model, x, {"batch_index": index}), "grads": _grads(model)}


def sharded() -> dict[str, Any]:
    """FSDP2: parameters in parts, contiguous slices of the batch."""
    model = make_model()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(model.inner, mesh=mesh)
    fully_shard(model, mesh=mesh)
    origin = attndrop.distributed.batch_origin(ENTRIES // 2)
    x = make_data()[origin[0] : origin[0] + ENTRIES // 2]
    return {**_step(model, x, {"origin": origin}), "grads": _grads(model)}


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    results = {
        "even": contiguous(rank, [4, 4]),
        "uneven": contiguous(rank, [5, 3]),
        "strided": strided(rank),
        "sharded": sharded(),
    }
    torch.save(results, folder / f"{rank}.pt")
    dist.barrier()  # a rank that leaves first may take the other down while it still talks
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
