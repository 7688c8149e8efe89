# SPDX-License-Identifier: Apache-2.0
"""NaN in keys and values beside sinks, on every device: which elements of the results are NaN, and which may be."""

import pytest
import torch

import fovea

COLUMN, KEY = 5, 1
WEAK = [-1e30, 0.0, 50.0]
STRONG = [200.0, 1000.0, 1e30, torch.inf]


def int32(values, device):
    return torch.tensor(values, dtype=torch.int32, device=device)


def dense(q, k, v, sink):
    return fovea.attention(q[None], k[None], v[None], causal=True, sink=sink)[0]


def paged(q, k, v, sink):
    cache = [torch.cat([x, x[:1].expand(3, -1, -1)])[None].contiguous() for x in (k, v)]
    table, length, rows = int32([[0]], q.device), int32([5], q.device), int32([0, 5], q.device)
    return fovea.paged_attention(q, *cache, table, length, rows, sink=sink)


def listed(q, k, v, sink):
    """Attention over a latent cache, whose rows are keys and values at once."""
    cache = torch.zeros(1, 8, 1, 576, dtype=q.dtype, device=q.device)
    cache[0, :5, 0, :64] = k[:, 0]
    queries = torch.zeros(5, q.shape[1], 576, dtype=q.dtype, device=q.device)
    queries[..., :64] = q
    indices = torch.arange(5, dtype=torch.int32).repeat(5, 1)
    indices[torch.ones(5, 5).triu(1) > 0] = -1
    return fovea.sparse_latent_attention(queries, cache, indices.to(q.device), sink=sink)


def results(function, sink, device, *, of):
    """Causal attention of five tokens, one of whose rows of K or V has a NaN."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    tensors = {name: 0.1 * torch.randn(5, heads, 64) for name, heads in (("q", 16), ("k", 1), ("v", 1))}
    tensors[of][KEY, 0, COLUMN] = torch.nan
    tensors = {name: tensor.to(device, dtype) for name, tensor in tensors.items()}
    return function(**tensors, sink=torch.full((16,), sink, device=device)).float().cpu()


def check_keys(function, device):
    for sink in (*WEAK, *STRONG):
        out = results(function, sink, device, of="k")
        assert out[KEY:].isnan().all() and out[:KEY].isfinite().all(), sink


def check_values(function, device):
    for sink in WEAK:
        nan = results(function, sink, device, of="v").isnan()
        assert nan[KEY:, :, COLUMN].all() and nan.sum() == nan[KEY:, :, COLUMN].sum(), sink
    for sink in STRONG:
        out = results(function, sink, device, of="v")
        column = out[KEY:, :, COLUMN]
        assert (column.isnan() | (column == 0)).all(), sink
        column.zero_()
        assert (out.abs() < 1e-30).all(), sink


def test_dense_attention(attention_device):
    check_keys(dense, attention_device)
    check_values(dense, attention_device)


def test_paged_attention(paged_attention_device):
    check_keys(paged, paged_attention_device)
    check_values(paged, paged_attention_device)


def test_sparse_latent_attention(sparse_latent_attention_device):
    check_keys(listed, sparse_latent_attention_device)


@pytest.mark.parametrize("function", [dense, paged])
def test_every_implementation_on_the_cpu(function, monkeypatch):
    """The promise is that of all, not of the fastest alone."""
    operation = {dense: "attention", paged: "paged_attention"}[function]
    inner = getattr(fovea, operation)
    for row in fovea.implementations():
        if row.operation == operation and row.backend == "cpu" and row.available and ".amx." not in row.name:
            monkeypatch.setattr(
                fovea, operation, lambda *args, name=row.name, **options: inner(*args, implementation=name, **options)
            )
            try:
                check_keys(function, "cpu")
                check_values(function, "cpu")
            except NotImplementedError:
                assert row.name.startswith("cpu.avx512bf16")  # of bf16 alone
