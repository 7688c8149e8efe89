# SPDX-License-Identifier: Apache-2.0
"""Paged caches of codes and scales on a CUDA device, beside the CPU over the same bytes."""

import pytest
import torch

import fovea
from conftest import available
from test_cuda_paged import check
from test_kv_formats import BLOCKS, DIM, FORMATS, HEADS, PAGE, arguments, filled, poisoned
from test_paged import cumulative

pytestmark = pytest.mark.skipif(not available("paged_attention", "cuda"), reason="needs a CUDA device")
READ = ("int8_token", "e4m3_token", "int4_token", "e5m2", "nvfp4")


def moved(options):
    return {name: of.cuda() if isinstance(of, torch.Tensor) else of for name, of in options.items()}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("name", READ)
def test_attention_beside_the_cpu(name, inline, dtype):
    caches, formats, _, _, table = filled(name, **({"inline": inline} if FORMATS[name].scale != "none" else {}))
    q, kv_len = torch.randn(10, 4, DIM).to(dtype), torch.tensor([40, 21], dtype=torch.int32)
    rest = (table, kv_len, cumulative([1, 9]))
    want = fovea.paged_attention(q.float(), *caches, *rest, return_lse=True, **formats)
    on_device = (of.cuda() for of in (*caches, *rest))
    got = fovea.paged_attention(q.cuda(), *on_device, return_lse=True, **moved(formats))
    check(got, want)


@pytest.mark.parametrize("name", FORMATS)
def test_append_writes_the_bytes_of_the_cpu(name):
    rows, slots = torch.randn(2, 61, HEADS, DIM).bfloat16(), torch.randperm(BLOCKS * PAGE)[:61]
    stored = []
    for device in ("cpu", "cuda"):
        caches, formats = arguments(name, *([None if of is None else of.to(device) for of in poisoned(name)] for _ in "kv"))
        fovea.paged_cache_append(*rows.to(device), *caches, slots.to(device), **formats)
        scales = (formats["k_scale_cache"], formats["v_scale_cache"])
        stored.append([of.cpu().view(torch.uint8) for of in (*caches, *scales) if of is not None])
    assert all(torch.equal(*pair) for pair in zip(*stored, strict=True))


def test_a_graph_reads_what_it_appends():
    caches, formats, rows, slots, table = filled("int8_token")
    q, kv_len = torch.randn(2, 4, DIM), torch.tensor([40, 21], dtype=torch.int32)
    want = fovea.paged_attention(q, *caches, table, kv_len, **formats)
    formats = moved(formats)
    q, k, v, table, kv_len, slots = (of.cuda() for of in (q.bfloat16(), *caches, table, kv_len, slots))
    new = torch.zeros_like(rows, device="cuda")

    def step():
        fovea.paged_cache_append(*new, k, v, slots, **formats)
        return fovea.paged_attention(q, k, v, table, kv_len, **formats)

    assert step().abs().max() == 0
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    new.copy_(rows)
    graph.replay()
    torch.testing.assert_close(out.cpu().float(), want, rtol=2e-2, atol=1e-2)
