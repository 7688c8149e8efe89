# SPDX-License-Identifier: Apache-2.0
"""Checked arguments of plan(): numbers on the host, and heads, dims and dtypes that run() computes."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fovea._attention import attention
from fovea._kv_format import kv_formats
from fovea._paged import paged_attention
from fovea.compat.flashinfer._dense import dense_dtype
from fovea.compat.flashinfer._terms import EIGHT_BITS, FOUR_BITS, Scores, dtype_of, want, want_sizes

_INTEGERS = (torch.int32, torch.int64, torch.int16, torch.int8, torch.uint8)
INT32_MAX = (1 << 31) - 1


def want_integers(tensors: Mapping[str, Tensor], device: torch.device | None = None) -> None:
    """Whether tensors hold integers, on a device if that is given, and otherwise on any that has their numbers."""
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided:
            want(False, f"{name}.layout", tensor.layout, "torch.strided")
        if tensor.is_meta if device is None else tensor.device != device:
            want(False, f"{name}.device", tensor.device, device or "one with numbers")
        if tensor.dtype not in _INTEGERS and tensor.numel():  # torch.tensor([]) is of float32
            want(False, f"{name}.dtype", tensor.dtype, "torch.int32, or another dtype of integers")


def int32_of(numbers: Tensor) -> Tensor:
    """Numbers of a page list or a block table; those that int32 lacks become ones that no cache has."""
    return numbers.clamp(-1, INT32_MAX).to(torch.int32) if numbers.dtype == torch.int64 else numbers.to(torch.int32)


def checked_indptr(name: str, indptr: Tensor) -> Tensor:
    """int64 ``[batch + 1]`` on the host: numbers from 0 on that do not decrease. Waits for the device of the tensor."""
    want_integers({name: indptr})
    ends = indptr.to("cpu", torch.int64)
    want(len(ends) > 0, f"{name}.shape[0]", 0, "1 or more (batch + 1)")
    falls = ends[1:] < ends[:-1]
    if int(ends[0]) < 0 or bool(falls.any()):
        at = 0 if int(ends[0]) < 0 else 1 + int(falls.nonzero()[0])
        want(False, f"{name}[{at}]", int(ends[at]), "0 or more" if at == 0 else f"{int(ends[at - 1])} or more ({name}[{at - 1}])")
    want(int(ends[-1]) <= INT32_MAX, f"{name}[{len(ends) - 1}]", int(ends[-1]), f"at most {INT32_MAX}")
    return ends


def longest(ends: Tensor) -> int:
    return int(ends.diff().max()) if len(ends) > 1 else 0


def checked_lengths(counts: Tensor, name: str, last_page_len: Tensor, page_size: int) -> Tensor:
    """The tokens of each sequence, int64 on the host. counts: its pages, from a checked indptr; name: that of last_page_len."""
    want_integers({name: last_page_len})
    want_sizes(INT32_MAX, page_size=page_size)
    last = last_page_len.to("cpu", torch.int64)
    want(len(last) == len(counts), f"{name}.shape[0]", len(last), f"{len(counts)} (sequences of the indptr)")
    used = counts > 0
    wrong = ((last < 1) | (last > page_size)) & used
    if bool(wrong.any()):
        at = int(wrong.nonzero()[0])
        want(False, f"{name}[{at}]", int(last[at]), f"1 to {page_size} (page_size)")
    return torch.where(used, (counts - 1) * page_size + last, 0)


class PageList(NamedTuple):
    """The pages of a batch."""

    first: Tensor
    """int64 ``[batch]`` on the host: the place of each sequence's first page in indices."""
    indices: Tensor
    """As given."""
    lengths: Tensor
    """int64 ``[batch]`` on the host, tokens."""
    most: int
    """The pages of the longest sequence."""
    total: int
    """How many of indices there are."""

    @classmethod
    def of(cls, prefix: str, indptr: Tensor, indices: Tensor, last_page_len: Tensor, page_size: int) -> "PageList":
        """prefix: what the names of the three begin with."""
        ends = checked_indptr(f"{prefix}indptr", indptr)
        want_integers({f"{prefix}indices": indices})
        total, counts = int(ends[-1]), ends.diff()
        want(total <= len(indices), f"{prefix}indices.shape[0]", len(indices), f"{total} or more ({prefix}indptr[-1])")
        lengths = checked_lengths(counts, f"{prefix}last_page_len", last_page_len, page_size)
        most = int(counts.max()) if len(counts) else 0
        want(most * page_size <= INT32_MAX, f"page_size (tokens of {most} pages)", most * page_size, f"at most {INT32_MAX}")
        return cls(ends[:-1], indices, lengths, most, total)


