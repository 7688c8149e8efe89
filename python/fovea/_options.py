# SPDX-License-Identifier: Apache-2.0
"""For type checkers: what functions take beside the arguments that decide what they return. The functions say what it means."""

from typing import Literal, TypedDict

import torch
from torch import Tensor

from fovea._latent_schedule import LatentSchedule


class Implementation(TypedDict, total=False):
    implementation: str | None


class Call(Implementation, total=False):
    out: Tensor | None
    batch_invariant: bool


class Mask(TypedDict, total=False):
    causal: bool
    window: tuple[int | None, int | None] | None
    scale: float | None


class DenseMask(Mask, total=False):
    anchor: Literal["bottom_right", "top_left"]


class Lengths(TypedDict, total=False):
    cu_seqlens_q: Tensor | None
    cu_seqlens_k: Tensor | None
    max_seqlen_q: int | None
    max_seqlen_k: int | None


class CacheLengths(TypedDict, total=False):
    max_seqlen_q: int
    max_kv_len: int


class AttentionOptions(Call, DenseMask, Lengths, total=False):
    softcap: float
    sink: Tensor | None
    q_scale: Tensor | float | None
    k_scale: Tensor | float | None
    v_scale: Tensor | float | None


class BackwardOptions(Implementation, DenseMask, Lengths, total=False):
    softcap: float


class PagedOptions(Call, Mask, CacheLengths, total=False):
    softcap: float
    sink: Tensor | None
    k_scale: Tensor | float | None
    v_scale: Tensor | float | None


class LatentOptions(Call, Mask, CacheLengths, total=False):
    format: str
    cache_scale: Tensor | float | None
    schedule: LatentSchedule | None


class SparseOptions(Call, total=False):
    format: str
    extra_cache: Tensor | None
    extra_indices: Tensor | None
    extra_topk_length: Tensor | None
    extra_format: str
    scale: float | None
    sink: Tensor | None
    schedule: LatentSchedule | None


class QuantizedOptions(Call, DenseMask, Lengths, total=False):
    dtype: torch.dtype


class QuantizeOptions(Call, DenseMask, Lengths, total=False):
    granularity: Literal["block", "warp", "thread"]
    warp_rows: int
    v_dtype: torch.dtype
    smooth_k: bool
    smooth_v: bool


class MergeOptions(Implementation, total=False):
    out: Tensor | None
