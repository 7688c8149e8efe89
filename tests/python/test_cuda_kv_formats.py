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
PAIRS = [("int8_token", "int4_token"), ("rows", "nvfp4"), ("e4m3_token", "rows"), ("nvfp4", "int8_token"), ("e5m2", "mxfp8")]


def moved(options):
    return {name: of.cuda() if isinstance(of, torch.Tensor) else of for name, of in options.items()}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_attention_beside_the_cpu(name, inline, dtype):
    caches, formats, _, _, table = filled(name, **({"inline": inline} if FORMATS[name].scale != "none" else {}))
    q, kv_len = torch.randn(10, 4, DIM).to(dtype), torch.tensor([40, 21], dtype=torch.int32)
    rest = (table, kv_len, cumulative([1, 9]))
    want = fovea.paged_attention(q.float(), *caches, *rest, return_lse=True, **formats)
    on_device = [of.cuda() for of in (*caches, *rest)]
    got = fovea.paged_attention(q.cuda(), *on_device, return_lse=True, **moved(formats))
    check(got, want)


def powers(name, dim, least, slots):
    """A cache of random codes and scales, from 2 ** (least - 127) on. Blocks of zeros have the smallest or the largest one."""
    codes, scales = FORMATS[name].empty(BLOCKS, PAGE, HEADS, dim)
    code_bytes, scale_bytes = codes.view(torch.uint8).flatten(0, 1), scales.view(torch.uint8).flatten(0, 1)
    new = torch.randint(256, code_bytes.shape, dtype=torch.uint8) & 0xFB  # not NaN
    exponents = torch.randint(least, least + 24, scale_bytes.shape, dtype=torch.uint8)
    zeros = torch.rand(scale_bytes.shape) < 0.2
    zeros[slots[::9]] = True
    exponents[zeros] = torch.randint(2, exponents[zeros].shape, dtype=torch.uint8) * 254
    new.unflatten(-1, (dim // 32, -1))[zeros] = 0
    for memory, of in ((code_bytes, new), (scale_bytes, exponents)):
        memory.fill_(255)  # unused slots: NaN scales
        memory[slots] = of[slots]
    return codes, scales


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("lengths_q", [[1, 1], [2, 9], [21, 40]], ids=str)
@pytest.mark.parametrize(("name", "least"), [("mxfp4", 106), ("mxfp8", 98)])
def test_powers_of_two_of_any_size(name, least, lengths_q, dim, dtype):
    order = torch.randperm(BLOCKS)[:5]
    slots = (order[:, None] * PAGE + torch.arange(PAGE)).flatten()
    slots = torch.cat([slots[:40], slots[48:69]])
    k, v = powers(name, dim, least, slots), powers(name, dim, 20 if dtype == torch.bfloat16 else 106, slots)
    caches, formats = arguments(name, k, v)
    table = torch.full((2, 4), 2147480000, dtype=torch.int32)
    table[0, :3], table[1, :2] = order[:3].int(), order[3:].int()
    q, kv_len = torch.randn(sum(lengths_q), 4, dim).to(dtype), torch.tensor([40, 21], dtype=torch.int32)
    rest = (table, kv_len, cumulative(lengths_q))
    want = fovea.paged_attention(q.float(), *caches, *rest, return_lse=True, **formats)
    got = fovea.paged_attention(q.cuda(), *(of.cuda() for of in (*caches, *rest)), return_lse=True, **moved(formats))
    error = (got[0].cpu().double() - want[0]).abs().max()
    assert error < 2**-7 * want[0].double().abs().max()
    torch.testing.assert_close(got[1].cpu(), want[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["mxfp4", "mxfp8"])
def test_a_nan_scale_reaches_the_rows_that_see_it(name):
    caches, formats, _, slots, table = filled(name)
    formats["v_scale_cache"].view(torch.uint8).flatten(0, 1)[slots[35], 0, 1] = 255
    formats["k_scale_cache"].view(torch.uint8).flatten(0, 1)[slots[38], 1, 0] = 255
    q, kv_len = torch.randn(18, 4, DIM), torch.tensor([40, 21], dtype=torch.int32)
    rest = (table, kv_len, cumulative([9, 9]))
    want = fovea.paged_attention(q, *caches, *rest, return_lse=True, **formats)
    assert (
        want[0][4:9, :2, 32:].isnan().all() and want[0][7:9, 2:].isnan().all() and want[0].isnan().sum() == 5 * 2 * 32 + 2 * 2 * DIM
    )
    on_device = (of.cuda() for of in (*caches, *rest))
    got = fovea.paged_attention(q.half().cuda(), *on_device, return_lse=True, **moved(formats))
    torch.testing.assert_close(got[0].cpu().float(), want[0], rtol=2e-2, atol=1e-2, equal_nan=True)
    torch.testing.assert_close(got[1].cpu(), want[1], rtol=1e-3, atol=1e-3, equal_nan=True)


@pytest.mark.parametrize("name", ["mxfp4", "mxfp8"])
def test_two_formats_have_no_powers_of_two_with_f16(name):
    caches, formats, _, _, table = filled(name)
    formats |= {"v_format": "int8_token", "v_scale_cache": poisoned("int8_token")[1]}
    given = (torch.randn(2, 4, DIM).half(), caches[0], poisoned("int8_token")[0], table, torch.tensor([40, 21], dtype=torch.int32))
    with pytest.raises(NotImplementedError, match=f"k_format: got {name}, want another with torch.float16 queries"):
        fovea.paged_attention(*(of.cuda() for of in given), **moved(formats))


@pytest.mark.parametrize("pair", PAIRS, ids=" and ".join)
def test_two_formats_beside_the_cpu(pair):
    blocks, tokens = torch.randperm(BLOCKS), 70
    slots = (blocks[:, None] * PAGE + torch.arange(PAGE)).flatten()[:tokens]
    rows = torch.randn(2, tokens, HEADS, DIM).bfloat16()
    plain = torch.full((BLOCKS, PAGE, HEADS, DIM), torch.nan, dtype=torch.bfloat16)
    (k, k_scales), (v, v_scales) = ((plain.clone(), None) if name == "rows" else poisoned(name) for name in pair)
    formats = dict(zip(("k_format", "v_format", "k_scale_cache", "v_scale_cache"), (*pair, k_scales, v_scales), strict=True))
    fovea.paged_cache_append(*rows, k, v, slots, **formats)
    q, table, kv_len = torch.randn(9, 4, DIM).bfloat16(), blocks.int()[None], torch.tensor([tokens], dtype=torch.int32)
    arguments = (q, k, v, table, kv_len, cumulative([9]))
    want = fovea.paged_attention(*arguments, return_lse=True, **formats)
    got = fovea.paged_attention(*(of.cuda() for of in arguments), return_lse=True, **moved(formats))
    check(got, (want[0].float(), want[1]))


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
