# SPDX-License-Identifier: Apache-2.0
"""Calls of other libraries for a row of bench/paged_decode.py: the same queries, pages and lengths. None where one cannot."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
from gpu import DEVICE
from peers import importable
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import fovea

if TYPE_CHECKING:
    from paged_decode import Paged

Call = Callable[[], Tensor]
DECODE_QUERIES = 8  # of a sequence: up to here it is a decode, and runs as a graph
MOST_COPIED = 2 << 30  # bytes of a cache that is copied out of its pages
XQA, XQA_ROUNDED = "FlashInfer XQA", "FlashInfer XQA, e4m3 queries"
XQA_PAGES = (16, 32, 64, 128)
WORST = 6e-3  # relative error of an output whose operands and result are rounded to bf16
WORST_E4M3 = 6e-2  # the same where queries and weights are rounded to e4m3


def dense(paged: "Paged") -> Call | None:
    """This library's dense attention, of a whole prefill."""
    case = paged.case
    if not (paged.uniform and case.whole_prefill):
        return None
    k, v = (paged.copied(cache).contiguous() for cache in (paged.k, paged.v))
    q = paged.q.view(case.batch, case.seq_q, case.heads, case.head_dim)
    return partial(fovea.attention, q, k, v, causal=True, out=torch.empty_like(q))


def pytorch(paged: "Paged") -> Call | None:
    """PyTorch has no pages: keys and values of a sequence side by side. Either there is one query, or one for each key."""
    case = paged.case
    if not paged.uniform or (case.seq_q > 1 and not case.whole_prefill) or paged.bytes > MOST_COPIED:
        return None
    q = paged.q.view(case.batch, case.seq_q, case.heads, case.head_dim).transpose(1, 2)
    k, v = (paged.copied(cache).transpose(1, 2) for cache in (paged.k, paged.v))
    causal = case.seq_q > 1
    return lambda: scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True).transpose(1, 2)


def flash_attention(paged: "Paged") -> Call | None:
    case = paged.case
    if not paged.uniform or case.head_dim != 128:
        return None
    from flash_attn_interface import flash_attn_with_kvcache

    q = paged.q.view(case.batch, case.seq_q, case.heads, case.head_dim)
    options = {"cache_seqlens": paged.kv_len, "page_table": paged.table, "causal": True}

    def call() -> Tensor:
        done = flash_attn_with_kvcache(q, paged.k, paged.v, **options)
        return done[0] if isinstance(done, tuple) else done

    return call


def planned(paged: "Paged", sequences: slice) -> Call:
    """A wrapper's call of some sequences; its plan serves every layer of a step. Decodes take its kernel on tensor cores."""
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper, BatchPrefillWithPagedKVCacheWrapper

    case, memory = paged.case, torch.zeros(128 << 20, dtype=torch.uint8, device=DEVICE)
    lens, counts, queries = (
        torch.tensor(of[sequences], dtype=torch.int32) for of in (paged.kv_lens, paged.page_counts, paged.query_lens)
    )
    starts, ends = (torch.nn.functional.pad(of.cumsum(0), (1, 0)).int() for of in (counts, queries))
    first_page, first_query = (sum(of[: sequences.start]) for of in (paged.page_counts, paged.query_lens))
    q, out = (rows[first_query : first_query + int(ends[-1])] for rows in (paged.q, paged.out))
    pages = (starts, paged.pages[first_page : first_page + int(starts[-1])], lens - (counts - 1) * case.page)
    sizes = (case.heads, case.kv_heads, case.head_dim, case.page)
    types = {"q_data_type": q.dtype, "kv_data_type": paged.k.dtype}
    if (seq_q := int(queries.max())) <= DECODE_QUERIES:
        wrapper = BatchDecodeWithPagedKVCacheWrapper(memory, "NHD", use_tensor_cores=True)
        wrapper.plan(*pages, *sizes, q_len_per_req=seq_q, **types)
    else:
        wrapper = BatchPrefillWithPagedKVCacheWrapper(memory, "NHD")
        wrapper.plan(ends, *pages, *sizes, causal=True, **types)
    return lambda: wrapper.run(q, (paged.k, paged.v), out=out, k_scale=paged.k_factor)


def flashinfer(paged: "Paged") -> Call:
    """As engines call it: a prefill and the decodes beside it go to a wrapper each."""
    parts = [slice(0, 1), slice(1, None)] if paged.case.prefill else [slice(0, None)]
    calls = [planned(paged, part) for part in parts]

    def call() -> Tensor:
        for part in calls:
            part()
        return paged.out

    return call


def xqa(paged: "Paged") -> Call | None:
    """FlashInfer's kernel of one query for each sequence. Beside an e4m3 cache, queries and weights become e4m3 too."""
    case = paged.case
    if max(paged.query_lens) > 1 or case.page not in XQA_PAGES or case.head_dim != 128:
        return None
    from flashinfer.decode import xqa_batch_decode_with_kv_cache

    memory = torch.zeros(256 << 20, dtype=torch.uint8, device=DEVICE)
    most, scale = case.page * paged.table.shape[1], paged.k_factor * case.head_dim**-0.5
    arguments = (paged.q, (paged.k, paged.v), memory, paged.table, paged.kv_len.view(torch.uint32), most, scale)
    return lambda: xqa_batch_decode_with_kv_cache(*arguments, out=paged.out)


def wanted(paged: "Paged") -> dict[str, tuple[Call, float]]:
    """Each that can be imported and computes this row, with the relative error that it may have."""
    makers = {"PyTorch, copied out of its pages": pytorch, "dense, copied out of its pages": dense}
    if importable("flash_attn_interface"):
        makers["FlashAttention-3"] = flash_attention
    if importable("flashinfer"):
        makers |= {"FlashInfer": flashinfer, XQA_ROUNDED if paged.case.cache == "e4m3" else XQA: xqa}
    found = {}
    for name, maker in makers.items():
        try:
            if call := maker(paged):
                found[name] = (call, WORST_E4M3 if name == XQA_ROUNDED else WORST)
        except Exception as error:  # such as what it compiles on first use
            print(f"{paged.case.name}: {name} skipped: {type(error).__name__}: {error}", flush=True)
    return found
