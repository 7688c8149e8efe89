# SPDX-License-Identifier: Apache-2.0
"""The benchmark cases that something else can run too, on the same numbers: PyTorch, or another of Fovea's operations."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

import fovea

Tensors = torch.Tensor | tuple[torch.Tensor, ...]
Run = Callable[[], Tensors]


@dataclass
class Duel:
    """Two callables that compute the same thing."""

    case: str
    fovea: Run
    other: Run
    other_does: str
    relative_l1: float | None = None  # what an 8-bit operation promises, instead of a bound for each number

    def check(self) -> None:
        """The two must agree before they are timed (`fovea bench` judges Fovea more strictly)."""
        for ours, theirs in zip(several(self.fovea()), several(self.other()), strict=True):
            error = (ours.flatten().double() - theirs.flatten().double()).abs()
            if self.relative_l1 is None:
                precision = 1e-4 if ours.dtype == torch.float32 else 2e-2
                got, bound = error.max().item(), precision * max(1.0, theirs.abs().max().item())
            else:
                got, bound = (error.sum() / theirs.double().abs().sum()).item(), self.relative_l1
            if not got <= bound:
                raise RuntimeError(f"{self.case}: the two differ by {got:.3g}, want at most {bound:.3g}")


def several(result: Tensors) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def fastest(candidates: dict[str, Run]) -> tuple[str, Run]:
    """PyTorch has more than one way: the quickest here, best of three after a warm-up."""

    def seconds(call: Run) -> float:
        samples = []
        for _ in range(4):
            start = time.perf_counter()
            call()
            samples.append(time.perf_counter() - start)
        return min(samples[1:])

    return min(candidates.items(), key=lambda named: seconds(named[1]))


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


def latent_ways(q: torch.Tensor, gather: Callable[[], torch.Tensor], scale: float) -> dict[str, Run]:
    """Latent decode without a kernel for it: rows are gathered to [batch, tokens, 576], then one of these."""

    def sdpa() -> torch.Tensor:  # all heads share a row, so they are queries of one head
        rows = gather().unsqueeze(1)
        return scaled_dot_product_attention(q.transpose(1, 2), rows, rows[..., :512], scale=scale).transpose(1, 2)

    def einsum(dtype: torch.dtype) -> torch.Tensor:
        rows = gather().to(dtype)
        scores = torch.einsum("bqhd,bkd->bqhk", q.to(dtype), rows).float() * scale
        return torch.einsum("bqhk,bkd->bqhd", scores.softmax(-1).to(dtype), rows[..., :512]).to(q.dtype)

    return {
        "gather, scaled_dot_product_attention": sdpa,
        "gather, einsum": lambda: einsum(q.dtype),
        "gather, einsum in float32": lambda: einsum(torch.float32),
    }


def latent_decode(case: str, heads: int, batch: int, length: int) -> Duel:
    """One new token a sequence over shuffled pages of 64 latent rows, all gathered in every call of PyTorch."""
    page = 64
    blocks = batch * length // page
    q, cache = torch.randn(batch, 1, heads, 576).bfloat16(), torch.randn(blocks, page, 1, 576).bfloat16()
    table = torch.randperm(blocks, dtype=torch.int32).view(batch, -1)
    kv_len = torch.full((batch,), length, dtype=torch.int32)
    out, scale, wide_table = q.new_empty(batch, 1, heads, 512), 192**-0.5, table.long()
    does, theirs = fastest(latent_ways(q, lambda: cache[wide_table].view(batch, length, 576), scale))
    return Duel(case, lambda: fovea.latent_attention(q, cache, table, kv_len, scale=scale, out=out), theirs, does)


def sparse_decode(case: str, heads: int, batch: int, topk: int) -> Duel:
    """One new token a sequence that lists its tokens in a packed cache; PyTorch has the unpacked rows."""
    page, blocks, form = 64, 1024, "v32_fp8"
    slots = torch.arange(blocks * page)
    cache = torch.empty(blocks, page, fovea.cache_formats()[form].bytes, dtype=torch.uint8)
    fovea.quantize_latent_cache(torch.randn(blocks * page, 576).bfloat16(), cache, slots, format=form)
    rows = fovea.dequantize_latent_cache(cache, slots, format=form)
    q = torch.randn(batch, 1, heads, 576).bfloat16()
    indices = torch.stack([torch.randperm(blocks * page)[:topk] for _ in range(batch)]).unsqueeze(1)
    out, scale, narrow = q.new_empty(batch, 1, heads, 512), 192**-0.5, indices.int()
    does, theirs = fastest(latent_ways(q, lambda: rows[indices.squeeze(1)], scale))
    return Duel(
        case,
        lambda: fovea.sparse_latent_attention(q, cache, narrow, format=form, scale=scale, out=out),
        theirs,
        does + ", from rows unpacked beforehand",
    )


def backward(case: str, dtype: torch.dtype, shape: tuple[int, int, int], causal: bool) -> Duel:
    """The gradients of dense attention from kept outputs; shape is (heads, seq, dim)."""
    heads, seq, dim = shape
    q, k, v, dout = (torch.randn(1, seq, heads, dim).to(dtype) for _ in range(4))
    out, lse = fovea.attention(q, k, v, causal=causal, return_lse=True)
    # PyTorch gets the layout it likes best.
    leaves = [tensor.transpose(1, 2).contiguous().requires_grad_() for tensor in (q, k, v)]
    upstream = dout.transpose(1, 2).contiguous()
    with torch.enable_grad():
        theirs = scaled_dot_product_attention(*leaves, is_causal=causal)
    return Duel(
        case,
        lambda: fovea.attention_backward(dout, q, k, v, out, lse, causal=causal),
        lambda: tuple(g.transpose(1, 2) for g in torch.autograd.grad(theirs, leaves, upstream, retain_graph=True)),
        "autograd of scaled_dot_product_attention",
    )


def eight_bit(case: str, shape: tuple[int, int, int, int], causal: bool, v_dtype: torch.dtype) -> Duel:
    """8-bit attention of bf16 tensors, quantisation included, against bf16 attention; shape is (heads, kv_heads, seq, dim)."""
    heads, kv_heads, seq, dim = shape
    q = torch.randn(1, seq, heads, dim).bfloat16()
    k, v = (torch.randn(1, seq, kv_heads, dim).bfloat16() for _ in range(2))
    out, exact = torch.empty_like(q), torch.empty_like(q)
    return Duel(
        case,
        lambda: fovea.quantize_and_attend(q, k, v, causal=causal, v_dtype=v_dtype, out=out),
        lambda: fovea.attention(q, k, v, causal=causal, out=exact),
        "bf16 attention",
        relative_l1=0.055 if v_dtype == torch.float8_e4m3fn else 0.02,
    )


CASES: dict[str, Callable[[str], Duel]] = {
    "prefill bf16, d128, 32/8 heads, s 4096, causal": lambda case: prefill(case, torch.bfloat16, (32, 8, 4096, 128), True),
    "prefill f32, d64, 16 heads, s 1024, full": lambda case: prefill(case, torch.float32, (16, 16, 1024, 64), False),
    "prefill f32, d64, 16 heads, s 1024, causal": lambda case: prefill(case, torch.float32, (16, 16, 1024, 64), True),
    "prefill f16, d128, 32/8 heads, s 2048, causal": lambda case: prefill(case, torch.float16, (32, 8, 2048, 128), True),
    "paged decode bf16, 32/8 heads, d128, page 16, batch 16, 4096 tokens": lambda case: decode(case, 16, 4096, (32, 8, 128)),
    "paged decode bf16, 32/8 heads, d128, page 16, batch 1, 32768 tokens": lambda case: decode(case, 1, 32768, (32, 8, 128)),
    "latent decode bf16, 128 heads, batch 8, 4096 tokens": lambda case: latent_decode(case, 128, 8, 4096),
    "latent decode bf16, 16 heads, batch 8, 8192 tokens": lambda case: latent_decode(case, 16, 8, 8192),
    "sparse latent decode v32_fp8, 128 heads, batch 8, top-k 2048": lambda case: sparse_decode(case, 128, 8, 2048),
    "backward bf16, d128, 16 heads, s 2048, causal": lambda case: backward(case, torch.bfloat16, (16, 2048, 128), True),
}


# Against Fovea's own operations.
OWN_CASES: dict[str, Callable[[str], Duel]] = {
    "int8 + f16 attention, d128, 32/8 heads, s 4096, full": lambda case: eight_bit(case, (32, 8, 4096, 128), False, torch.float16),
    "int8 + f16 attention, d128, 32/8 heads, s 4096, causal": lambda case: eight_bit(case, (32, 8, 4096, 128), True, torch.float16),
    "int8 + e4m3 attention, d128, 32/8 heads, s 4096, causal": lambda case: eight_bit(
        case, (32, 8, 4096, 128), True, torch.float8_e4m3fn
    ),
}


def one_token() -> Callable[[], torch.Tensor]:
    """The smallest problem: what a call costs."""
    q = torch.randn(1, 8, 64).bfloat16()
    k_cache, v_cache = (torch.randn(2, 16, 2, 64).bfloat16() for _ in range(2))
    table, kv_len = torch.zeros(1, 1, dtype=torch.int32), torch.ones(1, dtype=torch.int32)
    out = torch.empty_like(q)
    return lambda: fovea.paged_attention(q, k_cache, v_cache, table, kv_len, out=out)
