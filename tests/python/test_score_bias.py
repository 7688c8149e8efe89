# SPDX-License-Identifier: Apache-2.0
"""ALiBi, bias and dropout against their formulas in float64: what they give, and their gradients."""

import math

import pytest
import torch

import fovea
from definitions_scores import factors as kept

HEADS, KV_HEADS = 4, 2
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() and torch.version.hip is None else [])]
DTYPES = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def dtypes_of(device):
    return [dtype for dtype in DTYPES if device == "cpu" or dtype != torch.float32]


EACH = [(device, dtype) for device in DEVICES for dtype in dtypes_of(device)]


def exact(q, k, v, *, causal=False, softcap=0.0, slopes=None, bias=None, keep=None, sink=None, lse=False):
    """By the formula, in float64 on the CPU."""
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    k, v = (tensor.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for tensor in (k, v))
    s = q @ k.mT / math.sqrt(q.shape[-1])
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    distance = torch.arange(s.shape[-1]) - torch.arange(s.shape[-2])[:, None] - (s.shape[-1] - s.shape[-2])
    if slopes is not None:
        s = s - slopes.double()[..., None, None] * distance.abs()
    if bias is not None:
        s = s + bias
    if causal:
        s = s.masked_fill(distance > 0, -math.inf)
    total = s.logsumexp(-1, keepdim=True)
    denominator = total if sink is None else torch.logaddexp(total, sink.double()[:, None, None])
    p = torch.where(total > -math.inf, (s - denominator).exp(), 0.0)
    out = ((p if keep is None else p * keep) @ v).transpose(1, 2)
    return (out, total[..., 0]) if lse else out


def inputs(device, dtype):
    return [torch.randn(2, n, h, 32).to(device, dtype) for n, h in ((70, HEADS), (90, KV_HEADS), (90, KV_HEADS))]


def doubles(*tensors):
    return [tensor.detach().cpu().double() for tensor in tensors]


def close(got, want, dtype):
    torch.testing.assert_close(got.detach().cpu().double(), want, rtol=0, atol=DTYPES[dtype])


@pytest.mark.parametrize(("device", "dtype"), EACH)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [(HEADS,), (2, HEADS)])
def test_alibi_is_flash_attentions_formula(device, dtype, causal, shape):
    q, k, v = inputs(device, dtype)
    slopes = torch.rand(shape)
    out, lse = fovea.attention(q, k, v, causal=causal, alibi_slopes=slopes.to(device), return_lse=True)
    want, total = exact(*doubles(q, k, v), causal=causal, slopes=slopes, lse=True)
    close(out, want, dtype)
    torch.testing.assert_close(lse.cpu().double(), total, rtol=0, atol=1e-3 if dtype is torch.float32 else 2e-3)


@pytest.mark.parametrize(("device", "dtype"), EACH)
@pytest.mark.parametrize("softcap", [0.0, 2.5])
@pytest.mark.parametrize("shape", [(2, HEADS, 70, 90), (1, 1, 70, 90), (2, 1, 1, 90), (1, HEADS, 70, 1), (1, 1, 1, 1)])
def test_a_bias_is_broadcast(device, dtype, softcap, shape):
    q, k, v = inputs(device, dtype)
    bias = (2 * torch.randn(shape)).to(device, dtype)
    out = fovea.attention(q, k, v, causal=True, softcap=softcap, bias=bias)
    close(out, exact(*doubles(q, k, v), causal=True, softcap=softcap, bias=doubles(bias)[0]), dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", ["gaps", "transposed", "expanded"])
def test_strides_of_a_bias_are_free(device, layout):
    dtype = torch.bfloat16
    q, k, v = inputs(device, dtype)
    bias = {
        "gaps": torch.randn(2, HEADS, 70, 270)[..., ::3],
        "transposed": torch.randn(2, HEADS, 90, 70).mT,
        "expanded": torch.randn(70, 90).expand(2, HEADS, 70, 90),
    }[layout].to(device, dtype)
    close(fovea.attention(q, k, v, bias=bias), exact(*doubles(q, k, v), bias=doubles(bias)[0]), dtype)


@pytest.mark.parametrize("device", DEVICES)
def test_minus_infinity_hides_keys_and_rows(device):
    dtype = torch.bfloat16
    q, k, v = inputs(device, dtype)
    bias = torch.zeros(2, 1, 70, 90).masked_fill(torch.rand(2, 1, 70, 90) < 0.3, -math.inf)
    bias[:, :, 5] = -math.inf
    bias = bias.to(device, dtype)
    out, lse = fovea.attention(q, k, v, bias=bias, return_lse=True)
    close(out, exact(*doubles(q, k, v), bias=doubles(bias)[0]), dtype)
    assert (out[:, 5] == 0).all() and (lse[:, :, 5] == -math.inf).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(1, 1), (2, HEADS)])
