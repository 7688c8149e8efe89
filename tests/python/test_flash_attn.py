# SPDX-License-Identifier: Apache-2.0
"""flash-attn's functions over Fovea, against float64 attention: layouts, masks, lse, caches, rotary embeddings, gradients."""

import inspect

import pytest
import torch

import fovea
import fovea.compat.flash_attn as flash_attn
import fovea.compat.flash_attn_interface as flash_attn_3
import fovea.compat.flash_mla as flash_mla
import plain
from kvcache import Cache, lengths, rotated

SIGNATURES = {
    flash_attn.flash_attn_func: "q k v dropout_p=0.0 softmax_scale=None causal=False window_size=(-1,-1) softcap=0.0 "
    "alibi_slopes=None deterministic=False return_attn_probs=False",
    flash_attn.flash_attn_varlen_func: "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k dropout_p=0.0 "
    "softmax_scale=None causal=False window_size=(-1,-1) softcap=0.0 alibi_slopes=None deterministic=False "
    "return_attn_probs=False block_table=None",
    flash_attn.flash_attn_with_kvcache: "q k_cache v_cache k=None v=None rotary_cos=None rotary_sin=None cache_seqlens=None "
    "cache_batch_idx=None cache_leftpad=None block_table=None softmax_scale=None causal=False window_size=(-1,-1) softcap=0.0 "
    "rotary_interleaved=True alibi_slopes=None num_splits=0 return_softmax_lse=False",
    flash_attn_3.flash_attn_func: "q k v softmax_scale=None causal=False qv=None q_descale=None k_descale=None v_descale=None "
    "window_size=(-1,-1) attention_chunk=0 softcap=0.0 num_splits=1 pack_gqa=None deterministic=False sm_margin=0 "
    "return_attn_probs=False",
    flash_attn_3.flash_attn_with_kvcache: "q k_cache v_cache k=None v=None qv=None rotary_cos=None rotary_sin=None "
    "cache_seqlens=None cache_batch_idx=None cache_leftpad=None page_table=None cu_seqlens_q=None cu_seqlens_k_new=None "
    "max_seqlen_q=None rotary_seqlens=None q_descale=None k_descale=None v_descale=None softmax_scale=None causal=False "
    "window_size=(-1,-1) attention_chunk=0 softcap=0.0 rotary_interleaved=True scheduler_metadata=None num_splits=0 "
    "pack_gqa=None sm_margin=0 return_softmax_lse=False",
    flash_mla.flash_attn_varlen_func: "q k v cu_seqlens_qo cu_seqlens_kv max_seqlen_qo max_seqlen_kv dropout_p=0.0 "
    "softmax_scale=None causal=False deterministic=False is_varlen=True",
}
MASKS = {
    "full": ({}, {}),
    "causal": ({"causal": True}, {"right": 0}),
    "left": ({"window_size": (3, -1)}, {"left": 3}),
    "window": ({"window_size": (2, 1), "softcap": 3.0}, {"left": 2, "right": 1, "softcap": 3.0}),
    "causal window": ({"causal": True, "window_size": (4, 2), "softmax_scale": 0.3}, {"left": 4, "right": 0, "scale": 0.3}),
}


@pytest.mark.parametrize("function", SIGNATURES, ids=lambda function: function.__module__ + "." + function.__name__)
def test_signatures(function):
    """Names, order and defaults: users pass arguments by position."""
    got = " ".join(
        name if parameter.default is parameter.empty else f"{name}={parameter.default}".replace(" ", "")
        for name, parameter in inspect.signature(function).parameters.items()
    )
    assert got == SIGNATURES[function]


def inputs(seqs=(7, 11), heads=(4, 2), dims=(24, 24), dtype=torch.float32):
    q = torch.randn(2, seqs[0], heads[0], dims[0], dtype=dtype)
    k, v = (torch.randn(2, seqs[1], heads[1], dim, dtype=dtype) for dim in dims)
    return q, k, v


def check_fixed(out, lse, q, k, v, **mask):
    for row in range(len(q)):
        plain.check(out[row], None if lse is None else lse[row].T, plain.attention(q[row], k[row], v[row], **mask))


