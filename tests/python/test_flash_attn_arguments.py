# SPDX-License-Identifier: Apache-2.0
"""Every optional argument of flash-attn's functions, once each, against float64 attention; and what refuses them by name."""

import inspect

import numpy as np
import pytest
import torch

import fovea.compat.flash_attn as flash_attn
import fovea.compat.flash_attn_interface as flash_attn_3
import fovea.compat.flash_mla as flash_mla
import plain
from kvcache import Cache, lengths

E4M3 = torch.float8_e4m3fn
Q_COUNTS, K_COUNTS = [3, 0, 7, 2], [5, 4, 12, 1]
SCORES = {
    "dropout_p": (0.0, {}),
    "softmax_scale": (0.3, {"scale": 0.3}),
    "causal": (True, {"right": 0}),
    "window_size": ((3, 1), {"left": 3, "right": 1}),
    "softcap": (2.0, {"softcap": 2.0}),
    "alibi_slopes": (None, {}),
    "deterministic": (True, {}),
    "return_attn_probs": (True, {}),
    "return_softmax_lse": (True, {}),
    "qv": (None, {}),
    "attention_chunk": (0, {}),
    "num_splits": (3, {}),
    "pack_gqa": (True, {}),
    "sm_margin": (8, {}),
    "scheduler_metadata": (torch.zeros(4), {}),
    "cache_leftpad": (None, {}),
    "is_varlen": (True, {}),
}
"""By argument: a value, and what it is in the formula's words."""
# Arguments that tests of their own try: test_flash_attn_cache.py, test_flash_attn.py, and those below.
ELSEWHERE = {"k", "v", "rotary_cos", "rotary_sin", "rotary_interleaved", "rotary_seqlens", "cache_seqlens", "cache_batch_idx"}
ELSEWHERE |= {
    "block_table",
    "page_table",
    "cu_seqlens_q",
    "max_seqlen_q",
    "cu_seqlens_k_new",
    "num_heads_q",
    "seqused_q",
    "seqused_k",
}
ELSEWHERE |= {"q_descale", "k_descale", "v_descale"}


def optional(function):
    parameters = inspect.signature(function).parameters.values()
    return [each.name for each in parameters if each.default is not each.empty and each.name not in ELSEWHERE]


def fixed(function, packed):
    qkv = torch.randn(2, 9, 3, 4, 16)
    q, k, v = qkv.unbind(2)
    given = {"qkv": (qkv,), "kv": (q, qkv[:, :, 1:]), "": (q, k, v)}[packed]
    return given, list(zip(q, k, v, strict=True)), lambda out: out.flatten(0, 1), lambda lse: lse.transpose(1, 2).flatten(0, 1)


def flat(function, packed):
    counts = Q_COUNTS, Q_COUNTS if packed == "qkv" else K_COUNTS
    q, k, v = (torch.randn(sum(count), 4, 16) for count in (counts[0], counts[1], counts[1]))
    ends = [lengths(count) for count in counts]
    bounds = [max(count) for count in counts]
    given = {
        "qkv": lambda: (torch.stack([q, k, v], 1), ends[0], bounds[0]),
        "kv": lambda: (q, torch.stack([k, v], 1), *ends, *bounds),
        "": lambda: (q, k, v, *ends, *bounds),
    }[packed]()
    if function.__module__.endswith("_dense_mla") and packed:  # theirs lie one after another
        given = (torch.cat([q, k, v], -1), *given[1:], 16) if packed == "qkv" else (q, torch.cat([k, v], -1), *given[2:], 16)
    parts = list(zip(q.split(counts[0]), k.split(counts[1]), v.split(counts[1]), strict=True))
    tokens_first = function.__module__.endswith("_dense_mla")
    return given, parts, lambda out: out, lambda lse: lse if tokens_first else lse.T


def over_cache(function, packed):
    cache, q = Cache([5, 0, 12], 12), torch.randn(3, 3, 4, 16)
    parts = [(q[row], cache.k[row, :count], cache.v[row, :count]) for row, count in enumerate(cache.counts.tolist())]
    given = q, cache.k_cache, cache.v_cache
    return given, parts, lambda out: out.flatten(0, 1), lambda lse: lse.transpose(1, 2).flatten(0, 1)