@pytest.mark.parametrize("sink", [False, True])
def test_rows_that_a_bias_hides_give_no_gradient(device, shape, sink):
    """Their dout is NaN, which reaches nothing."""
    q, k, v = inputs(device, torch.bfloat16)
    bias = torch.randn(*shape, 70, 90)
    bias[:, :, 5] = -math.inf
    bias = bias.to(device, torch.bfloat16)
    given = [tensor.requires_grad_() for tensor in (q, k, v, bias)]
    sinks = torch.randn(HEADS) if sink else None
    out = fovea.attention(q, k, v, bias=bias, sink=None if sinks is None else sinks.to(device))
    dout = torch.randn(2, 70, HEADS, 32)
    dout[:, 5] = math.nan
    got = torch.autograd.grad(out, given, dout.to(out))
    seen = [row for row in range(70) if row != 5]
    known = [tensor.requires_grad_() for tensor in doubles(*given)]
    queries, rows = known[0][:, seen], known[3][:, :, seen]
    want = torch.autograd.grad(exact(queries, *known[1:3], bias=rows, sink=sinks), known, dout[:, seen].bfloat16().double())
    for name, one, other in zip(("dq", "dk", "dv", "dbias"), got, want, strict=True):
        assert one.isfinite().all(), name
        assert (one.cpu().double() - other).norm() < 1.6e-2 * other.norm(), name
    assert (got[0][:, 5] == 0).all() and (got[3][:, :, 5] == 0).all()


@pytest.mark.parametrize(("device", "dtype"), EACH)
@pytest.mark.parametrize("causal", [False, True])
def test_dropout_is_its_formula(device, dtype, causal):
    q, k, v = inputs(device, dtype)
    state = torch.tensor([-(2**63) + 12345, 2**40 + 7])
    out, lse = fovea.attention(q, k, v, causal=causal, dropout_p=0.3, dropout_state=state.to(device), return_lse=True)
    keep = kept(state, 0.3, 2, HEADS, 70, 90)
    assert abs((keep > 0).double().mean() - 0.7) < 0.01
    want, total = exact(*doubles(q, k, v), causal=causal, keep=keep, lse=True)
    close(out, want, dtype)
    torch.testing.assert_close(lse.cpu().double(), total, rtol=0, atol=1e-3 if dtype is torch.float32 else 2e-3)


@pytest.mark.parametrize("device", DEVICES)
def test_dropout_follows_torchs_generator(device):
    q, k, v = inputs(device, torch.bfloat16)

    def drawn(seed):
        torch.manual_seed(seed)
        return fovea.attention(q, k, v, dropout_p=0.5)

    one = drawn(1)
    assert torch.equal(one, drawn(1)) and not torch.equal(one, drawn(2))
    assert not torch.equal(drawn(1), fovea.attention(q, k, v, dropout_p=0.5))
    torch.testing.assert_close(fovea.attention(q, k, v, dropout_p=0.0), fovea.attention(q, k, v), rtol=0, atol=0)


@pytest.mark.parametrize("device", DEVICES)
def test_the_sequences_of_a_ragged_batch(device):
    dtype, lengths = torch.float16, [(3, 5), (0, 4), (40, 61), (1, 33), (20, 0)]
    cu_q, cu_k = (torch.tensor([0, *each]).cumsum(0).int().to(device) for each in zip(*lengths, strict=True))
    q, k, v = (torch.randn(n, h, 64).to(device, dtype) for n, h in ((70, HEADS), (109, KV_HEADS), (109, KV_HEADS)))
    slopes, state = torch.rand(5, HEADS), torch.tensor([3, 4])
    bias = torch.randn(5, HEADS, 48, 64).to(device, dtype)  # longer than any sequence
    bounds = {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k, "max_seqlen_q": 40, "max_seqlen_k": 61}
    terms = {"alibi_slopes": slopes.to(device), "bias": bias, "dropout_p": 0.2, "dropout_state": state.to(device)}
    out = fovea.attention(q, k, v, causal=True, **bounds, **terms)
    keep = kept(state, 0.2, 5, HEADS, 40, 61)
    for b, (rows, keys) in enumerate(lengths):
        if rows == 0 or keys == 0:
            continue
        one, two = slice(cu_q[b], cu_q[b + 1]), slice(cu_k[b], cu_k[b + 1])
        own = {"slopes": slopes[b], "bias": doubles(bias)[0][b, :, :rows, :keys], "keep": keep[b, :, :rows, :keys]}
        close(out[None, one], exact(*doubles(q[None, one], k[None, two], v[None, two]), causal=True, **own), dtype)


