# SPDX-License-Identifier: Apache-2.0
"""flashinfer.page over Fovea: lists of pages as FlashInfer has them, and writing into these pages.

The pages of sequence b are ``indices[indptr[b] : indptr[b + 1]]``; its last page holds ``last_page_len[b]`` tokens.

Tensors on the CPU are checked number by number. Nothing waits for a GPU: a row there that has no place is skipped.
"""

import math

import torch
from torch import Tensor

from fovea._calls import adapted
from fovea._paged import paged_cache_append
from fovea.compat._arguments import readable, rows
from fovea.compat.flashinfer._plan import INT32_MAX, checked_indptr, checked_lengths, nvfp4, want_integers
from fovea.compat.flashinfer._terms import FOUR_BITS, INDPTR, ROWS, Cache, pages_of, want, want_sizes

__all__ = [
    "append_paged_kv_cache",
    "get_batch_indices_positions",
    "get_seq_lens",
    "nvfp4_quantize_append_paged_kv_cache",
    "nvfp4_quantize_append_paged_kv_cache_with_slot_mapping",
]

_APPEND_NAMES = {
    "k": "append_key",
    "v": "append_value",
    "k_cache": "paged_kv_cache",
    "v_cache": "paged_kv_cache",
    "slot_mapping": "positions",
}
_APPEND_AXES = {
    "append_key": ROWS,
    "append_value": ROWS,
    "batch_indices": "rows",
    "positions": "rows",
    "kv_indices": "pages",
    "kv_indptr": INDPTR,
    "kv_last_page_len": "batch",
}
_SCALE_NAMES = {"k_scale_cache": "kv_cache_sf", "v_scale_cache": "kv_cache_sf"}
_SLOT_NAMES = {name: theirs for name, theirs in _APPEND_NAMES.items() if name != "slot_mapping"} | _SCALE_NAMES
_SLOT_AXES = {"append_key": ROWS, "append_value": ROWS, "slot_mapping": "tokens"}


@adapted(axes={"kv_indptr": INDPTR, "kv_last_page_len": "batch"})
def get_seq_lens(kv_indptr: Tensor, kv_last_page_len: Tensor, page_size: int) -> Tensor:
    """The tokens of each sequence, int32 ``[batch]``. A sequence without pages has none."""
    if readable(kv_indptr, kv_last_page_len):
        ends = checked_indptr("kv_indptr", kv_indptr)
        return checked_lengths(ends.diff(), "kv_last_page_len", kv_last_page_len, page_size).to(torch.int32)
    want_integers({"kv_indptr": kv_indptr, "kv_last_page_len": kv_last_page_len}, kv_indptr.device)
    want_sizes(INT32_MAX, page_size=page_size)
    batch = kv_indptr.shape[0] - 1
    want(kv_last_page_len.shape[0] == batch, "kv_last_page_len.shape[0]", kv_last_page_len.shape[0], f"{batch} (of kv_indptr)")
    pages = kv_indptr.diff()
    return torch.where(pages > 0, (pages - 1) * page_size + kv_last_page_len, 0).to(torch.int32)


