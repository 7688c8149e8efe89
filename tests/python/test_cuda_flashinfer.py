# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's wrappers on a CUDA device: graphs of run() replayed over later plans, and nothing in run() that waits."""

import pytest
import torch

import fovea.compat.flashinfer as flashinfer
from conftest import available
from flashinfer_pages import HEADS, KV_HEADS, LAYOUTS, Decode, Pages, Prefill, check

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


def test_run_does_not_wait():
    pages, cache = made([5, 40], page=16)
    _, on_gpu = queries(2)
    wrapper = Decode(on_gpu)
    wrapper.plan(*pages.table(), *SHAPE, 16, q_data_type=DTYPE)
    sinks = torch.zeros(HEADS, device="cuda")
    torch.cuda.set_sync_debug_mode("error")  # a wait for the device raises
    try:
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
