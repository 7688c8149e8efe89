# SPDX-License-Identifier: Apache-2.0
"""Page tables as FlashInfer has them, full of traps, and plans over them, for the tests of fovea.compat.flashinfer."""

import copy
import math

import torch

import fovea.compat.flashinfer as flashinfer
import plain

LOG2E = math.log2(math.e)
WORKSPACE = torch.empty(16, dtype=torch.uint8)
LAYOUTS = [("NHD", "one"), ("NHD", "two"), ("HND", "one"), ("HND", "two")]
HEADS, KV_HEADS, DIM = 4, 2, 16
FP4, E4M3 = torch.uint8, torch.float8_e4m3fn
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)
SHAPE = {"num_qo_heads": HEADS, "num_kv_heads": KV_HEADS, "head_dim": DIM}
Decode, Prefill, Ragged = (
    flashinfer.BatchDecodeWithPagedKVCacheWrapper,
    flashinfer.BatchPrefillWithPagedKVCacheWrapper,
    flashinfer.BatchPrefillWithRaggedKVCacheWrapper,
)


class Pages:
    """Keys and values of some sequences in pages in random order, and NaN in every place without a token."""

    def __init__(self, lengths, page=4, layout="NHD", form="two", *, dtype=torch.float32, spare=0, dim=DIM):
        counts = [-(-length // page) for length in lengths]
        total = sum(counts) + 2
        order = torch.randperm(total)
        self.lengths, self.page, self.layout = lengths, page, layout
        self.indptr = torch.tensor([0, *counts]).cumsum(0).int()
        self.indices = torch.cat([order[: sum(counts)], torch.full((spare,), 2147480000)]).int()
        self.last_page_len = torch.tensor([(length - 1) % page + 1 if length else 0 for length in lengths], dtype=torch.int32)
        self.k, self.v = ([torch.randn(length, KV_HEADS, dim).to(dtype) for length in lengths] for _ in "kv")
        whole = torch.full((total, 2, page, KV_HEADS, dim), torch.nan).to(dtype)
        for row, length in enumerate(lengths):
            token = torch.arange(length)
            where = order[self.indptr[row] : self.indptr[row + 1]][token // page]
            whole[where, 0, token % page], whole[where, 1, token % page] = self.k[row], self.v[row]
        whole = whole if layout == "NHD" else whole.transpose(2, 3).contiguous()
        self.cache = whole if form == "one" else tuple(whole.unbind(1))

    def table(self):
        return self.indptr, self.indices, self.last_page_len

    def expect(self, queries, **mask):
        parts = zip(queries, self.k, self.v, strict=True)
        return plain.join([plain.attention(q, k.float(), v.float(), **mask) for q, k, v in parts])


def check(out, lse, expected, sinks=None):
    natural = lse / LOG2E
    if sinks is not None:
        expected.lse = torch.logaddexp(expected.lse, sinks.double())
    plain.check(out, natural, expected)


def planned_decode(pages, wrapper=None, **options):
    wrapper = wrapper or Decode(WORKSPACE, pages.layout)
    wrapper.plan(*pages.table(), *SHAPE.values(), pages.page, q_data_type="float32", **options)
    return wrapper


def planned_prefill(pages, q_lengths, wrapper=None, **options):
    wrapper = wrapper or Prefill(WORKSPACE, pages.layout)
    qo_indptr = torch.tensor([0, *q_lengths]).cumsum(0)
    wrapper.plan(qo_indptr, *pages.table(), *SHAPE.values(), pages.page, q_data_type=torch.float32, **options)
    return wrapper


def decoded(codes, scales, factor):
    """The formula of a row, in double precision."""
    numbers = torch.stack([codes & 15, codes >> 4], -1).flatten(-2).int()
    return E2M1[numbers] * scales.view(E4M3).double().repeat_interleave(16, -1) * factor


class Nvfp4Pages:
    """NVFP4 pages full of NaN scales, and rows that were appended to them."""

    DIM, PAGE, LENGTHS = 32, 4, (5, 0, 9)

    def __init__(self, layout="NHD", form="two", factors=(0.5, 0.25)):
        counts = [-(-length // self.PAGE) for length in self.LENGTHS]
        total = sum(counts) + 2
        self.layout, self.form, self.factors = layout, form, factors
        self.indptr = torch.tensor([0, *counts]).cumsum(0).int()
        self.indices = torch.randperm(total)[: sum(counts)].int()
        self.last = torch.tensor([(length - 1) % self.PAGE + 1 if length else 0 for length in self.LENGTHS], dtype=torch.int32)
        self.whole_codes, self.whole_scales = (self.whole(total, width) for width in (self.DIM // 2, self.DIM // 16))
        self.divide()
        self.k, self.v = (torch.randn(sum(self.LENGTHS), KV_HEADS, self.DIM).bfloat16() for _ in "kv")
        ends = torch.tensor([0, *self.LENGTHS]).cumsum(0).int()
        lengths = flashinfer.get_seq_lens(self.indptr, self.last, self.PAGE)
        self.where = flashinfer.get_batch_indices_positions(ends, lengths, sum(self.LENGTHS))
        self.append()

    def divide(self):
        both = (self.whole_codes, self.whole_scales)
        self.cache, self.scales = both if self.form == "one" else (tuple(each.unbind(1)) for each in both)
        self.scales = self.viewed(self.scales, E4M3)

    def empty_on(self, device):
        """The same pages there, without the rows."""
        there = copy.copy(self)
        for name in ("whole_codes", "whole_scales", "k", "v", "indptr", "indices", "last"):
            setattr(there, name, getattr(self, name).to(device))
        there.where = [numbers.to(device) for numbers in self.where]
        for whole in (there.whole_codes, there.whole_scales):
            whole.fill_(255)
        there.divide()
        return there

    def whole(self, total, width):
        shape = (total, 2, self.PAGE, KV_HEADS, width) if self.layout == "NHD" else (total, 2, KV_HEADS, self.PAGE, width)
        return torch.full(shape, 255, dtype=FP4)

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
            sides.append([values[each].flatten(0, 1)[:length] for each, length in zip(pages, self.LENGTHS, strict=True)])
        return sides

    def plan(self, wrapper, *ends, **options):
        options = {"q_data_type": torch.float32, "kv_data_type": FP4} | options
        wrapper.plan(*ends, self.indptr, self.indices, self.last, HEADS, KV_HEADS, self.DIM, self.PAGE, **options)
        return wrapper

    def expect(self, queries, **mask):
        return plain.join([plain.attention(*each, **mask) for each in zip(queries, *self.rows(), strict=True)])

    @property
    def run_options(self):
        return {"kv_cache_sf": self.scales, "k_scale": self.factors[0], "v_scale": self.factors[1], "return_lse": True}
