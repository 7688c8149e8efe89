# SPDX-License-Identifier: Apache-2.0
"""fovea.scaled_dot_product_attention of torch's nested tensors: as of each sequence alone."""

import pytest
import torch
from torch.nn.attention.bias import causal_lower_right

import fovea

LENGTHS = (3, 5, 0, 9, 1)


def nested(lengths, heads=4, dim=16, *, leaf=True):
    """``[batch, head, seq, dim]``, a view of rows of all heads side by side, and the leaf that it views."""
    rows = [torch.randn(length, heads, dim) for length in lengths]
    leaf_of = torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=leaf)
    return leaf_of.transpose(1, 2), leaf_of


def like(other, heads, dim):
    values = torch.randn(other.transpose(1, 2).values().shape[0], heads, dim)
    leaf = torch.nested.nested_tensor_from_jagged(values, other.offsets()).detach().requires_grad_()
    return leaf.transpose(1, 2), leaf


def one_by_one(query, key, value, **options):
    parts = zip(query.unbind(), key.unbind(), value.unbind(), strict=True)
    return [fovea.scaled_dot_product_attention(*(part[None] for part in one), **options)[0] for one in parts]


@pytest.mark.parametrize(
    ("heads", "options"),
    [
        ((4, 4), {}),
        ((4, 4), {"is_causal": True, "scale": 0.3}),
        ((4, 4), {"attn_mask": causal_lower_right(5, 9)}),
        ((6, 2), {"is_causal": True, "enable_gqa": True}),
    ],
)
@pytest.mark.parametrize("keys", [LENGTHS, (7, 2, 4, 0, 12)])
def test_each_sequence_is_as_alone(heads, options, keys):
    (query, q), (key, k) = nested(LENGTHS, heads[0]), nested(keys, heads[1])
    value, v = like(key, heads[1], 24)
    out = fovea.scaled_dot_product_attention(query, key, value, **options)
    assert out.is_nested and out.shape == (*query.shape[:3], 24)  # the same axis of lengths: sums with query are taken
    want = one_by_one(query, key, value, **options)
    for one, other in zip(out.unbind(), want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    weight = torch.randn_like(out.transpose(1, 2).values())
    got = torch.autograd.grad((out.transpose(1, 2).values() * weight).sum(), (q, k, v))
    alone = torch.cat([part.transpose(0, 1) for part in want])
    want = torch.autograd.grad((alone * weight).sum(), (q, k, v))
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one.values(), other.values(), rtol=1e-5, atol=1e-5)


def test_as_torch_has_it():
    (query, _), (key, _), (value, _) = (nested(LENGTHS) for _ in range(3))
    want = torch.nn.functional.scaled_dot_product_attention(query, key.clone(), value.clone())
    torch.testing.assert_close(fovea.scaled_dot_product_attention(query, key, value).values(), want.values(), rtol=1e-4, atol=1e-5)


def test_values_are_not_copied(monkeypatch):
    query, leaf = nested(LENGTHS, leaf=False)
    seen = []

    def attention(*tensors, **options):
        seen.extend(tensor.data_ptr() for tensor in tensors)
        return fovea.attention(*tensors, **options)

    monkeypatch.setattr("fovea._nested.attention", attention)
    fovea.scaled_dot_product_attention(query, query, query)
    assert seen == [leaf.values().data_ptr()] * 3


def test_what_is_refused():
    query, leaf = nested(LENGTHS)
    key, _ = nested((7, 2, 4, 0, 12))
    call = fovea.scaled_dot_product_attention
    with pytest.raises(ValueError, match=r"^key\.is_nested: got False, want True \(query, key and value are nested, or none is\)$"):
        call(query, torch.randn(5, 4, 6, 16), query)
    with pytest.raises(ValueError, match=r"^value\.offsets\(\): got other lengths than key has, want those of key$"):
        call(query, key, query)
    with pytest.raises(
        ValueError, match=r"^query\.shape \(the axis of lengths\): got 1, want 2 \(\[batch, head, seq, head_dim\]\)$"
    ):
        call(leaf, leaf, leaf)
    with pytest.raises(ValueError, match=r"^key\.shape\[0\] \(batch\): got 2, want 5 \(batch of query\)$"):
        call(query, nested((4, 5))[0], query)
    strided = torch.nested.nested_tensor([torch.randn(4, 3, 16)], layout=torch.strided)
    with pytest.raises(NotImplementedError, match=r"^query\.layout: got torch\.strided, want torch\.jagged$"):
        call(strided, strided, strided)
    holes = torch.nested.narrow(torch.randn(5, 9, 4, 16), 1, torch.arange(5), torch.tensor([1, 2, 0, 4, 5]), layout=torch.jagged)
    with pytest.raises(NotImplementedError, match=r"^query\.lengths\(\): got a tensor, want None \(sequences without gaps between"):
        call(holes.transpose(1, 2), query, query)
    with pytest.raises(ValueError, match=r"^enable_gqa: got False, want True for 4 heads over 2$"):
        call(query, nested(LENGTHS, 2)[0], query)
    with pytest.raises(ValueError, match=r"head_dim_qk\): got 24, want 16"):
        call(query, nested(LENGTHS, 4, 24)[0], query)


def test_compiled():
    query, _ = nested(LENGTHS)
    compiled = torch.compile(fovea.scaled_dot_product_attention, backend="aot_eager")
    torch.testing.assert_close(
        compiled(query, query, query).values(), fovea.scaled_dot_product_attention(query, query, query).values()
    )
