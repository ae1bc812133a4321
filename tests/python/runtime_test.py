# SPDX-License-Identifier: Apache-2.0
"""Threads, fork, memory, autocast, FLOPs, deterministic mode, overhead."""

from __future__ import annotations

import os
import resource
import threading
import time

import pytest
import torch
from attndrop import _extension
from attndrop import scaled_dot_product_attention as sdpa
from support import inputs, largest_difference
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torch.utils.flop_counter import FlopCounterMode

needs_kernels = pytest.mark.skipif(bool(_extension.MISSING), reason=_extension.MISSING)


def step(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(2, 2, 70, 16, generator=generator).requires_grad_() for _ in range(3)]
    out = sdpa(*tensors, dropout_p=0.2, seed=seed, is_causal=True)
    return [out, *torch.autograd.grad(out.sum(), tensors)]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_number_of_threads_does_not_change_a_bit(threads: int) -> None:
    before = torch.get_num_threads()
    expected = step(3)
    try:
        torch.set_num_threads(threads)
        assert all(torch.equal(a, b) for a, b in zip(step(3), expected, strict=True))
    finally:
        torch.set_num_threads(before)


def test_two_python_threads() -> None:
    expected = {seed: step(seed) for seed in range(8)}
    failures: list[int] = []

    def work(seeds: range) -> None:
        for _ in range(5):
            for seed in seeds:
                if not all(
                    torch.equal(a, b) for a, b in zip(step(seed), expected[seed], strict=True)
                ):
                    failures.append(seed)

    workers = [threading.Thread(target=work, args=(range(i, 8, 2),)) for i in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures


@needs_kernels
def test_the_interpreter_is_free_during_a_call() -> None:
    tensors = inputs(1, 2, 1500, 64, grad=False)
    ticks, done = [], threading.Event()

    def tick() -> None:
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    ticker = threading.Thread(target=tick)
    ticker.start()
    start = time.perf_counter()
    sdpa(*tensors, dropout_p=0.1, seed=1)
    end = time.perf_counter()
    done.set()
    ticker.join()
    inside = [t for t in ticks if start < t < end]
    assert end - start > 0.01
    assert len(inside) >= 3


class Attended(Dataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        return step(index)[0].detach()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_fork_after_use() -> None:
    expected = [step(index)[0] for index in range(4)]
    loader = DataLoader(
        Attended(), batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=60
    )
    for out, wanted in zip(loader, expected, strict=True):
        assert torch.equal(out, wanted)


def resident_kib() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs Linux's /proc")
def test_memory_is_flat_over_ten_thousand_calls() -> None:
    tensors = inputs(1, 1, 4, 8, dtype=torch.float32)

    def calls(count: int) -> int:
        for index in range(count):
            sdpa(*tensors, dropout_p=0.1, seed=index, scheme="key").sum().backward()
        return resident_kib()

    after_warm_up = calls(1000)
    assert calls(10000) - after_warm_up < 1024


@needs_kernels
def test_memory_is_linear_in_the_length() -> None:
    tensors = [torch.randn(1, 1, 8192, 16, requires_grad=True) for _ in range(3)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sdpa(*tensors, dropout_p=0.1, seed=1, is_causal=True).sum().backward()
    growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert growth < 64 * 1024, "one float32 matrix of the weights alone takes 262144 KiB"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: torch.dtype) -> None:
    tensors = inputs(1, 2, 8, 4, dtype=torch.float32)
    attn_mask = torch.randn(8, 8)
    with torch.autocast("cpu", dtype=dtype):
        out = sdpa(*tensors, attn_mask=attn_mask, dropout_p=0.5, seed=2)
        double = sdpa(*(t.double() for t in tensors), dropout_p=0.5, seed=2)
    assert out.dtype == dtype
    assert double.dtype == torch.float64
    out.sum().backward()
    assert tensors[0].grad.dtype == torch.float32
    low = [t.detach().to(dtype) for t in tensors]
    assert torch.equal(out, sdpa(*low, attn_mask=attn_mask.to(dtype), dropout_p=0.5, seed=2))
    rng = torch.tensor([2, 0, 2**31])
    with torch.autocast("cpu", dtype=dtype):
        op_out, _ = torch.ops.attndrop.forward(
            *tensors, rng, attn_mask[None, None], None, None, None
        )
    assert torch.equal(op_out, out)


def test_flops_are_those_of_pytorchs_attention() -> None:
    tensors = inputs(2, 4, 16, 8, dtype=torch.float32)

    def count(function: object) -> int:
        with FlopCounterMode(display=False) as counter:
            function().sum().backward()
        return counter.get_total_flops()

    one_product = 2 * 2 * 4 * 16 * 16 * 8
    assert count(lambda: sdpa(*tensors, dropout_p=0.5, seed=1)) == 7 * one_product


def test_deterministic_mode() -> None:
    expected = step(4)
    torch.use_deterministic_algorithms(True)
    try:
        assert all(torch.equal(a, b) for a, b in zip(step(4), expected, strict=True))
    finally:
        torch.use_deterministic_algorithms(False)


@needs_kernels
def test_overhead_is_small() -> None:
    """CPU time per call on 1 x 1 x 4 x 8; limits have room for slow and shared machines."""

    def microseconds(function: object) -> float:
        best = float("inf")
        for _ in range(20):
            start = time.process_time()
            for _ in range(100):
                function()
            best = min(best, (time.process_time() - start) * 1e4)
        return best

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        plain = inputs(1, 1, 4, 8, dtype=torch.float32, grad=False)
        wanting = inputs(1, 1, 4, 8, dtype=torch.float32)
        assert microseconds(lambda: sdpa(*plain, dropout_p=0.1, seed=3)) < 40
        assert microseconds(lambda: sdpa(*wanting, dropout_p=0.1, seed=3)) < 90
    finally:
        torch.set_num_threads(before)


def test_hidden_cells_add_nothing_even_when_not_finite() -> None:
    tensors = inputs(1, 1, 6, 4, dtype=torch.float32)
    clean = sdpa(*tensors, dropout_p=0.3, seed=1, is_causal=True)
    poisoned = [t.detach().clone() for t in tensors]
    poisoned[1][0, 0, 5] = float("nan")
    poisoned[2][0, 0, 5] = float("inf")
    out = sdpa(*poisoned, dropout_p=0.3, seed=1, is_causal=True)
    assert largest_difference(out[:, :, :5], clean[:, :, :5]) < 1e-6
