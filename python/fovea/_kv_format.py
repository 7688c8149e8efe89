# SPDX-License-Identifier: Apache-2.0
"""How a paged cache stores rows of K and V: the formats, and new caches of them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fovea._calls import adapted

_CODES = {"i8": torch.int8, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


@dataclass(frozen=True)
class KvFormat:
    """How a paged cache stores a row of K or of V, one token of one kv head: codes, and scales in a tensor of their own.

    A value is ``code * scale``; of int4_token ``(code - zero) * scale``. docs/kv_formats.md has each layout in bytes.
    """

    name: str
    code: str
    """i8, e4m3, e5m2, u4 or e2m1; of two 4-bit codes in a byte, the even one is in the low four bits."""
    bits: int
    """Bits of a code."""
    scale: str
    """none, token (float32 or float16), token_zero (float32 with the zero point in its four lowest bits), block_e4m3 or
    block_ue8m0."""
    group: int
    """Values that share a scale; 0: the row."""
    has_global: bool
    """Whether ``k_scale`` and ``v_scale`` multiply its values too."""

    @adapted()
    def code_bytes(self, head_dim: int) -> int:
        """Bytes of the codes of a row: the last dimension of the cache."""
        return head_dim * self.bits // 8

    @adapted()
    def row_bytes(self, head_dim: int, scale_dtype: torch.dtype = torch.float32) -> int:
        """Bytes of a row with its scales."""
        return self.code_bytes(head_dim) + self._scales(head_dim) * self._scale_dtype(scale_dtype).itemsize

    @adapted()
    def empty(
        self,
        blocks: int,
        page: int,
        kv_heads: int,
        head_dim: int,
        *,
        scale_dtype: torch.dtype = torch.float32,
        inline: bool = False,
        device: torch.device | str | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """A new cache of K or of V, and its scales: None where the format has none. Not initialised.

        Args:
            blocks: Blocks of the cache.
            page: Tokens of a block.
            kv_heads: Heads of the cache.
            head_dim: Values of a row.
            scale_dtype: float32, or float16 where a row has one scale without a zero point.
            inline: Whether the scales of a row lie behind its codes, as vLLM has them, or in memory of their own.
            device: The device of both tensors.
        """
        for name, got, least in (("blocks", blocks, 0), ("page", page, 1), ("kv_heads", kv_heads, 0), ("head_dim", head_dim, 0)):
            if got < least:
                raise ValueError(f"{name}: got {got}, want {least} or more")
        step = self.group or 8 // self.bits
        if head_dim % step:
            raise ValueError(f"head_dim: got {head_dim}, want a multiple of {step} ({self.name})")
        if scale_dtype not in (torch.float32, torch.float16) or (scale_dtype == torch.float16 and self.scale != "token"):
            raise ValueError(f"scale_dtype: got {scale_dtype}, want float32, or float16 of a format with one scale a row")
        dtype, codes = self._scale_dtype(scale_dtype), self.code_bytes(head_dim)
        size = self._scales(head_dim) * dtype.itemsize
        if inline and (codes % dtype.itemsize or size % dtype.itemsize):
            raise ValueError(f"head_dim: got {head_dim}, want rows of codes that scales of {dtype.itemsize} bytes may follow")
        if inline:
            rows = torch.empty(blocks, page, kv_heads, codes + size, dtype=torch.uint8, device=device)
            cache, scales = rows[..., :codes], rows[..., codes:]
        else:
            cache = torch.empty(blocks, page, kv_heads, codes, dtype=torch.uint8, device=device)
            scales = torch.empty(blocks, page, kv_heads, size, dtype=torch.uint8, device=device)
        cache = cache.view(_CODES.get(self.code, torch.uint8))
        if self.scale == "none":
            return cache, None
        scales = scales.view(dtype)
        return cache, scales if self.group else scales[..., 0]

    def _scales(self, head_dim: int) -> int:
        """Scales of a row."""
        if self.scale == "none":
            return 0
        return head_dim // self.group if self.group else 1

    def _scale_dtype(self, of_row: torch.dtype) -> torch.dtype:
        blocks = {"block_e4m3": torch.float8_e4m3fn, "block_ue8m0": torch.uint8}
        return blocks.get(self.scale, of_row)


def _read_formats() -> dict[str, KvFormat]:
    formats = {}
    for line in torch.ops.fovea.kv_formats().splitlines():
        name, code, bits, scale, group, has_global = line.split("\t")
        formats[name] = KvFormat(name, code, int(bits), scale, int(group), bool(has_global))
    return formats


_FORMATS = _read_formats()


def kv_formats() -> dict[str, KvFormat]:
    """The formats by name, as the library itself reads and writes them."""
    return dict(_FORMATS)
