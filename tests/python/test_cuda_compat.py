# SPDX-License-Identifier: Apache-2.0
"""Other packages' paged attention on a CUDA device: FlashInfer's wrappers in graphs and without waits, flash-attn's caches."""

import pytest
import torch

import fovea.compat.flash_attn as flash_attn
import fovea.compat.flashinfer as flashinfer
import plain
from conftest import available
from flashinfer_pages import HEADS, KV_HEADS, LAYOUTS, Decode, Nvfp4Pages, Pages, Prefill, Ragged, check
from fovea.compat.custom_attn import custom_paged_attn
from fovea.compat.flash_attn import bert_padding

pytestmark = pytest.mark.skipif(not available("paged_attention", "cuda"), reason="needs paged attention on a CUDA device")
DIM, DTYPE = 64, torch.bfloat16
SHAPE = (HEADS, KV_HEADS, DIM)


def made(lengths, **options):
    pages = Pages(lengths, dim=DIM, dtype=DTYPE, **options)
    cache = pages.cache.cuda() if isinstance(pages.cache, torch.Tensor) else tuple(x.cuda() for x in pages.cache)
    return pages, cache


def queries(count):
    q = torch.randn(count, HEADS, DIM).to(DTYPE)
    return q, q.cuda()


def buffers(*sizes):
    return [torch.empty(size, dtype=torch.int32, device="cuda") for size in sizes]


@pytest.mark.parametrize(("layout", "form"), LAYOUTS)
@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_decode(layout, form, page, where):
    pages, cache = made([5, 0, 400, 33], page=page, layout=layout, form=form)
    q, on_gpu = queries(4)
    sinks = torch.randn(HEADS)
    wrapper = Decode(on_gpu, layout)
    wrapper.plan(*(x.to(where) for x in pages.table()), *SHAPE, page, q_data_type=DTYPE, logits_soft_cap=5.0, window_left=100)
    out, lse = wrapper.run(on_gpu, cache, return_lse=True, sinks=sinks.cuda())
    want = pages.expect(q[:, None].float(), right=0, left=100, softcap=5.0, sink=sinks)
    check(out.cpu(), lse.cpu(), want, sinks)


