# SPDX-License-Identifier: Apache-2.0
"""What cannot be computed is refused with a sentence, by type: TypeError or ValueError."""

from __future__ import annotations

from typing import Any

import attndrop
import numpy as np
import pytest
import torch
from attndrop import scaled_dot_product_attention as sdpa
from support import inputs

INF, NAN = float("inf"), float("nan")


def good() -> list[torch.Tensor]:
    return inputs(2, 2, 3, 4, dtype=torch.float32)


@pytest.mark.parametrize("p", [NAN, INF, -INF, -0.1, 1.5])
def test_dropout_p_out_of_range(p: float) -> None:
    with pytest.raises(ValueError, match=r"dropout_p must be a finite number in \[0, 1\], got"):
        sdpa(*good(), dropout_p=p, seed=1)
    with pytest.raises(ValueError, match="dropout_p must be a finite number"):
        sdpa(*good(), dropout_p=p, training=False)
    for training in (True, False):
        rate = torch.tensor(p, dtype=torch.float64)
        with pytest.raises(ValueError, match="dropout_p must be a finite number"):
            sdpa(*good(), dropout_p=rate, seed=1, training=training)


@pytest.mark.parametrize("p", ["50%", "0.5", None, [0.5], 1j, True, torch.tensor([0.1, 0.2])])
def test_dropout_p_of_another_type(p: Any) -> None:
    with pytest.raises(TypeError, match="dropout_p must"):
        sdpa(*good(), dropout_p=p, seed=1)


@pytest.mark.parametrize("seed", [-1, 2**64, 10**30])
def test_seed_out_of_range(seed: int) -> None:
    with pytest.raises(ValueError, match=r"seed must be in 0 \.\. 2\^64 - 1, got"):
        sdpa(*good(), dropout_p=0.5, seed=seed)
    with pytest.raises(ValueError, match=r"offset must be in 0 \.\. 2\^64 - 1, got"):
        sdpa(*good(), dropout_p=0.5, seed=0, offset=seed)


@pytest.mark.parametrize("seed", [1.5, "", "7", True, torch.tensor(1.0), torch.tensor([1, 2])])
def test_seed_of_another_type(seed: Any) -> None:
    with pytest.raises(TypeError, match="seed must"):
        sdpa(*good(), dropout_p=0.5, seed=seed)


def test_seed_may_be_a_numpy_integer() -> None:
    assert torch.equal(
        sdpa(*good(), dropout_p=0.5, seed=np.int32(7)).isnan(), torch.zeros(2, 2, 3, 4).bool()
    )


def test_schemes() -> None:
    with pytest.raises(ValueError, match='scheme "elemnt" is unknown.*element'):
        sdpa(*good(), scheme="elemnt")
    with pytest.raises(ValueError, match='scheme "Element" is unknown.*element'):
        sdpa(*good(), scheme="Element")
    with pytest.raises(ValueError, match=r"block_q in 1 \.\. 4294967295"):
        sdpa(*good(), scheme="block:block_q=0")
    with pytest.raises(TypeError, match="scheme must be a name, got 3"):
        sdpa(*good(), scheme=3)
    with pytest.raises(ValueError, match="needs seqlen_q == seqlen_k, got 3 and 5"):
        sdpa(*inputs(1, 1, 3, 4, kv=(1, 1, 5, 4)), scheme="symmetric")
    with pytest.raises(ValueError, match="other rows share its draws"):
        sdpa(*good(), scheme="key", empty_row="redraw", dropout_p=0.5)
    with pytest.raises(ValueError, match="needs dropout_p below"):
        sdpa(*good(), dropout_p=1.0, empty_row="redraw", seed=1)


def test_other_names() -> None:
    with pytest.raises(ValueError, match="weights"):
        sdpa(*good(), stage="before")
    with pytest.raises(ValueError, match="redraw"):
        sdpa(*good(), empty_row="redrw")
    with pytest.raises(ValueError, match="causal_align must be"):
        sdpa(*good(), causal_align="left")
    with pytest.raises(TypeError, match="unexpected keyword"):
        sdpa(*good(), drop=0.5)


@pytest.mark.parametrize("scale", [NAN, INF, -INF])
def test_scale_not_finite(scale: float) -> None:
    with pytest.raises(ValueError, match="scale must be a finite number"):
        sdpa(*good(), scale=scale)


def test_scale_and_window_of_another_type() -> None:
    with pytest.raises(TypeError, match="scale must"):
        sdpa(*good(), scale="1")
    for window in (3, (1,), (1, 2, 3), "12", (1.5, 2)):
        with pytest.raises(TypeError, match="window must be 2 integers"):
            sdpa(*good(), window=window)
    with pytest.raises(ValueError, match="window left must be"):
        sdpa(*good(), window=(-2, 0))


