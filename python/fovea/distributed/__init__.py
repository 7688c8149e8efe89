# SPDX-License-Identifier: Apache-2.0
"""Attention over the ranks of torch.distributed: sequences and caches that lie on several GPUs or processes.

>>> layout = fovea.distributed.Layout(seq, ranks=dist.get_world_size())
>>> x = fovea.distributed.shard(x, layout, dist.get_rank())  # [batch, seq, ...] -> this rank's tokens
>>> out = fovea.distributed.attention(q, k, v, layout, causal=True)

docs/distributed.md says who holds what, and which way is fast when.
"""

from fovea.distributed import _cost as cost
from fovea.distributed._attention import attention
from fovea.distributed._decode import latent_attention, paged_attention, sparse_latent_attention
from fovea.distributed._exchange import Traffic, count_traffic
from fovea.distributed._layout import Layout, shard, unshard
from fovea.distributed._merge import merge_over_ranks
from fovea.distributed._pages import PageDeal
from fovea.distributed._step import Step

__all__ = [
    "Layout",
    "PageDeal",
    "Step",
    "Traffic",
    "attention",
    "cost",
    "count_traffic",
    "latent_attention",
    "merge_over_ranks",
    "paged_attention",
    "shard",
    "sparse_latent_attention",
    "unshard",
]
