# SPDX-License-Identifier: Apache-2.0
"""Rows of ragged queries that no sequence has, in what flash-attn's functions give."""

import pytest
import torch

import fovea.compat.flash_attn as flash_attn
import fovea.compat.flash_attn_interface as flash_attn_3
import fovea.compat.flash_mla as flash_mla
from kvcache import lengths

OUTER = torch.tensor([2, 4, 9], dtype=torch.int32)


def rows_of_no_sequence(form):
    """out ``[total_q, head, d]`` and lse ``[total_q, head]`` of 12 rows, of which OUTER shares out some."""
    q, k, v = torch.randn(12, 4, 16), torch.randn(12, 2, 16), torch.randn(12, 2, 16)
    pages, table = torch.randn(6, 4, 2, 16), torch.arange(6, dtype=torch.int32).view(2, 3)
    ends = OUTER, lengths([5, 7])
    if form == "2":
        out, lse, _ = flash_attn.flash_attn_varlen_func(q, k, v, *ends, 12, 12, return_attn_probs=True)
    elif form == "2, pages":
        out, lse, _ = flash_attn.flash_attn_varlen_func(q, pages, pages, *ends, 12, 12, return_attn_probs=True, block_table=table)
    elif form == "3":
        out, lse = flash_attn_3.flash_attn_varlen_func(q, k, v, *ends, 12, 12, return_attn_probs=True)
    elif form == "3, used":
        used = {"seqused_q": torch.tensor([1, 5], dtype=torch.int32), "seqused_k": torch.tensor([5, 2], dtype=torch.int32)}
        out, lse = flash_attn_3.flash_attn_varlen_func(q, k, v, *ends, 12, 12, return_attn_probs=True, **used)
    elif form == "3, cache":
        call = {"page_table": table, "cache_seqlens": torch.tensor([5, 7]).int(), "cu_seqlens_q": OUTER, "max_seqlen_q": 12}
        out, lse, *_ = flash_attn_3.flash_attn_with_kvcache(q, pages, pages, return_softmax_lse=True, **call)
    elif form == "gradient":
        out, lse, _ = flash_attn.flash_attn_varlen_func(q.requires_grad_(), k, v, *ends, 12, 12, return_attn_probs=True)
    else:
        out, lse = flash_mla.flash_attn_varlen_func(q, k, v, *ends, 12, 12)
        lse = lse.T
    return out, lse.T


@pytest.mark.parametrize("form", ["2", "2, pages", "3", "3, used", "3, cache", "gradient", "mla"])
def test_rows_of_no_sequence(form):
    """They are zeros and -inf, and not what their memory held before."""
    for _ in range(3):
        held = [torch.full(shape, 7.0) for shape in ((12, 4, 16), (12, 4))]  # memory that new tensors are likely to get
        del held
        out, lse = rows_of_no_sequence(form)
        outer = torch.tensor([0, 1, 9, 10, 11])
        assert bool((out[outer] == 0).all()) and bool(lse[outer].isneginf().all())
        assert bool(lse[4:9].isfinite().all())
