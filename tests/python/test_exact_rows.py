# SPDX-License-Identifier: Apache-2.0
"""fovea.set_exact_rows: the bits of a row are the same in every call that computes it."""

import random

import pytest
import torch

import exact_rows
import fovea
from conftest import available

SETS = [name.removesuffix(".attention") for name in available("attention")]


@pytest.fixture(autouse=True)
def exact():
    random.seed(0)
    fovea.set_exact_rows(True)
    yield
    fovea.set_exact_rows(False)


def names_of(isa):
    return {operation: f"{isa}.{operation}" for operation in ("attention", "paged_attention")}


def dtypes_of(isa):
    return (torch.bfloat16,) if "bf16" in isa or "amx" in isa else (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("isa", SETS)
def test_all_ways_give_the_same_bits(isa):
    compared = 0
    slow = "reference" in isa or "scalar" in isa
    for dtype in dtypes_of(isa):
        for _ in range(4 if slow else 60):
            tokens = random.choice([1, 7, 33, 64, 129, 300] if slow else [1, 7, 64, 130, 513, 1100])
            s = exact_rows.draw(dtype, tokens, names_of(isa))
            for way, (unlike, rows) in exact_rows.compare(s, random.choice([16, 64, 256])).items():
                assert unlike == 0, f"{way}: {unlike} of {rows} rows differ, {tokens} {s.q.shape} {s.k.shape} {dtype} {s.options}"
                compared += rows
    assert compared > 2000


HOPPER = {operation: f"cuda.sm90.{operation}" for operation in ("attention", "paged_attention")}


@pytest.mark.skipif(HOPPER["attention"] not in available("attention", "cuda"), reason="needs Hopper")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_all_ways_give_the_same_bits_on_cuda(dtype):
    """Chosen by the planner, which has no other implementation of exact rows there. docs/numerics.md has the exception: values that
    are not finite."""
    compared = 0
    for _ in range(250):
        tokens, dims = random.choice([1, 7, 64, 130, 513, 1100, 5000]), random.choice([*exact_rows.DIMS, (192, 192), (256, 256)])
        s = exact_rows.draw(dtype, tokens, random.choice([{}, HOPPER]), dims=dims, device="cuda", finite=True)
        for way, (unlike, rows) in exact_rows.compare(s, random.choice([8, 16, 64, 256])).items():
            assert unlike == 0, f"{way}: {unlike} of {rows} rows differ, {tokens} {s.q.shape} {s.k.shape} {s.v.shape} {s.options}"
            compared += rows
    assert compared > 100000


@pytest.mark.skipif(HOPPER["attention"] not in available("attention", "cuda"), reason="needs Hopper")
@pytest.mark.parametrize("tokens, dim, heads", [(9000, 64, (2, 1)), (20000, 256, (4, 2)), (70000, 128, (8, 2))])
def test_long_sequences_on_cuda(tokens, dim, heads):
    """Few tokens alone have kernels of their own."""
    s = exact_rows.draw(torch.bfloat16, tokens, {}, dims=(dim, dim), heads=heads, device="cuda", finite=True)
    s.options.pop("window", None)
    first = tokens - 100
    whole = exact_rows.chunk(s, first, tokens)
    for rows in ([first], [tokens - 51, tokens - 1]):
        assert exact_rows.differing(whole, exact_rows.decode(s, rows, 64), [row - first for row in rows])[0] == 0
    assert exact_rows.differing(whole, exact_rows.paged_chunk(s, tokens - 3, tokens, 16), slice(97, 100))[0] == 0


@pytest.mark.skipif(HOPPER["attention"] not in available("attention", "cuda"), reason="needs Hopper")
def test_hidden_values_that_are_not_finite():
    """Few tokens alone: rows before such a value do not notice, and the others agree with a prompt."""
    for bad in (torch.nan, torch.inf, -torch.inf):
        s = exact_rows.draw(torch.bfloat16, 700, {}, dims=(128, 128), heads=(8, 2), device="cuda")
        s.options.clear()
        s.v[350, 1, 5] = bad
        whole, _ = s.attend(s.q[None], s.k[None], s.v[None])
        for begin in (346, 348, 350, 352):
            out, _ = exact_rows.paged_chunk(s, begin, begin + 4, 16)
            torch.testing.assert_close(out, whole[begin : begin + 4], atol=0.02, rtol=0.02, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_long_sequences_have_parts(dtype):
    """A token alone is split over keys, a prompt is not."""
    s = exact_rows.draw(dtype, 9000, {}, dims=(64, 64), heads=(2, 1))
    s.options.pop("window", None)
    whole = exact_rows.chunk(s, 8900, 9000)
    for rows in ([8900, 8950, 8999], [8998, 8999]):
        alone = exact_rows.decode(s, rows, 64)
        assert exact_rows.differing(whole, alone, [row - 8900 for row in rows])[0] == 0
    assert exact_rows.differing(whole, exact_rows.paged_chunk(s, 8970, 9000, 16), slice(70, 100))[0] == 0


def test_sequences_of_too_many_parts_to_split():
    """A token alone then adds the parts itself. There are enough tokens for each thread to take both kv heads of one."""
    tokens, count = 257 * 4096, 16
    s = exact_rows.draw(torch.float32, tokens, {}, dims=(8, 8), heads=(2, 2))
    s.options.clear()
    whole = exact_rows.chunk(s, tokens - count, tokens)
    alone = exact_rows.decode(s, range(tokens - count, tokens), 4096)
    assert exact_rows.differing(whole, alone, slice(None))[0] == 0


def test_without_it_some_way_differs():
    """Otherwise the comparison sees nothing."""
    fovea.set_exact_rows(False)
    s = exact_rows.draw(torch.float32, 600, {}, dims=(128, 128), heads=(4, 4))
    assert sum(unlike for unlike, _ in exact_rows.compare(s, 16).values()) > 0


def test_what_is_set_is_read():
    assert fovea.get_exact_rows()
    fovea.set_exact_rows(False)
    assert not fovea.get_exact_rows()
    with pytest.raises(TypeError, match="exact"):
        fovea.set_exact_rows(1.5)


def test_plans_of_both_kinds_are_kept_apart():
    s = exact_rows.draw(torch.float32, 200, {}, dims=(64, 64), heads=(4, 4))
    exact = exact_rows.decode(s, [199], 16)
    fovea.set_exact_rows(False)
    exact_rows.decode(s, [199], 16)
    fovea.set_exact_rows(True)
    assert exact_rows.differing(exact, exact_rows.decode(s, [199], 16), slice(None))[0] == 0


def test_8_bit_attention_declines():
    with pytest.raises(NotImplementedError, match="exact_rows: got true, want false"):
        fovea.quantize_and_attend(*(torch.randn(1, 64, 2, 64) for _ in range(3)))


@pytest.mark.parametrize("isa", [name.removesuffix(".latent_attention") for name in available("latent_attention")])
def test_latent_rows(isa):
    """Prompts, parts of them and single tokens, with all heads or some, dense and by lists."""
    few = "reference" in isa or "scalar" in isa
    for dtype in dtypes_of(isa):
        for _ in range(2 if few else 15):
            tokens, head, page = random.choice([5, 40] if few else [1, 9, 65, 300]), random.choice([1, 6, 16, 23]), 16
            blocks = -(-tokens // page)
            cache = torch.randn(blocks, page, 1, 576).to(dtype)
            cache.view(-1, 576)[tokens:] = torch.nan
            if tokens > 4:
                cache.view(-1, 576)[tokens - 2, 3] = torch.nan
            q = torch.randn(tokens, head, 576).to(dtype)
            table, position = torch.arange(blocks, dtype=torch.int32), torch.arange(tokens, dtype=torch.int32)

            def attend(q, lengths, cu_seqlens_q=None, cache=cache, table=table):
                kv_len = torch.tensor(lengths, dtype=torch.int32)
                tables, name = table.expand(len(lengths), -1).contiguous(), f"{isa}.latent_attention"
                return fovea.latent_attention(q, cache, tables, kv_len, cu_seqlens_q, return_lse=True, implementation=name)

            whole = attend(q, [tokens], exact_rows.cumulative(tokens))
            begin, end = sorted(random.sample(range(tokens + 1), 2))
            chunk = attend(q[begin:end], [end], exact_rows.cumulative(end - begin))
            assert exact_rows.differing(whole, chunk, slice(begin, end))[0] == 0
            rows = sorted(random.sample(range(tokens), min(tokens, 5)))
            assert exact_rows.differing(whole, attend(q[rows], [row + 1 for row in rows]), rows)[0] == 0
            first = attend(q[:, : head // 2 + 1], [tokens], exact_rows.cumulative(tokens))
            assert exact_rows.differing(whole, first, slice(None), slice(0, head // 2 + 1))[0] == 0
            lists = position.expand(tokens, -1).where(position <= position[:, None], -1)
            sparse = {"implementation": f"{isa}.sparse_latent_attention", "return_lse": True}
            together = fovea.sparse_latent_attention(q, cache, lists, **sparse)
            some = fovea.sparse_latent_attention(q[rows, : head // 2 + 1], cache, lists[rows], **sparse)
            assert exact_rows.differing(together, some, rows, slice(0, head // 2 + 1))[0] == 0
