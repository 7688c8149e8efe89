# SPDX-License-Identifier: Apache-2.0
"""Random caches of latent rows in every format, and attention over them as something to check and to time."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch
from gpu import DEVICE
from peers import importable
from torch import Tensor

import fovea

LATENT = 512  # values of a row that are V too
GRAPH_BATCH = 8  # batches up to here run as a graph
WORST = 6e-3  # relative error of an output whose operands and result are rounded to bf16

BF16, F16, E4M3 = torch.bfloat16, torch.float16, torch.float8_e4m3fn
PACKED = fovea.cache_formats()
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]


@dataclass(frozen=True)
class Rows:
    """A cache that is not packed."""

    width: int
    dtype: torch.dtype
    q_dtype: torch.dtype


# rows, rows512, e4m3 and e4m3_512, under f16 queries with _f16 behind.
ROWS = {
    (name if width == 576 else name + small) + ("_f16" if q_dtype == F16 else ""): Rows(width, dtype or q_dtype, q_dtype)
    for (name, small, dtype), width, q_dtype in product([("rows", "512", None), ("e4m3", "_512", E4M3)], (576, 512), (BF16, F16))
}


def row_width(kind: str) -> int:
    return ROWS[kind].width if kind in ROWS else PACKED[kind].row


class Cache:
    """Random tokens, and their values by an independent reading of the bytes. kind: a name of ROWS or of PACKED."""

    def __init__(self, kind: str, blocks: int, page: int) -> None:
        self.page, self.slots, self.format = page, blocks * page, "rows" if kind in ROWS else kind
        self.packed, self.scale = PACKED.get(kind), None
        if self.packed:
            self.q_dtype, self.token_bytes = BF16, self.packed.bytes
            self.data = self.packed.empty(blocks, page, device=DEVICE)
            self.fill()
            return
        rows = ROWS[kind]
        self.q_dtype, self.token_bytes = rows.q_dtype, rows.width * rows.dtype.itemsize
        self.data = torch.randn(blocks, page, 1, rows.width, dtype=rows.q_dtype, device=DEVICE).to(rows.dtype)
        if rows.dtype == E4M3:
            self.scale = torch.full((1,), 0.75, device=DEVICE)

    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """Codes, scales and rope of each token, [blocks, page, bytes]."""
        form = self.packed
        codes, rope = form.codes // (2 if form.code_type == "e2m1" else 1), 2 * form.rope
        scales = form.codes // form.group * (4 if form.scale_type == "f32" else 1)
        if not form.planar:
            return self.data[..., :codes], self.data[..., codes : codes + scales], self.data[..., form.bytes - rope :]
        flat, end = self.data.flatten(1), self.page * (codes + rope)
        records, behind = flat[:, :end].unflatten(1, (self.page, -1)), flat[:, end:].unflatten(1, (self.page, -1))
        return records[..., :codes], behind[..., :scales], records[..., codes:]

    def fill(self) -> None:
        form, (codes, scales, rope) = self.packed, self.parts()
        groups = (*scales.shape[:2], form.codes // form.group)
        if form.code_type == "e2m1":
            codes.random_(0, 256)
        else:
            codes.copy_(torch.randn(codes.shape, dtype=BF16, device=DEVICE).to(E4M3).view(torch.uint8))
        if form.scale_type == "f32":
            scales.copy_((torch.rand(groups, device=DEVICE) + 0.5).view(torch.uint8))
        elif form.scale_type == "ue8m0":
            scales.random_(126, 129)  # 2^-1 to 2^1
        else:
            scales.copy_((torch.rand(groups, device=DEVICE) / 4 + 0.25).to(E4M3).view(torch.uint8))
        if form.rope:
            rope.copy_(torch.randn(*groups[:2], form.rope, dtype=BF16, device=DEVICE).view(torch.uint8))

    def read(self, slots: Tensor) -> Tensor:
        """Rows as a matrix unit sees them, in double precision."""
        block, offset = slots.long() // self.page, slots.long() % self.page
        if not self.packed:
            if self.scale is None:
                return self.data[block, offset, 0].double()
            return self.data.view(torch.uint8)[block, offset, 0].view(E4M3).double() * self.scale.double()
        codes, scales, rope = (part[block, offset].contiguous() for part in self.parts())
        if self.packed.code_type == "e2m1":
            table = torch.tensor(E2M1, device=DEVICE)
            values = torch.stack([table[codes.long() & 15], table[codes.long() >> 4]], -1).flatten(1)
        else:
            values = codes.view(E4M3).float()
        if self.packed.scale_type == "ue8m0":
            factors = (scales.int() << 23).view(torch.float32)
        else:
            factors = scales.view(torch.float32 if self.packed.scale_type == "f32" else E4M3).float()
        values = (values * factors.repeat_interleave(self.packed.group, 1)).bfloat16().double()
        return torch.cat([values, rope.view(BF16).double()], 1) if self.packed.rope else values


class LatentSubject:
    """The common part of dense and token-sparse attention. q and out: [batch, seq_q, head, ..]."""

    def __init__(self, batch: int, seq_q: int, heads: int, cache: Cache, width: int) -> None:
        self.cache, self.graph, self.layers, self.width = cache, batch <= GRAPH_BATCH, True, width
        self.q = torch.randn(batch, seq_q, heads, width, device=DEVICE).to(cache.q_dtype)
        self.out = torch.empty(*self.q.shape[:-1], LATENT, dtype=cache.q_dtype, device=DEVICE)

    def work(self, pairs: int, cache_bytes: int) -> None:
        """pairs: of a query and a key, for each head."""
        self.flops = 2 * pairs * self.q.shape[2] * (self.width + LATENT)
        self.bytes = cache_bytes + 2 * (self.q.numel() + self.out.numel())

    def run(self, schedule: fovea.LatentSchedule | None = None, out: Tensor | None = None) -> Tensor:
        """The call with all outputs that FlashMLA's call has, and their allocation."""
        raise NotImplementedError

    def flash_mla_call(self, shared: bool) -> Callable[[], Tensor] | None:
        """FlashMLA's call of the same work, with a shared schedule if there is one; None where FlashMLA has no such call."""
        return None

    def peers(self, shared: bool) -> dict[str, Callable[[], Tensor]]:
        call = self.flash_mla_call(shared) if importable("flash_mla") else None
        if call is None:
            return {}
        if shared:
            call()  # computes the schedule
        self.check(call)
        return {"FlashMLA": call}

    def samples(self) -> Iterator[tuple[int, int, Tensor]]:
        """Sequence, query and the keys that it sees, of some queries."""
        raise NotImplementedError

    def check(self, call: Callable[[], Tensor] | None = None) -> float:
        """The largest relative error of the samples, against double precision."""
        self.out.fill_(math.nan)
        out, worst = (call or partial(self.run, out=self.out))(), 0.0
        for batch, row, keys in self.samples():
            scores = self.q[batch, row].double() @ keys.T * self.width**-0.5
            want = scores.softmax(-1) @ keys[:, :LATENT]
            error = float((out[batch, row].double() - want).norm() / want.norm())
            if not error < WORST:  # NaN must fail too
                raise ArithmeticError(f"sequence {batch}, query {row}: relative error {error:.1e}")
            worst = max(worst, error)
        return worst
