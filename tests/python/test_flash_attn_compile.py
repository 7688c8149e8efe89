# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-3's functions over Fovea in compiled functions: caches that are written, 8 bits, rows that are used."""

import pytest
import torch

import fovea.compat.flash_attn_interface as flash_attn_3
from kvcache import lengths

E4M3 = torch.float8_e4m3fn
ANGLES, ENDS = torch.rand(16, 4), lengths([3, 3, 3])


def append(q, k_cache, v_cache, new, seqlens, table):
    options = {"rotary_cos": ANGLES.cos(), "rotary_sin": ANGLES.sin(), "cache_seqlens": seqlens, "page_table": table}
    return flash_attn_3.flash_attn_with_kvcache(q, k_cache, v_cache, new, new, causal=True, **options)


def append_8_bits(q, k_cache, v_cache, new, seqlens, table):
    q, k_cache, v_cache, new = (tensor.to(E4M3) for tensor in (q, k_cache, v_cache, new))
    scale = q.float().abs().amax(dim=(1, 3))[:, :2]
    options = {"q_descale": scale, "v_descale": scale, "cache_seqlens": seqlens, "page_table": table}
    return flash_attn_3.flash_attn_with_kvcache(q, k_cache, v_cache, new, new, **options)


def rows_used(q, k_cache, v_cache, new, seqlens, table):
    q, new = q.flatten(0, 1), new.flatten(0, 1)
    return flash_attn_3.flash_attn_varlen_func(q, new, new, ENDS, ENDS, 3, 3, seqlens // 2, seqlens // 3, causal=True)


@pytest.mark.parametrize("attend", [append, append_8_bits, rows_used])
def test_compile(attend):
    """Without a break of the graph, and caches are written."""
    cache, table = torch.randn(12, 4, 2, 16), torch.arange(12, dtype=torch.int32).view(3, 4)
    seqlens = torch.tensor([5, 0, 6], dtype=torch.int32)
    inputs = [torch.randn(3, 3, 4, 16), cache, cache.clone(), torch.randn(3, 3, 2, 16), seqlens, table]
    others = [tensor.clone() for tensor in inputs]
    torch._dynamo.reset()
    want, got = attend(*inputs), torch.compile(attend, fullgraph=True, backend="aot_eager")(*others)
    torch.testing.assert_close(got, want)
    for one, other in zip(inputs, others, strict=True):
        torch.testing.assert_close(one, other)
