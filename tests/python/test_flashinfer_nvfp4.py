# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's NVFP4 pages over Fovea: appended, read by both wrappers, and refused where their layout is another one."""

import pytest
import torch

import fovea.compat.flashinfer as flashinfer
import plain
from flashinfer_pages import HEADS, KV_HEADS, LAYOUTS, LOG2E, WORKSPACE, Decode, Prefill
from fovea.compat.flashinfer import fp4_quantization

DIM, PAGE, LENGTHS = 32, 4, [5, 0, 9]
SHAPE = {"num_qo_heads": HEADS, "num_kv_heads": KV_HEADS, "head_dim": DIM}
FP4, E4M3 = torch.uint8, torch.float8_e4m3fn
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)


def decoded(codes, scales, factor):
    """The formula of a row, in double precision."""
    numbers = torch.stack([codes & 15, codes >> 4], -1).flatten(-2).int()
    return E2M1[numbers] * scales.view(E4M3).double().repeat_interleave(16, -1) * factor


class Nvfp4Pages:
    """Pages full of NaN scales, and rows that were appended to them."""

    def __init__(self, layout="NHD", form="two", factors=(0.5, 0.25)):
        counts = [-(-length // PAGE) for length in LENGTHS]
        total = sum(counts) + 2
        self.layout, self.factors = layout, factors
        self.indptr = torch.tensor([0, *counts]).cumsum(0).int()
        self.indices = torch.randperm(total)[: sum(counts)].int()
        self.last = torch.tensor([(length - 1) % PAGE + 1 if length else 0 for length in LENGTHS], dtype=torch.int32)
        self.cache, self.scales = (self.whole(total, width, form) for width in (DIM // 2, DIM // 16))
        self.scales = self.viewed(self.scales, E4M3)
        self.k, self.v = (torch.randn(sum(LENGTHS), KV_HEADS, DIM).bfloat16() for _ in "kv")
        ends = torch.tensor([0, *LENGTHS]).cumsum(0).int()
        lengths = flashinfer.get_seq_lens(self.indptr, self.last, PAGE)
        self.where = flashinfer.get_batch_indices_positions(ends, lengths, sum(LENGTHS))
        self.append()

    def whole(self, total, width, form):
        shape = (total, 2, PAGE, KV_HEADS, width) if self.layout == "NHD" else (total, 2, KV_HEADS, PAGE, width)
        whole = torch.full(shape, 255, dtype=FP4)
        return whole if form == "one" else tuple(whole.unbind(1))

    def viewed(self, cache, dtype):
        return cache.view(dtype) if isinstance(cache, torch.Tensor) else tuple(side.view(dtype) for side in cache)

    def append(self, **changed):
        arguments = {
            "append_key": self.k,
            "append_value": self.v,
            "batch_indices": self.where[0],
            "positions": self.where[1],
            "paged_kv_cache": self.cache,
            "kv_cache_sf": self.scales,
            "kv_indices": self.indices,
            "kv_indptr": self.indptr,
            "kv_last_page_len": self.last,
            "k_scale": self.factors[0],
            "v_scale": self.factors[1],
            "kv_layout": self.layout,
        }
        flashinfer.nvfp4_quantize_append_paged_kv_cache(*(arguments | changed).values())

    def rows(self):
        """The values of each sequence, decoded, K and V."""
        sides = []
        for side, factor in enumerate(self.factors):
            both = self.cache, self.viewed(self.scales, FP4)
            codes, scales = (of[:, side] if isinstance(of, torch.Tensor) else of[side] for of in both)
            if self.layout == "HND":
                codes, scales = codes.transpose(1, 2), scales.transpose(1, 2)
            pages = [self.indices[a:b].long() for a, b in zip(self.indptr, self.indptr[1:], strict=False)]
            values = decoded(codes, scales, factor)
            sides.append([values[each].flatten(0, 1)[:length] for each, length in zip(pages, LENGTHS, strict=True)])
        return sides

    def plan(self, wrapper, *ends, **options):
        options = {"q_data_type": torch.float32, "kv_data_type": FP4} | options
        wrapper.plan(*ends, self.indptr, self.indices, self.last, *SHAPE.values(), PAGE, **options)
        return wrapper

    def expect(self, queries, **mask):
        return plain.join([plain.attention(*each, **mask) for each in zip(queries, *self.rows(), strict=True)])

    @property
    def run_options(self):
        return {"kv_cache_sf": self.scales, "k_scale": self.factors[0], "v_scale": self.factors[1], "return_lse": True}


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
    with pytest.raises(ValueError, match=r"^input\.shape\[1\]: got 24, want a multiple of 16$"):
        flashinfer.nvfp4_kv_quantize(torch.randn(2, 24), torch.ones(1))
    with pytest.raises(ValueError, match=r"^block_scales\.shape: got \[2, 3\], want \[2, 2\]$"):
        flashinfer.nvfp4_kv_dequantize(torch.zeros(2, 16, dtype=FP4), torch.zeros(2, 3, dtype=FP4), torch.ones(1))
