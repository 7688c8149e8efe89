# SPDX-License-Identifier: Apache-2.0
"""Decode over paged caches of every format on this machine's GPU, and appending to them: checks each case against double precision,
and times it beside the ceilings, a bf16 cache of as many tokens, and vLLM's and FlashInfer's kernels where they can be imported.

Writes a JSON file. Times are medians with L2 flushed between runs, as CUDA graphs. Formats that the GPU declines are left out."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import kv_peers
import paged_decode
import torch
from gpu import DEVICE, Bench
from paged_decode import Append, AppendCase, Paged, random_rows, relative_error
from torch import Tensor

import fovea

FORMATS = fovea.kv_formats()
NAMES = ("bf16", "e4m3", *FORMATS)
E2M1 = (0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6)
CHUNK = 1 << 16  # tokens that are appended at once
# Relative error of stored normal values; a wrong scale or order of codes is far beyond it.
STORED = {"int8_token": 0.01, "e4m3_token": 0.035, "int4_token": 0.14, "e5m2": 0.07, "nvfp4": 0.13, "mxfp4": 0.17, "mxfp8": 0.035}


@dataclass
class Case(paged_decode.Case):
    format: str = "rows"
    v_format: str = ""  # that of keys
    inline: bool = False  # the scales of a row lie behind its codes, as in vLLM

    @property
    def name(self) -> str:
        formats = self.format if self.formats[0] == self.formats[1] else " and ".join(self.formats)
        return super().name + (f" {formats}" if formats != "rows" else "") + (" inline" if self.inline else "")

    @property
    def formats(self) -> tuple[str, str]:
        return self.format, self.v_format or self.format


@dataclass
class FormatAppend(AppendCase):
    inline: bool = False

    @property
    def name(self) -> str:
        return super().name + (" inline" if self.inline else "")


def case_of(name: str, batch: int, kv_len: int, page: int, inline: bool = False) -> Case:
    if name in FORMATS:
        return Case(batch, kv_len, page, format=name, inline=inline)
    return Case(batch, kv_len, page, cache=name)


SHAPES = ((64, 8192, 64), (64, 8192, 16), (128, 8192, 64), (1, 32768, 64))
DECODE = [case_of(name, *shape) for shape in SHAPES for name in NAMES]
PAIRS = [
    Case(64, 8192, page, format=k, v_format=v)
    for page in (64, 16)
    for k, v in (("rows", "int8_token"), ("rows", "nvfp4"), ("int8_token", "int4_token"), ("e4m3_token", "nvfp4"))
]
INLINE = [case_of(name, 64, 8192, 16, inline=True) for name in ("int8_token", "e4m3_token", "int4_token")]
APPEND = [FormatAppend(tokens, name) for tokens in (64, 8192, 65536) for name in FORMATS]
APPEND_INLINE = [FormatAppend(8192, name, inline=True) for name in ("int8_token", "e4m3_token", "int4_token")]


@cache
def reads(name: str) -> bool:
    """Whether this machine decodes over the format."""
    try:
        Formatted(case_of(name, 1, 100, 16)).run()
    except NotImplementedError:
        return False
    return True


def decoded(name: str, codes: Tensor, scales: Tensor | None) -> Tensor:
    """The values in double precision. Scales have the shape of the codes without, or with groups as, the last dimension."""
    of = FORMATS[name]
    if of.bits == 4:
        pairs = codes.view(torch.uint8)
        numbers = torch.stack([pairs & 15, pairs >> 4], -1).flatten(-2)
        values = torch.tensor(E2M1, device=codes.device)[numbers.int()] if of.code == "e2m1" else numbers
    else:
        values = codes.view({"i8": torch.int8, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}[of.code])
    values = values.double()
    if scales is None:
        return values
    if of.scale == "token_zero":
        bits = scales.view(torch.int32)
        return (values - (bits & 15)[..., None]) * (bits & -16).view(torch.float32).double()[..., None]
    if of.scale == "token":
        return values * scales.double()[..., None]
    blocks = scales.double() if of.scale == "block_e4m3" else 2.0 ** (scales.view(torch.uint8).double() - 127)
    return values * blocks.repeat_interleave(of.group, -1)


def gathered(tensor: Tensor | None, *index: Tensor) -> Tensor | None:
    """torch indexes bytes on every device, and not each 8-bit float."""
    if tensor is None or tensor.itemsize > 1:
        return None if tensor is None else tensor[index]
    return tensor.view(torch.uint8)[index].view(tensor.dtype)


class Formatted(Paged):
    """Its caches hold normal rows, which were appended."""

    def __init__(self, case: Case) -> None:
        self.of = [FORMATS.get(name) for name in case.formats]
        self.row_scales: list[Tensor | None] = []
        super().__init__(case)
        self.clean = False
        if self.is_formatted:
            names = ("k_format", "v_format", "k_scale_cache", "v_scale_cache")
            self.scales = dict(zip(names, (*case.formats, *self.row_scales), strict=True))
            rows = sum(2 * case.head_dim if of is None else of.row_bytes(case.head_dim) for of in self.of)
            self.bytes = sum(self.kv_lens) * case.kv_heads * rows + 4 * self.q.numel()
            self.fill(self.k.shape[0] * case.page)

    @property
    def is_formatted(self) -> bool:
        return any(self.of)

    def fill(self, slots: int) -> None:
        for begin in range(0, slots, CHUNK):
            slot = torch.arange(begin, min(begin + CHUNK, slots), device=DEVICE)
            rows = (random_rows(len(slot), self.case.kv_heads, self.case.head_dim) for _ in range(2))
            fovea.paged_cache_append(*rows, self.k, self.v, slot, **self.scales)

    def random_cache(self, blocks: int) -> Tensor:
        case, of = self.case, self.of[len(self.row_scales)]
        if of is None:
            self.row_scales.append(None)
            return super().random_cache(blocks)
        codes, scales = of.empty(blocks, case.page, case.kv_heads, case.head_dim, inline=case.inline, device=DEVICE)
        self.row_scales.append(scales)
        return codes

    def rows_of(self, cache: Tensor, sequence: int) -> Tensor:
        side = 0 if cache is self.k else 1
        if self.of[side] is None:
            return super().rows_of(cache, sequence)
        taken = (gathered(of, self.table[sequence].long()) for of in (cache, self.row_scales[side]))
        return decoded(self.case.formats[side], *taken).flatten(0, 1)[: self.kv_lens[sequence]].transpose(0, 1)

    @property
    def uniform(self) -> bool:
        return not self.is_formatted and super().uniform

    def peers(self, shared: bool) -> dict[str, Callable[[], Tensor]]:
        del shared
        found, self.peer_errors = kv_peers.wanted(self) if DEVICE == "cuda" else ({}, {})
        if self.is_formatted or self.case.cache != "bf16":
            plain = Formatted(replace(self.case, format="rows", v_format="", cache="bf16", inline=False))
            self.peer_errors["bf16 cache"] = plain.check()
            found["bf16 cache"] = plain.run
        return found


class FormatAppended(Append):
    """New rows into slots in any order of a cache of codes."""

    def __init__(self, case: FormatAppend) -> None:
        super().__init__(replace(case, cache="bf16"))
        self.case, self.of = case, FORMATS[case.cache]
        blocks = self.caches[0].shape[0]
        pairs = [
            self.of.empty(blocks, case.page, case.kv_heads, case.head_dim, inline=case.inline, device=DEVICE) for _ in range(2)
        ]
        self.caches, self.row_scales = [codes for codes, _ in pairs], [scales for _, scales in pairs]
        self.options = {"k_format": case.cache, "v_format": case.cache} | dict(
            zip(("k_scale_cache", "v_scale_cache"), self.row_scales, strict=True)
        )
        rows = 2 * case.tokens * case.kv_heads
        self.bytes = rows * (2 * case.head_dim + self.of.row_bytes(case.head_dim))

    def run(self, schedule: None = None) -> Tensor:
        del schedule
        fovea.paged_cache_append(*self.rows, *self.caches, self.slots, **self.options)
        return self.caches[0]

    def check(self, call: Callable[[], Tensor] | None = None) -> float:
        """Stored rows are near the given ones. Tests of appending compare every byte."""
        (call or self.run)()
        blocks, tokens = self.slots // self.case.page, self.slots % self.case.page
        for rows, codes, scales in zip(self.rows, self.caches, self.row_scales, strict=True):
            taken = (gathered(of, blocks, tokens) for of in (codes, scales))
            relative_error(decoded(self.case.cache, *taken), rows.double(), "stored rows", STORED[self.case.cache])
        return 0.0

    def peers(self, shared: bool) -> dict[str, Callable[[], Tensor]]:
        del shared
        return kv_peers.appending(self)[0] if DEVICE == "cuda" else {}


def main() -> None:
    bench = Bench("kv-formats", __doc__)
    decode = [case for case in DECODE if reads(case.format if case.format != "rows" else case.cache)]
    for kind, cases in (("decode", decode), ("pairs", PAIRS), ("inline", INLINE)):
        bench.rows(cases, lambda case: bench.row(Formatted(case)), bench.results.setdefault(kind, []))
    for kind, cases in (("append", APPEND), ("append_inline", APPEND_INLINE)):
        bench.rows(cases, lambda case: bench.row(FormatAppended(case)), bench.results.setdefault(kind, []))
    bench.finish()


if __name__ == "__main__":
    main()
