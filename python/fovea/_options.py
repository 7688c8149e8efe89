# SPDX-License-Identifier: Apache-2.0
"""For type checkers: what several functions take beside the arguments that decide what they return. Each adds its own beside it."""

from typing import Literal, TypedDict

from torch import Tensor


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


class PackedMask(TypedDict, total=False):
    packed_mask: Tensor | None
    mask_indptr: Tensor | None
    mask_tail: int | None


class Lengths(TypedDict, total=False):
    cu_seqlens_q: Tensor | None
    cu_seqlens_k: Tensor | None
    max_seqlen_q: int | None
    max_seqlen_k: int | None


class CacheLengths(TypedDict, total=False):
    max_seqlen_q: int
    max_kv_len: int
