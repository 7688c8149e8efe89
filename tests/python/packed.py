# SPDX-License-Identifier: Apache-2.0
"""The packed cache formats once more, read byte by byte with torch: what the library's readers and writers are tested against."""

from dataclasses import dataclass

import torch
from torch import Tensor

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


@dataclass(frozen=True)
class Layout:
    bytes: int
    codes: int
    code: str
    group: int
    scale: str
    rope: int
    planar: bool = False
    pad: int = 0


LAYOUTS = {
    "v32_fp8": Layout(656, 512, "e4m3", 128, "f32", 64),
    "v4_fp8": Layout(584, 448, "e4m3", 64, "ue8m0", 64, planar=True, pad=1),
    "v41_fp8": Layout(528, 512, "e4m3", 32, "ue8m0", 0),
    "v41_fp8_planar": Layout(528, 512, "e4m3", 32, "ue8m0", 0, planar=True),
    "v41_fp4": Layout(288, 512, "e2m1", 16, "e4m3", 0),
}


def _parts(block: Tensor, layout: Layout) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, scales and rope of all tokens of a block [page, bytes], as bytes."""
    page = len(block)
    code_bytes = layout.codes // 2 if layout.code == "e2m1" else layout.codes
    if layout.planar:
        flat, record = block.flatten(), code_bytes + 2 * layout.rope
        records, scales = flat[: page * record].view(page, record), flat[page * record :].view(page, -1)
        codes, rope = records[:, :code_bytes], records[:, code_bytes:]
        return codes, scales[:, : scales.shape[1] - layout.pad], rope
    end = layout.bytes - 2 * layout.rope
    return block[:, :code_bytes], block[:, code_bytes:end], block[:, end:]


def _as(kind: str, data: Tensor) -> Tensor:
    data = data.contiguous()
    if kind == "e4m3":
        return data.view(torch.float8_e4m3fn).float()
    if kind == "f32":
        return data.view(torch.float32)
    if kind == "ue8m0":
        return torch.ldexp(torch.ones(data.shape), data.int() - 127)
    return torch.stack([E2M1[data.long() & 15], E2M1[data.long() >> 4]], dim=-1).flatten(-2)  # even index in the low nibble


def scales(cache: Tensor, format: str) -> Tensor:
    """[blocks, page, groups] of a cache [blocks, page, bytes]."""
    layout = LAYOUTS[format]
    return torch.stack([_as(layout.scale, _parts(block, layout)[1]) for block in cache])


def decode(cache: Tensor, format: str) -> Tensor:
    """All tokens of a cache [blocks, page, bytes], one after another, in float32, where each is exact."""
    layout, tokens = LAYOUTS[format], []
    for block in cache.contiguous():
        codes, scale, rope = _parts(block, layout)
        values = _as(layout.code, codes) * _as(layout.scale, scale).repeat_interleave(layout.group, dim=1)
        tokens.append(torch.cat([values, rope.contiguous().view(torch.bfloat16).float()], dim=1))
    return torch.cat(tokens) if tokens else torch.zeros(0, layout.codes + layout.rope)
