# SPDX-License-Identifier: Apache-2.0
"""cache_leftpad, attention_chunk and qv in other ways of calling: autocast, gradients, no sequences, rows without keys, turned."""

import pytest
import torch

import fovea.compat.flash_attn as flash_attn
import fovea.compat.flash_attn_interface as flash_attn_3
import plain
from kvcache import Cache, int32, lengths, rotated

INTERFACES = pytest.mark.parametrize("interface", [flash_attn, flash_attn_3], ids=["2", "3"])


def latent_tensors(batch=2, seq_q=3, seq_k=9):
    """q, k, v and qv of a fixed batch."""
    shapes = (batch, seq_q, 4, 64), (batch, seq_k, 1, 64), (batch, seq_k, 1, 512), (batch, seq_q, 4, 512)
    return [torch.randn(shape) for shape in shapes]


# ---- autocast ------------------------------------------------------------------------------------------------------------------


def test_chunks_follow_autocast():
    q, k, v = torch.randn(2, 5, 4, 16), torch.randn(2, 9, 2, 16), torch.randn(2, 9, 2, 16)
    ends = lengths([2, 8]), lengths([9, 9]), 8, 9
    for given, call in (
        ((q, k, v), lambda *x: flash_attn_3.flash_attn_func(*x, attention_chunk=4)),
        ((q, k, v), lambda *x: flash_attn_3.flash_attn_with_kvcache(*x, cache_seqlens=7, attention_chunk=4)),
        ((x.flatten(0, 1) for x in (q, k, v)), lambda *x: flash_attn_3.flash_attn_varlen_func(*x, *ends, attention_chunk=4)),
    ):
        given = [*given]
        want = call(*(x.bfloat16() for x in given))
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(call(*given), want)


def test_autocast_leaves_caches_and_qv_alone():
    """As it leaves all calls over pages."""
    cache, new = Cache([5, 0, 9], 16), torch.randn(3, 2, 2, 16)
    q, caches = torch.randn(3, 2, 4, 16), (cache.k_cache, cache.v_cache)
    options = {"cache_seqlens": cache.counts, "cache_leftpad": int32(2, 0, 9), "attention_chunk": 3}
    *latent, qv = latent_tensors()
    for call in (
        lambda: flash_attn_3.flash_attn_with_kvcache(q, *(x.clone() for x in caches), new, new, causal=True, **options),
        lambda: flash_attn_3.flash_attn_func(*latent, qv=qv, causal=True),
    ):
        want = call()
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(call(), want)


# ---- gradients -----------------------------------------------------------------------------------------------------------------


@INTERFACES
@pytest.mark.parametrize("name", ["q", "k_cache", "v_cache"])
@pytest.mark.parametrize("seqlens", [9, int32(5, 9)])
def test_padding_on_the_left_has_no_gradient(interface, name, seqlens):
    call = {"q": torch.randn(2, 3, 4, 16), "k_cache": torch.randn(2, 9, 2, 16), "v_cache": torch.randn(2, 9, 2, 16)}
    options = {"cache_seqlens": seqlens, "cache_leftpad": int32(1, 4)}
    want = interface.flash_attn_with_kvcache(**call, **options)
    call[name].requires_grad_()
    with pytest.raises(NotImplementedError, match=rf"^{name}\.requires_grad: got True, want False"):
        interface.flash_attn_with_kvcache(**call, **options)
    with torch.no_grad():
        assert torch.equal(interface.flash_attn_with_kvcache(**call, **options), want)


@pytest.mark.parametrize("name", ["q", "k_cache", "v_cache", "k", "v"])
def test_chunks_over_caches_have_no_gradient(name):
    """A refused call has appended nothing."""
    call = {"q": torch.randn(2, 1, 4, 16), "k_cache": torch.randn(2, 9, 2, 16), "v_cache": torch.randn(2, 9, 2, 16)}
    call |= {"k": torch.randn(2, 1, 2, 16), "v": torch.randn(2, 1, 2, 16)}
    before = call["k_cache"].clone()
    call[name].requires_grad_()
    with pytest.raises(NotImplementedError, match=rf"^{name}\.requires_grad: got True, want False"):
        flash_attn_3.flash_attn_with_kvcache(**call, cache_seqlens=int32(5, 8), attention_chunk=4)
    assert torch.equal(call["k_cache"], before)


@pytest.mark.parametrize("form", ["fixed", "ragged", "cache"])
@pytest.mark.parametrize("name", ["q", "k", "v", "qv"])
def test_qv_has_no_gradient(form, name):
    q, k, v, qv = latent_tensors()
    call = {"q": q, "k": k, "v": v, "qv": qv}
    function = flash_attn_3.flash_attn_func
    if form == "ragged":
        call = {name: tensor.flatten(0, 1) for name, tensor in call.items()}
        call |= {"cu_seqlens_q": lengths([3, 3]), "cu_seqlens_k": lengths([9, 9]), "max_seqlen_q": 3, "max_seqlen_k": 9}
        function = flash_attn_3.flash_attn_varlen_func
    names = {"k": "k_cache", "v": "v_cache"} if form == "cache" else {}
    call = {names.get(name, name): value for name, value in call.items()}
    if form == "cache":
        function = flash_attn_3.flash_attn_with_kvcache
    want, name = function(**call), names.get(name, name)
    call[name].requires_grad_()
    with pytest.raises(NotImplementedError, match=rf"^{name}\.requires_grad: got True, want False"):
        function(**call)
    with torch.no_grad():
        assert torch.equal(function(**call), want)


