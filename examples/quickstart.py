# SPDX-License-Identifier: Apache-2.0
"""Dense attention, and the same numbers from a block-table cache."""

# [readme]
import torch

import fovea

batch, seq, head, kv_head, head_dim, page = 2, 100, 8, 2, 64, 16
q = torch.randn(batch, seq, head, head_dim)
k = torch.randn(batch, seq, kv_head, head_dim)
v = torch.randn(batch, seq, kv_head, head_dim)

# Causal attention; every four query heads share one head of k and v.
out, lse = fovea.attention(q, k, v, causal=True, return_lse=True)

# A cache of 32 blocks of 16 tokens; a sequence owns those in its row of the table, in any order.
k_cache, v_cache = torch.zeros(2, 32, page, kv_head, head_dim)
blocks_each = -(-seq // page)
block_table = torch.randperm(32, dtype=torch.int32)[: batch * blocks_each].view(batch, blocks_each)
positions = torch.arange(seq)
slots = (block_table[:, positions // page].long() * page + positions % page).flatten()
fovea.paged_cache_append(k.flatten(0, 1), v.flatten(0, 1), k_cache, v_cache, slots)

# One decode step: the last query of each sequence over all its tokens.
kv_len = torch.full((batch,), seq, dtype=torch.int32)
decoded = fovea.paged_attention(q[:, -1], k_cache, v_cache, block_table, kv_len)
# [/readme]

print("largest difference:", (decoded - out[:, -1]).abs().max().item())
print(fovea.explain(fovea.paged_attention, q[:, -1], k_cache, v_cache, block_table, kv_len))
