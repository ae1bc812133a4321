# SPDX-License-Identifier: Apache-2.0
"""Parts of a problem in several processes, in any order of the batch, and of the keys."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import attndrop
import pytest
import torch
from attndrop import _composite as composite
from attndrop._composite import Side
from support import POLICIES, SCHEMES, dense, inputs, is_legal, rng
from torch import Tensor

_HERE = Path(__file__).parent


# ---- Two processes --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What distributed_worker.py found on each of two ranks."""
    if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
        pytest.skip("this PyTorch has no gloo, which connects processes on CPUs")
    folder = tmp_path_factory.mktemp("ranks")
    package = str(Path(attndrop.__file__).parent.parent)
    # By number and by interface, for a bare system may not know the name localhost.
    rendezvous = ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"]
    command = [sys.executable, "-m", "torch.distributed.run", *rendezvous, "--nproc-per-node=2"]
    subprocess.run(
        [*command, str(_HERE / "distributed_worker.py"), str(folder)],
        env={
            **os.environ,
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": package,
        },
        check=True,
        timeout=120,
    )
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.fixture(scope="module")
def worker() -> Any:
    sys.path.insert(0, str(_HERE))
    try:
        import distributed_worker
    finally:
        sys.path.pop(0)
    return distributed_worker


def _whole(worker: Any, x: Tensor) -> tuple[Tensor, list[Tensor], Tensor]:
    """out, gradients and mask of one process."""
    model = worker.make_model()
    out = model(x)
    (worker.loss_of(out) / worker.ENTRIES).backward()
    grads = [parameter.grad for parameter in model.parameters()]
    sizes = (worker.ENTRIES, worker.HEADS, worker.LENGTH)
    return out.detach(), grads, attndrop.keep_mask(*sizes, **worker.DRAWN)


def _check_ranks(
    ranks: list[dict[str, Any]], name: str, entries: list[Tensor], x: Tensor, worker: Any
) -> None:
    """entries: which entries of the whole batch each rank holds."""
    out, grads, keep = _whole(worker, x)
    for found, held in zip((rank[name] for rank in ranks), entries, strict=True):
        assert torch.equal(found["mask"], keep[held])
        torch.testing.assert_close(found["out"], out[held], atol=1e-6, rtol=1e-5)
        for mine, other in zip(found["grads"], grads, strict=True):
            torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("name", "first"), [("even", 4), ("uneven", 5), ("sharded", 4)])
def test_contiguous_ranks_equal_one_process(
    name: str, first: int, ranks: list[dict[str, Any]], worker: Any
) -> None:
    held = [torch.arange(first), torch.arange(first, worker.ENTRIES)]
    _check_ranks(ranks, name, held, worker.make_data(), worker)


def test_ranks_of_a_distributed_sampler_equal_one_process(
    ranks: list[dict[str, Any]], worker: Any
) -> None:
    sampler = torch.utils.data.DistributedSampler(
        worker.make_data(), num_replicas=1, rank=0, shuffle=True, seed=2
    )
    x = worker.make_data()[list(sampler)]
    held = [torch.arange(rank, worker.ENTRIES, 2) for rank in range(2)]
    _check_ranks(ranks, "strided", held, x, worker)


# ---- Places in the batch --------------------------------------------------------------------


def test_batch_origin() -> None:
    batch_origin = attndrop.distributed.batch_origin
    assert batch_origin(3, rank=0, world_size=4) == (0, 0, 0, 0)
    assert batch_origin(3, rank=2, world_size=4) == (6, 0, 0, 0)
    assert batch_origin([3, 3, 2, 0], rank=3, world_size=4) == (8, 0, 0, 0)
    with pytest.raises(ValueError, match="rank and world_size must be given where"):
        batch_origin(3)
    with pytest.raises(ValueError, match="rank must be in 0 .. 3, got 4"):
        batch_origin(3, rank=4, world_size=4)
    with pytest.raises(ValueError, match="one for each of the 4 ranks, got 2 numbers"):
        batch_origin([3, 3], rank=0, world_size=4)
    with pytest.raises(ValueError, match=r"local_batch must be in 0 .. 2\^32, got -1"):
        batch_origin(-1, rank=0, world_size=4)
    with pytest.raises(ValueError, match=r"at most 2\^32 entries"):
        batch_origin(1 << 31, rank=2, world_size=3)
    with pytest.raises(TypeError, match=r"local_batch must be an integer, got 1\.5"):
        batch_origin(1.5, rank=0, world_size=1)  # type: ignore[arg-type]