@adapted(axes={"append_indptr": INDPTR, "seq_lens": "batch", "batch_indices": "rows", "positions": "rows"})
def get_batch_indices_positions(
    append_indptr: Tensor,
    seq_lens: Tensor,
    nnz: int,
    batch_indices: Tensor | None = None,
    positions: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The sequence of each of ``nnz`` appended rows and its position there: they are the last ones of their sequences.

    Args:
        append_indptr: ``[batch + 1]``: rows ``append_indptr[b]`` to ``append_indptr[b + 1] - 1`` belong to sequence b.
        seq_lens: ``[batch]``, the appended rows included.
        nnz: How many rows there are. Those that no sequence has get -1 and -1.
        batch_indices: Written instead of a new tensor; positions likewise.

    Returns:
        Two int32 tensors ``[nnz]``.
    """
    want_integers({"append_indptr": append_indptr}, append_indptr.device)
    want_integers({"seq_lens": seq_lens}, append_indptr.device if append_indptr.is_meta else None)
    batch, buffers = append_indptr.shape[0] - 1, {"batch_indices": batch_indices, "positions": positions}
    want(batch >= 0, "append_indptr.shape[0]", 0, "1 or more (batch + 1)")
    want(seq_lens.shape[0] == batch, "seq_lens.shape[0]", seq_lens.shape[0], f"{batch} (sequences of append_indptr)")
    want(0 <= nnz <= INT32_MAX, "nnz", nnz, f"0 to {INT32_MAX}")
    for name, buffer in buffers.items():
        if buffer is not None:
            want_integers({name: buffer}, append_indptr.device)
            want(buffer.shape[0] >= nnz, f"{name}.shape[0]", buffer.shape[0], f"{nnz} or more (nnz)")
    if readable(append_indptr):
        checked_indptr("append_indptr", append_indptr)
    row = torch.arange(nnz, device=append_indptr.device)
    if batch:
        end, seq_lens = append_indptr[1:].long().contiguous(), seq_lens.to(append_indptr.device)
        sequence = torch.searchsorted(end, row, right=True)
        known = sequence.clamp(max=batch - 1)
        inside = (sequence < batch) & (row >= append_indptr[0])
        found = torch.where(inside, sequence, -1), torch.where(inside, seq_lens[known] - (end[known] - row), -1)
    else:
        found = torch.full_like(row, -1), torch.full_like(row, -1)
    results = []
    for buffer, values in zip(buffers.values(), found, strict=True):
        results.append(values.to(torch.int32) if buffer is None else buffer[:nnz].copy_(values))
    return results[0], results[1]


@adapted(_APPEND_NAMES, axes=_APPEND_AXES)
def append_paged_kv_cache(
    append_key: Tensor,
    append_value: Tensor,
    batch_indices: Tensor,
    positions: Tensor,
    paged_kv_cache: Cache,
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
        kv_indices, kv_indptr: The pages of each sequence, with those that the rows go to. A row whose sequence or position has
            no page is an error on the CPU, where nothing is written then; on a GPU it is skipped.
        kv_last_page_len: Taken; positions say more.
    """
    k_cache, v_cache = pages_of(paged_kv_cache, kv_layout)
    slots = _slots(append_key.shape[0], k_cache, batch_indices, positions, kv_indices, kv_indptr, kv_last_page_len)
    paged_cache_append(rows(append_key), rows(append_value), k_cache, v_cache, slots)


@adapted(_APPEND_NAMES | _SCALE_NAMES, axes=_APPEND_AXES)
def nvfp4_quantize_append_paged_kv_cache(
    append_key: Tensor,
    append_value: Tensor,
    batch_indices: Tensor,
    positions: Tensor,
    paged_kv_cache: Cache,
    kv_cache_sf: Cache,
    kv_indices: Tensor,
    kv_indptr: Tensor,
    kv_last_page_len: Tensor,
    k_scale: float,
    v_scale: float,
    kv_layout: str = "NHD",
) -> None:
    """:func:`append_paged_kv_cache` into NVFP4 pages: a value is ``code * block scale * k_scale``.

    Args:
        paged_kv_cache: Codes, uint8, ``dim // 2`` last. kv_cache_sf: float8_e4m3fn, shaped alike with ``dim // 16`` last.
        k_scale, v_scale: The factors that the wrappers' run() gets too: finite, above 0.
        The others are those of :func:`append_paged_kv_cache`.
    """
    k_cache, v_cache, k_scales, v_scales = nvfp4_pages(paged_kv_cache, kv_cache_sf, kv_layout)
    _want_factors(k_scale=k_scale, v_scale=v_scale)
    slots = _slots(append_key.shape[0], k_cache, batch_indices, positions, kv_indices, kv_indptr, kv_last_page_len)
    options = {"k_scale": k_scale, "v_scale": v_scale, **nvfp4(k_scales, v_scales)}
    paged_cache_append(rows(append_key), rows(append_value), k_cache, v_cache, slots, **options)


@adapted(_SLOT_NAMES, axes=_SLOT_AXES)
def nvfp4_quantize_append_paged_kv_cache_with_slot_mapping(
    append_key: Tensor,
    append_value: Tensor,
    slot_mapping: Tensor,
    paged_kv_cache: Cache,
    kv_cache_sf: Cache,
    k_scale: Tensor | float,
    v_scale: Tensor | float,
    kv_layout: str = "NHD",
) -> None:
    """:func:`nvfp4_quantize_append_paged_kv_cache` for rows whose slots are known: ``page number * page + token``.

    Args:
        append_key: ``[rows, kv_head, dim]``; append_value likewise. Rows after those of slot_mapping are padding.
        slot_mapping: ``[tokens]``; a negative one skips a row.
        k_scale, v_scale: Numbers, or float32 tensors of one element, which a CUDA graph reads when it runs.
    """
    k_cache, v_cache, k_scales, v_scales = nvfp4_pages(paged_kv_cache, kv_cache_sf, kv_layout)
    _want_factors(k_scale=k_scale, v_scale=v_scale)
    want_integers({"slot_mapping": slot_mapping}, k_cache.device)
    count = slot_mapping.shape[0]
    for name, tensor in (("append_key", append_key), ("append_value", append_value)):
        want(tensor.shape[0] >= count, f"{name}.shape[0]", tensor.shape[0], f"{count} or more (slot_mapping.shape[0])")
    k, v = rows(append_key[:count]), rows(append_value[:count])
    options = {"k_scale": k_scale, "v_scale": v_scale, **nvfp4(k_scales, v_scales)}
    paged_cache_append(k, v, k_cache, v_cache, slot_mapping.long().clamp(min=-1), **options)


def nvfp4_pages(paged_kv_cache: Cache, kv_cache_sf: Cache, kv_layout: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Codes of K and of V, and their scales, ``[pages, page, kv_head, ..]``."""
    both = *pages_of(paged_kv_cache, kv_layout), *pages_of(kv_cache_sf, kv_layout, "kv_cache_sf")
    names = ("paged_kv_cache[0]", "paged_kv_cache[1]", "kv_cache_sf[0]", "kv_cache_sf[1]")
    for name, tensor, dtype in zip(names, both, [FOUR_BITS] * 2 + [torch.float8_e4m3fn] * 2, strict=True):
        want(tensor.dtype == dtype, f"{name}.dtype", tensor.dtype, dtype)
    return both


def _want_factors(**scales: Tensor | float) -> None:
    for name, scale in scales.items():
        if isinstance(scale, Tensor):
            want(scale.numel() == 1, f"{name}.shape", list(scale.shape), "[1]")
        else:
            want(math.isfinite(scale) and scale > 0, name, scale, "a finite number above 0")


def _slots(
    count: int,
    k_cache: Tensor,
    batch_indices: Tensor,
    positions: Tensor,
    kv_indices: Tensor,
    kv_indptr: Tensor,
    kv_last_page_len: Tensor,
) -> Tensor:
    """Where each of ``count`` rows goes in the cache, -1 for those without a place."""
    want_integers(
        {"batch_indices": batch_indices, "positions": positions, "kv_indices": kv_indices, "kv_indptr": kv_indptr}, k_cache.device
    )
    want_integers({"kv_last_page_len": kv_last_page_len}, k_cache.device)
    batch, listed = kv_indptr.shape[0] - 1, kv_indices.shape[0]
    want(batch >= 0, "kv_indptr.shape[0]", 0, "1 or more (batch + 1)")
    for name, tensor in (("batch_indices", batch_indices), ("positions", positions)):
        if tensor.shape[0] != count:
            want(False, f"{name}.shape[0]", tensor.shape[0], f"{count} (append_key.shape[0])")
    page, sequence, position = k_cache.shape[1], batch_indices.long(), positions.long()
    want(page >= 1, "paged_kv_cache (page size)", page, "1 or more")
    if not batch or not listed:  # no row has a place
        entry, number, has_page = sequence, sequence, torch.zeros_like(sequence, dtype=torch.bool)
    else:
        known = sequence.clamp(0, batch - 1)
        first, end = (kv_indptr.long()[known + more].clamp(-1, listed) for more in (0, 1))
        entry = first.clamp(min=0) + position.clamp(min=0) // page
        number = kv_indices[entry.clamp(max=listed - 1)].long()
        has_page = (sequence >= 0) & (sequence < batch) & (position >= 0) & (first >= 0) & (entry < end)
    written = has_page & (number >= 0) & (number < k_cache.shape[0])
    if readable(batch_indices, positions, kv_indices, kv_indptr):
        ends, wrong = checked_indptr("kv_indptr", kv_indptr), ~written & (sequence >= 0)
        want(int(ends[-1]) <= listed, "kv_indices.shape[0]", listed, f"{int(ends[-1])} or more (kv_indptr[-1])")
        if bool(wrong.any()):
            at = int(wrong.nonzero()[0])
            _refuse_row(at, int(sequence[at]), int(position[at]), page, ends)
            blocks = k_cache.shape[0] - 1
            want(False, f"kv_indices[{int(entry[at])}]", int(number[at]), f"0 to {blocks} (pages of paged_kv_cache)")
    return torch.where(written, number * page + position % page, -1)


def _refuse_row(row: int, sequence: int, position: int, page: int, ends: Tensor) -> None:
    """Raises where a row's sequence or position has no page. ends: a checked kv_indptr."""
    batch = len(ends) - 1
    want(
        sequence < batch, f"batch_indices[{row}]", sequence, f"at most {batch - 1} (sequences of kv_indptr), or -1 to skip the row"
    )
    tokens = int(ends[sequence + 1] - ends[sequence]) * page
    wanted = (
        f"0 to {tokens - 1} (of the pages of sequence {sequence})" if tokens else f"a page for it (sequence {sequence} has none)"
    )
    want(0 <= position < tokens, f"positions[{row}]", position, wanted)
