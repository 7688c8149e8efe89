# SPDX-License-Identifier: Apache-2.0
"""cache_leftpad and attention_chunk of flash-attn's functions, against float64 attention of one query row at a time."""

import pytest
import torch

import fovea.compat._flash_attn_ranges as ranges
import fovea.compat.flash_attn as flash_attn
import fovea.compat.flash_attn_interface as flash_attn_3
import plain
from kvcache import Cache, lengths, rotated

MASKS = {
    "full": ({}, {}),
    "causal": ({"causal": True}, {"right": 0}),
    "window": ({"window_size": (2, 1), "softcap": 3.0}, {"left": 2, "right": 1, "softcap": 3.0}),
}
CHUNKS = [1, 3, 4, 8, 100]


def detached(expected):
    return plain.Expected(*(tensor.detach() for tensor in vars(expected).values()))


def check_each(out, lse, wants):
    for row, want in enumerate(wants):
        plain.check(out[row].detach(), lse[row].T.detach(), detached(want))


def check_gradients(out, lse, inputs, exact, wants):
    """Checks the gradients of a loss that reads out and every finite lse."""
    finite = lse.isfinite()
    got = torch.autograd.grad(out.sin().sum() + lse[finite].sum(), inputs)
    loss = sum(want.out.sin().sum() + want.lse[want.lse.isfinite()].sum() for want in wants)
    for one, other in zip(got, torch.autograd.grad(loss, exact), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)


# ---- attention_chunk of tensors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("seqs", [(7, 7), (4, 13), (9, 5), (1, 9), (1, 8), (0, 3), (3, 0)])
def test_chunks_of_a_fixed_batch(seqs, chunk, mask):
    given, words = MASKS[mask]
    q = torch.randn(2, seqs[0], 4, 16, requires_grad=True)
    k, v = (torch.randn(2, seqs[1], 2, 16, requires_grad=True) for _ in "kv")
    out, lse = flash_attn_3.flash_attn_func(q, k, v, attention_chunk=chunk, return_attn_probs=True, **given)
    assert out.shape == q.shape and lse.shape == (2, 4, seqs[0])
    if not seqs[0]:
        return
    exact = [tensor.detach().double().requires_grad_() for tensor in (q, k, v)]
    wants = [plain.in_chunks(*(tensor[row] for tensor in exact), chunk, **words) for row in range(2)]
    check_each(out, lse, wants)
    check_gradients(out, lse, (q, k, v), exact, wants)


def test_chunks_of_a_packed_tensor():
    qkv = torch.randn(2, 9, 3, 4, 16)
    options = {"attention_chunk": 4, "causal": True, "return_attn_probs": True}
    want = flash_attn_3.flash_attn_func(*qkv.unbind(2), **options)
    for got, right in zip(flash_attn_3.flash_attn_qkvpacked_func(qkv, **options), want, strict=True):
        assert torch.equal(got, right)


