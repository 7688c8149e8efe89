# SPDX-License-Identifier: Apache-2.0
"""Caches of flash-attn's layouts, for the tests of functions that read and fill them."""

import torch


def int32(*numbers, device="cpu"):
    return torch.tensor(numbers, dtype=torch.int32, device=device)


def lengths(counts):
    return torch.tensor([0, *counts]).cumsum(0).int()


class Cache:
    """Keys and values of some sequences with room for more, dense or in pages, and NaN in every place without a token."""

    def __init__(self, counts, room, page=None, heads=2, dim=16):
        self.counts = torch.tensor(counts, dtype=torch.int32)
        self.k, self.v = (torch.full((len(counts), room, heads, dim), torch.nan) for _ in "kv")
        for row, count in enumerate(counts):
            self.k[row, :count], self.v[row, :count] = torch.randn(2, count, heads, dim)
        self.k_cache, self.v_cache, self.options = self.k.clone(), self.v.clone(), {}
        if page:
            blocks = room // page
            table = torch.randperm(len(counts) * blocks + 2, dtype=torch.int32)[: len(counts) * blocks].view(-1, blocks)
            for name in ("k", "v"):
                pages = torch.full((len(counts) * blocks + 2, page, heads, dim), torch.nan)
                pages[table.flatten().long()] = getattr(self, name).view(-1, page, heads, dim)
                setattr(self, f"{name}_cache", pages)
            self.options = {"block_table": table}

    def read(self, name):
        """The contents of the cache now, ``[batch, room, heads, dim]``."""
        cache = getattr(self, f"{name}_cache")
        return cache[self.options["block_table"].long()].flatten(1, 2) if self.options else cache


def rotated(x, positions, cos, sin, interleaved):
    """Each pair of numbers as a complex one, turned by its angle."""
    half, x = cos.shape[1], x.double()
    turn = torch.complex(cos[positions].double(), sin[positions].double())[:, None]
    turned, rest = x[..., : 2 * half], x[..., 2 * half :]
    pairs = turned.unflatten(-1, (half, 2)) if interleaved else torch.stack(turned.chunk(2, -1), -1)
    result = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turn)
    return torch.cat([result.flatten(-2) if interleaved else torch.cat(result.unbind(-1), -1), rest], -1)
