# SPDX-License-Identifier: Apache-2.0
"""Differentiable functions under torch.utils.checkpoint, and dense attention under torch.autocast with outputs that are given."""

import pytest
import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

import fovea
from fovea.compat import flash_attn
from fovea.compat.flashinfer import BatchPrefillWithRaggedKVCacheWrapper
from fovea.distributed import Layout
from fovea.distributed import attention as distributed_attention

CU = torch.tensor([0, 2, 5], dtype=torch.int32)


def dense(x):
    return fovea.attention(x, x, x, causal=True, sink=x[0, 0, :, 0].contiguous(), return_lse=True)


def ragged(x):
    rows = x.flatten(0, 1)[:5]
    return fovea.attention(rows, rows, rows, cu_seqlens_q=CU, cu_seqlens_k=CU, return_lse=True)


def merged(x):
    return fovea.merge_states([x[0], x[1], x[0] * 2], [x[0, ..., 0], x[1, ..., 1], x[1, ..., 2]])


def sdpa(x):
    return fovea.scaled_dot_product_attention(x, x, x, is_causal=True)


def by_flash_attn(x):
    return flash_attn.flash_attn_func(x, x, x, causal=True)


def results(function, x):
    out = function(x)
    return sum(part.square().sum() for part in (out if isinstance(out, tuple) else (out,)))


def check_checkpoints(function, reentrant):
    x = torch.randn(2, 5, 4, 8, requires_grad=True)
    results(function, x).backward()
    expected, x.grad = x.grad, None
    checkpoint(lambda x: results(function, x), x, use_reentrant=reentrant).backward()
    assert torch.equal(x.grad, expected)
    x.grad = None
    with torch.autograd.graph.save_on_cpu():
        results(function, x).backward()
    assert torch.equal(x.grad, expected)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("function", [dense, ragged, merged, sdpa, by_flash_attn])
def test_checkpoints_change_no_gradient(function, reentrant):
    check_checkpoints(function, reentrant)


@pytest.fixture
def one_rank():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("way", ["ring", "gathered", "heads"])
def test_checkpoints_of_distributed_attention(way, reentrant, one_rank):
    layout = Layout(5, 1)
    check_checkpoints(lambda x: distributed_attention(x, x, x, layout, way=way, causal=True, return_lse=True), reentrant)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("own", [torch.float32, torch.float16, torch.bfloat16])
def test_outputs_of_any_dtype_under_autocast(own, dtype):
    q, out, lse = torch.randn(2, 5, 4, 16, dtype=own), torch.full((2, 5, 4, 16), torch.nan, dtype=own), torch.empty(2, 4, 5)
    with torch.autocast("cpu", dtype=dtype):
        expected = fovea.attention(q, q, q, return_lse=True)
        given = fovea.attention(q, q, q, out=out, lse=lse)
    assert expected[0].dtype == dtype
    assert given[0] is out and given[1] is lse
    assert torch.equal(out, expected[0].to(own)) and torch.equal(lse, expected[1])


def test_rows_of_no_sequence_stay_as_they_are_under_autocast():
    q, out = torch.randn(7, 4, 16), torch.full((7, 4, 16), 3.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        fovea.attention(q, q, q, cu_seqlens_q=CU, cu_seqlens_k=CU, out=out)
    assert (out[5:] == 3).all() and (out[:5] != 3).any()


def test_outputs_of_another_shape_are_refused_under_autocast():
    q = torch.randn(1, 5, 4, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with pytest.raises(ValueError, match=r"^out\.shape\[0\] "):
            fovea.attention(q, q, q, out=torch.empty(2, 5, 4, 16))
        with pytest.raises(ValueError, match=r"^out\.dtype: got torch\.float64"):
            fovea.attention(q, q, q, out=torch.empty(1, 5, 4, 16, dtype=torch.float64))


@pytest.mark.parametrize("own", [torch.float32, torch.float16])
def test_flashinfer_writes_what_it_is_given_under_autocast(own):
    q, out = torch.randn(5, 4, 64, dtype=own), torch.full((5, 4, 64), torch.nan, dtype=own)
    wrapper = BatchPrefillWithRaggedKVCacheWrapper(torch.empty(8, dtype=torch.uint8))
    wrapper.plan(CU, CU, 4, 4, 64, q_data_type=own)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert wrapper.run(q, q, q, out=out) is out
    assert (out - wrapper.run(q, q, q)).abs().max() < 0.05
