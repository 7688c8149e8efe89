# SPDX-License-Identifier: Apache-2.0
"""Packed caches of latent rows: the formats, and conversion both ways."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fovea._calls import adapted, checked
from fovea._dispatch import OPERATORS

_quantize_latent_cache = OPERATORS["quantize_latent_cache"]
_dequantize_latent_cache = OPERATORS["dequantize_latent_cache"]


@dataclass(frozen=True)
class CacheFormat:
    """How a packed latent cache stores a token: quantised values, one scale for each group of them, and plain bfloat16 values.

    A value is ``code * scale`` in float32, rounded once to bfloat16 for a matrix unit.
    """

    name: str
    bytes: int
    """Bytes of a token."""
    row: int
    """Values of a token: ``codes + rope``."""
    codes: int
    """Quantised values, the first of the row."""
    code_type: str
    """e4m3 or e2m1."""
    group: int
    """Values that share a scale."""
    scale_type: str
    """f32, ue8m0 (a power of two) or e4m3."""
    rope: int
    """bfloat16 values behind the quantised ones."""
    planar: bool
    """Whether a block holds the quantised values and rope of all its tokens first and their scales last, or token by token.
    In a planar cache ``cache[block, slot]`` is no token: copy whole blocks, or read and write tokens through slots."""

    @adapted()
    def empty(self, blocks: int, page: int, *, device: torch.device | str | None = None) -> Tensor:
        """A new cache, uint8 ``[blocks, page, bytes]``, not initialised. Blocks begin at multiples of 16 bytes, as GPU kernels need
        them. If ``page * bytes`` is no such multiple, there are gaps between blocks."""
        for name, got, least in (("blocks", blocks, 0), ("page", page, 1)):
            if got < least:
                raise ValueError(f"{name}: got {got}, want {least} or more")
        stride = -(-page * self.bytes // 16) * 16
        memory = torch.empty(blocks, stride, dtype=torch.uint8, device=device)
        return memory[:, : page * self.bytes].unflatten(1, (page, self.bytes))


def _read_formats() -> dict[str, CacheFormat]:
    formats = {}
    for line in torch.ops.fovea.cache_formats().splitlines():
        name, size, row, codes, code_type, group, scale_type, rope, planar = line.split("\t")
        formats[name] = CacheFormat(
            name, int(size), int(row), int(codes), code_type, int(group), scale_type, int(rope), bool(planar)
        )
    return formats


_FORMATS = _read_formats()


def cache_formats() -> dict[str, CacheFormat]:
    """The packed formats by name, as the library itself reads and writes them."""
    return dict(_FORMATS)


@checked
def quantize_latent_cache(
    rows: Tensor,
    cache: Tensor,
    slot_mapping: Tensor,
    *,
    format: str,
    exact_scale: bool = False,
    implementation: str | None = None,
) -> None:
    """Packs latent rows into slots of a packed cache: row t goes to block ``slot // page``, position ``slot % page`` of it.

    Args:
        rows: ``[tokens, row]``, float32, float16 or bfloat16; ``row`` as the format says, 512 or 576.
        cache: uint8 ``[blocks, page, bytes]``, written in place; the block stride is free.
        slot_mapping: int64 ``[tokens]``; -1 skips a row.
        format: One of :func:`fovea.cache_formats`.
        exact_scale: Whether the scale of a group is its largest magnitude over 448, rather than the next power of two. Formats
            whose scales are powers of two round up in either mode; v41_fp4 always takes the largest magnitude over 6, as e4m3, so
            that groups below about 0.006 become zeros, and values saturate at 2688.
        implementation: Forces one of :func:`fovea.implementations` by name.

    Raises:
        ValueError: The call contradicts itself; on the CPU a slot outside the cache, too: nothing is written then. On a GPU such a
            slot is skipped.
        NotImplementedError: No implementation accepts it, each with its reason; or a gradient is wanted.

    Source: the cache formats of DeepSeek-V3.2 (2025) and its successors.
    """
    _quantize_latent_cache(rows, cache, slot_mapping, format, exact_scale, implementation or "")


@checked
def dequantize_latent_cache(
    cache: Tensor,
    slot_mapping: Tensor,
    *,
    format: str,
    dtype: torch.dtype = torch.bfloat16,
    rows: Tensor | None = None,
    implementation: str | None = None,
) -> Tensor:
    """Unpacks slots of a packed cache into rows.

    Args:
        cache: uint8 ``[blocks, page, bytes]``; the block stride is free.
        slot_mapping: int64 ``[tokens]``; where it is -1 the row is left as it is, which is 0 in a new tensor.
        format: One of :func:`fovea.cache_formats`.
        dtype: The dtype of a new tensor: float32, float16 or bfloat16.
        rows: Written and returned instead of a new tensor: ``[tokens, row]``.
        implementation: Forces one of :func:`fovea.implementations` by name.

    Returns:
        rows: ``code * scale`` in float32, rounded once.

    Raises:
        ValueError: The call contradicts itself; on the CPU a slot outside the cache, too: nothing is written then. On a GPU such a
            slot is skipped.
        NotImplementedError: No implementation accepts it, each with its reason.

    Source: the cache formats of DeepSeek-V3.2 (2025) and its successors.
    """
    if rows is None:
        width = _FORMATS[format].row if format in _FORMATS else 0  # the operator refuses an unknown format
        rows = cache.new_zeros((slot_mapping.numel(), width), dtype=dtype)
    _dequantize_latent_cache(rows, cache, slot_mapping, format, implementation or "")
    return rows