Q_COUNTS, K_COUNTS = [3, 0, 9, 1, 6, 1], [5, 4, 12, 0, 2, 1]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("used", [(None, None), ([2, 0, 9, 0, 6, 1], None), ([3, 0, 4, 1, 6, 0], [4, 0, 11, 0, 2, 1])])
def test_chunks_of_a_ragged_batch(used, chunk, mask):
    """Lengths 0 and 1, more queries than keys, and rows that are not used, which hold NaN."""
    given, words = MASKS[mask]
    q, k, v = torch.randn(20, 4, 16), torch.randn(24, 2, 16), torch.randn(24, 2, 16)
    counts = used[0] or Q_COUNTS, used[1] or K_COUNTS
    for tensors, kept, all_ in (((q,), counts[0], Q_COUNTS), ((k, v), counts[1], K_COUNTS)):
        for tensor in tensors:
            for part, count in zip(tensor.split(all_), kept, strict=True):
                part[count:] = torch.nan
    inputs = [tensor.requires_grad_() for tensor in (q, k, v)]
    named = {f"seqused_{name}": count and torch.tensor(count).int() for name, count in zip("qk", used, strict=True)}
    call = (*inputs, lengths(Q_COUNTS), lengths(K_COUNTS), 9, 12)
    out, lse = flash_attn_3.flash_attn_varlen_func(*call, attention_chunk=chunk, return_attn_probs=True, **named, **given)
    assert lse.shape == (4, 20) and lse.is_contiguous()
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    splits = [tensor.split(all_) for tensor, all_ in zip(exact, (Q_COUNTS, K_COUNTS, K_COUNTS), strict=True)]
    outs, lses, wants = out.split(Q_COUNTS), lse.T.split(Q_COUNTS), []
    for row, parts in enumerate(zip(*splits, strict=True)):
        count, keys = counts[0][row], counts[1][row]
        assert bool((outs[row][count:] == 0).all()) and bool(lses[row][count:].isneginf().all())
        if count:
            wants.append(plain.in_chunks(parts[0][:count], parts[1][:keys], parts[2][:keys], chunk, **words))
            plain.check(outs[row][:count].detach(), lses[row][:count].detach(), detached(wants[-1]))
    got = torch.autograd.grad(out.sin().sum(), inputs)
    want = torch.autograd.grad(sum(each.out.sin().sum() for each in wants), exact)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one.double(), other.nan_to_num(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("is_shared", [False, True])
def test_chunks_of_8_bit_tensors(is_shared):
    q, k, v = (torch.randn(2, 7, 2, 16).to(torch.float8_e4m3fn) for _ in "qkv")
    scales = [torch.rand(1 if is_shared else 2, 2).add(0.5).expand(2, 2) for _ in "qkv"]
    named = dict(zip(("q_descale", "k_descale", "v_descale"), scales, strict=True))
    out = flash_attn_3.flash_attn_func(q, k, v, attention_chunk=3, causal=True, **named)
    for row in range(2):
        exact = [tensor[row].double() * scale[row, :, None] for tensor, scale in zip((q, k, v), scales, strict=True)]
        plain.check(out[row], None, plain.in_chunks(*exact, 3, right=0))


# ---- attention_chunk of caches -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("page", [None, 4])
@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("seq_q", [1, 5])
@pytest.mark.parametrize("form", ["fixed", "new", "ragged"])
def test_chunks_of_a_cache(form, seq_q, chunk, page, mask):
    given, words = MASKS[mask]
    cache, new = Cache([9, 0, 1, 8, 4], 16, page), {}
    q, counts = torch.randn(5, seq_q, 4, 16), cache.counts.tolist()
    options = {"page_table": cache.options["block_table"]} if page else {}
    keys = [(cache.k[row, :count], cache.v[row, :count]) for row, count in enumerate(counts)]
    if form == "new":
        new = {"k": torch.randn(5, 3, 2, 16), "v": torch.randn(5, 3, 2, 16)}
        keys = [tuple(torch.cat([x, new[name][row]]) for x, name in zip(pair, "kv", strict=True)) for row, pair in enumerate(keys)]
    options |= {"cache_seqlens": cache.counts, "attention_chunk": chunk, "return_softmax_lse": True, **new, **given}
    call = cache.k_cache, cache.v_cache
    if form == "ragged":
        own = [seq_q, 0, 1, min(seq_q, 2), seq_q]
        flat = torch.cat([rows[:count] for rows, count in zip(q, own, strict=True)])
        ends = {"cu_seqlens_q": lengths(own), "max_seqlen_q": None if chunk == 4 else seq_q}
        out, lse, *_ = flash_attn_3.flash_attn_with_kvcache(flat, *call, **options, **ends)
        parts = [plain.in_chunks(rows[:count], *pair, chunk, **words) for rows, count, pair in zip(q, own, keys, strict=True)]
        plain.check(out, lse.T, plain.join(parts))
        return
    out, lse, *_ = flash_attn_3.flash_attn_with_kvcache(q, *call, **options)
    check_each(out, lse, [plain.in_chunks(q[row], *keys[row], chunk, **words) for row in range(5)])


def test_chunks_of_a_cache_of_one_length_have_gradients():
    q, k, v = (torch.randn(2, seq, 2, 16, requires_grad=True) for seq in (3, 10, 10))
    options = {"attention_chunk": 4, "causal": True, "return_softmax_lse": True}
    out, lse, *_ = flash_attn_3.flash_attn_with_kvcache(q, k, v, cache_seqlens=9, **options)
    exact = [tensor.detach().double().requires_grad_() for tensor in (q, k, v)]
    wants = [plain.in_chunks(exact[0][row], exact[1][row, :9], exact[2][row, :9], 4, right=0) for row in range(2)]
    check_each(out, lse, wants)
    check_gradients(out, lse, (q, k, v), exact, wants)


def test_blocks_that_no_chunk_needs_may_be_anything():
    cache = Cache([9, 6], 16, 4)
    table = cache.options["block_table"].clone()
    table[0, :2], table[:, 3], table[1, 0] = 2147480000, -7, -2147480000
    q, k, v = torch.randn(2, 1, 4, 16), torch.randn(2, 1, 2, 16), torch.randn(2, 1, 2, 16)
    for chunk in (4, 2):
        options = {"cache_seqlens": cache.counts, "page_table": table, "attention_chunk": chunk}
        out = flash_attn_3.flash_attn_with_kvcache(q, cache.k_cache, cache.v_cache, k, v, **options)
        for row, count in enumerate(cache.counts.tolist()):
            keys = [torch.cat([x[row, :count], new[row]]) for x, new in ((cache.k, k), (cache.v, v))]
            plain.check(out[row], None, plain.in_chunks(q[row], *keys, chunk))


@pytest.mark.parametrize("chunk", [4, 3])
@pytest.mark.parametrize("new", [False, True])
def test_blocks_that_a_chunk_needs(chunk, new):
    cache = Cache([7, 6], 16, 4)
    cache.options["block_table"][1, 1] = 77
    more = {"k": torch.randn(2, 1, 2, 16), "v": torch.randn(2, 1, 2, 16)} if new else {}
    options = {"cache_seqlens": cache.counts, "page_table": cache.options["block_table"], "attention_chunk": chunk, **more}
    with pytest.raises(RuntimeError, match=r"^page_table\[1\]\[1\]: got 77, want 0 to 9$"):
        flash_attn_3.flash_attn_with_kvcache(torch.randn(2, 1, 4, 16), cache.k_cache, cache.v_cache, **options)


# ---- cache_leftpad -----------------------------------------------------------------------------------------------------------


LEFTPAD, COUNTS = [3, 0, 9, 4, 0], [9, 6, 9, 5, 0]


def padded_cache(heads=2):
    """A cache whose padding holds NaN, and keys of each sequence."""
    cache = Cache(COUNTS, 16, heads=heads)
    for row, padding in enumerate(LEFTPAD):
        cache.k_cache[row, :padding] = cache.v_cache[row, :padding] = torch.nan
    keys = [(cache.k[row, LEFTPAD[row] : count], cache.v[row, LEFTPAD[row] : count]) for row, count in enumerate(COUNTS)]
    return cache, keys


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("seq_q", [1, 3])
@pytest.mark.parametrize("new", [False, True])
@pytest.mark.parametrize("interface", [flash_attn, flash_attn_3], ids=["2", "3"])
def test_padding_on_the_left(interface, new, seq_q, mask):
    given, words = MASKS[mask]
    cache, keys = padded_cache()
    q, k, v = torch.randn(5, seq_q, 4, 16), torch.randn(5, 2, 2, 16), torch.randn(5, 2, 2, 16)
    options = {"cache_seqlens": cache.counts, "cache_leftpad": torch.tensor(LEFTPAD).int(), "return_softmax_lse": True}
    more = {"k": k, "v": v} if new else {}
    out, lse = interface.flash_attn_with_kvcache(q, cache.k_cache, cache.v_cache, **more, **options, **given)[:2]
    if new:
        keys = [tuple(torch.cat([x, y[row]]) for x, y in zip(pair, (k, v), strict=True)) for row, pair in enumerate(keys)]
        assert all(torch.equal(cache.k_cache[row, count : count + 2], k[row]) for row, count in enumerate(COUNTS))
    check_each(out, lse, [plain.attention(q[row], *keys[row], **words) for row in range(5)])


@pytest.mark.parametrize("layout", ["rows of a larger cache", "heads first", "k alone"])
@pytest.mark.parametrize("chunk", [0, 3])
def test_padding_in_caches_of_other_strides(layout, chunk):
    """A cache that is a slice is read in place; k and v of unlike strides are copied. cache_batch_idx chooses rows."""
    cache, keys = padded_cache()
    k_cache, v_cache = cache.k_cache, cache.v_cache
    if layout == "rows of a larger cache":
        k_cache, v_cache = (torch.nn.functional.pad(x, (0, 0, 0, 0, 0, 5), value=torch.nan)[:, :16] for x in (k_cache, v_cache))
    else:
        k_cache = k_cache.transpose(1, 2).contiguous().transpose(1, 2)
        v_cache = v_cache if layout == "k alone" else v_cache.transpose(1, 2).contiguous().transpose(1, 2)
    index = torch.tensor([2, 0, 3]).int()
    chosen = index.long()
    q, leftpad = torch.randn(3, 2, 4, 16), torch.tensor(LEFTPAD).int()[chosen]
    options = {"cache_batch_idx": index, "cache_leftpad": leftpad, "cache_seqlens": cache.counts[chosen], "causal": True}
    out = flash_attn_3.flash_attn_with_kvcache(q, k_cache, v_cache, attention_chunk=chunk, **options)
    for row, at in enumerate(index.tolist()):
        want = plain.in_chunks(q[row], *keys[at], chunk or 100, right=0)
        plain.check(out[row], None, want)
    smaller = ranges._in_pages(ranges.Cache(k_cache, v_cache, None, None, None), 1)[0]
    assert (smaller.k.data_ptr() == k_cache.data_ptr()) == (layout != "k alone")


def test_padding_of_a_full_cache_and_ragged_queries():
    cache = Cache([16] * 5, 16)
    leftpad, own = torch.tensor([0, 15, 16, 3, 8]).int(), [2, 1, 1, 0, 3]
    q = torch.randn(7, 4, 16)
    options = {"cache_leftpad": leftpad, "cu_seqlens_q": lengths(own), "max_seqlen_q": 3, "return_softmax_lse": True}
    out, lse, *_ = flash_attn_3.flash_attn_with_kvcache(q, cache.k_cache, cache.v_cache, cache_seqlens=16, **options)
    parts = [(cache.k[row, padding:], cache.v[row, padding:]) for row, padding in enumerate(leftpad.tolist())]
    plain.check(out, lse.T, plain.join([plain.attention(rows, *pair) for rows, pair in zip(q.split(own), parts, strict=True)]))


def test_rotary_positions_count_padding():
    cache, keys = padded_cache()
    q, k, v = torch.randn(5, 2, 4, 16), torch.randn(5, 2, 2, 16), torch.randn(5, 2, 2, 16)
    angles = torch.rand(16, 4) * 6
    tables = {"rotary_cos": angles.cos(), "rotary_sin": angles.sin()}
    options = {"cache_seqlens": cache.counts, "cache_leftpad": torch.tensor(LEFTPAD).int(), "causal": True}
    out = flash_attn.flash_attn_with_kvcache(q, cache.k_cache, cache.v_cache, k, v, **tables, **options)
    for row, count in enumerate(COUNTS):
        places = torch.arange(2) + count
        turned = [rotated(x[row], places, *tables.values(), True) for x in (q, k)]
        want = plain.attention(turned[0], torch.cat([keys[row][0], turned[1]]), torch.cat([keys[row][1], v[row]]), right=0)
        plain.check(out[row], None, want)


def test_ranges_where_nothing_can_be_read(monkeypatch):
    """As on a GPU: padding past the end is no keys, and lengths past the cache are the keys that it has room for."""
    cache, _ = padded_cache()
    monkeypatch.setattr(ranges, "readable", lambda *tensors: False)
    queries = ranges.Queries(torch.randn(5, 4, 16), 5, 1, None, 1)
    table, leftpad = torch.arange(5).int()[:, None], torch.tensor([3, -4, 100, 2147483647, 5]).int()
    given = ranges.Pages(queries, ranges.Cache(cache.k_cache, cache.v_cache, None, None, None), table, cache.counts + 8)
    pages = ranges.Range(leftpad).of(given)
    assert pages.lengths.tolist() == [13, 14, 0, 0, 3]
    assert bool((pages.table < pages.cache.k.shape[0]).all())
    assert pages.table[0].tolist() == [*range(3, 16), -1, -1, -1] and pages.table[1].tolist() == list(range(16, 32))


# ---- calls that contradict themselves ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cache_leftpad": torch.tensor([0, 7]).int()}, r"^cache_leftpad\[1\]: got 7, want 0 to 5 \(tokens of the sequence\)$"),
        ({"cache_leftpad": torch.tensor([-1, 0]).int()}, r"^cache_leftpad\[0\]: got -1, want 0 to 9"),
        ({"cache_leftpad": torch.tensor([0]).int()}, r"^cache_leftpad\.shape: got \[1\], want \[2\] \(batch of q\)$"),
        ({"cache_leftpad": torch.tensor([0, 0])}, r"^cache_leftpad\.dtype: got torch\.int64, want torch\.int32$"),
        (
            {"cache_leftpad": torch.tensor([0, 0]).int(), "page_table": torch.zeros(2, 1).int()},
            r"^cache_leftpad: got a tensor, want None \(with page_table\)$",
        ),
        ({"attention_chunk": -1}, r"^attention_chunk: got -1, want 0 \(no chunks\) or more$"),
        ({"attention_chunk": 4, "cache_seqlens": torch.tensor([17, 5]).int()}, r"^cache_seqlens\[0\]: got 17, want 0 to 16"),
    ],
)
@pytest.mark.parametrize("new", [False, True])
def test_ranges_that_contradict_themselves(changes, message, new):
    cache = Cache([9, 3] if new else [9, 5], 16)
    before = cache.k_cache.clone()
    more = {"k": torch.randn(2, 2, 2, 16), "v": torch.randn(2, 2, 2, 16)} if new else {}
    if new:
        message = message.replace("0 to 9", "0 to 11").replace("0 to 16", "0 to 14")
    with pytest.raises(RuntimeError, match=message):
        call = {"cache_seqlens": cache.counts, **more} | changes
        flash_attn_3.flash_attn_with_kvcache(torch.randn(2, 2, 4, 16), cache.k_cache, cache.v_cache, **call)
    torch.testing.assert_close(cache.k_cache, before, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ((lengths([4, 5]), lengths([4, 5]), 5, 4), r"^cu_seqlens_k\[2\] \(length of the sequence\): got 5, want 0 to 4$"),
        ((torch.tensor([0, 5, 4]).int(), lengths([4, 5]), 9, 9), r"^cu_seqlens_q\[2\] .*: got -1, want 0 to 9$"),
        ((lengths([9]), lengths([4, 5]), 9, 9), r"^cu_seqlens_k\.shape: got \[3\], want \[2\], as cu_seqlens_q$"),
        ((lengths([4, 5]).long(), lengths([4, 5]), 9, 9), r"^cu_seqlens_q\.dtype: got torch\.int64, want torch\.int32$"),
    ],
)
def test_chunks_of_lengths_that_do_not_fit(ends, message):
    q, k, v = (torch.randn(9, 2, 16) for _ in "qkv")
    with pytest.raises(RuntimeError, match=message):
        flash_attn_3.flash_attn_varlen_func(q, k, v, *ends, attention_chunk=2)
