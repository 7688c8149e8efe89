# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's NVFP4 pages over Fovea: appended, read by both wrappers, and refused where their layout is another one."""

import pytest
import torch

import fovea.compat.flashinfer as flashinfer
import plain
from flashinfer_pages import E4M3, FP4, HEADS, KV_HEADS, LAYOUTS, LOG2E, WORKSPACE, Decode, Nvfp4Pages, Prefill, decoded
from fovea.compat.flashinfer import fp4_quantization

DIM, PAGE, LENGTHS = Nvfp4Pages.DIM, Nvfp4Pages.PAGE, Nvfp4Pages.LENGTHS


@pytest.mark.parametrize(("layout", "form"), LAYOUTS)
def test_decode(layout, form):
    pages, q = Nvfp4Pages(layout, form), torch.randn(3, HEADS, DIM)
    k, _ = pages.rows()
    assert 0 < (torch.cat(k) - pages.k.double()).abs().max() < 0.6
    out, lse = pages.plan(Decode(WORKSPACE, layout)).run(q, pages.cache, **pages.run_options)
    plain.check(out, lse / LOG2E, pages.expect(q[:, None]))


def test_prefill_with_scales_as_tensors():
    pages, lengths = Nvfp4Pages(), [2, 0, 4]
    q, ends = torch.randn(6, HEADS, DIM), torch.tensor([0, *lengths]).cumsum(0)
    wrapper = pages.plan(Prefill(WORKSPACE, backend="fa2"), ends, causal=True)
    factors = {f"{letter}_scale": torch.tensor([factor]) for letter, factor in zip("kv", pages.factors, strict=True)}
    out, lse = wrapper.run(q, pages.cache, **pages.run_options | factors)
    plain.check(out, lse / LOG2E, pages.expect(q.split(lengths), right=0))
    given = torch.empty_like(out)
    assert wrapper.run(q, pages.cache, **pages.run_options, out=given)[0] is given and torch.allclose(given, out, atol=1e-6)