CALLS = [
    (flash_attn.flash_attn_func, fixed, ""),
    (flash_attn.flash_attn_qkvpacked_func, fixed, "qkv"),
    (flash_attn.flash_attn_kvpacked_func, fixed, "kv"),
    (flash_attn.flash_attn_varlen_func, flat, ""),
    (flash_attn.flash_attn_varlen_qkvpacked_func, flat, "qkv"),
    (flash_attn.flash_attn_varlen_kvpacked_func, flat, "kv"),
    (flash_attn.flash_attn_with_kvcache, over_cache, ""),
    (flash_attn_3.flash_attn_func, fixed, ""),
    (flash_attn_3.flash_attn_qkvpacked_func, fixed, "qkv"),
    (flash_attn_3.flash_attn_varlen_func, flat, ""),
    (flash_attn_3.flash_attn_with_kvcache, over_cache, ""),
    (flash_mla.flash_attn_varlen_func, flat, ""),
    (flash_mla.flash_attn_varlen_qkvpacked_func, flat, "qkv"),
    (flash_mla.flash_attn_varlen_kvpacked_func, flat, "kv"),
]


@pytest.mark.parametrize(
    ("function", "form", "packed", "name"),
    [(*call, name) for call in CALLS for name in [None, *optional(call[0])]],
    ids=lambda value: value.__module__.rpartition(".")[2] + "." + value.__name__ if inspect.isfunction(value) else str(value),
)
def test_each_argument(function, form, packed, name):
    given, parts, rows_of, lse_rows_of = form(function, packed)
    value, words = SCORES[name] if name else (None, {})
    options = {name: value} if name else {}
    if form is over_cache:
        options["cache_seqlens"] = torch.tensor([5, 0, 12], dtype=torch.int32)
    result = function(*given, **options)
    always = function.__module__.endswith("_dense_mla")
    out, lse = result[:2] if always or name in ("return_attn_probs", "return_softmax_lse") else (result, None)
    want = plain.join([plain.attention(*part, **words) for part in parts])
    plain.check(rows_of(out), None if lse is None else lse_rows_of(lse), want)


@pytest.mark.parametrize("kind", [int, np.int32, torch.tensor, lambda number: torch.tensor([number], dtype=torch.int32)])
@pytest.mark.parametrize("numbers", [(3, 1), (-1, 0), (2, -7)])
def test_numbers_of_numpy_and_torch(kind, numbers):
    given, *_ = flat(flash_attn.flash_attn_varlen_func, "")
    want = flash_attn.flash_attn_varlen_func(*given, window_size=numbers, softmax_scale=0.5)
    given = (*given[:5], kind(7), kind(12))
    got = flash_attn.flash_attn_varlen_func(*given, window_size=tuple(map(kind, numbers)), softmax_scale=torch.tensor(0.5))
    assert torch.equal(got, want)


# ---- seqused ---------------------------------------------------------------------------------------------------------------


USED = [(None, [2, 0, 12, 1]), ([3, 0, 4, 0], None), ([1, 0, 7, 2], [5, 4, 0, 1]), ([2, 0, 5, 1], [3, 1, 9, 0])]


@pytest.mark.parametrize(("used_q", "used_k"), USED)
@pytest.mark.parametrize("causal", [False, True])
def test_seqused(used_q, used_k, causal):
    """Against each sequence's first rows; the others hold NaN, come out as zeros, and have gradients of zero."""
    (q, k, v, *ends), *_ = flat(flash_attn_3.flash_attn_varlen_func, "")
    counts = used_q or Q_COUNTS, used_k or K_COUNTS
    for tensors, used, all_ in (((q,), counts[0], Q_COUNTS), ((k, v), counts[1], K_COUNTS)):
        for tensor in tensors:
            for part, count in zip(tensor.split(all_), used, strict=True):
                part[count:] = torch.nan
    for tensor in (q, k, v):
        tensor.requires_grad_()
    given = {"seqused_q": used_q and torch.tensor(used_q).int(), "seqused_k": used_k and torch.tensor(used_k).int()}
    bounds = max(counts[0]) if used_q else 7, max(counts[1]) if used_k else 12  # they may bound what is used alone
    call = (q, k, v, *ends[:2], *bounds)
    out, lse = flash_attn_3.flash_attn_varlen_func(*call, **given, causal=causal, return_attn_probs=True)
    exact = [tensor.detach().double().requires_grad_() for tensor in (q, k, v)]
    parts = [tensor.split(all_) for tensor, all_ in zip(exact, (Q_COUNTS, K_COUNTS, K_COUNTS), strict=True)]
    loss, right = 0.0, 0 if causal else None
    outs, lses = out.split(Q_COUNTS), lse.T.split(Q_COUNTS)
    for row, (part_q, part_k, part_v) in enumerate(zip(*parts, strict=True)):
        count, keys = counts[0][row], counts[1][row]
        want = plain.attention(part_q[:count], part_k[:keys], part_v[:keys], right=right)
        plain.check(
            outs[row][:count].detach(), lses[row][:count].detach(), plain.Expected(*(x.detach() for x in vars(want).values()))
        )
        assert bool((outs[row][count:] == 0).all()) and bool(lses[row][count:].isneginf().all())
        loss = loss + want.out.sin().sum()
    want = torch.autograd.grad(loss, exact)
    got = torch.autograd.grad(out.sin().sum(), (q, k, v))
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one.double(), other.nan_to_num(), rtol=1e-4, atol=1e-5)


