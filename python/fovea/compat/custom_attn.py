# SPDX-License-Identifier: Apache-2.0
"""Paged attention in its plainest form: lengths are lists on the host.

The reference functions of several engines have this form, for tests of their own kernels.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from fovea._calls import adapted
from fovea._library import INTEGERS
from fovea._paged import paged_attention
from fovea.compat._arguments import rows

_NAMES = {
    "q": "query",
    "k_cache": "key_cache",
    "v_cache": "value_cache",
    "block_table": "block_tables",
    "cu_seqlens_q": "query_lens",
    "kv_len": "kv_lens",
    "softcap": "soft_cap",
}
_CACHE = "blocks, page, kv_head, dim"
_TABLES = (torch.int32, torch.int64)
_INT32_MAX = (1 << 31) - 1


@adapted(
    _NAMES,
    axes={"query": "total_q, head, dim", "key_cache": _CACHE, "value_cache": _CACHE, "block_tables": "batch, max_blocks"},
)
def custom_paged_attn(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    query_lens: Sequence[int] | Tensor,
    kv_lens: Sequence[int] | Tensor,
    block_tables: Tensor,
    scale: float,
    soft_cap: float = -1.0,
) -> Tensor:
    """Causal attention of a ragged batch over a block-table cache. The queries of a sequence are its last tokens.

    Args:
        query: ``[total_q, head, dim]``, the rows of all sequences one after another.
        key_cache: ``[blocks, page, kv_head, dim]``; value_cache likewise.
        query_lens: How many rows each sequence has; kv_lens: how many tokens in the cache, those of the rows included.
        block_tables: int32 or int64 ``[batch, max_blocks]``.
        scale: Multiplies the scores.
        soft_cap: c > 0 bounds the scores: ``c * tanh(s / c)``.

    Returns:
        ``[total_q, head, dim]``.
    """
    q_lengths, kv_lengths = _numbers("query_lens", query_lens), _numbers("kv_lens", kv_lens)
    if len(q_lengths) != len(kv_lengths):
        raise ValueError(f"query_lens: got {len(q_lengths)} lengths, want {len(kv_lengths)}, as of kv_lens")
    if sum(q_lengths) != len(query):
        raise ValueError(f"query_lens: got {sum(q_lengths)} rows in all, want {len(query)} (query.shape[0])")
    if len(block_tables) != len(kv_lengths):
        raise ValueError(f"block_tables.shape[0]: got {len(block_tables)}, want {len(kv_lengths)}, as of kv_lens")
    if block_tables.dtype not in _TABLES:
        raise ValueError(f"block_tables.dtype: got {block_tables.dtype}, want torch.int32 or torch.int64")
    capacity = block_tables.shape[1] * key_cache.shape[1]
    for sequence, length in enumerate(kv_lengths):
        if length > capacity:
            raise ValueError(f"kv_lens[{sequence}]: got {length}, want at most {capacity} (block_tables.shape[1] pages)")
    ends = torch.tensor([0, *q_lengths]).cumsum(0).to(query.device, torch.int32)
    return paged_attention(
        rows(query),
        key_cache,
        value_cache,
        rows(_in_int32(block_tables)),
        torch.tensor(kv_lengths, dtype=torch.int32, device=query.device),
        ends,
        max_seqlen_q=max(q_lengths, default=0),
        max_kv_len=max(kv_lengths, default=0),
        scale=scale,
        softcap=max(soft_cap, 0.0),
    )


def _in_int32(block_tables: Tensor) -> Tensor:
    """A number beyond int32 is no block either way."""
    return block_tables if block_tables.dtype == torch.int32 else block_tables.clamp(-1, _INT32_MAX).to(torch.int32)


def _numbers(name: str, lengths: Sequence[int] | Tensor) -> list[int]:
    """Lengths on the host, checked."""
    if isinstance(lengths, Tensor) and lengths.is_meta:
        raise ValueError(f"{name}.device: got meta, want one with numbers")
    numbers = lengths.tolist() if isinstance(lengths, Tensor) else list(lengths)
    if not isinstance(numbers, list):
        raise ValueError(f"{name}.rank: got 0, want 1 ([batch])")
    for sequence, number in enumerate(numbers):
        if not isinstance(number, INTEGERS) or not 0 <= int(number) <= _INT32_MAX:
            raise ValueError(f"{name}[{sequence}]: got {number!r}, want an int from 0 to {_INT32_MAX}")
    return numbers
