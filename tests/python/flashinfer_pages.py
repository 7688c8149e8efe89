# SPDX-License-Identifier: Apache-2.0
"""Page tables as FlashInfer has them, full of traps, and plans over them, for the tests of fovea.compat.flashinfer."""

import math

import torch

import fovea.compat.flashinfer as flashinfer
import plain

LOG2E = math.log2(math.e)
WORKSPACE = torch.empty(16, dtype=torch.uint8)
LAYOUTS = [("NHD", "one"), ("NHD", "two"), ("HND", "one"), ("HND", "two")]
HEADS, KV_HEADS, DIM = 4, 2, 16
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
