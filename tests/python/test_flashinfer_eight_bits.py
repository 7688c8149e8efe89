# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's 8-bit queries, keys and values over Fovea: whatever is not read as it is, is converted exactly."""

import pytest
import torch

import fovea.compat.flashinfer as flashinfer
import plain
from flashinfer_pages import HEADS, KV_HEADS, LAYOUTS, LOG2E, SHAPE, WORKSPACE, Decode, Pages, Prefill, Ragged, check

E4M3, E5M2, BF16, F16 = torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16, torch.float16
PAGES = [(BF16, E5M2), (F16, E5M2), (torch.float32, E5M2), (E4M3, E4M3), (E4M3, E5M2), (E5M2, E5M2), (E4M3, F16), (BF16, E4M3)]
LENGTHS, K_LENGTHS = [2, 0, 4], [5, 3, 9]


def rows(count, heads, dtype, dim=16):
    return torch.randn(count, heads, dim).to(dtype)


def near(out, lse, want):
    """Probabilities beside values in float8_e4m3fn may be rounded to bfloat16."""
    check(out.bfloat16() if out.dtype == F16 else out, lse, want)


def written(q_dtype):
    return BF16 if q_dtype in (E4M3, E5M2) else q_dtype


@pytest.mark.parametrize(("layout", "form"), LAYOUTS)
@pytest.mark.parametrize(("q_dtype", "kv_dtype"), PAGES)
def test_pages(layout, form, q_dtype, kv_dtype):
    pages, q = Pages([5, 0, 9], 4, layout, form, dtype=kv_dtype, spare=2), rows(3, HEADS, q_dtype)
    wrapper = Decode(WORKSPACE, layout)
    wrapper.plan(*pages.table(), *SHAPE.values(), 4, q_data_type=q_dtype, kv_data_type=kv_dtype)
    out, lse = wrapper.run(q, pages.cache, return_lse=True, q_scale=0.5, k_scale=0.75, v_scale=2.0)
    assert out.dtype == written(q_dtype)
    want = pages.expect(q[:, None].float(), scale=0.375 / 4)
    near(out / 2, lse, want)
    given = torch.empty(3, HEADS, 16, dtype=out.dtype)
    assert wrapper.run(q, pages.cache, q_scale=0.5, k_scale=0.75, v_scale=2.0, out=given) is given and torch.equal(given, out)


@pytest.mark.parametrize("kv_dtype", [E4M3, E5M2])
def test_prefill_over_pages_in_float16(kv_dtype):
    pages, q = Pages(K_LENGTHS, dtype=kv_dtype), rows(6, HEADS, kv_dtype)
    wrapper = Prefill(WORKSPACE)
    ends = torch.tensor([0, *LENGTHS]).cumsum(0)
    dtypes = {"q_data_type": kv_dtype, "kv_data_type": kv_dtype, "o_data_type": "float16"}
    wrapper.plan(ends, *pages.table(), *SHAPE.values(), 4, causal=True, **dtypes)
    out, lse = wrapper.run(q, pages.cache, return_lse=True)
    assert out.dtype == F16
    check(out, lse, pages.expect(q.float().split(LENGTHS), right=0))


def test_pages_of_a_cuda_graph_follow_later_plans():
    """One wrapper over pages that are converted, after others that are not."""
    wrapper = flashinfer.CUDAGraphBatchDecodeWithPagedKVCacheWrapper(
        WORKSPACE, *(torch.zeros(n, dtype=torch.int32) for n in (3, 12, 2))
    )
    q = rows(2, HEADS, BF16)
    for lengths, dtype in (([23, 2], BF16), ([9, 4], E5M2), ([1, 20], E5M2), ([5, 5], BF16)):
        pages = Pages(lengths, dtype=dtype)
        wrapper.plan(*pages.table(), *SHAPE.values(), 4, q_data_type=BF16, kv_data_type=dtype)
        check(*wrapper.run(q, pages.cache, return_lse=True), pages.expect(q[:, None].float()))


def test_a_number_of_no_page_is_met_as_in_other_caches():
    pages, q = Pages([5, 9], dtype=E5M2), rows(2, HEADS, BF16)
    pages.indices[2] = 99  # the second sequence's first page
    wrapper = Decode(WORKSPACE)
    wrapper.plan(*pages.table(), *SHAPE.values(), 4, q_data_type=BF16, kv_data_type=E5M2)
    with pytest.raises(ValueError, match=r"^indices\[1\]\[0\] \(block number\): got -1, want 0 to "):
        wrapper.run(q, pages.cache)
    out = wrapper.run(q, pages.cache, window_left=3)  # no visible key is there
    plain.check(out, None, pages.expect(q[:, None].float(), left=3))


