# SPDX-License-Identifier: Apache-2.0
"""flashinfer.page over Fovea: page tables as FlashInfer has them, and writing into their pages.

The pages of sequence b are ``indices[indptr[b] : indptr[b + 1]]``; its last page holds ``last_page_len[b]`` tokens.
"""

import torch
from torch import Tensor

from fovea._paged import paged_cache_append
from fovea.compat._arguments import rows
from fovea.compat.flashinfer._terms import pages_of

__all__ = ["append_paged_kv_cache", "get_batch_indices_positions", "get_seq_lens"]


def get_seq_lens(kv_indptr: Tensor, kv_last_page_len: Tensor, page_size: int) -> Tensor:
    """The tokens of each sequence, int32 ``[batch]``. A sequence without pages has none."""
    pages = kv_indptr.diff()
    return torch.where(pages > 0, (pages - 1) * page_size + kv_last_page_len, 0).to(torch.int32)


def get_batch_indices_positions(
    append_indptr: Tensor,
    seq_lens: Tensor,
    nnz: int,
    batch_indices: Tensor | None = None,
    positions: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Of each of ``nnz`` appended rows its sequence and its position there: they are the last ones of their sequences.

    Args:
        append_indptr: ``[batch + 1]``: rows ``append_indptr[b]`` to ``append_indptr[b + 1] - 1`` belong to sequence b.
        seq_lens: ``[batch]``, the appended rows included.
        nnz: How many rows there are. Those behind ``append_indptr[-1]`` get -1 and -1.
        batch_indices: Written instead of a new tensor; positions likewise.

    Returns:
        Two int32 tensors ``[nnz]``.
    """
    end, seq_lens = append_indptr[1:].contiguous(), seq_lens.to(append_indptr.device)
    row = torch.arange(nnz, dtype=append_indptr.dtype, device=append_indptr.device)
    sequence = torch.searchsorted(end, row, right=True)
    known = sequence.clamp(max=len(end) - 1)
    inside = sequence < len(end)
    found = torch.where(inside, sequence, -1), torch.where(inside, seq_lens[known] - (end[known] - row), -1)
    results = []
    for buffer, values in zip((batch_indices, positions), found, strict=True):
        results.append(values.to(torch.int32) if buffer is None else buffer[:nnz].copy_(values))
    return results[0], results[1]


def append_paged_kv_cache(
    append_key: Tensor,
    append_value: Tensor,
    batch_indices: Tensor,
    positions: Tensor,
    paged_kv_cache: Tensor | tuple[Tensor, Tensor],
    kv_indices: Tensor,
    kv_indptr: Tensor,
    kv_last_page_len: Tensor,
    kv_layout: str = "NHD",
) -> None:
    """Writes rows of keys and values to their positions in the pages of their sequences.

    Args:
        append_key: ``[rows, kv_head, dim]``; append_value likewise.
        batch_indices: ``[rows]``; a negative one skips a row. positions ``[rows]``. From :func:`get_batch_indices_positions`.
        paged_kv_cache: ``[pages, 2, page, kv_head, dim]`` or two tensors without the 2; with "HND" kv_head comes before page.
            float8_e4m3fn stores rounded values.
        kv_indices, kv_indptr: The page table, with the pages that the rows go to.
        kv_last_page_len: Taken; positions say more.
    """
    k_cache, v_cache = pages_of(paged_kv_cache, kv_layout)
    page = k_cache.shape[1]
    sequence, position = batch_indices.long(), positions.long()
    skipped = sequence < 0
    entry = kv_indptr[sequence.clamp(min=0)].long() + position.clamp(min=0) // page
    slots = torch.where(skipped, -1, kv_indices[entry.masked_fill(skipped, 0)].long() * page + position % page)
    paged_cache_append(rows(append_key), rows(append_value), k_cache, v_cache, slots)