@pytest.mark.parametrize(("device", "dtype"), EACH)
@pytest.mark.parametrize("shape", [(2, HEADS, 70, 90), (1, 1, 70, 90), (2, 1, 1, 90), (1, HEADS, 70, 1), (1, 1, 1, 1)])
@pytest.mark.parametrize("softcap", [0.0, 3.0])
def test_gradients_are_those_of_the_formula(device, dtype, shape, softcap):
    q, k, v = inputs(device, dtype)
    bias, sink, slopes, state = torch.randn(shape).to(device, dtype), torch.randn(HEADS), torch.rand(HEADS), torch.tensor([5, 6])
    given = [tensor.requires_grad_() for tensor in (q, k, v, bias, sink.to(device))]
    options = {"alibi_slopes": slopes.to(device), "dropout_p": 0.25, "dropout_state": state.to(device)}
    out, lse = fovea.attention(
        q, k, v, causal=True, softcap=softcap, bias=bias, sink=given[4], **options, return_lse=True, deterministic=True
    )
    dout, dlse = torch.randn(2, 70, HEADS, 32), torch.randn(2, HEADS, 70)
    got = torch.autograd.grad((out, lse), given, (dout.to(device, dtype), dlse.to(device)))
    known = [tensor.requires_grad_() for tensor in doubles(*given)]
    keep = kept(state, 0.25, 2, HEADS, 70, 90)
    out, lse = exact(*known[:3], causal=True, softcap=softcap, slopes=slopes, bias=known[3], keep=keep, sink=known[4], lse=True)
    want = torch.autograd.grad((out, lse), known, (dout.to(dtype).double(), dlse.double()))
    for name, one, other in zip(("dq", "dk", "dv", "dbias", "dsink"), got, want, strict=True):
        error = (one.cpu().double() - other).norm() / other.norm()
        assert error < {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[dtype], (name, error)


@pytest.mark.parametrize("device", DEVICES)
def test_a_bias_of_its_own_strides_has_a_gradient_of_its_shape(device):
    q, k, v = inputs(device, torch.bfloat16)
    bias = torch.randn(70, 90).to(device, torch.bfloat16).requires_grad_()
    out = fovea.attention(q, k, v, bias=bias.expand(2, HEADS, 70, 90))
    out.sum().backward()
    known = bias.detach().double().cpu().requires_grad_()
    exact(*doubles(q, k, v), bias=known.expand(2, HEADS, 70, 90)).sum().backward()
    assert (bias.grad.cpu().double() - known.grad).norm() < 2e-2 * known.grad.norm()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"alibi_slopes": torch.ones(3)}, r"alibi_slopes\.shape\[0\] \(head\): got 3, want 4"),
        ({"alibi_slopes": torch.ones(4, dtype=torch.float64)}, r"alibi_slopes\.dtype: got torch.float64, want torch.float32"),
        ({"bias": torch.ones(2, 3, 70, 90)}, r"bias\.shape\[1\] \(head\): got 3, want 1 or 4"),
        ({"bias": torch.ones(2, 4, 70, 90).half()}, r"bias\.dtype: got torch.float16, want torch.float32"),
        ({"bias": torch.ones(70, 90)}, r"bias\.rank: got 2, want 4"),
        ({"dropout_p": 1.0}, "dropout_p: got 1, want 0 or more and less than 1"),
        ({"dropout_p": -0.5}, "dropout_p: got -0.5, want 0 or more and less than 1"),
        ({"dropout_p": 0.5, "dropout_state": torch.zeros(3, dtype=torch.int64)}, r"dropout_state\.shape: got \[3\], want \[2\]"),
        ({"dropout_p": 0.5, "dropout_state": torch.zeros(2)}, r"dropout_state.*dtype"),
    ],
)
def test_what_contradicts_the_call_is_said(arguments, message):
    q, k, v = inputs("cpu", torch.float32)
    with pytest.raises(ValueError, match=message):
        fovea.attention(q, k, v, **arguments)


CUDA = [pytest.param("cuda", marks=pytest.mark.skipif("cuda" not in DEVICES, reason="needs a GPU"))]
LENGTHS = [(130, 200), (0, 9), (1, 70), (70, 0), (64, 64), (257, 257), (300, 129)]
TERMS = ["alibi", "wild", "bias", "transposed", "keys", "dropout", "all"]


def ragged(device, dtype, head_dim):
    """Tensors and bounds of a ragged batch, and the gradient of its output."""
    cu_q, cu_k = (torch.tensor([0, *each]).cumsum(0).int() for each in zip(*LENGTHS, strict=True))
    rows = ((cu_q[-1], HEADS), (cu_k[-1], KV_HEADS), (cu_k[-1], KV_HEADS), (cu_q[-1], HEADS))
    tensors = [
        torch.randn(int(n), h, head_dim, generator=torch.Generator().manual_seed(i)).to(device, dtype)
        for i, (n, h) in enumerate(rows)
    ]
    return tensors, {"cu_seqlens_q": cu_q.to(device), "cu_seqlens_k": cu_k.to(device), "max_seqlen_q": 300, "max_seqlen_k": 257}