def test_no_tensors() -> None:
    query, key, value = good()
    with pytest.raises(TypeError, match=r"query must be a torch.Tensor, got ndarray.*arrays"):
        sdpa(query.detach().numpy(), key, value)
    with pytest.raises(TypeError, match="value must be a torch.Tensor, got NoneType"):
        sdpa(query, key, None)
    with pytest.raises(TypeError, match="attn_mask must be a torch.Tensor, got list"):
        sdpa(query, key, value, attn_mask=[[True]])


def test_ranks_and_shapes() -> None:
    query, key, value = good()
    for bad in (query[0, 0], query[0, 0, 0], query.unsqueeze(0)):
        with pytest.raises(ValueError, match="query must have the shape"):
            sdpa(bad, key, value)
    with pytest.raises(ValueError, match="same number of axes"):
        sdpa(query, key[0], value[0])
    with pytest.raises(
        ValueError, match=r"same batch, got shapes \(2, 2, 3, 4\) and \(1, 2, 3, 4\)"
    ):
        sdpa(query, key[:1], value[:1])
    with pytest.raises(ValueError, match="same head_dim"):
        sdpa(query, key[..., :3], value)
    with pytest.raises(ValueError, match="same seqlen_k"):
        sdpa(query, key[:, :, :2], value)
    with pytest.raises(ValueError, match="same number of heads"):
        sdpa(query, key, value[:, :1])


def test_grouped_heads() -> None:
    query, key, value = inputs(1, 6, 3, 4, kv=(1, 2, 3, 4))
    with pytest.raises(ValueError, match="query has 6 heads and key 2.*enable_gqa=True"):
        sdpa(query, key, value)
    with pytest.raises(ValueError, match="num_heads must be a multiple of num_kv_heads"):
        sdpa(query[:, :5], key, value, enable_gqa=True)


def test_dtypes() -> None:
    query, key, value = good()
    with pytest.raises(TypeError, match="query, key and value must have the same dtype"):
        sdpa(query, key.double(), value)
    for dtype in (torch.int32, torch.bool, torch.complex64, torch.float8_e4m3fn):
        bad = [t.detach().to(dtype) for t in good()]
        with pytest.raises(TypeError, match="must be one of float64, float32, bfloat16, float16"):
            sdpa(*bad)
    with pytest.raises(TypeError, match="attn_mask must be bool or one of"):
        sdpa(query, key, value, attn_mask=torch.ones(3, 3, dtype=torch.int64))


def test_attn_mask() -> None:
    for shape in ((2, 2), (3, 2), (1, 3, 3, 3), (1, 1, 1, 3, 3)):
        with pytest.raises(ValueError, match="attn_mask must"):
            sdpa(*good(), attn_mask=torch.ones(shape, dtype=torch.bool))
    for number in (INF, NAN):
        attn_mask = torch.zeros(3, 3)
        attn_mask[1, 2] = number
        with pytest.raises(
            ValueError, match=r"attn_mask must hold finite numbers or -inf.*\[0, ?0, ?1, ?2\]"
        ):
            sdpa(*good(), attn_mask=attn_mask)


def test_alibi_slopes() -> None:
    for slopes in (torch.ones(3), torch.ones(1, 2), torch.ones(2, 2, 2)):
        with pytest.raises(ValueError, match="alibi_slopes must"):
            sdpa(*good(), alibi_slopes=slopes)
    with pytest.raises(TypeError, match="alibi_slopes must be float32"):
        sdpa(*good(), alibi_slopes=torch.ones(2, dtype=torch.float64))


def test_ragged() -> None:
    packed = inputs(1, 1, 6, 2)
    ends = torch.tensor([0, 2, 6])
    with pytest.raises(ValueError, match="come together"):
        sdpa(*packed, cu_seqlens_q=ends)
    with pytest.raises(ValueError, match="batch of query, key and value is 1"):
        sdpa(*inputs(2, 1, 6, 2), cu_seqlens_q=ends, cu_seqlens_k=ends)
    for wrong in ([1, 6], [0, 4, 2, 6], [0, 5], [0, 7], []):
        with pytest.raises(ValueError, match="cu_seqlens"):
            numbers = torch.tensor(wrong, dtype=torch.int64)
            sdpa(*packed, cu_seqlens_q=numbers, cu_seqlens_k=numbers)
    with pytest.raises(TypeError, match="int32 or int64"):
        sdpa(*packed, cu_seqlens_q=ends.double(), cu_seqlens_k=ends.double())


def test_shards() -> None:
    with pytest.raises(TypeError, match="origin must be 4 integers"):
        sdpa(*good(), origin=(0, 0))
    with pytest.raises(ValueError, match="origin batch must be in"):
        sdpa(*good(), origin=(-1, 0, 0, 0))
    with pytest.raises(ValueError, match="total query must be in 3"):
        sdpa(*good(), total=(2, 3))
    with pytest.raises(ValueError, match="coordinates of the mask are 32-bit"):
        sdpa(*good(), origin=(2**32 - 1, 0, 0, 0))