@pytest.mark.parametrize(("layout", "form"), LAYOUTS)
def test_nvfp4_pages(layout, form):
    """The bytes of an append are the CPU's, by pages and by slots, and both wrappers read them."""
    pages, slots = Nvfp4Pages(layout, form), []
    for sequence, position in zip(*(numbers.tolist() for numbers in pages.where), strict=True):
        page = int(pages.indices[pages.indptr[sequence] + position // pages.PAGE])
        slots.append(page * pages.PAGE + position % pages.PAGE)
    for by_slots in (False, True):
        there = pages.empty_on("cuda")
        if by_slots:
            factors = (torch.tensor([factor], device="cuda") for factor in pages.factors)
            append = flashinfer.nvfp4_quantize_append_paged_kv_cache_with_slot_mapping
            append(there.k, there.v, torch.tensor(slots, device="cuda"), there.cache, there.scales, *factors, layout)
        else:
            there.append()
        assert torch.equal(there.whole_codes.cpu(), pages.whole_codes)
        assert torch.equal(there.whole_scales.cpu(), pages.whole_scales)
    q = torch.randn(6, HEADS, pages.DIM).to(DTYPE)
    options = {"q_data_type": DTYPE}
    out, lse = there.plan(Decode(q.cuda(), layout), **options).run(q[:3].cuda(), there.cache, **there.run_options)
    check(out.cpu(), lse.cpu(), pages.expect(q[:3, None].float()))
    lengths = [2, 0, 4]
    wrapper = there.plan(Prefill(q.cuda(), layout), torch.tensor([0, 2, 2, 6]), causal=True, **options)
    out, lse = wrapper.run(q.cuda(), there.cache, **there.run_options)
    check(out.cpu(), lse.cpu(), pages.expect(q.float().split(lengths), right=0))
    rows = [torch.zeros(3, 9, KV_HEADS, pages.DIM, dtype=DTYPE, device="cuda") for _ in "kv"]
    table = torch.tensor([[*pages.indices[:2], -1], [-1, -1, -1], [*pages.indices[2:5]]], device="cuda")
    factors = (torch.tensor([factor], device="cuda") for factor in pages.factors)
    seq_lens = torch.tensor(pages.LENGTHS, dtype=torch.int32, device="cuda")
    flashinfer.nvfp4_kv_dequantize_paged(there.cache, there.scales, table, seq_lens, *factors, *rows, kv_layout=layout)
    for found, want in zip(rows, pages.rows(), strict=True):
        assert all(torch.equal(a[: len(b)].cpu().double(), b) for a, b in zip(found, want, strict=True))


def replay_over(wrapper, plans, q, cache, plan):
    """Records run() after the first plan, and replays it after each: what it gives."""
    graph, results = None, []
    for pages, filled in plans:
        for room, new in zip(cache, filled, strict=True):
            room[: len(new)] = new
        plan(pages)
        if graph is None:
            wrapper.run(q, cache)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out, lse = wrapper.run(q, cache, return_lse=True, v_scale=1.0)
        graph.replay()
        results.append((out.cpu(), lse.cpu()))
    return results


def test_decode_graph():
    plans = [made(lengths, page=16) for lengths in ([5, 0, 70], [1, 300, 0], [200, 17, 33])]
    q, on_gpu = queries(3)
    cache = tuple(torch.empty(64, 16, KV_HEADS, DIM, dtype=DTYPE, device="cuda") for _ in "kv")
    wrapper = flashinfer.CUDAGraphBatchDecodeWithPagedKVCacheWrapper(on_gpu, *buffers(4, 60, 3))
    plan = lambda pages: wrapper.plan(*pages.table(), *SHAPE, 16, q_data_type=DTYPE)  # noqa: E731
    for (pages, _), got in zip(plans, replay_over(wrapper, plans, on_gpu, cache, plan), strict=True):
        check(*got, pages.expect(q[:, None].float(), right=0))


def test_prefill_graph():
    plans = [made(lengths, page=16) for lengths in ([150, 30], [220, 30])]
    q, on_gpu = queries(160)
    cache = tuple(torch.empty(64, 16, KV_HEADS, DIM, dtype=DTYPE, device="cuda") for _ in "kv")
    wrapper = Prefill(on_gpu, "NHD", True, *buffers(3, 3, 60, 2))
    counts = iter([[140, 20], [130, 1]])
    used = []

    def plan(pages):
        used.append(next(counts))
        ends = torch.tensor([0, *used[-1]]).cumsum(0)
        wrapper.plan(ends, *pages.table(), *SHAPE, 16, causal=True, q_data_type=DTYPE)

    for (pages, _), (out, lse), lengths in zip(plans, replay_over(wrapper, plans, on_gpu, cache, plan), used, strict=True):
        total = sum(lengths)
        check(out[:total], lse[:total], pages.expect(q[:total].float().split(lengths), right=0))


def test_plans_from_the_host_and_runs_do_not_wait():
    pages, cache = made([5, 40], page=16)
    _, on_gpu = queries(2)
    wrapper = Decode(on_gpu)
    sinks = torch.zeros(HEADS, device="cuda")
    torch.cuda.set_sync_debug_mode("error")  # a wait for the device raises
    try:
        wrapper.plan(*pages.table(), *SHAPE, 16, q_data_type=DTYPE)
        wrapper.run(on_gpu, cache, return_lse=True, v_scale=0.5, sinks=sinks)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_append_and_merge():
    pages, cache = made([40, 3], page=16, layout="HND")
    rows = [torch.cat([x[-2:] for x in each]) for each in (pages.k, pages.v)]
    empty = tuple(torch.where(torch.isnan(x), x, 0.0) for x in cache)
    table = [x.cuda() for x in pages.table()]
    lengths = flashinfer.get_seq_lens(table[0], table[2], 16)
    places = flashinfer.get_batch_indices_positions(torch.tensor([0, 2, 4], device="cuda").int(), lengths, 5)
    padded = [torch.cat([x, torch.ones(1, KV_HEADS, DIM)]).to("cuda", DTYPE) for x in rows]
    flashinfer.append_paged_kv_cache(*padded, *places, empty, table[1], table[0], table[2], "HND")
    for got, want in zip(empty, cache, strict=True):
        written = got.nan_to_num() != 0
        assert written.any(-1).sum() == 4 * KV_HEADS and torch.equal(got[written], want[written])
    outs, lses = torch.randn(7, 3, HEADS, DIM, device="cuda"), torch.randn(7, 3, HEADS, device="cuda")
    out, lse = flashinfer.merge_states(outs.to(DTYPE), lses)
    weights = torch.softmax(lses * 0.6931471805599453, 1)
    torch.testing.assert_close(out.float(), (weights[..., None] * outs).sum(1), rtol=2e-2, atol=2e-2)
    assert lse.isfinite().all()


def test_rows_without_a_place_are_skipped_and_the_context_lives():
    """Positions past the pages of their sequence, sequences and pages that do not exist: nothing else is written."""
    numbers = lambda *values: torch.tensor(values, device="cuda")  # noqa: E731
    cache = torch.zeros(8, 2, 16, KV_HEADS, DIM, dtype=DTYPE, device="cuda")
    places = [(0, 31), (0, 32), (0, -1), (0, 1 << 40), (1, 0), (1, 16), (1, 32), (2, 0), (1 << 40, 0), (-7, 0), (-1, 5)]
    batch, position = numbers(*places).T
    row = torch.arange(1, len(places) + 1, device="cuda").to(DTYPE)[:, None, None].expand(-1, KV_HEADS, DIM).contiguous()
    indices, indptr, last = numbers(0, 1, 2, 77), numbers(0, 2, 4), numbers(16, 16)
    flashinfer.append_paged_kv_cache(row, row, batch, position, cache, indices, indptr, last)
    want = torch.zeros_like(cache)
    want[1, :, 15], want[2, :, 0] = 1.0, 5.0
    torch.cuda.synchronize()
    assert torch.equal(cache, want)
    for wrong in (numbers(-5, 2, 99), numbers(0, 9, 1), numbers(0, 1 << 40, 1 << 41)):
        flashinfer.append_paged_kv_cache(row, row, batch, position, cache, indices, wrong, last)
        lengths = flashinfer.get_seq_lens(wrong, last, 16)
        flashinfer.get_batch_indices_positions(wrong, lengths, 30)
    empty = numbers().int()
    flashinfer.append_paged_kv_cache(row, row, batch.clamp(max=-1), position, cache, empty, numbers(0, 0), numbers(0))
    torch.cuda.synchronize()


@pytest.mark.parametrize(("q_dtype", "kv_dtype"), [("bf16", "e5m2"), ("e4m3", "e4m3"), ("e4m3", "e5m2"), ("bf16", "e4m3")])
def test_eight_bits(q_dtype, kv_dtype):
    """Pages, a ragged batch and one sequence, with outputs that are given; a page number that is none costs its sequence alone."""
    kinds = {"bf16": DTYPE, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
    q_dtype, kv_dtype = kinds[q_dtype], kinds[kv_dtype]
    pages = Pages([5, 40, 33], 16, dim=DIM, dtype=kv_dtype)
    cache, q = tuple(x.cuda() for x in pages.cache), torch.randn(3, HEADS, DIM).to(q_dtype)
    dtypes = {"q_data_type": q_dtype, "kv_data_type": kv_dtype}
    wrapper, out, lse = (
        Decode(cache[0]),
        torch.empty(3, HEADS, DIM, dtype=DTYPE, device="cuda"),
        torch.empty(3, HEADS, device="cuda"),
    )
    wrapper.plan(*pages.table(), *SHAPE, 16, **dtypes)
    assert wrapper.run(q.cuda(), cache, k_scale=0.5, v_scale=2.0, out=out, lse=lse) is out
    check(out.cpu() / 2, lse.cpu(), pages.expect(q[:, None].float(), scale=0.5 * DIM**-0.5))
    k, v = torch.cat(pages.k), torch.cat(pages.v)
    ragged, ends = Ragged(cache[0]), (torch.tensor([0, 1, 2, 3]), torch.tensor([0, 5, 45, 78]))
    ragged.plan(*ends, *SHAPE, **dtypes)
    ragged.run(q.cuda(), k.cuda(), v.cuda(), k_scale=0.5, v_scale=2.0, out=out, lse=lse)
    got = flashinfer.single_decode_with_kv_cache(q[1].cuda(), k[5:45].cuda(), v[5:45].cuda(), k_scale=0.5, v_scale=2.0)
    if q_dtype == kv_dtype == torch.float8_e4m3fn:  # whose kernel rounds the probabilities
        want = pages.expect(q[:, None].float(), scale=0.5 * DIM**-0.5)
        torch.testing.assert_close(out.cpu().double() / 2, want.out, rtol=0.1, atol=0.1)
    else:
        check(out.cpu() / 2, lse.cpu(), pages.expect(q[:, None].float(), scale=0.5 * DIM**-0.5))
    torch.testing.assert_close(got, out[1], rtol=0.05, atol=0.05)
    if q_dtype == torch.float8_e4m3fn:
        ragged.plan(*ends, *SHAPE, o_data_type="float16", **dtypes)
        half = ragged.run(q.cuda(), k.cuda(), v.cuda(), k_scale=0.5, v_scale=2.0)
        assert half.dtype == torch.float16
        torch.testing.assert_close(half.float(), out.float(), rtol=0.02, atol=0.02)
    pages.indices[1] = 1 << 30  # the second sequence's first page
    wrapper.plan(*pages.table(), *SHAPE, 16, **dtypes)
    wrong = wrapper.run(q.cuda(), cache)
    assert wrong[1].isnan().all() and wrong[0].isfinite().all() and wrong[2].isfinite().all()


@pytest.mark.parametrize("page", [None, 16])
def test_appending_to_flash_attns_cache(page):
    """Two new tokens of each sequence, through a block table or into a dense cache, in a graph that is replayed twice."""
    lengths, room = [5, 0, 100], 128
    k, v = (torch.randn(3, room, KV_HEADS, DIM).to(DTYPE) for _ in "kv")
    q, on_gpu = (x.unflatten(0, (3, 2)) for x in queries(6))
    caches, options = [torch.full_like(x, torch.nan) for x in (k, v)], {}
    for cache, whole in zip(caches, (k, v), strict=True):
        for row, length in enumerate(lengths):
            cache[row, :length] = whole[row, :length]
    if page:
        table = torch.randperm(3 * room // page)
        caches = [
            torch.empty_like(x).view(-1, page, KV_HEADS, DIM).index_copy_(0, table, x.view(-1, page, KV_HEADS, DIM)) for x in caches
        ]
        options["block_table"] = table.view(3, -1).int().cuda()
    caches, seqlens = [x.cuda() for x in caches], torch.tensor(lengths, dtype=torch.int32, device="cuda")
    new = [torch.stack([x[row, length : length + 2] for row, length in enumerate(lengths)]).cuda() for x in (k, v)]
    call = {"cache_seqlens": seqlens, "causal": True, "window_size": (40, -1), "return_softmax_lse": True, **options}
    flash_attn.flash_attn_with_kvcache(on_gpu, *caches, *new, **call)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = flash_attn.flash_attn_with_kvcache(on_gpu, *caches, *new, **call)
    for longer in (0, 2):
        if longer:
            seqlens += 2
            for x, whole in zip(new, (k, v), strict=True):
                x.copy_(torch.stack([whole[row, length + 2 : length + 4] for row, length in enumerate(lengths)]))
        graph.replay()
        for row, length in enumerate(lengths):
            end = length + 2 + longer
            want = plain.attention(q[row], k[row, :end], v[row, :end], right=0, left=40)
            plain.check(out[row].cpu(), lse[row].T.cpu(), want)


@pytest.mark.parametrize("page", [None, 16])
@pytest.mark.parametrize("rotary", [False, True])
def test_nothing_past_the_end_costs_the_context(page, rotary):
    """Lengths, rows, blocks and positions that do not fit are followed out of no tensor, and the other sequences are right."""
    room, lengths = 64, [63, 7, -5, 64, 1 << 30]
    k, v = (torch.randn(5, room, KV_HEADS, DIM).to(DTYPE) for _ in "kv")
    caches, options = [x.cuda() for x in (k, v)], {"cache_seqlens": torch.tensor(lengths, dtype=torch.int32, device="cuda")}
    if page:
        caches = [x.view(-1, page, KV_HEADS, DIM) for x in caches]
        options["block_table"] = torch.arange(5 * room // page, dtype=torch.int32, device="cuda").view(5, -1)
    if rotary:
        angles = torch.zeros(room, 8, device="cuda")
        options |= {"rotary_cos": angles.cos(), "rotary_sin": angles.sin()}  # which turn nothing
    q, on_gpu = (x.unflatten(0, (5, 2)) for x in queries(10))
    new = [torch.randn(5, 2, KV_HEADS, DIM).to(DTYPE) for _ in "kv"]
    out = flash_attn.flash_attn_with_kvcache(on_gpu, *caches, *(x.cuda() for x in new), causal=True, **options).cpu()
    for row, length in enumerate(lengths[:2]):
        parts = [torch.cat([x[row, :length], more[row]])[:room] for x, more in zip((k, v), new, strict=True)]
        if length + 2 <= room:
            plain.check(out[row], None, plain.attention(q[row], *parts, right=0))
    for cache, before, more in zip(caches, (k, v), new, strict=True):
        stored, want = cache.view(5, room, KV_HEADS, DIM).cpu(), before.clone()
        want[0, 63:], want[1, 7:9] = more[0, :1], more[1]
        torch.testing.assert_close(stored, want, rtol=0, atol=0)


def test_rows_and_indices_past_the_end_cost_no_context():
    cache, (_, q) = torch.randn(4, 16, KV_HEADS, DIM, device="cuda").to(DTYPE), queries(3)
    rows = torch.tensor([2, 4, -1], dtype=torch.int32, device="cuda")
    seqlens = torch.full((3,), 9, dtype=torch.int32, device="cuda")
    call = {"cache_seqlens": seqlens, "cache_batch_idx": rows}
    want = flash_attn.flash_attn_with_kvcache(q[:1, None], cache[2:3], cache[2:3], cache_seqlens=seqlens[:1])
    for options in ({}, {"block_table": torch.arange(4, dtype=torch.int32, device="cuda")[:, None]}):
        out = flash_attn.flash_attn_with_kvcache(q[:, None], cache, cache, **call, **options)
        torch.testing.assert_close(out[:1], want)
        assert out[1:].isnan().all()
    states, indices = torch.randn(3, 4, device="cuda"), torch.tensor([2, 3, -1], device="cuda")
    assert torch.equal(bert_padding.index_first_axis(states, indices)[0], states[2])
    put = bert_padding.index_put_first_axis(states, indices, 3)
    assert torch.equal(put[2], states[0]) and bool((put[:2] == 0).all())
    torch.cuda.synchronize()


@pytest.mark.parametrize("options", [{}, {"soft_cap": 2.0}])
def test_custom_paged_attn(options):
    """A prefill beside steps of decoding, with lengths on the host."""
    lengths, query_lens = [300, 77, 1, 40], [300, 1, 1, 0]
    pages, cache = made(lengths)
    q, on_gpu = queries(sum(query_lens))
    table = torch.full((4, max(len(lengths), -(-300 // pages.page))), 2147480000, dtype=torch.int32)
    for row in range(4):
        own = pages.indices[pages.indptr[row] : pages.indptr[row + 1]]
        table[row, : len(own)] = own
    want = custom_paged_attn(q.float(), *(x.float() for x in pages.cache), query_lens, lengths, table, 0.125, **options)
    got = custom_paged_attn(on_gpu, *cache, query_lens, lengths, table.cuda(), 0.125, **options)
    torch.testing.assert_close(got.float().cpu(), want, rtol=2e-2, atol=1e-2)
