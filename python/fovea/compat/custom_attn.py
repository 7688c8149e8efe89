# SPDX-License-Identifier: Apache-2.0
"""Paged attention in its plainest form: lengths are lists on the host.

The reference functions of several engines have this form, for tests of their own kernels.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from fovea._paged import paged_attention
from fovea.compat._arguments import rows


def custom_paged_attn(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    query_lens: Sequence[int],
    kv_lens: Sequence[int],
    block_tables: Tensor,
    scale: float,
    soft_cap: float = -1.0,
) -> Tensor:
    """Causal attention of a ragged batch over a block-table cache. The queries of a sequence are its last tokens.

    Args:
        query: ``[total_q, head, dim]``, the rows of all sequences one after another.
        key_cache: ``[blocks, page, kv_head, dim]``; value_cache likewise.
        query_lens: How many rows each sequence has; kv_lens: how many tokens in the cache, those of the rows included.
        block_tables: int32 ``[batch, max_blocks]``.
        scale: Multiplies the scores.
        soft_cap: c > 0 bounds the scores: ``c * tanh(s / c)``.

    Returns:
        ``[total_q, head, dim]``.
    """
    if len(query_lens) != len(kv_lens):
        raise ValueError(f"query_lens: got {len(query_lens)} lengths, want {len(kv_lens)}, as of kv_lens")
    if sum(query_lens) != len(query):
        raise ValueError(f"query_lens: got {sum(query_lens)} rows in all, want {len(query)} (query.shape[0])")
    ends = torch.tensor([0, *query_lens]).cumsum(0).to(query.device, torch.int32)
    lengths = torch.tensor(kv_lens, dtype=torch.int32, device=query.device)
    return paged_attention(
        rows(query),
        key_cache,
        value_cache,
        rows(block_tables.to(torch.int32)),
        lengths,
        ends,
        max_seqlen_q=max(query_lens, default=0),
        max_kv_len=max(kv_lens, default=0),
        scale=scale,
        softcap=max(soft_cap, 0.0),
    )