def test_chunks_give_the_same_bits_if_asked():
    q, k, v = (torch.randn(2, seq, 2, 16, requires_grad=True) for seq in (5, 9, 9))
    runs = [
        torch.autograd.grad(flash_attn_3.flash_attn_func(q, k, v, attention_chunk=4, deterministic=True).sum(), (q, k, v))
        for _ in range(2)
    ]
    assert all(map(torch.equal, *runs))


# ---- nothing to compute --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"qv": torch.randn(0, 3, 4, 512)}], ids=["", "qv"])
def test_no_sequences(options):
    dims = (64, 512) if options else (16, 16)
    q, k, v = torch.randn(0, 3, 4, dims[0]), torch.randn(0, 9, 1, dims[0]), torch.randn(0, 9, 1, dims[1])
    out, lse = flash_attn_3.flash_attn_func(q, k, v, attention_chunk=4, return_attn_probs=True, **options)
    assert out.shape == (0, 3, 4, dims[1]) and lse.shape == (0, 4, 3)
    ends, flat = lengths([]), {name: value.flatten(0, 1) for name, value in options.items()}
    call = (*(x.flatten(0, 1) for x in (q, k, v)), ends, ends, 0, 0)
    out, lse = flash_attn_3.flash_attn_varlen_func(*call, attention_chunk=4, return_attn_probs=True, **flat)
    assert out.shape == (0, 4, dims[1]) and lse.shape == (4, 0)
    given = {"cache_seqlens": int32(), "cache_leftpad": int32(), "attention_chunk": 4, "return_softmax_lse": True, **options}
    for new in ({}, {"k": k[:, :3], "v": v[:, :3]}):
        out, lse, *_ = flash_attn_3.flash_attn_with_kvcache(q, k, v, **given, **new)
        assert out.shape == (0, 3, 4, dims[1]) and lse.shape == (0, 4, 3)


@INTERFACES
def test_no_queries(interface):
    cache = Cache([5, 9], 16)
    options = {"cache_seqlens": cache.counts, "cache_leftpad": int32(2, 9), "return_softmax_lse": True}
    out, lse = interface.flash_attn_with_kvcache(torch.randn(2, 0, 4, 16), cache.k_cache, cache.v_cache, **options)[:2]
    assert out.shape == (2, 0, 4, 16) and lse.shape == (2, 4, 0)


def is_blind(out, lse):
    return bool((out == 0).all()) and bool(lse.isneginf().all())


@INTERFACES
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seqlens", [9, int32(9, 9, 9)], ids=["a number", "a tensor"])
def test_padding_alone_is_no_key(interface, causal, seqlens):
    cache = Cache([9, 9, 9], 9)
    cache.k_cache[1] = cache.v_cache[1] = torch.nan
    options = {"cache_seqlens": seqlens, "cache_leftpad": int32(0, 9, 8), "causal": causal, "return_softmax_lse": True}
    q = torch.randn(3, 2, 4, 16)
    out, lse = interface.flash_attn_with_kvcache(q, cache.k_cache, cache.v_cache, **options)[:2]
    assert is_blind(out[1], lse[1]) and is_blind(out[2, :1], lse[2, :, :1]) == causal
    for row, padding in ((0, 0), (2, 8)):
        want = plain.attention(q[row], cache.k[row, padding:], cache.v[row, padding:], right=0 if causal else None)
        plain.check(out[row], lse[row].T, want)


@INTERFACES
def test_new_keys_may_be_padding(interface):
    """As many as cache_leftpad says, which counts rows of the cache."""
    cache, q, new = Cache([5, 2], 16), torch.randn(2, 1, 4, 16), torch.randn(2, 3, 2, 16)
    options = {"cache_seqlens": cache.counts, "cache_leftpad": int32(6, 5), "return_softmax_lse": True}
    out, lse = interface.flash_attn_with_kvcache(q, cache.k_cache, cache.v_cache, new, new, **options)[:2]
    plain.check(out[0], lse[0].T, plain.attention(q[0], new[0, 1:], new[0, 1:]))
    assert is_blind(out[1], lse[1]) and torch.equal(cache.k_cache[1, 2:5], new[1])


def test_qv_without_keys():
    q, k, v, qv = latent_tensors()
    options = {"cache_seqlens": int32(0, 9), "cache_leftpad": int32(0, 9), "qv": qv, "return_softmax_lse": True}
    out, lse, *_ = flash_attn_3.flash_attn_with_kvcache(q, k, v, **options)
    assert is_blind(out, lse)
    options = {"qv": qv, "return_attn_probs": True}
    for chunk in (0, 4):
        assert is_blind(*flash_attn_3.flash_attn_func(q, k[:, :0], v[:, :0], attention_chunk=chunk, **options))
    flat = (q.flatten(0, 1), k[:0].flatten(0, 1), v[:0].flatten(0, 1), lengths([3, 3]), lengths([0, 0]), 3, 0)
    assert is_blind(*flash_attn_3.flash_attn_varlen_func(*flat, **options | {"qv": qv.flatten(0, 1)}))


