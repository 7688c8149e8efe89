# SPDX-License-Identifier: Apache-2.0
"""The indexer of DeepGEMM (2025 and 2026) over :func:`fovea.index_logits`: its names, shapes, argument order and results.

* Any number of heads, and any page that the views of a cache allow.
* Names of both generations: ``fp8_mqa_logits`` takes q, and ``fp8_fp4_mqa_logits``, which engines call since 2.5, a pair of
  q and None.
* Schedules are not needed: :func:`get_paged_mqa_logits_metadata` returns a tensor of DeepGEMM's shape, whose numbers mean nothing.
* Without ``clean_logits`` the logits that a query does not see are left unwritten, as in DeepGEMM.
* Context lengths are those of sequences, or one for each query, as newer versions want them.
* Logits compressed to ``max_seqlen_k`` columns are taken from those of all tokens. They need the memory of both, and of places.
* Not here: FP4 codes, ``indices``, and the matrix products of DeepGEMM.
"""

import torch
from torch import Tensor

from fovea._calls import adapted
from fovea._indexer import index_logits
from fovea.compat._arguments import check, refuse

__all__ = [
    "fp8_fp4_mqa_logits",
    "fp8_fp4_paged_mqa_logits",
    "fp8_mqa_logits",
    "fp8_paged_mqa_logits",
    "get_num_sms",
    "get_paged_mqa_logits_metadata",
    "set_num_sms",
]

_SCALE_BYTES = 4
_WIDTHS = [head_dim + _SCALE_BYTES for head_dim in (64, 128)]
_LENGTHS = ("batch", "batch, next_n")
_FLAT = {"first": "cu_seq_len_k_start", "last": "cu_seq_len_k_end", "k": "kv[0]", "k_scale": "kv[1]"}
_PAGED = {"kv_len": "context_lens", "k": "kv_cache", "k_scale": "kv_cache", "out": "max_context_len"}
_PAGED_AXES = {
    "kv_cache": "num_blocks, block_kv, 1, head_dim + 4",
    "context_lens": _LENGTHS,
    "block_table": "batch, max_blocks",
}
_E4M3_ALONE = "codes of FP4 are not supported"
_NOT_MAPPED = "sequences share no queries"
_num_sms = 0


