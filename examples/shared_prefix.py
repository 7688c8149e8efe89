# SPDX-License-Identifier: Apache-2.0
"""Cascade attention: sequences share a prefix, such as a system prompt, whose keys are stored and read once for all of them.

The queries of all sequences, as those of one, attend to the prefix. Each attends to its own paged suffix. merge_states combines
both into plain attention over the whole sequences. Runs on a GPU if there is one.
"""

import sys

import torch
from torch import Tensor

import fovea

HEADS, KV_HEADS, HEAD_DIM, PREFIX, PAGE = 8, 2, 64, 96, 16
SUFFIXES = (1, 16, 23, 40)  # keys of each sequence after the prefix
KeysAndValues = tuple[Tensor, Tensor]


# [cascade]
def cascade(q: Tensor, prefix: KeysAndValues, caches: KeysAndValues, pages: Tensor, lengths: Tensor) -> Tensor:
    """q: [batch, head, head_dim], one query of each sequence; prefix: [key, kv_head, head_dim]."""
    k, v = prefix
    shared, shared_lse = fovea.attention(q[None], k[None], v[None], return_lse=True)  # lse: [1, head, batch]
    suffix, suffix_lse = fovea.paged_attention(q, *caches, pages, lengths, return_lse=True)  # lse: [batch, head]
    return fovea.merge_states([shared[0], suffix], [shared_lse[0].T, suffix_lse], return_lse=False)
    # [/cascade]


def main() -> int:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype, tolerance = (torch.bfloat16, 1e-2) if device == "cuda" else (torch.float32, 1e-5)
    q = torch.randn(len(SUFFIXES), HEADS, HEAD_DIM, device=device).to(dtype)
    prefix = tuple(torch.randn(PREFIX, KV_HEADS, HEAD_DIM, device=device).to(dtype) for _ in range(2))
    of_sequence = -(-max(SUFFIXES) // PAGE)  # pages
    pages = torch.randperm(len(SUFFIXES) * of_sequence, device=device).int().view(-1, of_sequence)
    caches = tuple(torch.randn(pages.numel(), PAGE, KV_HEADS, HEAD_DIM, device=device).to(dtype) for _ in range(2))
    out = cascade(q, prefix, caches, pages, torch.tensor(SUFFIXES, dtype=torch.int32, device=device))

    difference = 0.0
    for at, length in enumerate(SUFFIXES):
        suffix = (cache[pages[at].long()].flatten(0, 1)[:length] for cache in caches)
        k, v = (torch.cat(parts)[None] for parts in zip(prefix, suffix, strict=True))
        plain = fovea.attention(q[at][None, None], k, v)[0, 0]
        difference = max(difference, (out[at].float() - plain.float()).abs().max().item())
    whole = sum(PREFIX + length for length in SUFFIXES)
    print(f"keys read: {PREFIX + sum(SUFFIXES)} instead of {whole}")
    print(f"largest difference from plain attention: {difference:.1e}")
    return 0 if difference <= tolerance else 1


if __name__ == "__main__":
    sys.exit(main())