def check_ragged(out, lse, parts, **mask):
    """parts: q, k, v of each sequence."""
    plain.check(out, lse, plain.join([plain.attention(*part, **mask) for part in parts]))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("interface", [flash_attn, flash_attn_3], ids=["2", "3"])
def test_fixed(interface, mask):
    given, expected = MASKS[mask]
    q, k, v = inputs(dtype=torch.bfloat16)
    out, lse = interface.flash_attn_func(q, k, v, return_attn_probs=True, **given)[:2]
    assert lse.shape == (2, 4, 7)
    check_fixed(out, lse, q, k, v, **expected)
    assert torch.equal(interface.flash_attn_func(q, k, v, **given), out)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("interface", [flash_attn, flash_attn_3], ids=["2", "3"])
def test_ragged(interface, mask):
    given, expected = MASKS[mask]
    q_lengths, k_lengths = [3, 0, 9, 1], [5, 4, 12, 0]
    q, k, v = torch.randn(13, 4, 16), torch.randn(21, 2, 16), torch.randn(21, 2, 16)
    cu = lengths(q_lengths), lengths(k_lengths)
    out, lse = interface.flash_attn_varlen_func(q, k, v, *cu, 9, torch.tensor(12), return_attn_probs=True, **given)[:2]
    assert lse.shape == (4, 13) and lse.is_contiguous()
    check_ragged(out, lse.T, list(zip(q.split(q_lengths), k.split(k_lengths), v.split(k_lengths), strict=True)), **expected)


def test_what_comes_back():
    q, k, v = inputs()
    assert isinstance(flash_attn.flash_attn_func(q, k, v), torch.Tensor)
    out, lse, probabilities = flash_attn.flash_attn_func(q, k, v, 0.0, None, True, (-1, -1), 0.0, None, False, True)
    assert probabilities.numel() == 0 and out.shape == q.shape and lse.dtype == torch.float32
    assert len(flash_attn_3.flash_attn_func(q, k, v, return_attn_probs=True)) == 2
    cache = flash_attn_3.flash_attn_with_kvcache(
        q, k, v, cache_seqlens=torch.tensor([3, 5], dtype=torch.int32), return_softmax_lse=True
    )
    assert cache[1].shape == (2, 4, 7) and cache[2:] == (None, None)


def test_packed_forms():
    qkv = torch.randn(2, 9, 3, 4, 16)
    q, k, v = qkv.unbind(2)
    want = flash_attn.flash_attn_func(q, k, v, causal=True)
    options = {"causal": True}
    assert torch.equal(flash_attn.flash_attn_qkvpacked_func(qkv, **options), want)
    assert torch.equal(flash_attn.flash_attn_kvpacked_func(q, torch.stack([k, v], 2), **options), want)
    assert torch.equal(flash_attn_3.flash_attn_qkvpacked_func(qkv, **options), want)
    heads = torch.cat([torch.cat([q, q + 1], 2), k, v], 2)
    got = flash_attn_3.flash_attn_qkvpacked_func(heads, num_heads_q=8, **options)
    assert torch.equal(got, flash_attn.flash_attn_func(torch.cat([q, q + 1], 2), k, v, **options))
    flat, cu = qkv.flatten(0, 1), lengths([9, 9])
    assert torch.equal(flash_attn.flash_attn_varlen_qkvpacked_func(flat, cu, 9, **options), want.flatten(0, 1))
    got = flash_attn.flash_attn_varlen_kvpacked_func(flat[:, 0], flat[:, 1:], cu, cu, 9, 9, **options)
    assert torch.equal(got, want.flatten(0, 1))


@pytest.mark.parametrize("dims", [(20, 20), (36, 12)])
def test_head_dims_of_no_whole_eights(dims):
    q, k, v = inputs(dims=dims)
    assert_close = check_fixed
    out, lse, _ = flash_attn.flash_attn_func(q, k, v, return_attn_probs=True)
    assert out.shape == (2, 7, 4, dims[1])
    assert_close(out, lse, q, k, v)


def test_rows_that_are_not_contiguous():
    q, k, v = (tensor.transpose(2, 3).contiguous().transpose(2, 3) for tensor in inputs())
    assert q.stride(-1) != 1
    check_fixed(flash_attn.flash_attn_func(q, k, v), None, q, k, v)


