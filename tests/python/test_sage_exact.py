# SPDX-License-Identifier: Apache-2.0
"""sageattn where 16 bits are faster than 8, as on Hopper: by the same words, with exact results."""

import math

import pytest
import torch

import fovea
from fovea.compat import _sage_exact, sageattention


@pytest.fixture(params=[True, False], ids=["exact", "8 bits"])
def exact(request, monkeypatch):
    """As on Hopper, with the fallback and without."""
    monkeypatch.setattr(_sage_exact, "_on_hopper", lambda device: True)
    sageattention.set_exact_fallback(request.param)
    yield request.param
    sageattention.set_exact_fallback(True)


def tensors(seq=(40, 70), heads=(4, 2), dim=64, dtype=torch.float16):
    """In the layout NHD."""
    return [torch.randn(2, seq[at], heads[at], dim).to(dtype) for at in (0, 1, 1)]


def runs(function, *args, **kwargs):
    """The operation that a call runs."""
    return fovea.explain(function, *args, **kwargs).partition(":")[0].rpartition(".")[2]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [24, 64, 70, 160])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_results(exact, causal, dim, dtype):
    qkv = tensors(dim=dim, dtype=dtype)
    assert runs(sageattention.sageattn, *qkv, "NHD", causal) == ("attention" if exact else "quantize_and_attend")
    out, lse = sageattention.sageattn(*qkv, "NHD", causal, return_lse=True)
    plain = sageattention.sageattn(*qkv, "NHD", causal)
    flipped = sageattention.sageattn(*(x.transpose(1, 2) for x in qkv), "HND", causal)
    assert out.shape == qkv[0].shape and torch.equal(plain, flipped.transpose(1, 2))
    # AMX kernels round 8-bit weights more coarsely where no lse reports their sums.
    close = {"rtol": 0, "atol": 0} if exact else {"rtol": 2**-7, "atol": 2**-7}
    torch.testing.assert_close(out, plain, **close)
    if exact:
        padded = (torch.nn.functional.pad(x, (0, -dim % 8)) for x in qkv)
        options = {"causal": causal, "anchor": "top_left", "scale": dim**-0.5}
        want, want_lse = fovea.attention(*padded, return_lse=True, **options)
        assert torch.equal(out, want[..., :dim]) and torch.equal(lse, want_lse)


def test_ragged(exact):
    q, k, v = (x.flatten(0, 1) for x in tensors((40, 40)))
    cu = torch.tensor([0, 30, 30, 80], dtype=torch.int32)
    call = (q, k, v, cu, cu, 50, 50, True)
    assert runs(sageattention.sageattn_varlen, *call) == ("attention" if exact else "quantize_and_attend")
    if exact:
        options = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": 50, "max_seqlen_k": 50}
        want = fovea.attention(q, k, v, causal=True, anchor="top_left", **options)
        assert torch.equal(sageattention.sageattn_varlen(*call), want)


def test_what_names_8_bits_has_them(exact):
    q, k, v = tensors()
    for function in (
        sageattention.sageattn_qk_int8_pv_fp16_cuda,
        sageattention.sageattn_qk_int8_pv_fp16_triton,
        sageattention.sageattn_qk_int8_pv_fp8_cuda,
        sageattention.sageattn_qk_int8_pv_fp8_cuda_sm90,
    ):
        assert runs(function, q, k, v, "NHD") == "quantize_and_attend"


def fails(change):
    q, k, v = tensors()
    call = {"q": q, "k": k, "v": v, "tensor_layout": "NHD", "is_causal": False, "sm_scale": None, "return_lse": False}
    with pytest.raises((ValueError, RuntimeError, NotImplementedError, TypeError)) as caught:
        sageattention.sageattn(**call | change(q, k, v))
    return type(caught.value), str(caught.value)


WRONG = {
    "v.shape": lambda q, k, v: {"v": v[:, :30]},
    "k.dtype": lambda q, k, v: {"k": k.bfloat16()},
    "dtypes": lambda q, k, v: {"q": q.double(), "k": k.double(), "v": v.double()},
    "heads": lambda q, k, v: {"q": q[:, :, :3]},
    "batch": lambda q, k, v: {"q": q[:1]},
    "head_dim": lambda q, k, v: {"k": k[..., :32]},
    "v.head_dim": lambda q, k, v: {"v": v[..., :32]},
    "rank": lambda q, k, v: {"q": q[0]},
    "scale": lambda q, k, v: {"sm_scale": math.nan},
    "layout": lambda q, k, v: {"tensor_layout": "BHND"},
    "gradient": lambda q, k, v: {"q": q.requires_grad_()},
    "type": lambda q, k, v: {"is_causal": "yes"},
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_errors_are_the_same(monkeypatch, change):
    there = fails(change)
    monkeypatch.setattr(_sage_exact, "_on_hopper", lambda device: True)
    assert fails(change) == there


def test_autocast_casts_nothing(exact):
    q, k, v = tensors()
    with torch.autocast("cpu", torch.bfloat16):
        assert sageattention.sageattn(q, k, v, "NHD").dtype == torch.float16


def test_compiles(exact):
    def function(q, k, v):
        return sageattention.sageattn(2 * q, k, v, "NHD", is_causal=True)

    qkv = tensors()
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*qkv), function(*qkv))


def test_other_devices_keep_8_bits():
    assert runs(sageattention.sageattn, *tensors(), "NHD") == "quantize_and_attend"