@adapted(_FLAT, axes={"q": "seq_len, heads, head_dim", "weights": "seq_len, heads"})
def fp8_mqa_logits(
    q: Tensor,
    kv: tuple[Tensor, Tensor],
    weights: Tensor,
    cu_seq_len_k_start: Tensor,
    cu_seq_len_k_end: Tensor,
    clean_logits: bool = True,
    max_seqlen_k: int = 0,
    logits_dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Scores of the tokens of a flat cache, ``[seq_len, seq_len_kv]`` or ``[seq_len, max_seqlen_k]``.

    Args:
        q: float8_e4m3fn ``[seq_len, heads, head_dim]``.
        kv: float8_e4m3fn ``[seq_len_kv, head_dim]`` and its float32 scales ``[seq_len_kv]``.
        weights: float32 ``[seq_len, heads]``.
        cu_seq_len_k_start: int32 ``[seq_len]``: the first token that a query sees.
        cu_seq_len_k_end: int32 ``[seq_len]``: the token behind the last one.
        clean_logits: Whether other logits are -inf, rather than unwritten.
        max_seqlen_k: Other than 0: columns of the result, the first of which is the first token that its row sees.
        logits_dtype: float32 or bfloat16.
    """
    return _flat(q, kv, weights, cu_seq_len_k_start, cu_seq_len_k_end, clean_logits, max_seqlen_k, logits_dtype)


@adapted(_FLAT | {"q": "q[0]"}, axes={"weights": "seq_len, heads"})
def fp8_fp4_mqa_logits(
    q: tuple[Tensor, Tensor | None],
    kv: tuple[Tensor, Tensor],
    weights: Tensor,
    cu_seq_len_k_start: Tensor,
    cu_seq_len_k_end: Tensor,
    clean_logits: bool = True,
    max_seqlen_k: int = 0,
    logits_dtype: torch.dtype = torch.float32,
) -> Tensor:
    """:func:`fp8_mqa_logits` with queries in a pair.

    Args:
        q: float8_e4m3fn ``[seq_len, heads, head_dim]``, and None: scales of queries are factors of weights.
        kv: float8_e4m3fn ``[seq_len_kv, head_dim]`` and its float32 scales ``[seq_len_kv]``.
        weights: float32 ``[seq_len, heads]``.
        cu_seq_len_k_start: int32 ``[seq_len]``: the first token that a query sees.
        cu_seq_len_k_end: int32 ``[seq_len]``: the token behind the last one.
        clean_logits: Whether other logits are -inf, rather than unwritten. An int is max_seqlen_k, which DeepGEMM 2.8 has here.
        max_seqlen_k: Other than 0: columns of the result, the first of which is the first token that its row sees.
        logits_dtype: float32 or bfloat16.
    """
    if not isinstance(clean_logits, bool | torch.SymBool):
        clean_logits, max_seqlen_k = False, clean_logits
    return _flat(_codes(q), kv, weights, cu_seq_len_k_start, cu_seq_len_k_end, clean_logits, max_seqlen_k, logits_dtype)


@adapted(_PAGED, axes=_PAGED_AXES | {"q": "batch, next_n, heads, head_dim"})
def fp8_paged_mqa_logits(
    q: Tensor,
    kv_cache: Tensor,
    weights: Tensor,
    context_lens: Tensor,
    block_table: Tensor,
    schedule_meta: Tensor | None,
    max_context_len: int,
    clean_logits: bool = False,
    logits_dtype: torch.dtype = torch.float32,
    indices: Tensor | None = None,
) -> Tensor:
    """Scores of the tokens of a paged cache, ``[batch * next_n, max_context_len]``.

    Args:
        q: float8_e4m3fn ``[batch, next_n, heads, head_dim]``: the last tokens of each sequence.
        kv_cache: uint8 ``[num_blocks, block_kv, 1, head_dim + 4]``: of each block the codes of all tokens, then their scales.
        weights: float32 ``[batch * next_n, heads]``.
        context_lens: int32 ``[batch]``: query i of a sequence sees the tokens up to ``context_lens - next_n + i``. Or
            ``[batch, next_n]``: a query sees as many tokens as its own number says.
        block_table: int32 ``[batch, max_blocks]``.
        schedule_meta: Ignored.
        max_context_len: Columns of the result.
        clean_logits: Whether other logits are -inf, rather than unwritten.
        logits_dtype: float32 or bfloat16.
        indices: None.
    """
    refuse(_NOT_MAPPED, indices=indices)
    return _paged(q, kv_cache, weights, context_lens, block_table, max_context_len, clean_logits, logits_dtype)


@adapted(_PAGED | {"q": "q[0]"}, axes=_PAGED_AXES)
def fp8_fp4_paged_mqa_logits(
    q: tuple[Tensor, Tensor | None],
    kv_cache: Tensor,
    weights: Tensor,
    context_lens: Tensor,
    block_table: Tensor,
    schedule_meta: Tensor | None,
    max_context_len: int,
    clean_logits: bool = False,
    logits_dtype: torch.dtype = torch.float32,
    indices: Tensor | None = None,
) -> Tensor:
    """:func:`fp8_paged_mqa_logits` with queries in a pair.

    Args:
        q: float8_e4m3fn ``[batch, next_n, heads, head_dim]``, and None: scales of queries are factors of weights.
        kv_cache: uint8 ``[num_blocks, block_kv, 1, head_dim + 4]``: of each block the codes of all tokens, then their scales.
        weights: float32 ``[batch * next_n, heads]``.
        context_lens: int32 ``[batch]`` or ``[batch, next_n]``.
        block_table: int32 ``[batch, max_blocks]``.
        schedule_meta: Ignored.
        max_context_len: Columns of the result.
        clean_logits: Whether other logits are -inf, rather than unwritten.
        logits_dtype: float32 or bfloat16.
        indices: None.
    """
    refuse(_NOT_MAPPED, indices=indices)
    return _paged(_codes(q), kv_cache, weights, context_lens, block_table, max_context_len, clean_logits, logits_dtype)


@adapted(axes={"context_lens": _LENGTHS})
def get_paged_mqa_logits_metadata(context_lens: Tensor, block_kv: int, num_sms: int, indices: Tensor | None = None) -> Tensor:
    """A tensor that :func:`fp8_paged_mqa_logits` takes and does not read: int32 ``[num_sms + 1, 2]``.

    Args:
        context_lens: int32 ``[batch]`` or ``[batch, next_n]``.
        block_kv: Tokens of a block.
        num_sms: Multiprocessors.
        indices: None.
    """
    refuse(_NOT_MAPPED, indices=indices)
    if num_sms < 0:
        raise ValueError(f"num_sms: got {num_sms}, want 0 or more")
    return context_lens.new_zeros((num_sms + 1, 2), dtype=torch.int32)


def set_num_sms(num_sms: int) -> None:
    """Keeps a number of multiprocessors for :func:`get_num_sms`, and does nothing else with it."""
    global _num_sms
    _num_sms = num_sms


def get_num_sms() -> int:
    """The number kept by :func:`set_num_sms`; without one, the multiprocessors of the current device."""
    return _num_sms or (torch.cuda.get_device_properties().multi_processor_count if torch.cuda.is_available() else 0)


def _codes(q: tuple[Tensor, Tensor | None]) -> Tensor:
    codes, scales = q
    refuse(_E4M3_ALONE, **{"q[1]": scales})
    return codes


def _check_dtype(logits_dtype: torch.dtype) -> None:
    check(logits_dtype in (torch.float32, torch.bfloat16), "logits_dtype", logits_dtype, "torch.float32 or torch.bfloat16")


def _flat(
    q: Tensor,
    kv: tuple[Tensor, Tensor],
    weights: Tensor,
    first: Tensor,
    last: Tensor,
    clean: bool,
    columns: int,
    dtype: torch.dtype,
) -> Tensor:
    _check_dtype(dtype)
    check(columns >= 0, "max_seqlen_k", columns, "0 or more")
    k, k_scale = kv
    logits = index_logits(q, k, k_scale, weights, first=first, last=last, keep_outside=not clean, dtype=dtype)
    return logits if columns == 0 else _compressed(logits, first, columns)


def _compressed(logits: Tensor, first: Tensor, columns: int) -> Tensor:
    """Each row from the first token that it sees on. Columns that a row does not have are -inf."""
    tokens = logits.shape[1]
    if tokens == 0:
        return logits.new_full((len(logits), columns), -torch.inf)
    places = first.clamp(min=0)[:, None] + torch.arange(columns, device=first.device)
    return logits.gather(1, places.clamp(max=tokens - 1)).masked_fill_(places >= tokens, -torch.inf)


def _paged(
    q: Tensor,
    cache: Tensor,
    weights: Tensor,
    context_lens: Tensor,
    block_table: Tensor,
    columns: int,
    clean: bool,
    dtype: torch.dtype,
) -> Tensor:
    _check_dtype(dtype)
    if columns < 0:
        raise ValueError(f"max_context_len: got {columns}, want 0 or more")
    check(q.dim() == 4, "q.rank", q.dim(), "4 (batch, next_n, heads, head_dim)")
    batch, queries = q.shape[:2]
    if block_table.shape[0] != batch:
        raise ValueError(f"block_table.shape[0] (batch): got {block_table.shape[0]}, want {batch}, the batch of q")
    if context_lens.shape not in ((batch,), (batch, queries)):
        raise ValueError(f"context_lens.shape: got {list(context_lens.shape)}, want [{batch}] or [{batch}, {queries}]")
    if context_lens.dim() == 2:
        context_lens = context_lens.flatten()
        if queries != 1:  # each query is a sequence of its own
            block_table = block_table.repeat_interleave(queries, dim=0)
    k, k_scale = _views(cache)
    rows = q.flatten(0, 1)
    out = rows.new_empty((len(rows), columns), dtype=dtype)
    return index_logits(
        *(rows, k, k_scale, weights),
        block_table=block_table,
        kv_len=context_lens,
        keep_outside=not clean,
        out=out,
    )


def _views(cache: Tensor) -> tuple[Tensor, Tensor]:
    """Codes ``[blocks, page, head_dim]`` and scales ``[blocks, page]`` of a planar cache."""
    blocks, page, one, width = cache.shape
    if cache.dtype not in (torch.uint8, torch.int8, torch.float8_e4m3fn):
        raise ValueError(f"kv_cache.dtype: got {cache.dtype}, want torch.uint8")
    if page < 1 or one != 1 or width not in _WIDTHS:
        raise ValueError(f"kv_cache.shape: got {list(cache.shape)}, want [num_blocks, block_kv, 1, 68 or 132]")
    offset = 0 if torch.compiler.is_compiling() else cache.storage_offset()  # compilers do not trace it
    whole = (cache.stride(1), cache.stride(3)) == (width, 1)
    if cache.numel() > 0 and not (whole and cache.stride(0) % _SCALE_BYTES == offset % _SCALE_BYTES == 0):
        got = f"{list(cache.stride())} from byte {offset}"
        raise ValueError(f"kv_cache.strides: got {got}, want blocks in one piece that begin at multiples of 4 bytes")
    flat = cache.as_strided((blocks, page * width), (cache.stride(0), 1))
    codes = page * (width - _SCALE_BYTES)
    return flat[:, :codes].view(torch.float8_e4m3fn).unflatten(1, (page, -1)), flat[:, codes:].view(torch.float32)