def test_seqused_of_8_bit_tensors():
    (q, k, v, *ends), *_ = flat(flash_attn_3.flash_attn_varlen_func, "")
    used, scales = torch.tensor([2, 4, 9, 1]).int(), [torch.rand(4, 4) + 0.5 for _ in range(3)]
    q, k, v = (tensor.to(E4M3) for tensor in (q, k, v))
    named = dict(zip(("q_descale", "k_descale", "v_descale"), scales, strict=True))
    out = flash_attn_3.flash_attn_varlen_func(q, k, v, *ends, seqused_k=used, **named)
    for row, part in enumerate(zip(q.split(Q_COUNTS), k.split(K_COUNTS), v.split(K_COUNTS), strict=True)):
        exact = [tensor.double() * scale[row, :, None] for tensor, scale in zip(part, scales, strict=True)]
        want = plain.attention(exact[0], exact[1][: used[row]], exact[2][: used[row]])
        plain.check(out.split(Q_COUNTS)[row], None, want)


@pytest.mark.parametrize(
    ("used", "message"),
    [
        (torch.tensor([2, 4, 13, 1]).int(), r"^seqused_k\[2\]: got 13, want 0 to 12 \(cu_seqlens_k\)$"),
        (torch.tensor([2, -4, 1, 1]).int(), r"^seqused_k\[1\]: got -4, want 0 to 4"),
        (torch.tensor([2, 4]).int(), r"^seqused_k\.shape: got \[2\], want \[4\] \(one less cu_seqlens_k\)$"),
        (torch.tensor([2, 4, 1, 1]), r"^seqused_k\.dtype: got torch\.int64, want torch\.int32$"),
    ],
)
def test_seqused_that_does_not_fit(used, message):
    given, *_ = flat(flash_attn_3.flash_attn_varlen_func, "")
    with pytest.raises(RuntimeError, match=message):
        flash_attn_3.flash_attn_varlen_func(*given, seqused_k=used)


# ---- gradients, given outputs ----------------------------------------------------------------------------------------------


def test_8_bit_inputs_that_require_gradients():
    """They are computed, as in FlashAttention-3; a backward pass is refused then, and not cut."""
    q, k, v = (torch.randn(2, 5, 4, 16).to(E4M3) for _ in range(3))
    want = flash_attn_3.flash_attn_func(q, k, v)
    q = q.requires_grad_()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert torch.equal(flash_attn_3.flash_attn_func(q, k, v), want)
    out, lse = flash_attn_3.flash_attn_func(q, k, v, return_attn_probs=True)
    assert torch.equal(out, want) and not lse.requires_grad
    with pytest.raises(NotImplementedError, match=r"^q\.dtype: got torch\.float8_e4m3fn, want another one"):
        out.float().sum().backward()


def test_lse_has_a_gradient():
    q, k, v = (torch.randn(1, 5, 2, 16, requires_grad=True) for _ in range(3))
    lse = flash_attn.flash_attn_func(q, k, v, return_attn_probs=True)[1]
    exact = [tensor.detach().double().requires_grad_() for tensor in (q, k, v)]
    want = plain.attention(*(tensor[0] for tensor in exact)).lse
    for got, right in zip(torch.autograd.grad(lse.sum(), (q, k)), torch.autograd.grad(want.sum(), exact[:2]), strict=True):
        torch.testing.assert_close(got.double(), right, rtol=1e-4, atol=1e-5)