def test_strided_batch_index() -> None:
    index = attndrop.distributed.strided_batch_index(3, rank=1, world_size=4)
    assert index.dtype == torch.int64
    assert index.tolist() == [1, 5, 9]
    with pytest.raises(ValueError, match="rank and world_size must be given"):
        attndrop.distributed.strided_batch_index(3, rank=1)
    with pytest.raises(ValueError, match=r"at most 2\^32 entries"):
        attndrop.distributed.strided_batch_index(1 << 31, rank=0, world_size=3)


# ---- batch_index ----------------------------------------------------------------------------

_INDEX = torch.tensor([4, 1, 3])
_DRAWN = {"dropout_p": 0.4, "seed": 3, "offset": 8}


def _whole_batch(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return inputs(6, 4, 7, 8, kv=(6, 2, 7, 8), dtype=dtype)


def _results(tensors: list[Tensor], chosen: Tensor | None, **options: Any) -> list[Tensor]:
    """out, logsumexp and gradients, of all entries or of the chosen ones."""
    torch.manual_seed(1)
    up = torch.randn(6, 4, 7, 8, dtype=tensors[0].dtype), torch.randn(6, 4, 7, dtype=torch.float32)
    parts = [t if chosen is None else t[chosen] for t in tensors]
    out, logsumexp = attndrop.scaled_dot_product_attention(
        *parts, enable_gqa=True, return_logsumexp=True, **_DRAWN, **options
    )
    held = slice(None) if chosen is None else chosen
    grads = torch.autograd.grad((out, logsumexp), parts, (up[0][held], up[1][held]))
    return [out, logsumexp, *grads]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("empty_row", POLICIES)
def test_chosen_entries_have_the_results_of_the_whole(scheme: str, empty_row: str) -> None:
    if not is_legal(scheme, empty_row):
        return
    tensors = _whole_batch()
    options = {"scheme": scheme, "empty_row": empty_row, "is_causal": True}
    whole = _results(tensors, None, **options)
    part = _results(tensors, _INDEX, batch_index=_INDEX, **options)
    for mine, other in zip(part, whole, strict=True):
        assert torch.equal(mine, other[_INDEX])
    keep = attndrop.keep_mask(6, 4, 7, **_DRAWN, **options)
    chosen = attndrop.keep_mask(3, 4, 7, batch_index=_INDEX, **_DRAWN, **options)
    assert torch.equal(chosen, keep[_INDEX])


def test_forms_of_batch_index() -> None:
    expected = attndrop.keep_mask(3, 2, 5, batch_index=_INDEX, **_DRAWN)
    strided = torch.tensor([4, 0, 1, 0, 3, 0])[::2]
    for form in ([4, 1, 3], (4, 1, 3), _INDEX.int(), strided, torch.Size([4, 1, 3])):
        assert torch.equal(attndrop.keep_mask(3, 2, 5, batch_index=form, **_DRAWN), expected)
    assert torch.equal(
        attndrop.keep_mask(3, 2, 5, batch_index=[5, 6, 7], **_DRAWN),
        attndrop.keep_mask(3, 2, 5, origin=(5, 0, 0, 0), **_DRAWN),
    )
    attndrop.keep_mask(1, 1, 1, batch_index=[(1 << 32) - 1], **_DRAWN)
    query, key, value = (t.detach()[0] for t in _whole_batch())
    out = attndrop.scaled_dot_product_attention(
        query, key, value, batch_index=[4], enable_gqa=True, **_DRAWN
    )
    assert torch.equal(
        out,
        attndrop.scaled_dot_product_attention(
            query, key, value, origin=(4, 0, 0, 0), enable_gqa=True, **_DRAWN
        ),
    )


def test_sequences_behind_one_another_are_entries() -> None:
    ends = torch.tensor([0, 3, 3, 7])
    lengths = {"cu_seqlens_q": ends, "cu_seqlens_k": ends}
    packed = attndrop.keep_mask(1, 2, 7, batch_index=_INDEX, **lengths, **_DRAWN)
    for sequence, (batch, length) in enumerate(zip(_INDEX.tolist(), (3, 0, 4), strict=True)):
        alone = attndrop.keep_mask(1, 2, length, origin=(batch, 0, 0, 0), **_DRAWN)
        assert torch.equal(packed[sequence, :, :length, :length], alone[0])


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("empty_row", POLICIES)
@pytest.mark.parametrize("ragged", [False, True])
def test_composite_path_of_batch_index(scheme: str, empty_row: str, ragged: bool) -> None:
    if not is_legal(scheme, empty_row):
        return
    ends = torch.tensor([0, 4, 5, 9]) if ragged else None
    side = (rng(0.6, 3, 8), None, None, ends, ends, _INDEX)
    options = {"scheme": scheme, "empty_row": empty_row, "is_causal": True}
    shape = (1, 2, 9, 4) if ragged else (3, 2, 9, 4)
    sizes = [*shape[:3], 9]
    mine = composite.keep_mask(Side(*side), sizes, True, options, torch.device("cpu"))
    theirs = torch.ops.attndrop.keep_mask(*side, sizes=sizes, with_factors=True, **options)
    assert torch.equal(mine[0], theirs[0])
    torch.testing.assert_close(mine[1], theirs[1], rtol=1e-13, atol=0)
    tensors = inputs(*shape, grad=False)
    out, _ = composite.forward(*tensors, Side(*side), options)
    torch.testing.assert_close(out, torch.ops.attndrop.forward(*tensors, *side, **options)[0])


_REFUSALS: list[tuple[dict[str, Any], type[Exception], str]] = [
    (
        {"batch_index": [1, 2]},
        ValueError,
        "one number for each of the 3 entries of the batch, got 2",
    ),
    ({"batch_index": []}, ValueError, "one number for each of the 3 entries of the batch, got 0"),
    ({"batch_index": [0, -1, 2]}, ValueError, "2^32 - 1, got -1 at entry 1"),
    ({"batch_index": [0, 1, 1 << 32]}, ValueError, "2^32 - 1, got 4294967296 at entry 2"),
    ({"batch_index": [0, 1, 1 << 70]}, ValueError, "must hold numbers in 0 .. 2^32 - 1, got [0"),
    (
        {"batch_index": _INDEX, "origin": (1, 0, 0, 0)},
        ValueError,
        "origin batch must be 0 beside it",
    ),
    ({"batch_index": _INDEX.float()}, TypeError, "must be an int32 or int64 tensor of one axis"),
    ({"batch_index": _INDEX[None]}, ValueError, "must be an int32 or int64 tensor of one axis"),
    ({"batch_index": "013"}, TypeError, "must be an integer tensor or integers, got '013'"),
    ({"batch_index": [0.0, 1.0, 2.0]}, TypeError, "must hold integers, got [0.0"),
    ({"batch_index": 3}, TypeError, "must be an integer tensor or integers, got 3"),
]


@pytest.mark.parametrize(("options", "error", "sentence"), _REFUSALS)
def test_refused_batch_index(
    options: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error) as info:
        attndrop.keep_mask(3, 2, 5, **_DRAWN, **options)
    assert sentence in str(info.value)
    tensors = inputs(3, 2, 5, 4)
    with pytest.raises(error) as info:
        attndrop.scaled_dot_product_attention(*tensors, **_DRAWN, **options)
    assert sentence in str(info.value)
    index = options["batch_index"]
    if not isinstance(index, Tensor):
        try:
            index = torch.tensor(index).long()
        except (TypeError, ValueError, RuntimeError):
            return
    if index.dim() == 0 or "integer" in sentence:
        return
    with pytest.raises(RuntimeError) as info:
        side = Side(rng(0.4), batch_index=index)
        composite.forward(*tensors, side, {"origin": options.get("origin", ())})
    assert sentence in str(info.value)


def test_other_indices_keep_the_compiled_graph() -> None:
    graphs = 0

    def count(graph: torch.fx.GraphModule, _: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return graph

    def attend(query: Tensor, key: Tensor, value: Tensor, index: Tensor) -> Tensor:
        return attndrop.scaled_dot_product_attention(query, key, value, batch_index=index, **_DRAWN)

    torch.compiler.reset()
    compiled = torch.compile(attend, backend=count, fullgraph=True)
    tensors = inputs(3, 2, 7, 8, dtype=torch.float32)
    for index in (_INDEX, _INDEX + 1, _INDEX.flip(0)):
        assert torch.equal(compiled(*tensors, index), attend(*tensors, index))
    assert graphs == 1


def test_derivatives_and_transforms_with_batch_index() -> None:
    tensors = inputs(3, 1, 4, 3)

    def attend(*tensors: Tensor) -> Any:
        return attndrop.scaled_dot_product_attention(
            *tensors, batch_index=_INDEX, return_logsumexp=True, **_DRAWN
        )

    assert torch.autograd.gradcheck(attend, tensors)
    assert torch.autograd.gradgradcheck(attend, tensors, fast_mode=True)
    per_entry = torch.func.vmap(torch.func.grad(lambda q, k, v: attend(q, k, v)[0].sum()))
    stacked = [torch.stack([t.detach(), 2 * t.detach()]) for t in tensors]
    for copy, factor in enumerate((1, 2)):
        parts = [(factor * t.detach()).requires_grad_() for t in tensors]
        expected = torch.autograd.grad(attend(*parts)[0].sum(), parts)
        torch.testing.assert_close(per_entry(*stacked)[copy], expected[0])
    expected, _ = dense(*tensors, batch_index=_INDEX, **_DRAWN)
    torch.testing.assert_close(attend(*tensors)[0], expected)


def test_operator_checks_with_batch_index() -> None:
    tensors = inputs(3, 2, 4, 3, dtype=torch.float32)
    arguments = (*tensors, rng(0.4, 3), None, None, None, None, _INDEX)
    torch.library.opcheck(torch.ops.attndrop.forward.default, arguments)


# ---- Parts of the keys ----------------------------------------------------------------------


def _merge(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """(out, logsumexp) of all keys from those of their parts; rows without keys are zero."""
    logsumexps = torch.stack([logsumexp for _, logsumexp in parts])
    peak = logsumexps.amax(0).detach().nan_to_num(neginf=0.0)
    shares = torch.exp(logsumexps - peak)
    total = shares.sum(0)
    logsumexp = torch.where(total == 0, -torch.inf, peak + torch.log(total.clamp(min=1e-300)))
    shares = shares / total.clamp(min=1e-300)
    return sum(s.unsqueeze(-1) * out for s, (out, _) in zip(shares, parts, strict=True)), logsumexp


_KEYS = (slice(0, 3), slice(3, 9), slice(9, 10), slice(10, 13))


def _of_parts(tensors: list[Tensor], options: dict[str, Any]) -> tuple[Tensor, Tensor]:
    query, key, value = tensors
    mask = options.get("attn_mask")
    parts = []
    for keys in _KEYS:
        own = {} if mask is None else {"attn_mask": mask[..., keys]}
        parts.append(
            attndrop.scaled_dot_product_attention(
                query,
                key[:, :, keys],
                value[:, :, keys],
                origin=(0, 0, 0, keys.start),
                total=(query.shape[2], key.shape[2]),
                return_logsumexp=True,
                **{**options, **own},
            )
        )
    return _merge(parts)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("empty_row", POLICIES)
@pytest.mark.parametrize("stage", ["weights", "logits"])
def test_four_parts_of_the_keys_merge_to_the_whole(scheme: str, empty_row: str, stage: str) -> None:
    if not is_legal(scheme, empty_row):
        return
    for causal, masked in ((False, False), (True, False), (False, True)):
        tensors = inputs(2, 2, 13, 4)
        options: dict[str, Any] = {"scheme": scheme, "empty_row": empty_row, "stage": stage}
        options.update(dropout_p=0.6, seed=5, is_causal=causal)
        if masked:
            options["attn_mask"] = torch.rand(2, 1, 13, 13) < 0.7
        if masked and empty_row in ("keep_one", "redraw", "undropped"):
            with pytest.raises(ValueError, match="looks at all keys of a row"):
                _of_parts(tensors, options)
            continue
        whole = attndrop.scaled_dot_product_attention(*tensors, return_logsumexp=True, **options)
        merged = _of_parts(tensors, options)
        finite = torch.isfinite(whole[1])
        torch.testing.assert_close(merged, whole)
        up = torch.randn_like(whole[0]), torch.where(finite, torch.randn_like(whole[1]), 0.0)
        ours, theirs = (torch.autograd.grad(found, tensors, up) for found in (merged, whole))
        torch.testing.assert_close(ours, theirs)