@pytest.mark.parametrize(("layout", "form"), LAYOUTS)
@pytest.mark.parametrize("factors", [(0.5, 0.25), tuple(torch.tensor([0.5, 0.25]).split(1))])
def test_append_by_slots(layout, form, factors):
    """Skipped rows are left alone, and so are rows after the last slot."""
    pages = Nvfp4Pages(layout, form)
    want = [side.clone() for side in (pages.whole_codes, pages.whole_scales)]
    for side in (pages.whole_codes, pages.whole_scales):
        side.fill_(255)
    sequence, position = (numbers.long() for numbers in pages.where)
    slots = pages.indices[pages.indptr[sequence] + position // PAGE].long() * PAGE + position % PAGE
    k, v = (torch.cat([side, torch.full((2, KV_HEADS, DIM), torch.nan, dtype=side.dtype)]) for side in (pages.k, pages.v))
    append = flashinfer.nvfp4_quantize_append_paged_kv_cache_with_slot_mapping
    append(k, v, torch.full_like(slots, -7), pages.cache, pages.scales, *factors, layout)
    assert (pages.whole_codes == 255).all()
    append(k, v, slots.int(), pages.cache, pages.scales, *factors, layout)
    assert torch.equal(pages.whole_codes, want[0]) and torch.equal(pages.whole_scales, want[1])


@pytest.mark.parametrize(("layout", "form"), LAYOUTS)
def test_pages_to_rows(layout, form):
    """Longer than a block table says, and longer than a sequence: those tokens stay as they are."""
    pages = Nvfp4Pages(layout, form)
    table = torch.tensor([[*pages.indices[:2], 99], [-1, -1, -1], [*pages.indices[2:5]]])
    outs = [torch.full((3, 17, KV_HEADS, DIM), 7.0, dtype=torch.bfloat16) for _ in "kv"]
    factors = (torch.tensor([factor]) for factor in pages.factors)
    lengths = torch.tensor(LENGTHS, dtype=torch.int32)
    flashinfer.nvfp4_kv_dequantize_paged(pages.cache, pages.scales, table, lengths, *factors, *outs, kv_layout=layout)
    for out, rows in zip(outs, pages.rows(), strict=True):
        for found, values, length in zip(out, rows, LENGTHS, strict=True):
            assert torch.equal(found[:length].double(), values) and (found[length:] == 7).all()
    factors = (torch.tensor([factor]) for factor in pages.factors)
    flashinfer.nvfp4_kv_dequantize_paged(pages.cache, pages.scales, table, lengths + 20, *factors, *outs, kv_layout=layout)
    assert (outs[0][0, 8:] == 7).all() and (outs[1][1] == 7).all() and (outs[1][2, 12:] == 7).all()


def test_rows_there_and_back():
    rows, factor = torch.randn(7, 48).bfloat16(), torch.tensor([0.125])
    codes, scales = flashinfer.nvfp4_kv_quantize(rows, factor)
    assert codes.dtype == scales.dtype == FP4 and codes.shape == (7, 24) and scales.shape == (7, 3)
    want = decoded(codes, scales, 0.125)
    assert torch.equal(fp4_quantization.nvfp4_kv_dequantize(codes, scales, factor, torch.float32).double(), want)
    assert 0 < (want - rows.double()).abs().max() < 0.6
    amax = rows.float().unflatten(1, (3, 16)).abs().amax(-1)
    assert torch.equal(scales, (amax / 6 / 0.125).to(E4M3).view(FP4))
    assert flashinfer.nvfp4_kv_dequantize(codes, scales.view(E4M3), factor).dtype == torch.bfloat16


def test_what_is_refused():
    pages, q = Nvfp4Pages(), torch.randn(3, HEADS, DIM)
    with pytest.raises(NotImplementedError, match=r"^backend: got 'trtllm-gen', want 'fa2'"):
        pages.plan(Decode(WORKSPACE, backend="trtllm-gen"))
    wrapper = pages.plan(Decode(WORKSPACE))
    with pytest.raises(ValueError, match=r"^kv_cache_sf: got None, want the scales of pages in torch\.uint8$"):
        wrapper.run(q, pages.cache)
    with pytest.raises(ValueError, match=r"^kv_cache_sf\.shape: got "):
        wrapper.run(q, pages.cache, kv_cache_sf=torch.ones(3))
    with pytest.raises(ValueError, match=r"^k_scale: got -1\.0, want a finite number above 0$"):
        pages.append(k_scale=-1.0)
    with pytest.raises(ValueError, match=r"^kv_cache_sf\[0\]\.dtype: got torch\.uint8, want torch\.float8_e4m3fn$"):
        pages.append(kv_cache_sf=pages.viewed(pages.scales, FP4))
    with pytest.raises(ValueError, match=r"^paged_kv_cache\[0\]\.dtype: got torch\.float8_e4m3fn, want torch\.uint8$"):
        pages.append(paged_kv_cache=pages.viewed(pages.cache, E4M3))
    by_slots = flashinfer.nvfp4_quantize_append_paged_kv_cache_with_slot_mapping
    with pytest.raises(ValueError, match=r"^append_key\.shape\[0\]: got 14, want 15 or more"):
        by_slots(pages.k, pages.v, torch.zeros(15).long(), pages.cache, pages.scales, 1.0, 1.0)
    with pytest.raises(ValueError, match=r"^v_scale\.shape: got \[2\], want \[1\]"):
        by_slots(pages.k, pages.v, torch.zeros(14).long(), pages.cache, pages.scales, 1.0, torch.ones(2))
    table, one = torch.zeros(3, 3, dtype=torch.int32), torch.ones(1)
    with pytest.raises(ValueError, match=r"^output_v\.shape: got \[3, 4, 2, 48\], want \[3, 4, 2, 32\]"):
        outs = torch.zeros(3, 4, KV_HEADS, DIM), torch.zeros(3, 4, KV_HEADS, 48)
        flashinfer.nvfp4_kv_dequantize_paged(pages.cache, pages.scales, table, table[0], one, one, *outs)
    with pytest.raises(ValueError, match=r"^input\.shape\[1\]: got 24, want a multiple of 16$"):
        flashinfer.nvfp4_kv_quantize(torch.randn(2, 24), torch.ones(1))
    with pytest.raises(ValueError, match=r"^block_scales\.shape: got \[2, 3\], want \[2, 2\]$"):
        flashinfer.nvfp4_kv_dequantize(torch.zeros(2, 16, dtype=FP4), torch.zeros(2, 3, dtype=FP4), torch.ones(1))