DENSE = [
    (BF16, E4M3, None),
    (F16, E4M3, None),
    (F16, E5M2, None),
    (torch.float32, E4M3, None),
    (E4M3, E4M3, None),
    (E4M3, E4M3, F16),
    (E5M2, E5M2, None),
    (E5M2, E5M2, F16),
    (E4M3, E5M2, BF16),
    (E5M2, BF16, None),
]


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize(("q_dtype", "kv_dtype", "o_dtype"), DENSE)
def test_ragged(layout, q_dtype, kv_dtype, o_dtype):
    q, k, v = rows(6, HEADS, q_dtype), rows(17, KV_HEADS, kv_dtype), rows(17, KV_HEADS, kv_dtype)
    parts = zip(q.float().split(LENGTHS), k.float().split(K_LENGTHS), v.float().split(K_LENGTHS), strict=True)
    want = plain.join([plain.attention(*part, right=0, scale=0.5) for part in parts])
    if layout == "HND":
        k, v = k.transpose(0, 1).contiguous(), v.transpose(0, 1).contiguous()
    wrapper, ends = Ragged(WORKSPACE, layout), [torch.tensor([0, *lengths]).cumsum(0) for lengths in (LENGTHS, K_LENGTHS)]
    dtypes = {"q_data_type": q_dtype, "kv_data_type": kv_dtype, "o_data_type": o_dtype}
    wrapper.plan(*ends, *SHAPE.values(), causal=True, sm_scale=0.25, **dtypes)
    out, lse = torch.empty(6, HEADS, 16, dtype=o_dtype or written(q_dtype)), torch.empty(HEADS, 6)
    got = wrapper.run(q, k, v, k_scale=2.0, v_scale=4.0, out=out, lse=lse, lse_layout="HN")
    assert got is out
    near(out / 4, lse.t(), want)


def test_results_of_float8_e4m3fn_are_rounded_once():
    q, k, v = rows(3, HEADS, E4M3), rows(7, KV_HEADS, E4M3), rows(7, KV_HEADS, E4M3)
    wide = flashinfer.single_prefill_with_kv_cache(q, k, v, o_dtype=torch.float32)
    assert wide.dtype == torch.float32 and not torch.equal(wide, wide.bfloat16().float())
    assert torch.equal(flashinfer.single_prefill_with_kv_cache(q, k, v, o_dtype=F16), wide.half())
    wrapper, ends = Ragged(WORKSPACE), torch.tensor([0, 3])
    wrapper.plan(ends, torch.tensor([0, 7]), *SHAPE.values(), q_data_type=E4M3, o_data_type=F16)
    out, beyond = torch.empty(3, HEADS, 16, dtype=F16), torch.cat([q, q])
    assert torch.equal(wrapper.run(q, k, v, out=out), wide.half()) and torch.equal(out, wide.half())
    assert not wrapper.run(beyond, k, v)[3:].any()  # rows of no sequence


@pytest.mark.parametrize(("q_dtype", "kv_dtype", "o_dtype"), DENSE)
def test_one_sequence(q_dtype, kv_dtype, o_dtype):
    q, k, v = rows(3, HEADS, q_dtype), rows(7, KV_HEADS, kv_dtype), rows(7, KV_HEADS, kv_dtype)
    out, lse = flashinfer.single_prefill_with_kv_cache(q, k, v, causal=True, o_dtype=o_dtype, return_lse=True, k_scale=0.5)
    assert out.dtype == (o_dtype or written(q_dtype))
    near(out, lse, plain.attention(q.float(), k.float(), v.float(), right=0, scale=0.125))
    out, lse = flashinfer.single_decode_with_kv_cache(q[0], k, v, return_lse=True, q_scale=0.5, v_scale=2.0)
    near(out[None] / 2, lse[None], plain.attention(q[:1].float(), k.float(), v.float(), scale=0.125))


