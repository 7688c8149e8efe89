# SPDX-License-Identifier: Apache-2.0
"""flash_attn_with_kvcache at its edges: room, tables and lengths that do not fit, refused calls, 8-bit caches, positions."""

import pytest
import torch

import fovea.compat._flash_attn_append as append_module
import fovea.compat._flash_attn_cache as cache_module
import fovea.compat.flash_attn as flash_attn
import fovea.compat.flash_attn_interface as flash_attn_3
import plain
from fovea.compat._flash_attn_cache import Cache as Given
from kvcache import Cache, lengths, rotated

E4M3 = torch.float8_e4m3fn
ODD = (20, 36)


def new_rows(batch=3, count=3, heads=2, dim=16):
    return torch.randn(batch, count, heads, dim), torch.randn(batch, count, heads, dim)


def call_of(cache, q_heads=4, count=3, dim=16, **changes):
    k, v = new_rows(len(cache.counts), count, dim=dim)
    q = torch.randn(len(cache.counts), count, q_heads, dim)
    given = {"q": q, "k_cache": cache.k_cache, "v_cache": cache.v_cache, "k": k, "v": v, "cache_seqlens": cache.counts}
    return given | cache.options | changes


# ---- a refused call has changed nothing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [None, 4])
@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"q": torch.randn(3, 3, 3, 16)}, RuntimeError, r"^k_cache\.shape \(kv_head\): got 2, want a divisor of 3 \(head\)"),
        ({"q": torch.randn(3, 3, 4, 24)}, RuntimeError, r"^k_cache\.shape\[3\].*: got 16, want 24"),
        ({"q": torch.randn(3, 3, 4, 16).half()}, RuntimeError, r"^k_cache\.dtype: got torch\.float32, want torch\.float16"),
        ({"q": torch.randn(3, 3, 4, 16, requires_grad=True)}, NotImplementedError, r"^q\.requires_grad: got True"),
        ({"softcap": -1.0}, RuntimeError, "^softcap: got -1"),
        ({"softmax_scale": 0.0}, RuntimeError, r"^softmax_scale: got 0\.0"),
        ({"softmax_scale": float("nan")}, RuntimeError, "^softmax_scale: got nan"),
        ({"cache_seqlens": torch.tensor([5, 0, 9])}, RuntimeError, r"^cache_seqlens\.dtype: got torch\.int64, want torch\.int32"),
        ({"cache_seqlens": torch.tensor([5, 0]).int()}, RuntimeError, r"^cache_seqlens\.shape: got \[2\], want \[3\]"),
        ({"cache_seqlens": torch.tensor([5, -1, 9]).int()}, RuntimeError, r"^cache_seqlens\[1\]: got -1, want 0 to 13"),
        ({"cache_seqlens": torch.tensor([5, 0, 14]).int()}, RuntimeError, r"^cache_seqlens\[2\]: got 14, want 0 to 13"),
        ({"cache_seqlens": 14}, RuntimeError, r"^cache_seqlens: got 14, want 0 to 13 \(the 16 tokens of"),
        ({"k": torch.randn(3, 2, 2, 16)}, RuntimeError, r"^v\.shape: got \[3, 3, 2, 16\], want \[3, 2, 2\]"),
        (
            {"k": torch.randn(3, 3, 1, 16), "v": torch.randn(3, 3, 1, 16)},
            RuntimeError,
            r"^k_cache\.shape\[2\] \(kv_head\): got 2, want 1",
        ),
        ({"k": torch.randn(2, 3, 2, 16), "v": torch.randn(2, 3, 2, 16)}, RuntimeError, r"^k\.shape\[0\]: got 2, want 3"),
        ({"k": torch.randn(3, 17, 2, 16), "v": torch.randn(3, 17, 2, 16)}, RuntimeError, r"^k\.shape\[1\] \(new tokens\): got 17"),
        ({"rotary_cos": torch.ones(11, 4), "rotary_sin": torch.ones(11, 4)}, RuntimeError, r"^rotary_cos\.shape\[0\].*: got 11"),
    ],
)
def test_a_refused_call_leaves_the_cache_as_it_was(changes, kind, message, page):
    cache = Cache([5, 0, 9], 16, page)
    before = [cache.k_cache.clone(), cache.v_cache.clone()]
    call = call_of(cache, **changes)
    with pytest.raises(kind, match=message):
        flash_attn.flash_attn_with_kvcache(**call)
    for now, was in zip((cache.k_cache, cache.v_cache), before, strict=True):
        torch.testing.assert_close(now, was, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("window", [(-1, -1), (2, 0)])
def test_block_numbers_are_looked_at_before_anything_is_written(window):
    """Those of what is written and of what queries see; a block that no query sees may be anything."""
    cache = Cache([9, 6, 1], 16, 4)
    cache.options["block_table"][:, 3] = 2147480000
    cache.options["block_table"][0, 0] = -5
    before, call = cache.k_cache.clone(), call_of(cache, window_size=window)
    if window == (2, 0):
        flash_attn.flash_attn_with_kvcache(**call)
        assert torch.equal(cache.k_cache[cache.options["block_table"][0, 2]][1:], call["k"][0])
        return
    with pytest.raises(RuntimeError, match=r"^block_table\[0\]\[0\]: got -5, want 0 to 13$"):
        flash_attn.flash_attn_with_kvcache(**call)
    torch.testing.assert_close(cache.k_cache, before, rtol=0, atol=0, equal_nan=True)


def test_misaligned_lengths_are_seen_before_anything_is_written():
    cache = Cache([5, 0, 9], 16)
    before, call = cache.k_cache.clone(), call_of(cache)
    odd = torch.frombuffer(bytearray(17), dtype=torch.int32, offset=1, count=3)
    flash_attn.flash_attn_with_kvcache(**call_of(Cache([5, 0, 9], 16)))
    with pytest.raises(RuntimeError, match=r"^cache_seqlens \(address\): got 0x.*, want a multiple of 4$"):
        flash_attn.flash_attn_with_kvcache(**call | {"cache_seqlens": odd})
    torch.testing.assert_close(cache.k_cache, before, rtol=0, atol=0, equal_nan=True)


def test_a_call_that_is_known_is_still_refused_where_a_gradient_is_wanted():
    cache = Cache([5, 0, 9], 16)
    call = call_of(cache)
    flash_attn.flash_attn_with_kvcache(**call)
    before = cache.k_cache.clone()
    with pytest.raises(NotImplementedError, match=r"^q\.requires_grad"):
        flash_attn.flash_attn_with_kvcache(**call | {"q": call["q"].requires_grad_(), "k": call["k"] + 1})
    torch.testing.assert_close(cache.k_cache, before, rtol=0, atol=0, equal_nan=True)


# ---- what lies past the end ------------------------------------------------------------------------------------------------


def test_appending_past_the_block_table_is_refused_by_name():
    cache = torch.randn(3, 256, 2, 16)
    given = torch.randn(1, 1, 4, 16), cache, cache.clone(), *new_rows(1, 1)
    seqlens, table = torch.tensor([256], dtype=torch.int32), torch.tensor([[1]], dtype=torch.int32)
    with pytest.raises(RuntimeError, match=r"^cache_seqlens\[0\]: got 256, want 0 to 255 \(the 256 tokens of block_table less 1 "):
        flash_attn.flash_attn_with_kvcache(*given, cache_seqlens=seqlens, block_table=table)
    with pytest.raises(RuntimeError, match=r"^k\.shape\[1\] \(new tokens\): got 1, want at most 0"):
        flash_attn.flash_attn_with_kvcache(*given, cache_seqlens=seqlens, block_table=table[:, :0])


@pytest.mark.parametrize("page", [None, 4])
def test_slots_where_lengths_cannot_be_read(monkeypatch, page):
    """As on a GPU: a place past either end is skipped, and no index leaves a table."""
    cache = Cache([5, 15, 0], 16, page)
    cache.counts[2] = -2
    table = Given(cache.k_cache, cache.v_cache, cache.counts, None, cache.options.get("block_table"))
    append = append_module.Append(table, table.table(3), cache.counts, append_module.New(*new_rows(), None), {})
    positions = cache.counts[:, None] + torch.arange(3)
    monkeypatch.setattr(append_module, "readable", lambda tensor: False)
    slots = append.slots(positions)
    own = cache.options["block_table"].long() if page else torch.arange(3)[:, None]
    size = page or 16
    for row, column in ((row, column) for row in range(3) for column in range(3)):
        at = int(positions[row, column])
        assert slots[row, column] == (own[row, at // size] * size + at % size if 0 <= at < 16 else -1)


def test_rotary_tables_where_positions_cannot_be_read(monkeypatch):
    monkeypatch.setattr(append_module, "readable", lambda tensor: False)
    cos, sin = torch.randn(2, 8, 4)
    rotary = append_module.Rotary(cos, sin, True, None)
    at = rotary.at(torch.tensor([[7, 8], [-1, 0]]))
    assert torch.equal(at[0][0, 0, 0], cos[7]) and torch.equal(at[1][1, 1, 0], sin[0])
    assert all(table[0, 1].isnan().all() and table[1, 0].isnan().all() for table in at)


def test_rows_of_a_cache_where_they_cannot_be_read(monkeypatch):
    monkeypatch.setattr(cache_module, "readable", lambda tensor: False)
    k = torch.zeros(4, 8, 2, 16)
    index, table = torch.tensor([3, 4, -1, 1 << 32]), torch.tensor([[5], [6]]).int()
    assert Given(k, k, None, index, None).table(4).tolist() == [[3], [4], [-1], [4]]  # 4 and -1 are no blocks
    assert Given(k, k, None, torch.tensor([1, 2, -7]), table).table(3).tolist() == [[6], [-1], [-1]]


# ---- rows of a cache, and positions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [None, 4])
@pytest.mark.parametrize("new", [False, True])
def test_cache_batch_idx(page, new):
    cache, index = Cache([5, 8, 9, 2], 16, page), torch.tensor([2, 0, 3], dtype=torch.int32)
    counts = cache.counts[index.long()]
    q, (k, v) = torch.randn(3, 3, 4, 16), new_rows()
    options = {"page_table": cache.options["block_table"]} if page else {}
    given = {"k": k, "v": v} if new else {}
    call = {"cache_seqlens": counts, "cache_batch_idx": index, "causal": True, **options, **given}
    out = flash_attn_3.flash_attn_with_kvcache(q, cache.k_cache, cache.v_cache, **call)
    for row, at in enumerate(index.tolist()):
        count = int(counts[row])
        keys = [torch.cat([x[at, :count], more[row]]) if new else x[at, :count] for x, more in ((cache.k, k), (cache.v, v))]
        plain.check(out[row], None, plain.attention(q[row], *keys, right=0))
        assert not new or torch.equal(cache.read("k")[at, count : count + 3], k[row])
    with pytest.raises(RuntimeError, match=r"^cache_batch_idx\[1\]: got 4, want 0 to 3$"):
        flash_attn_3.flash_attn_with_kvcache(
            q, cache.k_cache, cache.v_cache, **call | {"cache_batch_idx": torch.tensor([0, 4, 1]).int()}
        )


@pytest.mark.parametrize("causal", [True, False])
def test_rotary_seqlens(causal):
    """Where positions begin, beside where keys are written; without a rotary embedding it is taken and means nothing."""
    cache, q, (k, v) = Cache([5, 0, 9], 16), torch.randn(3, 3, 4, 16), new_rows()
    angles, begin = torch.rand(32, 4) * 6, torch.tensor([7, 1, 20], dtype=torch.int32)
    call = {"cache_seqlens": cache.counts, "rotary_seqlens": begin, "causal": causal}
    tables = {"rotary_cos": angles.cos(), "rotary_sin": angles.sin()}
    out = flash_attn_3.flash_attn_with_kvcache(q, cache.k_cache, cache.v_cache, k, v, **tables, **call)
    for row, count in enumerate(cache.counts.tolist()):
        places = torch.arange(3) + begin[row]
        keys = torch.cat([cache.k[row, :count], rotated(k[row], places, *tables.values(), True)])
        queries = rotated(q[row], places if causal else places[:1].expand(3), *tables.values(), True)
        want = plain.attention(queries, keys, torch.cat([cache.v[row, :count], v[row]]), right=0 if causal else None)
        plain.check(out[row], None, want)
    other = Cache([5, 0, 9], 16)
    out = flash_attn_3.flash_attn_with_kvcache(q, other.k_cache, other.v_cache, k, v, **call)
    assert torch.equal(
        out, flash_attn_3.flash_attn_with_kvcache(q, other.k_cache, other.v_cache, k, v, **call | {"rotary_seqlens": None})
    )


@pytest.mark.parametrize("page", [None, 4])
@pytest.mark.parametrize("dim", ODD)
def test_head_dims_of_no_whole_eights_over_caches(dim, page):
    cache = Cache([5, 0, 9], 16, page, dim=dim)
    call = call_of(cache, dim=dim, causal=True, return_softmax_lse=True)
    q, k, v = call["q"], call["k"], call["v"]
    out, lse = flash_attn.flash_attn_with_kvcache(**call)
    assert out.shape == q.shape and out.is_contiguous()
    for row, count in enumerate(cache.counts.tolist()):
        keys = [torch.cat([x[row, :count], more[row]]) for x, more in ((cache.k, k), (cache.v, v))]
        plain.check(out[row], lse[row].T, plain.attention(q[row], *keys, right=0))
        assert torch.equal(cache.read("k")[row, count : count + 3], k[row])
    if page:
        cu = lengths([3, 3, 3]), lengths((cache.counts + 3).tolist())
        given = q.flatten(0, 1), cache.k_cache, cache.v_cache, *cu, 3, 16
        flat = flash_attn.flash_attn_varlen_func(*given, causal=True, **cache.options)
        assert torch.equal(flat, out.flatten(0, 1))


# ---- 8-bit caches ----------------------------------------------------------------------------------------------------------


def scaled(x, scale):
    """The values of codes ``[batch, seq, head, d]`` with factors ``[batch, head]``."""
    return x.double() if scale is None else x.double() * scale[:, None, :, None].double()


@pytest.mark.parametrize("page", [None, 4])
@pytest.mark.parametrize("scales", [None, "each", "shared"])
@pytest.mark.parametrize("ragged", [False, True])
def test_8_bit_queries_keys_and_scales(page, scales, ragged):
    cache = Cache([5, 0, 9], 16, page)
    k, v = (x.nan_to_num().to(E4M3) for x in (cache.k, cache.v))
    cache.k_cache, cache.v_cache = cache.k_cache.to(E4M3), cache.v_cache.to(E4M3)
    q, new = torch.randn(3, 3, 4, 16).to(E4M3), [x.to(E4M3) for x in new_rows()]
    named = dict.fromkeys(("q_descale", "k_descale", "v_descale"))
    if scales:
        named = {name: torch.rand(3, 2) + 0.5 for name in named}
    if scales == "shared":
        named = {name: (torch.rand(1, 1) + 0.5).expand(3, 2) for name in named}
    options = {"page_table": cache.options["block_table"]} if page else {}
    call = {"cache_seqlens": cache.counts, "causal": True, "return_softmax_lse": True, **options, **named}
    caches = cache.k_cache, cache.v_cache
    if ragged:
        ends = {"cu_seqlens_q": lengths([3, 3, 3]), "max_seqlen_q": 3}
        out, lse, *_ = flash_attn_3.flash_attn_with_kvcache(q.flatten(0, 1), *caches, **call, **ends)
        out, lse = out.unflatten(0, (3, 3)), lse.unflatten(1, (3, 3)).transpose(0, 1)
    else:
        out, lse, *_ = flash_attn_3.flash_attn_with_kvcache(q, *caches, *new, **call)
        assert torch.equal(cache.read("k")[0, 5:8].view(torch.uint8), new[0][0].view(torch.uint8))
    assert out.dtype == torch.bfloat16
    factors = named["q_descale"]
    queries = scaled(q, None if factors is None else factors.repeat_interleave(2, 1))
    keys, values = (scaled(x, named[name]) for x, name in ((k, "k_descale"), (v, "v_descale")))
    more = [scaled(x, named[name]) for x, name in zip(new, ("k_descale", "v_descale"), strict=True)]
    rounded = scales == "each"  # a factor of its own for each sequence rounds q, and out once more
    for row, count in enumerate(cache.counts.tolist()):
        parts = [
            x[row, :count] if ragged else torch.cat([x[row, :count], y[row]]) for x, y in zip((keys, values), more, strict=True)
        ]
        want = plain.attention(queries[row], *parts, right=0)
        if rounded:
            torch.testing.assert_close(out[row].double(), want.out, rtol=2e-2, atol=2e-2)
            torch.testing.assert_close(lse[row].T.double(), want.lse, rtol=1e-2, atol=3e-2)
        else:
            plain.check(out[row], lse[row].T, want)


def test_8_bit_caches_of_one_length():
    q, k, v = (torch.randn(3, 6, heads, 16).to(E4M3) for heads in (4, 2, 2))
    scale = torch.rand(1, 2).expand(3, 2) + 0.5
    for queries in (q, q.bfloat16()):
        out = flash_attn_3.flash_attn_with_kvcache(queries, k, v, cache_seqlens=5, v_descale=scale.contiguous()[:1].expand(3, 2))
        for row in range(3):
            want = plain.attention(queries[row].double(), k[row, :5].double(), v[row, :5].double() * scale[0, :, None].double())
            plain.check(out[row], None, want)


def test_8_bit_keys_that_are_turned():
    """Turned keys are rounded to the cache's 8 bits, and saturate."""
    cache, (k, v) = Cache([5, 0, 9], 16), new_rows()
    caches = cache.k_cache.to(E4M3), cache.v_cache.to(E4M3)
    k[0, 0, 0, :2] = 448.0
    angles = torch.rand(16, 8) * 6
    angles[5, 0] = -0.785398
    given = torch.randn(3, 3, 4, 16).bfloat16(), *caches, k.to(E4M3), v.to(E4M3)
    flash_attn.flash_attn_with_kvcache(*given, cache_seqlens=cache.counts, rotary_cos=angles.cos(), rotary_sin=angles.sin())
    want = rotated(k.to(E4M3).float()[0], torch.arange(5, 8), angles.cos(), angles.sin(), True)
    assert want.abs().max() > 600
    torch.testing.assert_close(caches[0][0, 5:8].double(), want.clamp(-448, 448), rtol=0.07, atol=0.01)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"k_descale": torch.ones(3, 2)}, r"^k_descale: got a tensor, want None \(k_cache.dtype is torch.float32\)"),
        ({"8 bits": True, "q_descale": torch.ones(3, 2)}, r"^q_descale: got a tensor, want None \(q.dtype is torch.float32\)"),
        ({"8 bits": True, "k_descale": torch.ones(2, 2)}, r"^k_descale\.shape: got \[2, 2\], want \[3, 2\] \(batch, kv_head\)"),
        ({"8 bits": True, "v_descale": torch.ones(3, 2).half()}, r"^v_descale\.dtype: got torch.float16, want torch.float32"),
        ({"8 bits": True, "k_descale": torch.ones(3, 2), "new": True}, r"^k\.dtype: got torch.float32, want torch.float8_e4m3fn"),
    ],
)
def test_scales_that_say_nothing(changes, message):
    cache, (k, v) = Cache([5, 0, 9], 16), new_rows()
    bits, new = changes.pop("8 bits", False), changes.pop("new", False)
    caches = [x.to(E4M3) if bits else x for x in (cache.k_cache, cache.v_cache)]
    more = {"k": k, "v": v} if new else {}
    with pytest.raises(RuntimeError, match=message):
        flash_attn_3.flash_attn_with_kvcache(torch.randn(3, 3, 4, 16), *caches, cache_seqlens=cache.counts, **more, **changes)