class Shape(NamedTuple):
    """The heads, dims and dtypes that a plan expects of q, k and v, and the dtype that is written."""

    q_heads: int
    kv_heads: int
    dim_qk: int
    dim_v: int
    q_dtype: torch.dtype
    kv_dtype: torch.dtype
    written: torch.dtype

    @classmethod
    def of(cls, heads: tuple[int, int], dims: tuple[int, int], q: Any, kv: Any, out: Any) -> "Shape":
        """Dtypes as plan() gets them: kv and out are q's if None."""
        want_sizes(65535, num_qo_heads=heads[0], num_kv_heads=heads[1])
        want(heads[0] % heads[1] == 0, "num_qo_heads", heads[0], f"a multiple of {heads[1]} (num_kv_heads)")
        q_dtype = dtype_of("q_data_type", q)
        kv_dtype = q_dtype if kv is None else dtype_of("kv_data_type", kv)
        usual = torch.bfloat16 if q_dtype in EIGHT_BITS else q_dtype
        written = usual if out is None else dtype_of("o_data_type", out)
        if written != usual and (q_dtype not in EIGHT_BITS or written != torch.float16):
            wanted = f"{usual} or torch.float16" if q_dtype in EIGHT_BITS else usual
            raise NotImplementedError(f"o_data_type: got {out}, want {wanted} (of q in {q_dtype})")
        return cls(*heads, *dims, q_dtype, kv_dtype, written)

    def check(self, q: Tensor, k: Tensor, v: Tensor, names: tuple[str, str] = ("k", "v")) -> None:
        """names: those of k and v."""
        dim_qk, dim_v = self.row_sizes
        if (q.dtype, k.dtype, v.dtype) == (self.q_dtype, self.kv_dtype, self.kv_dtype) and (
            (*q.shape[-2:], *k.shape[-2:], *v.shape[-2:])
            == (self.q_heads, self.dim_qk, self.kv_heads, dim_qk, self.kv_heads, dim_v)
        ):
            return  # before any text is made, which takes longer than the call
        planned = {
            "q": (q, self.q_dtype, (self.q_heads, self.dim_qk)),
            names[0]: (k, self.kv_dtype, (self.kv_heads, dim_qk)),
            names[1]: (v, self.kv_dtype, (self.kv_heads, dim_v)),
        }
        for name, (tensor, dtype, shape) in planned.items():
            want(tensor.dtype == dtype, f"{name}.dtype", tensor.dtype, f"{dtype}, as planned")
            got = tuple(tensor.shape[-2:])
            want(got == shape, f"{name}.shape[-2:] (heads, head_dim)", got, f"{shape}, as planned")

    @property
    def row_sizes(self) -> tuple[int, int]:
        """The last extents of k and v."""
        per = 2 if self.kv_dtype == FOUR_BITS else 1
        return self.dim_qk // per, self.dim_v // per

    @property
    def over_pages(self) -> tuple[torch.dtype, torch.dtype]:
        """The dtypes of q and of pages that Fovea's paged attention reads, which hold the values of these exactly."""
        small = (*EIGHT_BITS, FOUR_BITS)
        q = self.q_dtype if self.q_dtype not in EIGHT_BITS else self.kv_dtype if self.kv_dtype not in small else self.written
        return q, (q if self.kv_dtype == torch.float8_e5m2 else self.kv_dtype)

    @property
    def dense(self) -> tuple[torch.dtype, torch.dtype]:
        """The same of dense attention."""
        dtype = dense_dtype((self.q_dtype, self.kv_dtype), self.written)
        q, kv = (dtype if dtype and each in EIGHT_BITS else each for each in (self.q_dtype, self.kv_dtype))
        return q, kv


@lru_cache(maxsize=1024)
def try_pages(
    device: torch.device, shape: Shape, page_size: int, scores: Scores, batch_invariant: bool, masked: bool = False
) -> None:
    """Runs a batch of one row, and raises what run() would raise."""
    q_dtype, kv_dtype = shape.over_pages
    q, page = _empty(device, q_dtype, 1, shape.q_heads, shape.dim_qk), min(page_size, 64)
    ends = torch.arange(2, dtype=torch.int32, device=device)
    options = scores.options(shape.dim_qk, 1.0) | {"batch_invariant": batch_invariant, "max_seqlen_q": 1}
    sides = [_one_page(device, kv_dtype, page, shape.kv_heads, dim) for dim in (shape.dim_qk, shape.dim_v)]
    k, v = (cache for cache, _ in sides)
    if kv_dtype == FOUR_BITS:
        options |= nvfp4(*(scales for _, scales in sides))
    if masked:
        options["packed_mask"] = _empty(device, torch.uint8, 1)
    paged_attention(q, k, v, ends[:1, None], ends[1:], ends, **options)


def nvfp4(k_scales: Tensor | None, v_scales: Tensor | None) -> dict[str, Any]:
    """Fovea's options of NVFP4 pages with these scales of blocks."""
    return {"k_format": "nvfp4", "v_format": "nvfp4", "k_scale_cache": k_scales, "v_scale_cache": v_scales}


def _one_page(device: torch.device, dtype: torch.dtype, page: int, heads: int, dim: int) -> tuple[Tensor, Tensor | None]:
    """Keys or values, and the scales of NVFP4 ones."""
    if dtype == FOUR_BITS:
        return kv_formats()["nvfp4"].empty(1, page, heads, dim, device=device)
    return _empty(device, dtype, 1, page, heads, dim), None


@lru_cache(maxsize=1024)
def try_dense(device: torch.device, shape: Shape, scores: Scores, batch_invariant: bool, masked: bool = False) -> None:
    """Runs a sequence of one row, and raises what run() would raise."""
    q_dtype, kv_dtype = shape.dense
    q = _empty(device, q_dtype, 1, shape.q_heads, shape.dim_qk)
    k, v = (_empty(device, kv_dtype, 1, shape.kv_heads, dim) for dim in (shape.dim_qk, shape.dim_v))
    ends = torch.arange(2, dtype=torch.int32, device=device)
    options = scores.options(shape.dim_qk, 1.0) | {"batch_invariant": batch_invariant}
    if masked:
        options["packed_mask"] = _empty(device, torch.uint8, 1)
    attention(q, k, v, cu_seqlens_q=ends, cu_seqlens_k=ends, **options)


def _empty(device: torch.device, dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=device)
