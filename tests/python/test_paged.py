# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

import fovea
import plain


class Cache:
    """A block-table cache with sequences of given lengths, in blocks in random order; what holds no token is NaN."""

    def __init__(self, lengths, *, page=16, kv_head=2, dqk=64, dv=64, dtype=torch.float32, store=None):
        per_sequence = [-(-length // page) for length in lengths]
        blocks = sum(per_sequence) + 3
        order = torch.randperm(blocks).tolist()
        self.k_cache = torch.full((blocks, page, kv_head, dqk), torch.nan).to(store or dtype)
        self.v_cache = torch.full((blocks, page, kv_head, dv), torch.nan).to(store or dtype)
        self.block_table = torch.full((len(lengths), max(per_sequence) + 1), 2147480000, dtype=torch.int32)
        self.k = [torch.randn(length, kv_head, dqk).to(dtype) for length in lengths]
        self.v = [torch.randn(length, kv_head, dv).to(dtype) for length in lengths]
        self.kv_len = torch.tensor(lengths, dtype=torch.int32)
        slots = []
        for row, (length, count) in enumerate(zip(lengths, per_sequence, strict=True)):
            own = torch.tensor([order.pop() for _ in range(count)], dtype=torch.int32)
            self.block_table[row, :count] = own
            token = torch.arange(length)
            slots.append(own[token // page].long() * page + token % page)
        self.slots = torch.cat(slots)

    def fill(self, **scales):
        fovea.paged_cache_append(torch.cat(self.k), torch.cat(self.v), self.k_cache, self.v_cache, self.slots, **scales)
        return self

    def expect(self, q, lengths_q, **options) -> plain.Expected:
        options.setdefault("right", 0)
        return plain.join([plain.attention(*rows, **options) for rows in zip(q.split(lengths_q), self.k, self.v, strict=True)])


def cumulative(lengths):
    return torch.tensor([0, *lengths]).cumsum(0).int()


@pytest.mark.parametrize("page", [1, 16, 48])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_mixed_batch(page, dtype, paged_attention_implementation):
    lengths_q = [1, 7, 0, 20, 3]
    cache = Cache([40, 7, 5, 100, 3], page=page, dtype=dtype).fill()
    q = torch.randn(sum(lengths_q), 6, 64).to(dtype)
    out, lse = fovea.paged_attention(
        q,
        cache.k_cache,
        cache.v_cache,
        cache.block_table,
        cache.kv_len,
        cumulative(lengths_q),
        return_lse=True,
        implementation=paged_attention_implementation,
    )
    plain.check(out, lse, cache.expect(q, lengths_q))


@pytest.mark.parametrize(
    "options",
    [{"window": (10, None)}, {"softcap": 2.0}, {"sink": torch.tensor([0.5, -1.0, 2.0, 0.0])}, {"scale": 0.3}, {"causal": False}],
)
def test_options(options, paged_attention_implementation):
    lengths_q = [3, 1]
    cache = Cache([30, 21], kv_head=1, dqk=96, dv=32).fill()
    q = torch.randn(4, 4, 96)
    out, lse = fovea.paged_attention(
        q,
        cache.k_cache,
        cache.v_cache,
        cache.block_table,
        cache.kv_len,
        cumulative(lengths_q),
        return_lse=True,
        implementation=paged_attention_implementation,
        **options,
    )
    same = {name: value for name, value in options.items() if name in ("softcap", "sink", "scale")}
    left = options.get("window", (None,))[0]
    plain.check(out, lse, cache.expect(q, lengths_q, left=left, right=0 if options.get("causal", True) else None, **same))


def test_decode_needs_no_cu_seqlens():
    cache = Cache([40, 1, 300], dtype=torch.bfloat16).fill()
    q = torch.randn(3, 8, 64).bfloat16()
    out = fovea.paged_attention(q, cache.k_cache, cache.v_cache, cache.block_table, cache.kv_len)
    plain.check(out, None, cache.expect(q, [1, 1, 1]))


def test_long_decode_is_split_and_exact(paged_attention_implementation):
    cache = Cache([5000], kv_head=1, dtype=torch.bfloat16).fill()
    q = torch.randn(1, 4, 64).bfloat16()
    out, lse = fovea.paged_attention(
        q,
        cache.k_cache,
        cache.v_cache,
        cache.block_table,
        cache.kv_len,
        return_lse=True,
        implementation=paged_attention_implementation,
    )
    plain.check(out, lse, cache.expect(q, [1]))


def test_empty_cache_and_empty_batch():
    cache = Cache([4, 9]).fill()
    empty = torch.zeros(2, dtype=torch.int32)
    q = torch.randn(2, 4, 64)
    out, lse = fovea.paged_attention(q, cache.k_cache, cache.v_cache, cache.block_table, empty, return_lse=True)
    assert torch.equal(out, torch.zeros_like(out)) and bool((lse == -torch.inf).all())
    none = fovea.paged_attention(q[:0], cache.k_cache, cache.v_cache, cache.block_table[:0], empty[:0])
    assert none.shape == (0, 4, 64)


def test_interleaved_cache(paged_attention_implementation):
    """K and V of a token side by side in one allocation, blocks padded."""
    cache = Cache([33, 6]).fill()
    together = torch.full((cache.k_cache.shape[0], 20, 2, 2, 64), torch.nan)
    k_cache, v_cache = together[:, :16, 0], together[:, :16, 1]
    fovea.paged_cache_append(torch.cat(cache.k), torch.cat(cache.v), k_cache, v_cache, cache.slots)
    q = torch.randn(2, 4, 64)
    out = fovea.paged_attention(q, k_cache, v_cache, cache.block_table, cache.kv_len, implementation=paged_attention_implementation)
    plain.check(out, None, cache.expect(q, [1, 1]))
    assert together[:, 16:].isnan().all()


@pytest.mark.parametrize("scale", [None, 0.5, torch.tensor([0.25, 2.0])])
def test_e4m3_cache(scale, paged_attention_implementation):
    cache = Cache([40, 13], dtype=torch.bfloat16, store=torch.float8_e4m3fn).fill(k_scale=scale, v_scale=scale)
    factor = torch.as_tensor(1.0 if scale is None else scale, dtype=torch.float32).expand(2)[:, None]
    codes = [(rows.float() / factor).to(torch.float8_e4m3fn) for rows in cache.k]
    gathered = cache.k_cache.flatten(0, 1)[cache.slots]
    assert torch.equal(gathered.view(torch.uint8), torch.cat(codes).view(torch.uint8))
    cache.k = [code.double() * factor for code in codes]
    cache.v = [(rows.float() / factor).to(torch.float8_e4m3fn).double() * factor for rows in cache.v]
    q = torch.randn(2, 4, 64).bfloat16()
    out = fovea.paged_attention(
        q,
        cache.k_cache,
        cache.v_cache,
        cache.block_table,
        cache.kv_len,
        k_scale=scale,
        v_scale=scale,
        implementation=paged_attention_implementation,
    )
    plain.check(out, None, cache.expect(q, [1, 1]))


def test_append(paged_cache_append_implementation):
    k, v = torch.randn(5, 2, 64), torch.randn(5, 2, 32)
    k_cache, v_cache = torch.full((3, 4, 2, 64), torch.nan), torch.full((3, 4, 2, 32), torch.nan)
    slots = torch.tensor([11, -1, 0, 5, 4])
    fovea.paged_cache_append(k, v, k_cache, v_cache, slots, implementation=paged_cache_append_implementation)
    kept = slots >= 0
    for cache, rows in ((k_cache, k), (v_cache, v)):
        flat = cache.flatten(0, 1)
        assert torch.equal(flat[slots[kept]], rows[kept])
        assert int(flat.isnan().all(dim=-1).all(dim=-1).sum()) == 12 - 4


def test_append_k_alone(paged_cache_append_implementation):
    k, v = torch.randn(5, 2, 64), torch.empty(5, 2, 0)
    k_cache, v_cache = torch.full((3, 4, 2, 64), torch.nan), torch.empty(3, 4, 2, 0)
    slots = torch.tensor([11, -1, 0, 5, 4])
    fovea.paged_cache_append(k, v, k_cache, v_cache, slots, implementation=paged_cache_append_implementation)
    assert torch.equal(k_cache.flatten(0, 1)[slots[slots >= 0]], k[slots >= 0])


def test_append_saturates_and_keeps_nan(paged_cache_append_implementation):
    k = torch.tensor([1e9, -1e9, torch.nan, 0.0, 464.0, 449.0, 17.0, torch.inf]).view(1, 1, 8)
    cache = torch.zeros(2, 1, 1, 8).to(torch.float8_e4m3fn)
    fovea.paged_cache_append(k, k, cache[:1], cache[1:], torch.tensor([0]), implementation=paged_cache_append_implementation)
    want = torch.tensor([448.0, -448.0, torch.nan, 0.0, 448.0, 448.0, 16.0, 448.0])
    assert torch.equal(cache[0, 0, 0].float().nan_to_num(-1), want.nan_to_num(-1))
