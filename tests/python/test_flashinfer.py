# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's attention over Fovea, against float64 attention: layouts, masks, base-2 lse, CUDA-graph mode, scales."""

import pytest
import torch

import fovea.compat.flashinfer as flashinfer
import plain
from flashinfer_pages import (
    DIM,
    HEADS,
    KV_HEADS,
    LAYOUTS,
    LOG2E,
    SHAPE,
    WORKSPACE,
    Decode,
    Pages,
    Prefill,
    Ragged,
    check,
    planned_decode,
    planned_prefill,
)

SCORE_OPTIONS = {
    "plain": ({}, {}),
    "window": ({"window_left": 3}, {"left": 3}),
    "capped": ({"logits_soft_cap": 2.0, "sm_scale": 0.7}, {"softcap": 2.0, "scale": 0.7}),
}


@pytest.mark.parametrize(("layout", "form"), LAYOUTS)
@pytest.mark.parametrize("page", [1, 4, 16])
@pytest.mark.parametrize("scores", SCORE_OPTIONS)
def test_decode(layout, form, page, scores):
    given, expected = SCORE_OPTIONS[scores]
    pages = Pages([5, 0, 17, 16, 1], page, layout, form, spare=3)
    q, sinks = torch.randn(5, HEADS, DIM), torch.randn(HEADS)
    wrapper = planned_decode(pages, **given)
    out, lse = wrapper.run(q, pages.cache, return_lse=True)
    want = pages.expect(q[:, None], right=0, **expected)
    assert lse.shape == (5, HEADS) and lse.dtype == torch.float32
    check(out, lse, want)
    assert torch.equal(wrapper.run(q, pages.cache), out)
    out, lse = wrapper.run_return_lse(q, pages.cache, sinks=sinks)
    check(out, lse, pages.expect(q[:, None], right=0, sink=sinks, **expected), sinks)


def test_decode_of_several_queries():
    pages = Pages([5, 3, 9])
    q = torch.randn(9, HEADS, DIM)
    out, lse = planned_decode(pages, q_len_per_req=3).run(q, pages.cache, return_lse=True)
    check(out, lse, pages.expect(q.split(3), right=0))
    with pytest.raises(ValueError, match=r"^q\.shape\[0\]: got 3, want 9"):
        planned_decode(pages, q_len_per_req=3).run(q[:3], pages.cache)


