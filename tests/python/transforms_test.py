# SPDX-License-Identifier: Apache-2.0
"""torch.func: gradients, per-sample gradients, vmap."""

from __future__ import annotations

import pytest
import torch
from attndrop import scaled_dot_product_attention as sdpa
from support import inputs
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacrev, jvp, vjp, vmap


def loss(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return (sdpa(query, key, value, dropout_p=0.5, seed=7, is_causal=True) ** 2).sum()


def test_grad_is_autograd() -> None:
    tensors = inputs(1, 2, 5, 3)
    mine = grad(loss, argnums=(0, 1, 2))(*tensors)
    theirs = torch.autograd.grad(loss(*tensors), tensors)
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_vjp_of_logsumexp() -> None:
    tensors = inputs(1, 2, 5, 3, grad=False)

    def both(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        return sdpa(*tensors, dropout_p=0.5, seed=7, return_logsumexp=True)

    (out, logsumexp), pull = vjp(both, *tensors)
    upstream = (torch.randn_like(out), torch.randn_like(logsumexp))
    leaves = [t.clone().requires_grad_() for t in tensors]
    theirs = torch.autograd.grad(both(*leaves), leaves, upstream)
    for a, b in zip(pull(upstream), theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_forward_mode_is_refused_with_what_to_use() -> None:
    query, key, value = inputs(1, 1, 2, 3, grad=False)
    with pytest.raises(NotImplementedError, match="^attention has no forward-mode derivatives"):
        jvp(loss, (query, key, value), (query, key, value))
    with pytest.raises(NotImplementedError, match="^attention has no forward-mode derivatives"):
        hessian(loss)(query, key, value)
    assert jacrev(jacrev(loss))(query, key, value).shape == query.shape * 2


def test_vmap_is_a_loop() -> None:
    samples = [torch.randn(4, 1, 2, 5, 3, dtype=torch.float64) for _ in range(3)]
    mine = vmap(loss)(*samples)
    theirs = torch.stack([loss(*(t[i] for t in samples)) for i in range(4)])
    torch.testing.assert_close(mine, theirs)
    shared = vmap(loss, in_dims=(0, None, 0))(samples[0], samples[1][0], samples[2])
    theirs = torch.stack([loss(samples[0][i], samples[1][0], samples[2][i]) for i in range(4)])
    torch.testing.assert_close(shared, theirs)


def test_vmap_over_seeds() -> None:
    query, key, value = inputs(1, 1, 6, 3, grad=False)

    def drawn(seed: Tensor) -> Tensor:
        return sdpa(query, key, value, dropout_p=0.5, seed=seed)

    seeds = torch.arange(5)
    torch.testing.assert_close(vmap(drawn)(seeds), torch.stack([drawn(s) for s in seeds]))


def test_vmap_with_drawn_seeds_follows_its_randomness() -> None:
    query, key, value = inputs(1, 1, 6, 3, grad=False)

    def drawn(value: Tensor) -> Tensor:
        return sdpa(query, key, value, dropout_p=0.5)

    values = value.expand(4, *value.shape)
    different = vmap(drawn, randomness="different")(values)
    assert not torch.equal(different[0], different[1])
    same = vmap(drawn, randomness="same")(values)
    assert all(torch.equal(same[0], out) for out in same)


def test_per_sample_gradients() -> None:
    linear = torch.nn.Linear(4, 12, dtype=torch.float64)
    params = dict(linear.named_parameters())
    x = torch.randn(3, 6, 4, dtype=torch.float64)

    def sample_loss(params: dict[str, Tensor], x: Tensor, seed: Tensor) -> Tensor:
        query, key, value = functional_call(linear, params, (x,)).view(1, 6, 3, 2, 2).unbind(2)
        heads = (t.transpose(1, 2) for t in (query, key, value))
        return (sdpa(*heads, dropout_p=0.5, seed=seed, is_causal=True) ** 2).sum()

    seeds = torch.tensor([5, 6, 7])
    mine = vmap(grad(sample_loss), in_dims=(None, 0, 0))(params, x, seeds)
    for index in range(3):
        linear.zero_grad()
        sample_loss(params, x[index], seeds[index]).backward()
        for name, parameter in params.items():
            torch.testing.assert_close(mine[name][index], parameter.grad)


def test_second_derivatives() -> None:
    query, key, value = inputs(1, 1, 3, 2, grad=False)
    mine = jacrev(jacrev(lambda q: loss(q, key, value)))(query)
    theirs = torch.autograd.functional.hessian(lambda q: loss(q, key, value), query)
    torch.testing.assert_close(mine, theirs)


def test_tensors_that_outlive_their_transform() -> None:
    kept = []

    def keep(query: Tensor) -> Tensor:
        kept.append(query)
        return (query**2).sum()

    query, key, value = inputs(1, 2, 5, 3)
    grad(keep)(query)
    out = sdpa(kept[0], key, value, dropout_p=0.5, seed=7)
    assert torch.equal(out, sdpa(query, key, value, dropout_p=0.5, seed=7))
    mine = torch.autograd.grad(out.sum(), (query, key))
    theirs = torch.autograd.grad(sdpa(query, key, value, dropout_p=0.5, seed=7).sum(), (query, key))
    for a, b in zip(mine, theirs, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("place", range(3))
def test_tangents_are_refused_and_not_dropped(place: int, requires_grad: bool) -> None:
    tensors = inputs(1, 2, 5, 3, grad=requires_grad)
    with forward_ad.dual_level():
        duals = list(tensors)
        duals[place] = forward_ad.make_dual(duals[place], torch.ones_like(duals[place]))
        with pytest.raises((RuntimeError, ValueError), match="no forward-mode derivatives"):
            sdpa(*duals)
        assert sdpa(*tensors).shape == (1, 2, 5, 3)
