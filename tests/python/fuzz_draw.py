# SPDX-License-Identifier: Apache-2.0
"""Random parts of good calls."""

from collections.abc import Sequence
from random import Random
from typing import Any, TypeVar

import torch
from torch import Tensor

_T = TypeVar("_T")
E4M3 = torch.float8_e4m3fn
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


class Draw(Random):
    """A source of sizes, options and tensors. Tensors lie within larger ones, so that the memory around them can be watched."""

    def one_of(self, *values: _T) -> _T:
        return self.choice(values)

    def some(self, **options: Any) -> dict[str, Any]:
        """Each option with a probability of a third."""
        return {name: value for name, value in options.items() if self.random() < 1 / 3}

    def heads(self) -> tuple[int, int]:
        return self.one_of((4, 2), (2, 2), (3, 1), (6, 2))

    def window(self) -> tuple[int | None, int | None]:
        return self.one_of(None, 0, 3), self.one_of(None, 1, 4)

    def scores(self, **more: Any) -> dict[str, Any]:
        return self.some(causal=self.one_of(True, False), scale=self.uniform(0.05, 1), window=self.window(), **more)

    def rows(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return self.within(torch.randn(shape).to(dtype))

    def within(self, values: Tensor) -> Tensor:
        """The same values in wider memory, whose rest is NaN (or 1 in every bit)."""
        if values.dim() == 0 or self.random() < 0.5:
            return values
        pad = 16 // values.element_size() if values.dim() > 1 and self.random() < 0.5 else 0
        shape = [extent + 1 for extent in values.shape[:1]] + list(values.shape[1:])
        if values.dim() > 1 and pad:
            shape[-1] += pad
        memory = torch.empty(shape, dtype=values.dtype)
        memory.view(torch.uint8).fill_(255)
        view = memory[: values.shape[0], ..., : values.shape[-1]] if values.dim() > 1 else memory[: values.shape[0]]
        return view.copy_(values)

    def poison(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return self.within(torch.full(shape, torch.nan).to(dtype))

    def int32(self, values: Sequence[Any]) -> Tensor:
        return self.within(torch.tensor(values, dtype=torch.int32))

    def lengths(self, count: int, most: int = 9) -> list[int]:
        return [self.randint(0, most) for _ in range(count)]

    def ends(self, lengths: Sequence[int]) -> Tensor:
        return self.within(torch.tensor([0, *lengths]).cumsum(0).int())

    def blocks(self, lengths: Sequence[int], page: int, more: int = 1) -> tuple[Tensor, int]:
        """A block table for sequences of these lengths, with garbage behind each one's blocks, and the blocks of its cache."""
        counts = [-(-length // page) for length in lengths]
        total = sum(counts) + 1
        order = self.sample(range(total), total)
        table = torch.full((len(lengths), max(counts, default=0) + more), 2147480000, dtype=torch.int32)
        for row, count in enumerate(counts):
            table[row, :count] = torch.tensor([order.pop() for _ in range(count)], dtype=torch.int32)
        return self.within(table), total

    def slots(self, tokens: int, room: int) -> Tensor:
        """Different ones, and some rows skipped."""
        chosen = self.sample(range(room), tokens)
        return torch.tensor([-1 if self.random() < 0.2 else slot for slot in chosen], dtype=torch.int64)