def test_devices_and_layouts() -> None:
    query, key, value = good()
    with pytest.raises(ValueError, match="one device"):
        sdpa(query, key.to("meta"), value)
    with pytest.raises(TypeError, match="strided tensor"):
        sdpa(*(t.detach().to_sparse() for t in good()))
    nested = torch.nested.nested_tensor([torch.ones(2, 3, 4), torch.ones(2, 2, 4)])
    with pytest.raises(TypeError, match="strided tensor"):
        sdpa(nested, nested, nested)


@pytest.mark.filterwarnings("ignore")
def test_dtensor(tmp_path: Any) -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        tensors = [distribute_tensor(t.detach(), mesh) for t in good()]
        with pytest.raises(TypeError, match="query is a DTensor.*to_local"):
            sdpa(*tensors)
    finally:
        dist.destroy_process_group()


def test_operators_called_by_themselves() -> None:
    query, key, value = (t.detach() for t in good())
    forward = torch.ops.attndrop.forward
    for rng in (torch.tensor([0, 0]), torch.tensor([0, 0, -1]), torch.tensor([0, 0, 2**32 + 1])):
        with pytest.raises(RuntimeError, match=r"\[attndrop value\] rng must hold"):
            forward(query, key, value, rng, None, None, None, None)
    with pytest.raises(RuntimeError, match="query must have the shape"):
        forward(query[0], key[0], value[0], torch.tensor([0, 0, 5]), None, None, None, None)
    rng = torch.tensor([0, 0, 2**31])
    out, logsumexp = forward(query, key, value, rng, None, None, None, None)
    side = (rng, None, None, None, None)
    backward = torch.ops.attndrop.backward
    with pytest.raises(RuntimeError, match="grad_out must"):
        backward(out[..., :2], None, query, key, value, out, logsumexp, *side, wanted=[1, 1, 1, 0])
    with pytest.raises(RuntimeError, match="gradient of attn_mask is wanted"):
        backward(out, None, query, key, value, out, logsumexp, *side, wanted=[1, 1, 1, 1])
    with pytest.raises(RuntimeError, match="wanted must hold"):
        backward(out, None, query, key, value, out, logsumexp, *side, wanted=[1])


def test_empty_sizes_are_fine() -> None:
    for shape in ((0, 2, 3, 4), (2, 0, 3, 4), (2, 2, 0, 4), (2, 2, 3, 0)):
        tensors = inputs(*shape)
        out = sdpa(*tensors, dropout_p=0.5, seed=1)
        assert out.shape == shape
        out.sum().backward()
        assert tensors[0].grad.shape == shape
    query, key, value = inputs(1, 1, 2, 4, kv=(1, 1, 0, 4))
    out, logsumexp = sdpa(query, key, value, dropout_p=0.5, seed=1, return_logsumexp=True)
    assert not out.any()
    assert (logsumexp == -INF).all()


def test_call_offset() -> None:
    assert attndrop.call_offset(3, 5) == 3 * 2**24 + 5
    assert attndrop.call_offset(3, 5, micro=7) == 3 * 2**24 + 7 * 2**12 + 5
    assert attndrop.call_offset(2**40 - 1, 4095, 4095) == 2**64 - 1
    # Integers of few bits must not wrap.
    assert attndrop.call_offset(np.uint8(5), np.uint8(2), np.int8(1)) == 5 * 2**24 + 2**12 + 2
    assert attndrop.call_offset(torch.tensor(200, dtype=torch.int32), 0) == 200 * 2**24
    for bad in ((-1, 0, 0), (2**40, 0, 0), (0, 4096, 0), (0, 0, 4096), (0, -1, 0)):
        with pytest.raises(ValueError, match="must be in 0"):
            attndrop.call_offset(*bad)
    with pytest.raises(TypeError, match="step must be an integer"):
        attndrop.call_offset(1.5, 0)


def test_keep_mask_and_analyze() -> None:
    with pytest.raises(ValueError, match=r"seqlen_q must be in 0 \.\. 2\^32, got -1"):
        attndrop.keep_mask(1, 1, -1, dropout_p=0.5, seed=0)
    with pytest.raises(TypeError, match="batch must be an integer"):
        attndrop.keep_mask(1.0, 1, 1, dropout_p=0.5, seed=0)
    with pytest.raises(TypeError, match="seed must be an integer"):
        attndrop.keep_mask(1, 1, 1, dropout_p=0.5, seed=None)
    with pytest.raises(TypeError, match="analyze needs seqlen_q"):
        attndrop.analyze(dropout_p=0.5)
    with pytest.raises(ValueError, match="dropout_p must be"):
        attndrop.analyze(3, dropout_p=2.0)
    with pytest.raises(ValueError, match="head index must be|head"):
        attndrop.analyze(3, dropout_p=0.5, head=1)