# ---- positions -----------------------------------------------------------------------------------------------------------------


@INTERFACES
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("begin", [None, int32(7, 1, 0)], ids=["", "rotary_seqlens"])
def test_rotation_and_padding(interface, interleaved, causal, begin):
    """Positions count padding, unless rotary_seqlens says where they begin. More queries than new keys."""
    if begin is not None and interface is flash_attn:
        pytest.skip("flash-attn 2 has no rotary_seqlens")
    cache, leftpad = Cache([5, 2, 9], 16), (3, 0, 9)
    q, k, v = torch.randn(3, 3, 4, 16), torch.randn(3, 2, 2, 16), torch.randn(3, 2, 2, 16)
    angles = torch.rand(16, 4) * 6
    tables = {"rotary_cos": angles.cos(), "rotary_sin": angles.sin()}
    options = {"cache_seqlens": cache.counts, "cache_leftpad": int32(*leftpad), "rotary_interleaved": interleaved}
    options |= {"causal": causal, "return_softmax_lse": True, **tables} | ({} if begin is None else {"rotary_seqlens": begin})
    out, lse = interface.flash_attn_with_kvcache(q, cache.k_cache, cache.v_cache, k, v, **options)[:2]
    for row, count in enumerate(cache.counts.tolist()):
        first = count if begin is None else int(begin[row])
        places = torch.arange(first, first + 3)
        queries = rotated(q[row], places if causal else places[:1].expand(3), *tables.values(), interleaved)
        new = rotated(k[row], places[:2], *tables.values(), interleaved)
        torch.testing.assert_close(cache.k_cache[row, count : count + 2].double(), new, rtol=1e-5, atol=1e-6)
        keys = torch.cat([cache.k[row, leftpad[row] : count], new]), torch.cat([cache.v[row, leftpad[row] : count], v[row]])
        plain.check(out[row], lse[row].T, plain.attention(queries, *keys, right=0 if causal else None))


@pytest.mark.parametrize("chunk", [0, 3])
@pytest.mark.parametrize("window", [(-1, -1), (2, 0)])
def test_ragged_queries_padding_and_chunks(chunk, window):
    cache, leftpad, own = Cache([9, 4, 12, 7], 12), (2, 4, 5, 0), [3, 1, 9, 0]
    q = torch.randn(13, 4, 16)
    ends = {"cu_seqlens_q": lengths(own), "max_seqlen_q": 9, "cache_seqlens": cache.counts, "cache_leftpad": int32(*leftpad)}
    options = {"window_size": window, "attention_chunk": chunk, "return_softmax_lse": True}
    out, lse, *_ = flash_attn_3.flash_attn_with_kvcache(q, cache.k_cache, cache.v_cache, **ends, **options)
    words = {"left": 2, "right": 0} if window == (2, 0) else {}
    wants = []
    for row, rows in enumerate(q.split(own)):
        keys = [x[row, leftpad[row] : cache.counts[row]] for x in (cache.k, cache.v)]
        wants.append(plain.in_chunks(rows, *keys, chunk, **words) if chunk else plain.attention(rows, *keys, **words))
    plain.check(out, lse.T, plain.join(wants))


@pytest.mark.parametrize("chunk", [(1 << 31) - 1, 1 << 31, (1 << 63) - 1, 1 << 64])
def test_chunks_longer_than_any_sequence(chunk):
    q, k, v = torch.randn(2, 5, 4, 16), torch.randn(2, 9, 2, 16), torch.randn(2, 9, 2, 16)
    options = {"attention_chunk": chunk, "causal": True}
    want = flash_attn_3.flash_attn_func(q, k, v, causal=True)
    torch.testing.assert_close(flash_attn_3.flash_attn_func(q, k, v, **options), want)
    got = flash_attn_3.flash_attn_with_kvcache(q, k, v, cache_seqlens=int32(9, 9), **options)
    torch.testing.assert_close(got, want)


# ---- caches that do not go together --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"cache_leftpad": int32(0, 0)}, {"attention_chunk": 4}], ids=["leftpad", "chunk"])
@pytest.mark.parametrize("shape", [(0, 14), (3, 14), (2, 13)])
def test_caches_of_unlike_extents(options, shape):
    k_cache, v_cache = torch.randn(2, 14, 2, 16), torch.randn(*shape, 2, 16)
    with pytest.raises(RuntimeError, match=r"^v_cache\.shape\[:2\] \(blocks, page\): got \[\d, 1\d\], want \[2, 14\], as k_cache$"):
        flash_attn_3.flash_attn_with_kvcache(torch.randn(2, 1, 4, 16), k_cache, v_cache, cache_seqlens=int32(5, 5), **options)
