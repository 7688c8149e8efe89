# SPDX-License-Identifier: Apache-2.0
"""The benchmark cases that PyTorch can run too: Fovea and scaled_dot_product_attention on the same numbers."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

import fovea


@dataclass
class Duel:
    """Two callables that compute the same thing."""

    case: str
    fovea: Callable[[], torch.Tensor]
    torch: Callable[[], torch.Tensor]
    torch_does: str

    def check(self) -> None:
        """Nothing is timed that is not right: the two must agree (`fovea bench` judges Fovea more strictly)."""
        ours, theirs = self.fovea().flatten().double(), self.torch().flatten().double()
        bound = 2e-2 if self.fovea().dtype != torch.float32 else 1e-4
        worst = (ours - theirs).abs().max().item()
        if not worst <= bound:
            raise RuntimeError(f"{self.case}: Fovea and PyTorch differ by {worst:.3g}, want at most {bound}")


def prefill(case: str, dtype: torch.dtype, shape: tuple[int, int, int, int], causal: bool) -> Duel:
    """Dense attention; shape is (heads, kv_heads, seq, dim)."""
    heads, kv_heads, seq, dim = shape
    q = torch.randn(1, seq, heads, dim).to(dtype)
    k, v = (torch.randn(1, seq, kv_heads, dim).to(dtype) for _ in range(2))
    out = torch.empty_like(q)
    # PyTorch gets the layout it likes best.
    theirs = [tensor.transpose(1, 2).contiguous() for tensor in (q, k, v)]
    return Duel(
        case,
        lambda: fovea.attention(q, k, v, causal=causal, out=out),
        lambda: scaled_dot_product_attention(*theirs, is_causal=causal, enable_gqa=heads != kv_heads).transpose(1, 2),
        "scaled_dot_product_attention",
    )


def decode(case: str, batch: int, length: int, shape: tuple[int, int, int]) -> Duel:
    """One new token a sequence over shuffled pages of 16; shape is (heads, kv_heads, dim). PyTorch gets a gathered copy."""
    heads, kv_heads, dim = shape
    page, dtype = 16, torch.bfloat16
    blocks = batch * length // page
    q = torch.randn(batch, heads, dim).to(dtype)
    k_cache, v_cache = (torch.randn(blocks, page, kv_heads, dim).to(dtype) for _ in range(2))
    table = torch.randperm(blocks, dtype=torch.int32).view(batch, -1)
    kv_len = torch.full((batch,), length, dtype=torch.int32)
    out = torch.empty_like(q)
    k, v = (cache[table.long()].flatten(1, 2).transpose(1, 2).contiguous() for cache in (k_cache, v_cache))
    return Duel(
        case,
        lambda: fovea.paged_attention(q, k_cache, v_cache, table, kv_len, max_seqlen_q=1, out=out),
        lambda: scaled_dot_product_attention(q.unsqueeze(2), k, v, enable_gqa=True).squeeze(2),
        "scaled_dot_product_attention on the cache gathered beforehand",
    )


CASES: dict[str, Callable[[str], Duel]] = {
    "prefill bf16, d128, 32/8 heads, s 4096, causal": lambda case: prefill(case, torch.bfloat16, (32, 8, 4096, 128), True),
    "prefill f32, d64, 16 heads, s 1024, full": lambda case: prefill(case, torch.float32, (16, 16, 1024, 64), False),
    "prefill f32, d64, 16 heads, s 1024, causal": lambda case: prefill(case, torch.float32, (16, 16, 1024, 64), True),
    "prefill f16, d128, 32/8 heads, s 2048, causal": lambda case: prefill(case, torch.float16, (32, 8, 2048, 128), True),
    "paged decode bf16, 32/8 heads, d128, page 16, batch 16, 4096 tokens": lambda case: decode(case, 16, 4096, (32, 8, 128)),
    "paged decode bf16, 32/8 heads, d128, page 16, batch 1, 32768 tokens": lambda case: decode(case, 1, 32768, (32, 8, 128)),
}


def one_token() -> Callable[[], torch.Tensor]:
    """The smallest problem: what a call costs."""
    q = torch.randn(1, 8, 64).bfloat16()
    k_cache, v_cache = (torch.randn(2, 16, 2, 64).bfloat16() for _ in range(2))
    table, kv_len = torch.zeros(1, 1, dtype=torch.int32), torch.ones(1, dtype=torch.int32)
    out = torch.empty_like(q)
    return lambda: fovea.paged_attention(q, k_cache, v_cache, table, kv_len, out=out)