def test_gradients():
    """Through the packed forms too: against float64 autograd."""
    qkv = torch.randn(12, 3, 2, 20, requires_grad=True)
    cu = lengths([5, 7])
    dout = torch.randn(12, 2, 20)
    got = torch.autograd.grad(flash_attn.flash_attn_varlen_qkvpacked_func(qkv, cu, 7, causal=True, softcap=2.0), qkv, dout)[0]
    exact = qkv.detach().double().requires_grad_()
    parts = [plain.attention(*part.unbind(1), right=0, softcap=2.0).out for part in exact.split([5, 7])]
    want = torch.autograd.grad(torch.cat(parts), exact, dout.double())[0]
    torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-5)


def test_float8_with_scales():
    q, k, v = (tensor.to(torch.float8_e4m3fn) for tensor in inputs(dims=(32, 32)))
    scales = [torch.rand(2, 2) + 0.5 for _ in range(3)]
    got = flash_attn_3.flash_attn_func(
        q, k, v, causal=True, **dict(zip(("q_descale", "k_descale", "v_descale"), scales, strict=True))
    )
    want = fovea.attention(q, k, v, causal=True, q_scale=scales[0], k_scale=scales[1], v_scale=scales[2])
    assert got.dtype == torch.bfloat16 and torch.equal(got, want)


# ---- caches ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [None, 8, 3])
@pytest.mark.parametrize("mask", ["full", "causal", "window"])
def test_cache(mask, page):
    given, expected = MASKS[mask]
    cache = Cache([5, 0, 24], 24, page)
    q = torch.randn(3, 2, 4, 16)
    out, lse = flash_attn.flash_attn_with_kvcache(
        q, cache.k_cache, cache.v_cache, cache_seqlens=cache.counts, return_softmax_lse=True, **cache.options, **given
    )
    assert lse.shape == (3, 4, 2)
    for row, count in enumerate(cache.counts.tolist()):
        plain.check(out[row], lse[row].T, plain.attention(q[row], cache.k[row, :count], cache.v[row, :count], **expected))


@pytest.mark.parametrize("page", [None, 4])
@pytest.mark.parametrize("rotary", [None, "interleaved", "halves"])
@pytest.mark.parametrize("mask", ["full", "causal", "window"])
def test_append(mask, rotary, page):
    """New keys are in the cache afterwards, turned; queries are turned to their positions, or to the first where no mask counts."""
    given, expected = MASKS[mask]
    cache = Cache([5, 0, 9], 16, page)
    q, k, v = torch.randn(3, 3, 4, 16), torch.randn(3, 3, 2, 16), torch.randn(3, 3, 2, 16)
    angles = torch.rand(16, 4) * 6
    cos, sin, interleaved = angles.cos(), angles.sin(), rotary == "interleaved"
    options = {"rotary_cos": cos, "rotary_sin": sin, "rotary_interleaved": interleaved} if rotary else {}
    out = flash_attn.flash_attn_with_kvcache(
        q, cache.k_cache, cache.v_cache, k, v, cache_seqlens=cache.counts, **options, **given, **cache.options
    )
    for row, count in enumerate(cache.counts.tolist()):
        places, keys, queries = torch.arange(count, count + 3), k[row].double(), q[row].double()
        if rotary:
            keys = rotated(keys, places, cos, sin, interleaved)
            queries = rotated(queries, places if given else places[:1].expand(3), cos, sin, interleaved)
        stored = cache.read("k")[row]
        torch.testing.assert_close(stored[count : count + 3].double(), keys, rtol=1e-5, atol=1e-6)
        assert torch.equal(cache.read("v")[row, count : count + 3], v[row])
        assert torch.equal(stored[:count], cache.k[row, :count]) and stored[count + 3 :].isnan().all()
        both = torch.cat([cache.k[row, :count], keys]), torch.cat([cache.v[row, :count], v[row]])
        plain.check(out[row], None, plain.attention(queries, *both, **expected))