@pytest.mark.parametrize(("layout", "form"), LAYOUTS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scores", SCORE_OPTIONS)
def test_prefill_over_pages(layout, form, causal, scores):
    given, expected = SCORE_OPTIONS[scores]
    lengths = [3, 0, 9, 1]
    pages = Pages([5, 4, 12, 1], 4, layout, form)
    q = torch.randn(13, HEADS, DIM)
    wrapper = planned_prefill(pages, lengths, causal=causal, **given)
    out, lse = wrapper.run(q, pages.cache, return_lse=True)
    check(out, lse, pages.expect(q.split(lengths), right=0 if causal else None, **expected))
    sinks = torch.randn(HEADS)
    out, lse = wrapper.run(q, pages.cache, return_lse=True, sinks=sinks)
    check(out, lse, pages.expect(q.split(lengths), right=0 if causal else None, sink=sinks, **expected), sinks)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scores", SCORE_OPTIONS)
def test_prefill_of_a_ragged_batch(layout, causal, scores):
    given, expected = SCORE_OPTIONS[scores]
    q_lengths, k_lengths = [3, 0, 9, 1], [5, 4, 12, 0]
    q, k, v = torch.randn(13, HEADS, 24), torch.randn(21, KV_HEADS, 24), torch.randn(21, KV_HEADS, 16)
    parts = list(zip(q.split(q_lengths), k.split(k_lengths), v.split(k_lengths), strict=True))
    if layout == "HND":
        k, v = k.transpose(0, 1).contiguous(), v.transpose(0, 1).contiguous()
    wrapper = Ragged(WORKSPACE, layout)
    indptrs = [torch.tensor([0, *lengths]).cumsum(0) for lengths in (q_lengths, k_lengths)]
    wrapper.plan(*indptrs, HEADS, KV_HEADS, 24, 16, causal=causal, q_data_type=torch.float32, **given)
    out, lse = wrapper.run(q, k, v, return_lse=True)
    want = plain.join([plain.attention(*part, right=0 if causal else None, **expected) for part in parts])
    check(out, lse, want)
    assert lse[-1].isneginf().all() and not out[-1].any()


def test_forms_of_the_lse_and_given_outputs():
    pages, q = Pages([5, 9]), torch.randn(6, HEADS, DIM)
    wrapper = planned_prefill(pages, [2, 4], causal=True)
    out, lse = wrapper.run(q, pages.cache, return_lse=True)
    for base, layout in (("ln", "NH"), ("ln", "HN"), ("log2", "HN")):
        got = wrapper.run(q, pages.cache, return_lse=True, lse_base=base, lse_layout=layout)[1]
        assert got.is_contiguous()
        torch.testing.assert_close(got if layout == "NH" else got.t(), lse if base == "log2" else lse / LOG2E)
    room, numbers = torch.full_like(q, torch.nan), torch.full((HEADS, 6), torch.nan)
    got = wrapper.run(q, pages.cache, out=room, lse=numbers, return_lse=True, lse_layout="HN")
    assert got[0] is room and got[1].data_ptr() == numbers.data_ptr()
    assert torch.equal(room, out) and torch.equal(numbers.t(), lse)
    assert torch.equal(wrapper.run(q, pages.cache, lse=numbers.fill_(torch.nan), lse_layout="HN"), out)
    assert torch.equal(numbers.t(), lse)
    with pytest.raises(ValueError, match=r"^lse_base: got '10', want 'log2' or 'ln'$"):
        wrapper.run(q, pages.cache, lse_base="10")


def test_older_names():
    """forward's own window, soft cap and scale replace those of the plan."""
    pages, q = Pages([5, 9]), torch.randn(2, HEADS, DIM)
    wrapper = Decode(WORKSPACE)
    wrapper.begin_forward(*pages.table(), *SHAPE.values(), pages.page, data_type="float32", q_data_type=None, window_left=0)
    out, lse = wrapper.forward_return_lse(q, pages.cache, window_left=2, logits_soft_cap=3.0, sm_scale=0.2)
    check(out, lse, pages.expect(q[:, None], right=0, left=2, softcap=3.0, scale=0.2))
    wrapper.end_forward()
    wrapper = Prefill(WORKSPACE)
    wrapper.begin_forward(torch.tensor([0, 1, 2]), *pages.table(), *SHAPE.values(), pages.page, q_data_type="float32")
    check(*wrapper.forward_return_lse(q, pages.cache, causal=True), pages.expect(q[:, None], right=0))
    wrapper = Ragged(WORKSPACE)
    wrapper.begin_forward(torch.tensor([0, 2]), torch.tensor([0, 9]), *SHAPE.values(), q_data_type="float32")
    got = wrapper.forward_return_lse(q, pages.k[1], pages.v[1], causal=True)
    check(*got, plain.attention(q, pages.k[1], pages.v[1], right=0))


# ---- CUDA-graph mode ---------------------------------------------------------------------------------------------------------


def buffers(batch, indices, prefill=False):
    of_pages = [torch.empty(n, dtype=torch.int32) for n in (batch + 1, indices, batch)]
    return [torch.empty(batch + 1, dtype=torch.int32), *of_pages] if prefill else of_pages


def replayed(monkeypatch, wrapper, run):
    """Runs once, and gives a function that repeats the recorded call on the same tensors, as a graph would."""
    from fovea.compat.flashinfer import _wrapper

    calls, real = [], _wrapper.paged_attention
    monkeypatch.setattr(
        _wrapper, "paged_attention", lambda *tensors, **options: calls.append((tensors, options)) or real(*tensors, **options)
    )
    run()
    monkeypatch.undo()
    ((tensors, options),) = calls
    return lambda: real(*tensors, **options)


def test_decode_over_later_plans(monkeypatch):
    first, later = Pages([5, 0, 7]), Pages([1, 15, 0])
    q, cache = torch.randn(3, HEADS, DIM), tuple(torch.empty(9, 4, KV_HEADS, DIM) for _ in "kv")
    wrapper = flashinfer.CUDAGraphBatchDecodeWithPagedKVCacheWrapper(WORKSPACE, *buffers(3, 12))
    assert wrapper.is_cuda_graph_enabled
    replay = None
    for pages in (first, later, first):
        for room, filled in zip(cache, pages.cache, strict=True):
            room[: len(filled)] = filled
        planned_decode(pages, wrapper)
        replay = replay or replayed(monkeypatch, wrapper, lambda: wrapper.run(q, cache))
        plain.check(replay(), None, pages.expect(q[:, None], right=0))


def test_prefill_over_later_plans(monkeypatch):
    first, later = (Pages([5, 3]), [2, 1]), (Pages([9, 2]), [1, 2])
    q, cache = torch.randn(4, HEADS, DIM), tuple(torch.empty(9, 4, KV_HEADS, DIM) for _ in "kv")
    wrapper = Prefill(WORKSPACE, "NHD", True, *buffers(2, 8, prefill=True))
    replay = None
    for pages, lengths in (first, later):
        for room, filled in zip(cache, pages.cache, strict=True):
            room[: len(filled)] = filled
        planned_prefill(pages, lengths, wrapper, causal=True)
        replay = replay or replayed(monkeypatch, wrapper, lambda: wrapper.run(q, cache))
        plain.check(replay()[:3], None, pages.expect(q[:3].split(lengths), right=0))


def test_what_a_graph_fixes():
    wrapper = Decode(WORKSPACE, "NHD", True, False, *buffers(2, 8))
    planned_decode(Pages([16, 1]), wrapper)
    with pytest.raises(
        ValueError, match=r"^paged_kv_indices_buffer\.shape\[0\] / 2: got 4, want 5 or more \(pages of a sequence\)$"
    ):
        planned_decode(Pages([17, 1]), wrapper)
    with pytest.raises(ValueError, match=r"want 2 \(use_cuda_graph=True fixes it"):
        planned_decode(Pages([1, 1, 1]), wrapper)
    with pytest.raises(ValueError, match=r"^q_len_per_req: got 2, want 1"):
        planned_decode(Pages([4, 4]), wrapper, q_len_per_req=2)
    with pytest.raises(ValueError, match=r"^paged_kv_indptr_buffer: got None, want a tensor"):
        Decode(WORKSPACE, use_cuda_graph=True)


# ---- scales ------------------------------------------------------------------------------------------------------------------


def test_float8_pages():
    pages, q = Pages([5, 9], dtype=torch.float8_e4m3fn), torch.randn(2, HEADS, DIM).bfloat16()
    wrapper = Decode(WORKSPACE)
    wrapper.plan(*pages.table(), *SHAPE.values(), pages.page, q_data_type=torch.bfloat16, kv_data_type="float8_e4m3fn")
    k, v = [x.float() * 0.5 for x in pages.k], [x.float() * 2.0 for x in pages.v]
    want = plain.join([plain.attention(q[row : row + 1], k[row], v[row]) for row in range(2)])
    for k_scale, v_scale in ((0.5, 2.0), (torch.tensor([0.5]), torch.tensor([2.0, 2.0]))):
        check(*wrapper.run(q, pages.cache, return_lse=True, k_scale=k_scale, v_scale=v_scale), want)


def test_scales_of_plain_values():
    pages, q = Pages([5, 9]), torch.randn(2, HEADS, DIM)
    wrapper = planned_decode(pages, sm_scale=0.5)
    out = wrapper.run(q, pages.cache, q_scale=2.0, k_scale=0.25, v_scale=4.0)
    want = pages.expect(q[:, None], right=0, scale=0.25)
    plain.check(out / 4, None, want)
    with pytest.raises(NotImplementedError, match=r"^v_scale: got a tensor, want a number, or the pages in torch\.float8_e4m3fn"):
        wrapper.run(q, pages.cache, v_scale=torch.ones(1))


def test_float8_ragged():
    q, k, v = (torch.randn(6, heads, 32).to(torch.float8_e4m3fn) for heads in (HEADS, KV_HEADS, KV_HEADS))
    wrapper = Ragged(WORKSPACE)
    ends = torch.tensor([0, 2, 6])
    wrapper.plan(ends, ends, HEADS, KV_HEADS, 32, causal=True, q_data_type=torch.float8_e4m3fn, o_data_type=torch.bfloat16)
    out = wrapper.run(q, k, v, q_scale=torch.tensor([0.5]), k_scale=2.0, v_scale=3.0)
    want = plain.join(
        [plain.attention(*part, right=0) for part in zip(*(x.float().split([2, 4]) for x in (q, k, 3 * v.float())), strict=True)]
    )
    plain.check(out, None, want)


# ---- one sequence ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("scores", SCORE_OPTIONS)
def test_single(layout, scores):
    given, expected = SCORE_OPTIONS[scores]
    q, k, v = torch.randn(3, HEADS, 24), torch.randn(7, KV_HEADS, 24), torch.randn(7, KV_HEADS, 16)
    laid_out = (k, v) if layout == "NHD" else (k.transpose(0, 1).contiguous(), v.transpose(0, 1).contiguous())
    for causal in (False, True):
        out, lse = flashinfer.single_prefill_with_kv_cache(
            q, *laid_out, kv_layout=layout, causal=causal, return_lse=True, v_scale=0.5, **given
        )
        check(out * 2, lse, plain.attention(q, k, v, right=0 if causal else None, **expected))
    out, lse = flashinfer.single_decode_with_kv_cache(q[0], *laid_out, layout, return_lse=True, k_scale=1.0, **given)
    check(out[None], lse[None], plain.attention(q[:1], k, v, right=0, **expected))
    half = flashinfer.single_prefill_with_kv_cache_return_lse(q, *laid_out, kv_layout=layout, o_dtype=torch.float16)[0]
    assert half.dtype == torch.float16


def test_gradients_of_a_ragged_batch():
    q, k, v = (torch.randn(6, heads, DIM, requires_grad=True) for heads in (HEADS, KV_HEADS, KV_HEADS))
    wrapper, ends, dout = Ragged(WORKSPACE), torch.tensor([0, 2, 6]), torch.randn(6, HEADS, DIM)
    wrapper.plan(ends, ends, *SHAPE.values(), causal=True, q_data_type="float32")
    out, _ = wrapper.run(q, k, v, v_scale=0.5, return_lse=True)
    got = torch.autograd.grad(out, (q, k, v), dout)
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    parts = [plain.attention(*part, right=0).out for part in zip(*(x.split([2, 4]) for x in exact), strict=True)]
    want = torch.autograd.grad(0.5 * torch.cat(parts), exact, dout.double())
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)


def test_compile():
    """run() is traced with the tensors of its plan, and follows a later one."""
    q, k = torch.randn(2, HEADS, DIM), torch.randn(2, KV_HEADS, DIM)
    wrapper, ragged, ends = Decode(WORKSPACE), Ragged(WORKSPACE), torch.tensor([0, 1, 2])
    ragged.plan(ends, ends, *SHAPE.values(), q_data_type="float32")

    def both(q, k, cache):
        out, lse = wrapper.run(q, cache, return_lse=True, v_scale=0.5, sinks=torch.zeros(HEADS))
        return out + ragged.run(q, k, k), lse

    torch._dynamo.reset()
    compiled = torch.compile(both, fullgraph=True, backend="aot_eager")  # inductor takes half a minute more
    for lengths in ([5, 9], [9, 2]):
        pages = Pages(lengths)
        planned_decode(pages, wrapper)
        torch.testing.assert_close(compiled(q, k, pages.cache), both(q, k, pages.cache))