def test_combine_fills_what_it_is_given():
    outs, lses = torch.randn(3, 2, 5, 4, 16), torch.randn(3, 2, 5, 4)
    want, want_lse = flash_attn_3.flash_attn_combine(outs, lses)
    weights = torch.softmax(lses.double(), 0)[..., None]
    torch.testing.assert_close(want.double(), (weights * outs).sum(0), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(want_lse.double(), lses.double().logsumexp(0), rtol=1e-5, atol=1e-6)
    for dtype in (torch.float32, torch.bfloat16):
        wide = torch.full((2, 5, 4, 24), torch.nan, dtype=dtype)
        got, _ = flash_attn_3.flash_attn_combine(outs, lses, out=wide[..., :16])
        assert got.data_ptr() == wide.data_ptr() and torch.equal(wide[..., :16], want.to(dtype)) and wide[..., 16:].isnan().all()
    assert torch.equal(flash_attn_3.flash_attn_combine(outs, lses, out_dtype=torch.float16)[0], want.half())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"out": torch.empty(7, 2, 5, 4, 16)}, r"^out\.shape: got \[7, 2, 5, 4, 16\], want \[2, 5, 4, 16\]"),
        ({"out": torch.empty(2, 5, 4, 16).int()}, r"^out\.dtype: got torch\.int32, want torch\.float32 or"),
        ({"out_dtype": torch.float8_e4m3fn}, r"^out_dtype: got torch\.float8_e4m3fn, want torch\.float32 or"),
        ({"out": torch.empty(2, 5, 4, 1).expand(2, 5, 4, 16)}, r"^out\.strides: got \[20, 4, 1, 0\], want a place of its own"),
        ({"out": torch.empty(2, 5, 4, 16, requires_grad=True)}, r"^out: got a tensor, want None where a gradient is wanted"),
        ({"lse_partial": torch.randn(2, 2, 5, 4)}, r"^lse_partial\.shape: got \[2, 2, 5, 4\], want \[3, 2, 5, 4\]$"),
        ({"lse_partial": torch.randn(3, 10, 4)}, r"^lse_partial\.rank: got 3, want 4"),
        ({"lse_partial": torch.randn(3, 2, 5, 4).half()}, r"^lse_partial\[0\]\.dtype: got torch\.float16, want torch\.float32"),
    ],
)
def test_combinations_that_contradict_themselves(changes, message):
    call = {"out_partial": torch.randn(3, 2, 5, 4, 16), "lse_partial": torch.randn(3, 2, 5, 4)}
    with pytest.raises(RuntimeError, match=message):
        flash_attn_3.flash_attn_combine(**call | changes)


# ---- errors in the caller's names ------------------------------------------------------------------------------------------

Q, K, V = torch.randn(2, 9, 4, 16), torch.randn(2, 9, 2, 16), torch.randn(2, 9, 2, 16)
FLAT, CU = torch.randn(9, 4, 16), lengths([4, 5])
ODD = torch.randn(2, 9, 2, 20)
COUNTS = torch.tensor([3, 9], dtype=torch.int32)