def test_cache_of_one_length_and_of_other_rows():
    cache = Cache([9, 9, 9], 9)
    q = torch.randn(2, 1, 4, 16)
    got = flash_attn.flash_attn_with_kvcache(q, cache.k_cache[:2], cache.v_cache[:2], cache_seqlens=6)
    check_fixed(got, None, q, cache.k[:2, :6], cache.v[:2, :6])
    got = flash_attn.flash_attn_with_kvcache(q, cache.k_cache[:2], cache.v_cache[:2])
    check_fixed(got, None, q, cache.k[:2], cache.v[:2])
    rows = torch.tensor([2, 0], dtype=torch.int32)
    got = flash_attn.flash_attn_with_kvcache(q, cache.k_cache, cache.v_cache, cache_seqlens=7, cache_batch_idx=rows)
    check_fixed(got, None, q, cache.k[[2, 0], :7], cache.v[[2, 0], :7])


def test_ragged_over_pages():
    cache = Cache([5, 12], 12, 4)
    q = torch.randn(7, 4, 16)
    cu = lengths([3, 4]), lengths([5, 12])
    given = (q, cache.k_cache, cache.v_cache, *cu, 4, 12)
    out, lse, _ = flash_attn.flash_attn_varlen_func(*given, causal=True, return_attn_probs=True, **cache.options)
    parts = [(q[:3], cache.k[0, :5], cache.v[0, :5]), (q[3:], cache.k[1, :12], cache.v[1, :12])]
    check_ragged(out, lse.T, parts, right=0)


@pytest.mark.parametrize("page", [None, 4])
@pytest.mark.parametrize("mask", ["full", "causal", "window"])
def test_ragged_queries_over_a_cache(mask, page):
    given, expected = MASKS[mask]
    cache = Cache([5, 0, 12], 12, page)
    q, counts = torch.randn(8, 4, 16), [3, 1, 4]
    options = {"page_table": cache.options["block_table"]} if page else {}
    call = {"cache_seqlens": cache.counts, "cu_seqlens_q": lengths(counts), "max_seqlen_q": 4, **options, **given}
    out, lse, *_ = flash_attn_3.flash_attn_with_kvcache(q, cache.k_cache, cache.v_cache, return_softmax_lse=True, **call)
    assert lse.shape == (4, 8) and lse.is_contiguous()
    keys = [(cache.k[row, :count], cache.v[row, :count]) for row, count in enumerate(cache.counts.tolist())]
    check_ragged(out, lse.T, [(part, *kv) for part, kv in zip(q.split(counts), keys, strict=True)], **expected)
    with pytest.raises(NotImplementedError, match=r"^k: got Tensor, want None \(with cu_seqlens_q nothing is appended\)$"):
        flash_attn_3.flash_attn_with_kvcache(q, cache.k_cache, cache.v_cache, q, q, **call)


def test_combine():
    q, k, v = inputs((3, 8))
    halves = [fovea.attention(q, k[:, part], v[:, part], return_lse=True) for part in (slice(0, 5), slice(5, 8))]
    outs, lses = (torch.stack(each) for each in zip(*halves, strict=True))
    out, lse = flash_attn_3.flash_attn_combine(outs, lses.transpose(2, 3), out_dtype=torch.bfloat16)
    assert out.dtype == torch.bfloat16
    check_fixed(flash_attn_3.flash_attn_combine(outs, lses.transpose(2, 3))[0], lse.transpose(1, 2), q, k, v)


# ---- FlashMLA's dense attention ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dims", [(192, 128), (128, 128)])
def test_flash_mla(dims):
    dqk, dv = dims
    q, kv = torch.randn(7, 4, dqk).bfloat16(), torch.randn(9, 4, dqk + dv).bfloat16()
    cu = lengths([3, 4]), lengths([3, 6])
    out, lse = flash_mla.flash_attn_varlen_kvpacked_func(q, kv, *cu, 4, 6, dqk, causal=True)
    k, v = kv[..., :dqk], kv[..., dqk:]
    assert out.shape == (7, 4, dv) and lse.shape == (7, 4) and lse.stride() == (1, 7)
    check_ragged(out, lse, list(zip(q.split([3, 4]), k.split([3, 6]), v.split([3, 6]), strict=True)), right=0)
    qkv = torch.cat([q, kv[:7]], 2).float().requires_grad_()
    got, _ = flash_mla.flash_attn_varlen_qkvpacked_func(qkv, cu[0], 4, dqk)
    got.sin().sum().backward()
    exact = qkv.detach().double().requires_grad_()
    parts = [part.split([dqk, dqk, dv], 2) for part in exact.split([3, 4])]
    torch.cat([plain.attention(*part).out for part in parts]).sin().sum().backward()
    torch.testing.assert_close(qkv.grad.double(), exact.grad, rtol=1e-4, atol=1e-5)