def test_tensors_of_scales():
    """One for each head of q, for each kv head, or one element; beside numbers; by position, as FlashInfer takes them."""
    q, k, v = rows(6, HEADS, E4M3), rows(6, KV_HEADS, E4M3), rows(6, KV_HEADS, E4M3)
    of_q, of_k, of_v = torch.tensor([0.5, 1.0, 0.25, 2.0]), torch.tensor([0.5, 2.0]), torch.tensor([3.0, 1.0])
    want = plain.attention(q.float() * of_q[:, None], k.float() * of_k[:, None], v.float() * of_v[:, None], right=0)
    single = flashinfer.single_prefill_with_kv_cache(q, k, v, of_q, of_k / 2, of_v / 4, causal=True, k_scale=2.0, v_scale=4.0)
    plain.check(single, None, want)
    wrapper, ends = Ragged(WORKSPACE), torch.tensor([0, 6])
    wrapper.plan(ends, ends, *SHAPE.values(), causal=True, q_data_type=E4M3)
    plain.check(wrapper.run(q, k, v, of_q, of_k, of_v), None, want)
    plain.check(wrapper.run(q, k, v, of_q, of_k / 2, None, k_scale=2.0, v_scale=of_v), None, want)
    pages = Pages([5, 9], dtype=E4M3)
    per_kv_head = torch.tensor([0.5, 2.0])
    q = rows(2, HEADS, E4M3)
    wrapper = Decode(WORKSPACE)
    wrapper.plan(*pages.table(), *SHAPE.values(), 4, q_data_type=E4M3)
    scaled = q.float() * per_kv_head.repeat_interleave(2)[:, None]
    for k_scale in (2.0, torch.tensor([2.0]), torch.tensor([2.0, 2.0])):
        want = pages.expect(scaled[:, None], scale=0.5)
        check(*wrapper.run(q, pages.cache, per_kv_head, k_scale, torch.ones(1), return_lse=True), want)


def test_tensors_of_scales_that_are_refused():
    q, k = rows(2, HEADS, BF16), rows(2, KV_HEADS, E4M3)
    one, refused = torch.ones(1), r"got a tensor, want a number, or q, k and v in torch\.float8_e4m3fn$"
    wrapper, ends = Ragged(WORKSPACE), torch.tensor([0, 2])
    wrapper.plan(ends, ends, *SHAPE.values(), q_data_type=BF16, kv_data_type=E4M3)
    for name in ("q_scale", "k_scale", "v_scale"):
        with pytest.raises(NotImplementedError, match=f"^{name}: {refused}"):
            wrapper.run(q, k, k, **{name: one})
    with pytest.raises(NotImplementedError, match=r"^scale_k: got a tensor, want None, or q, k and v in"):
        flashinfer.single_prefill_with_kv_cache(q, k, k, scale_k=one)
    pages, q = Pages([5, 9], dtype=E4M3), rows(2, HEADS, E4M3)
    decode = Decode(WORKSPACE)
    decode.plan(*pages.table(), *SHAPE.values(), 4, q_data_type=E4M3)
    with pytest.raises(NotImplementedError, match=r"^q_scale \(elements\): got 4, want 1 or 2 \(kv_head\)$"):
        decode.run(q, pages.cache, torch.ones(HEADS), one, one)
    with pytest.raises(NotImplementedError, match=r"^args: got tuple"):
        decode.run(q, pages.cache, one, one)
    with pytest.raises(TypeError, match=r"^args\[1\]: got str, want a torch\.Tensor, a number or None$"):
        decode.run(q, pages.cache, one, "x", one)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("form", ["one", "two"])
def test_pages_of_one_token_without_an_axis_of_tokens(layout, form):
    pages, q = Pages([5, 0, 9], 1, layout, form), rows(3, HEADS, torch.float32)
    axis = (2 if layout == "NHD" else 3) if form == "one" else (1 if layout == "NHD" else 2)
    flat = pages.cache.squeeze(axis) if form == "one" else tuple(x.squeeze(axis) for x in pages.cache)
    wrapper = Decode(WORKSPACE, layout)
    wrapper.plan(*pages.table(), *SHAPE.values(), 1, q_data_type="float32")
    check(*wrapper.run(q, flat, return_lse=True), pages.expect(q[:, None]))
    new = rows(1, KV_HEADS, torch.float32), rows(1, KV_HEADS, torch.float32)
    where = pages.indices[int(pages.indptr[2]) + 3]
    flashinfer.append_paged_kv_cache(
        *new, torch.tensor([2]), torch.tensor([3]), flat, *pages.table()[1::-1], pages.table()[2], layout
    )
    for got, want in zip(flat.unbind(1) if form == "one" else flat, new, strict=True):
        assert torch.equal(got[where], want[0])


def test_lse_is_of_the_converted_values():
    """The values of float8_e5m2 are those of float16, bit for bit."""
    codes = torch.arange(256, dtype=torch.uint8).view(E5M2)
    k = codes[codes.float().isfinite()].view(-1, 1, 8)
    q = torch.ones(1, 1, 8, dtype=F16)
    _, lse = flashinfer.single_prefill_with_kv_cache(q, k, k, return_lse=True, sm_scale=1e-4)
    exact = k.double().sum(-1).flatten() * 1e-4
    torch.testing.assert_close(lse.double().flatten(), exact.logsumexp(0, keepdim=True) * LOG2E, rtol=1e-5, atol=1e-5)