def terms_of(name, device, dtype):
    generator = torch.Generator().manual_seed(11)
    biases = {
        "bias": torch.randn(7, HEADS, 300, 258, generator=generator),
        "transposed": torch.randn(1, HEADS, 257, 300, generator=generator).mT,
        "keys": torch.randn(7, 1, 1, 257, generator=generator),
        "all": torch.randn(1, 1, 300, 257, generator=generator),
    }
    terms = {}
    if name in biases:
        terms["bias"] = biases[name].to(device, dtype)
    if name in ("alibi", "all"):
        terms["alibi_slopes"] = torch.rand(7, HEADS, generator=generator).to(device)
    if name == "wild":
        terms["alibi_slopes"] = torch.tensor([0.5, -0.01, 0.0, 3.0]).repeat(7, HEADS // 4).to(device)
    if name in ("dropout", "all"):
        terms |= {"dropout_p": 0.3, "dropout_state": torch.tensor([2**62 + 1, -5], device=device)}
    return terms


@pytest.mark.parametrize("device", CUDA)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [24, 64, 128])
@pytest.mark.parametrize(
    "mask", [{}, {"causal": True}, {"window": (40, 20), "anchor": "top_left"}], ids=["full", "causal", "window"]
)
@pytest.mark.parametrize("name", TERMS)
def test_gpus_give_what_the_cpu_gives(device, dtype, head_dim, mask, name):
    """The outputs and gradients of a ragged batch, against those in float32; dbias has the same bits from run to run."""
    results = []
    for place, precision in ((device, dtype), ("cpu", torch.float32)):
        (q, k, v, dout), bounds = ragged(place, dtype, head_dim)
        options = {**bounds, **mask, **terms_of(name, place, dtype)}
        q, k, v, dout = (tensor.to(precision) for tensor in (q, k, v, dout))
        if "bias" in options:
            options["bias"] = options["bias"].to(precision)
        out, lse = fovea.attention(q, k, v, return_lse=True, **options)
        of_bias = {"bias_gradient": True} if "bias" in options else {}
        gradients = fovea.attention_backward(dout, q, k, v, out, lse, **options, **of_bias)
        results.append([out, lse, *gradients])
        if place != "cpu":
            fixed, again = (
                fovea.attention_backward(dout, q, k, v, out, lse, deterministic=True, **options, **of_bias) for _ in range(2)
            )
            assert all(torch.equal(one, other) for one, other in zip(fixed, again, strict=True))
            for one, other in zip(gradients, fixed, strict=True):
                torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)
    most = {torch.float16: 4e-3, torch.bfloat16: 2.5e-2}[dtype]
    for which, one, other in zip(("out", "lse", "dq", "dk", "dv", "dbias"), *results, strict=False):
        got, want = doubles(one, other)
        assert torch.equal(got.isfinite(), want.isfinite()), which
        got, want = (torch.where(want.isfinite(), each, 0) for each in (got, want))
        error = (got - want).norm() / want.norm()
        assert error < most, (which, error)


@pytest.mark.parametrize("device", CUDA)
def test_nan_of_what_no_row_sees_stays_there(device):
    """A NaN in the last value and key, which a causal mask hides from most rows, with every term."""
    dtype = torch.bfloat16
    q, k, v = (torch.randn(1, 200, h, 64).to(device, dtype) for h in (HEADS, KV_HEADS, KV_HEADS))
    k[:, 199], v[:, 199] = math.nan, math.nan
    terms = {"alibi_slopes": torch.rand(HEADS, device=device), "bias": torch.randn(1, HEADS, 200, 200).to(device, dtype)}
    terms |= {"dropout_p": 0.3, "dropout_state": torch.tensor([8, 9], device=device)}
    out, lse = fovea.attention(q, k, v, causal=True, return_lse=True, **terms)
    assert out[:, :199].isfinite().all() and out[:, 199].isnan().all()
    known = {name: terms[name].cpu() for name in ("alibi_slopes", "bias")}
    keep = kept(torch.tensor([8, 9]), 0.3, 1, HEADS, 200, 200)
    want = exact(
        *doubles(q, k[:, :200].nan_to_num(), v.nan_to_num()),
        causal=True,
        slopes=known["alibi_slopes"],
        bias=doubles(known["bias"])[0],
        keep=keep,
    )
    close(out[:, :199], want[:, :199], dtype)
    dout = torch.randn_like(out)
    dout[:, 199] = 0
    dq, dk, _ = fovea.attention_backward(dout, q, k, v, out, lse, causal=True, **terms)
    assert dq[:, :199].isfinite().all() and dq[:, 199].isnan().all() and dk[:, 199].isnan().all()
