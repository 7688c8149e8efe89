# SPDX-License-Identifier: Apache-2.0
"""fovea.scaled_dot_product_attention: torch's function of that name, argument by argument."""

import inspect

import pytest
import torch
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

import fovea

theirs = torch.nn.functional.scaled_dot_product_attention


def inputs(seqs=(5, 9), heads=(4, 4), dims=(16, 24), dtype=torch.float32):
    shapes = (2, heads[0], seqs[0], dims[0]), (2, heads[1], seqs[1], dims[0]), (2, heads[1], seqs[1], dims[1])
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize(
    ("seqs", "heads", "options"),
    [
        ((5, 9), (4, 4), {}),
        ((5, 9), (4, 4), {"is_causal": True}),
        ((9, 5), (4, 4), {"is_causal": True, "scale": 0.3}),
        ((6, 6), (4, 2), {"is_causal": True, "enable_gqa": True}),
        ((5, 9), (4, 4), {"attn_mask": causal_lower_right(5, 9)}),
        ((5, 9), (4, 4), {"attn_mask": causal_upper_left(5, 9)}),
        ((5, 9), (4, 4), {"attn_mask": torch.arange(9)[None] % 5 < 3}),
        ((5, 9), (4, 2), {"attn_mask": (torch.arange(90) % 7 < 5).view(2, 1, 5, 9), "enable_gqa": True}),
    ],
)
def test_results_and_gradients(seqs, heads, options):
    tensors = inputs(seqs, heads, (16, 16))
    exact = [tensor.detach().double().requires_grad_() for tensor in tensors]
    got, want = fovea.scaled_dot_product_attention(*tensors, **options), theirs(*exact, **options)
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)
    weight = torch.randn_like(got)
    got = torch.autograd.grad(got, tensors, weight)
    want = torch.autograd.grad(want, exact, weight.double())
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(5, 9), (1, 4, 1, 9), (2, 1, 5, 1), (2, 4, 5, 9)])
def test_a_mask_that_is_added(shape):
    tensors = [*inputs(dims=(16, 16)), torch.randn(shape, requires_grad=True)]
    exact = [tensor.detach().double().requires_grad_() for tensor in tensors]
    got, want = fovea.scaled_dot_product_attention(*tensors), theirs(*exact)
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)
    weight = torch.randn_like(got)
    got, want = torch.autograd.grad(got, tensors, weight), torch.autograd.grad(want, exact, weight.double())
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)


def test_dropout_takes_the_share_that_it_says():
    q, k = torch.zeros(1, 2, 64, 16), torch.zeros(1, 2, 512, 16)
    v = torch.ones(1, 2, 512, 16)
    out = fovea.scaled_dot_product_attention(q, k, v, dropout_p=0.25)
    assert not torch.equal(out, torch.ones_like(out))
    assert abs(out.mean() - 1) < 0.02  # what stays weighs more


def test_other_head_dim_of_values():
    q, k, v = inputs()
    torch.testing.assert_close(fovea.scaled_dot_product_attention(q, k, v), theirs(q, k, v))


def test_it_stands_in_a_model_of_torch(monkeypatch):
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.projection = torch.nn.Linear(32, 96)

        def forward(self, x):
            q, k, v = self.projection(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, None, 0.0, True).transpose(1, 2).flatten(2)

    layer, x = Layer(), torch.randn(2, 7, 32)
    want = layer(x)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", fovea.scaled_dot_product_attention)
    torch.testing.assert_close(layer(x), want)
    torch.testing.assert_close(torch.compile(layer, fullgraph=True)(x), want)


def test_order_of_arguments():
    names = list(inspect.signature(fovea.scaled_dot_product_attention).parameters)
    assert names == ["query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"attn_mask": torch.ones(5, 9, dtype=torch.int32)}, ValueError, r"^attn_mask\.dtype: got torch\.int32, want"),
        ({"attn_mask": torch.ones(1, 1, 1, 5, 9)}, ValueError, r"^attn_mask\.dim\(\): got 5, want 4 at most"),
        ({"attn_mask": causal_upper_left(5, 9), "is_causal": True}, ValueError, "^is_causal: got True, want False"),
        ({"dropout_p": 1.5}, ValueError, r"^dropout_p: got 1\.5, want 0 or more and less than 1"),
        ({"query": torch.randn(4, 5, 16)}, ValueError, r"^query\.rank: got 3, want 4"),
        ({"query": torch.randn(2, 8, 5, 16)}, ValueError, "^enable_gqa: got False, want True for 8 heads over 4"),
        ({"scale": "large"}, TypeError, "^scale: got 'large', want a number"),
    ],
)
def test_refusals(options, error, message):
    with pytest.raises(error, match=message):
        fovea.scaled_dot_product_attention(**dict(zip(("query", "key", "value"), inputs(), strict=True)) | options)


def test_a_mask_is_named_as_it_is_given():
    q, k, v = (tensor.detach() for tensor in inputs())
    with pytest.raises(ValueError, match=r"^attn_mask\.shape\[1\] \(seq_k\): got 8, want 1 or 9$"):
        fovea.scaled_dot_product_attention(q, k, v, torch.zeros(5, 8))
    mask = torch.ones(5, 9, dtype=torch.bool)
    mask.untyped_storage().resize_(1)
    with pytest.raises(ValueError, match=r"^attn_mask\.storage: got 1 bytes, want at least 45$"):
        fovea.scaled_dot_product_attention(q, k, v, mask)
    rows = torch.nested.nested_tensor([torch.zeros(5, 9)], layout=torch.jagged)
    with pytest.raises(ValueError, match=r"^attn_mask: got a nested tensor"):
        fovea.scaled_dot_product_attention(q, k, v, rows)
    with pytest.raises(ValueError, match=r"^query\.dtype: got torch\.int32"):
        fovea.scaled_dot_product_attention(q.int(), k, v, torch.ones(5, 9, dtype=torch.bool))


@pytest.mark.parametrize("added", [False, True])
def test_a_mask_of_e4m3_rows_has_the_dtype_of_their_result(added):
    rows = [tensor.detach().to(torch.float8_e4m3fn) for tensor in inputs()]
    mask = torch.arange(9)[None] % 5 < 3
    given = torch.where(mask, 0.0, -torch.inf) if added else mask
    out = fovea.scaled_dot_product_attention(*rows, given)
    want = theirs(*(tensor.float() for tensor in rows), attn_mask=mask)
    torch.testing.assert_close(out, want.bfloat16(), rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize("mask", [torch.arange(9)[None] % 5 < 3, torch.randn(4, 5, 9)], ids=["bool", "added"])
def test_a_compiled_call_with_a_mask_is_one_graph(mask):
    rows = [tensor.detach() for tensor in inputs()]
    compiled = torch.compile(fovea.scaled_dot_product_attention, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*rows, mask), fovea.scaled_dot_product_attention(*rows, mask))
