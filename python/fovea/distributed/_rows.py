# SPDX-License-Identifier: Apache-2.0
"""Query rows as sequences of their own, and what is checked of a call that is made of them."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from fovea.distributed._checks import within
from fovea.distributed._pages import PageDeal, counts, is_readable


class Batch(NamedTuple):
    """Whole sequences and their query rows, as a caller gives them."""

    q: Tensor
    block_table: Tensor
    kv_len: Tensor
    cu_seqlens_q: Tensor | None
    max_kv_len: int
    causal: bool

    @property
    def total_q(self) -> int:
        return self.q.shape[:-2].numel()


def own_rows(batch: Batch, deal: PageDeal, rank: int) -> tuple[Tensor, Tensor, int]:
    """The block table of each query row, how many tokens it sees in this rank's pages, and a bound of these numbers."""
    _check(batch)
    table, lengths = _rows(batch)
    return table, deal.local_length(lengths, rank), deal.local_bound(batch.max_kv_len)


def _rows(batch: Batch) -> tuple[Tensor, Tensor]:
    """The block table of each query row, and how many tokens of its whole sequence it sees. Nothing waits for a device."""
    block_table, kv_len, cu, total_q = batch.block_table, batch.kv_len, batch.cu_seqlens_q, batch.total_q
    sequences = kv_len.shape[0]
    if cu is None:
        if total_q == sequences:
            return block_table, kv_len
        per_sequence = total_q // max(sequences, 1)  # as many rows of each
        back = torch.arange(per_sequence - 1, -1, -1, dtype=kv_len.dtype, device=kv_len.device)
        seen = kv_len[:, None] - (back if batch.causal else torch.zeros_like(back))
        return block_table.repeat_interleave(per_sequence, dim=0, output_size=total_q), seen.clamp(min=0).flatten()
    row = torch.arange(total_q, dtype=torch.int32, device=kv_len.device)
    sequence = torch.searchsorted(cu[1:].contiguous(), row, right=True).clamp(max=max(sequences - 1, 0))
    back = cu[1:][sequence] - 1 - row
    seen = kv_len[sequence] - (back if batch.causal else torch.zeros_like(back))
    has_row = (back >= 0) & (row >= cu[:-1][sequence])
    return block_table[sequence], torch.where(has_row, seen, 0).clamp(min=0).to(torch.int32)


def _check(batch: Batch) -> None:
    """Checks what the operators do not see of a batch whose rows are sequences of their own."""
    q, kv_len, cu, total_q = batch.q, batch.kv_len, batch.cu_seqlens_q, batch.total_q
    sequences = kv_len.shape[0]
    for name in ("block_table", "kv_len", "cu_seqlens_q"):
        tensor = getattr(batch, name)
        if tensor is not None and tensor.dtype != torch.int32:
            raise ValueError(f"{name}.dtype: got {tensor.dtype}, want torch.int32")
        if tensor is not None and tensor.device != q.device:
            raise ValueError(f"{name}.device: got {tensor.device}, want {q.device}, as q")
    within("max_kv_len", batch.max_kv_len, 0)
    if batch.block_table.shape[0] != sequences:
        raise ValueError(f"block_table.shape[0] (batch): got {batch.block_table.shape[0]}, want {sequences}, as kv_len has")
    counts("kv_len", kv_len, batch.max_kv_len or None)
    if cu is not None:
        _check_cu_seqlens(cu, q, sequences, total_q)
    elif q.dim() == 4 and q.shape[0] != sequences:
        raise ValueError(f"q.shape[0] (batch): got {q.shape[0]}, want {sequences}, as kv_len has")
    elif total_q % max(sequences, 1):
        raise ValueError(f"q.shape[0] (total_q): got {total_q}, want a multiple of {sequences}, the sequences of kv_len")
    if total_q and not sequences:
        raise ValueError(f"q.shape[0] (total_q): got {total_q}, want 0, since kv_len has no sequence")


def _check_cu_seqlens(cu: Tensor, q: Tensor, sequences: int, total_q: int) -> None:
    if q.dim() == 4:
        raise ValueError("q.rank: got 4, want 3 ([total_q, head, head_dim]) with cu_seqlens_q")
    if cu.shape[0] != sequences + 1:
        raise ValueError(f"cu_seqlens_q.shape[0] (batch + 1): got {cu.shape[0]}, want {sequences + 1}")
    if is_readable(cu):
        for at, (first, last) in enumerate(pairwise([0, *cu.tolist()])):
            within(f"cu_seqlens_q[{at}]", last, first, total_q)


def page_of(cache: Tensor, page: int | None) -> int:
    """Tokens of a page; 0, which nothing takes, of a cache that has no such extent."""
    return (cache.shape[1] if cache.dim() > 1 else 0) if page is None else page
