# SPDX-License-Identifier: Apache-2.0
"""What other libraries make of a row of bench/paged_decode.py: the same queries, pages and lengths. None where one cannot."""

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


def flashinfer(paged: "Paged") -> Call:
    """The wrapper that an engine takes, planned: a plan serves every layer of a step. One query: its kernel on tensor cores."""
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper, BatchPrefillWithPagedKVCacheWrapper

    case, memory = paged.case, torch.zeros(128 << 20, dtype=torch.uint8, device=DEVICE)
    lengths, counts = (torch.tensor(of, dtype=torch.int32) for of in (paged.kv_lens, paged.page_counts))
    starts = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).int()
    pages = (starts, paged.pages, lengths - (counts - 1) * case.page)
    sizes = (case.heads, case.kv_heads, case.head_dim, case.page)
    types = {"q_data_type": paged.q.dtype, "kv_data_type": paged.k.dtype}
    if max(paged.query_lens) == 1:
        wrapper = BatchDecodeWithPagedKVCacheWrapper(memory, "NHD", use_tensor_cores=True)
        wrapper.plan(*pages, *sizes, **types)
    else:
        wrapper = BatchPrefillWithPagedKVCacheWrapper(memory, "NHD")
        wrapper.plan(paged.cu_seqlens_q, *pages, *sizes, causal=True, **types)
    return lambda: wrapper.run(paged.q, (paged.k, paged.v), out=paged.out, k_scale=paged.k_factor)


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
