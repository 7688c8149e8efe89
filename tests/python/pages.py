# SPDX-License-Identifier: Apache-2.0
"""Paged latent caches full of traps, for the tests of whatever reads them."""

import torch

import fovea
import packed
import plain


class Pages:
    """Sequences in blocks in random order, with garbage in the rest of the block table. `rows` is what the cache holds, exactly."""

    def __init__(self, lengths, *, page=8, d=576, kv_head=1, dtype=torch.float32, format="rows"):
        per_sequence = [-(-length // page) for length in lengths]
        blocks = sum(per_sequence) + 2
        order = torch.randperm(blocks).tolist()
        self.page, self.format = page, format
        self.table = torch.full((len(lengths), max(per_sequence) + 1), 2147480000, dtype=torch.int32)
        self.kv_len = torch.tensor(lengths, dtype=torch.int32)
        slots = []
        for row, (length, count) in enumerate(zip(lengths, per_sequence, strict=True)):
            own = torch.tensor([order.pop() for _ in range(count)], dtype=torch.int32)
            self.table[row, :count] = own
            token = torch.arange(length)
            slots.append(own[token // page].long() * page + token % page)
        self.slots = slots
        where = torch.cat(slots)
        if format == "rows":
            wide = torch.full((blocks, page + 1, kv_head, d + 16), torch.nan).to(dtype)
            self.cache = wide[:, :page, :, :d]
            values = torch.randn(len(where), kv_head, d).to(dtype)
            self.cache[where // page, where % page] = values
            self.tokens = self.cache.flatten(0, 1)
        else:
            size = packed.LAYOUTS[format].bytes
            wide = torch.full((blocks, page * size + 48), 255, dtype=torch.uint8)  # unused tokens decode to NaN
            self.cache = wide[:, : page * size].unflatten(1, (page, size))
            fovea.quantize_latent_cache(torch.randn(len(where), d), self.cache, where, format=format)
            self.tokens = packed.decode(self.cache, format).bfloat16()[:, None]

    def rows(self, sequence, kv_head=0):
        return self.tokens[self.slots[sequence], kv_head].double()

    def expect(self, parts, **options) -> plain.Expected:
        """parts: q [seq_q, head, d] of each sequence; query heads are shared out among the kv heads."""
        options.setdefault("right", 0)
        joined = []
        for sequence, q in enumerate(parts):
            groups = q.chunk(self.tokens.shape[1], dim=1)
            results = [plain.latent(group, self.rows(sequence, index), **options) for index, group in enumerate(groups)]
            joined.append(plain.Expected(*(torch.cat([getattr(r, name) for r in results], dim=1) for name in vars(results[0]))))
        return plain.join(joined)


def flat_lse(lse):
    return lse.transpose(1, 2).flatten(0, 1)