# ---- refusals, torch.compile -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (flash_attn.flash_attn_func, {"dropout_p": 0.1, "return_attn_probs": True}, "^return_attn_probs: got True, want 0"),
        (flash_attn_3.flash_attn_func, {"qv": torch.ones(4)}, r"^q\.head_dim \(with qv\): got 24, want 64"),
        (flash_attn_3.flash_attn_with_kvcache, {"cu_seqlens_k_new": lengths([1])}, "^cu_seqlens_k_new: got Tensor"),
    ],
)
def test_what_is_not_computed(function, options, message):
    with pytest.raises(NotImplementedError, match=message):
        function(*inputs(), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window_size": (1, 2, 3)}, r"^window_size: got \(1, 2, 3\), want \(left, right\)"),
        ({"softmax_scale": 0.0}, r"^softmax_scale: got 0\.0"),
        ({"softcap": -1.0}, "softcap"),
    ],
)
def test_what_contradicts_itself(options, message):
    with pytest.raises(RuntimeError, match=message):
        flash_attn.flash_attn_func(*inputs(), **options)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"v": None}, "^k and v: got one of them, want both or none$"),
        ({"rotary_cos": torch.ones(16, 4)}, "^rotary_cos and rotary_sin: got one of them"),
        (
            {"k": None, "v": None, "rotary_cos": torch.ones(16, 4), "rotary_sin": torch.ones(16, 4)},
            r"^rotary_cos: .*without k and v",
        ),
        ({"rotary_cos": torch.ones(16, 9), "rotary_sin": torch.ones(16, 9)}, r"^rotary_cos\.shape\[1\].*: got 9, want at most 8$"),
        (
            {"cache_seqlens": torch.tensor([5, 14, 0], dtype=torch.int32)},
            r"^cache_seqlens\[1\]: got 14, want 0 to 13 \(the 16 tokens of k_cache less 3 new ones\)$",
        ),
        ({"q": torch.randn(3, 4, 16)}, r"^q\.rank: got 3, want 4"),
    ],
)
def test_caches_that_contradict_themselves(changes, message):
    cache = Cache([5, 0, 9], 16)
    new = torch.randn(3, 3, 2, 16)
    call = {"q": torch.randn(3, 3, 4, 16), "k_cache": cache.k_cache, "v_cache": cache.v_cache, "k": new, "v": new}
    with pytest.raises(RuntimeError, match=message):
        flash_attn.flash_attn_with_kvcache(**call | {"cache_seqlens": cache.counts} | changes)


def test_packed_tensors_of_other_shapes():
    with pytest.raises(RuntimeError, match=r"^qkv\.shape\[2\]: got 2, want 3$"):
        flash_attn.flash_attn_qkvpacked_func(torch.randn(1, 4, 2, 2, 16))
    with pytest.raises(RuntimeError, match=r"^kv\.rank: got 3, want 5"):
        flash_attn.flash_attn_kvpacked_func(torch.randn(1, 4, 2, 16), torch.randn(4, 2, 16))
    with pytest.raises(RuntimeError, match=r"^kv\.shape\[2\]: got 16, want more than 16"):
        flash_mla.flash_attn_varlen_kvpacked_func(*torch.randn(2, 4, 2, 16), *[lengths([4])] * 2, 4, 4, 16)


def test_compile():
    def loss(qkv, cu):
        out = flash_attn.flash_attn_varlen_qkvpacked_func(qkv, cu, 7, causal=True, window_size=(4, -1))
        fixed, lse, _ = flash_attn.flash_attn_func(*qkv[None].unbind(2), return_attn_probs=True)
        return out.sin().sum() + fixed.cos().sum() + lse.sum()

    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True)
    qkv, cu = torch.randn(12, 3, 2, 16, requires_grad=True), lengths([5, 7])
    got, want = (torch.autograd.grad(function(qkv, cu), qkv)[0] for function in (compiled, loss))
    torch.testing.assert_close(got, want)