@pytest.mark.parametrize(
    ("function", "arguments", "options", "message"),
    [
        (
            flash_attn.flash_attn_func,
            (Q, K, V),
            {"window_size": (torch.tensor(1.5), 0)},
            r"^window_size\[0\]: got torch\.float32\[\]",
        ),
        (flash_attn.flash_attn_func, (Q, K, V), {"softmax_scale": torch.ones(2)}, r"^softmax_scale\.shape: got \[2\], want \[\]"),
        (flash_attn.flash_attn_kvpacked_func, (Q, torch.stack([K, V.double()], 2).half()), {}, r"^kv\.dtype: got torch\.float16"),
        (flash_attn.flash_attn_varlen_func, (FLAT, FLAT, FLAT, CU.long(), CU, 5, 5), {}, r"^cu_seqlens_q\.dtype: got torch\.int64"),
        (flash_attn.flash_attn_varlen_func, (FLAT, FLAT, FLAT, CU, CU, 5, 3), {}, r"^cu_seqlens_k\[1\] .*: got 4, want at most 3"),
        (
            flash_attn.flash_attn_varlen_qkvpacked_func,
            (FLAT[:, None].repeat(1, 3, 1, 1), CU, 2),
            {},
            r"^cu_seqlens\[1\] .*: got 4, want at most 2",
        ),
        (
            flash_attn.flash_attn_varlen_func,
            (FLAT, K, V, CU, lengths([9, 10]), 5, 10),
            {"block_table": torch.tensor([[0], [1]]).int()},
            r"^cu_seqlens_k\[2\] \(length of the sequence\): got 10, want 0 to 9",
        ),
        (
            flash_attn.flash_attn_varlen_func,
            (FLAT, K, V, CU, lengths([9, 9]), 5, 9),
            {"block_table": torch.tensor([[0], [2]]).int()},
            r"^block_table\[1\]\[0\] \(block number\): got 2, want 0 to 1",
        ),
        (flash_attn.flash_attn_with_kvcache, (Q, K, V), {"cache_seqlens": 10}, r"^cache_seqlens: got 10, want 0 to 9"),
        (flash_attn.flash_attn_with_kvcache, (Q, K[..., :8], V), {}, r"^k_cache\.shape\[3\] \(head_dim_qk\): got 8, want 16"),
        (
            flash_attn.flash_attn_with_kvcache,
            (ODD, ODD[..., :19], ODD),
            {},
            r"^k_cache\.shape\[3\] \(head_dim_qk\): got 19, want 20",
        ),
        (
            flash_attn.flash_attn_with_kvcache,
            (ODD, ODD[..., :19], ODD),
            {"cache_seqlens": COUNTS},
            r"^k_cache\.shape\[3\] \(head_dim_qk\): got 19, want 20",
        ),
        (flash_attn.flash_attn_func, (ODD, ODD[..., :19], ODD), {}, r"^k\.shape\[3\] \(head_dim_qk\): got 19, want 20"),
        (flash_attn.flash_attn_func, (ODD[..., :16], ODD[..., :19], ODD), {}, r"^k\.shape\[3\] \(head_dim_qk\): got 19, want 16"),
        (flash_attn.flash_attn_with_kvcache, (Q, K, V.half()), {}, r"^v_cache\.dtype: got torch\.float16"),
        (
            flash_attn.flash_attn_with_kvcache,
            (Q, K, V),
            {"cache_seqlens": torch.tensor([3, 10]).int()},
            r"^cache_seqlens\[1\]: got 10, want 0 to 9",
        ),
        (
            flash_attn.flash_attn_with_kvcache,
            (torch.cat([Q, Q]), K, V),
            {"cache_seqlens": COUNTS},
            r"^k_cache\.shape\[0\]: got 2, want 4",
        ),
        (
            flash_attn_3.flash_attn_with_kvcache,
            (Q, K, V),
            {"cache_seqlens": COUNTS, "page_table": torch.tensor([[0], [7]]).int()},
            r"^page_table\[1\]\[0\] \(block number\): got 7, want 0 to 1",
        ),
        (
            flash_attn_3.flash_attn_with_kvcache,
            (Q, K, V),
            {"cache_seqlens": COUNTS, "page_table": torch.tensor([[0], [1], [1]]).int()},
            r"^page_table\.shape\[0\]: got 3, want 2 \(batch of q\)",
        ),
        (
            flash_attn.flash_attn_varlen_func,
            (FLAT, K, V, CU, lengths([9, 9]), 5, 9),
            {"block_table": torch.tensor([0, 1]).int()},
            r"^block_table\.rank: got 1, want 2",
        ),
        (flash_attn_3.flash_attn_with_kvcache, (Q, K, V), {"cu_seqlens_q": CU}, r"^q\.rank: got 4, want 3 .*with cu_seqlens_q"),
        (
            flash_attn_3.flash_attn_with_kvcache,
            (FLAT, K, V),
            {"cu_seqlens_q": CU.long()},
            r"^cu_seqlens_q\.dtype: got torch\.int64",
        ),
        (flash_attn_3.flash_attn_with_kvcache, (FLAT, K, V), {}, r"^q\.rank: got 3, want 4"),
        (flash_attn_3.flash_attn_func, (Q, K, V), {"k_descale": torch.ones(2, 2)}, r"^k_descale: got a scale for a tensor of"),
        (flash_attn_3.flash_attn_qkvpacked_func, (torch.randn(2, 9, 8, 16),), {}, r"^num_heads_q: got None, want 8 less twice"),
        (flash_mla.flash_attn_varlen_func, (FLAT, FLAT, FLAT, CU, CU, 5, 3), {}, r"^cu_seqlens_kv\[1\] .*: got 4, want at most 3"),
        (flash_mla.flash_attn_varlen_func, (FLAT, FLAT, FLAT, CU, CU, 5, 5), {"softmax_scale": 0}, r"^softmax_scale: got 0"),
        (
            flash_mla.flash_attn_varlen_qkvpacked_func,
            (torch.randn(9, 4, 48), CU, 2, 16),
            {},
            r"^cu_seqlens\[1\] .*: got 4, want at most 2",
        ),
        (
            flash_mla.flash_attn_varlen_qkvpacked_func,
            (torch.randn(9, 4, 48).int(), CU, 5, 16),
            {},
            r"^qkv\.dtype: got torch\.int32",
        ),
    ],
)
def test_errors_have_the_names_of_the_caller(function, arguments, options, message):
    with pytest.raises(RuntimeError, match=message):
        function(*arguments, **options)
