# SPDX-License-Identifier: Apache-2.0
"""fovea.compat.sageattention: SageAttention's layouts, names and numbers over Fovea's operations."""

import inspect
import math

import pytest
import torch

import fovea
from fovea.compat import sageattention

DEVICES = ["cpu"] + (
    ["cuda"]
    if any(
        row.operation == "quantize_and_attend" and row.name.startswith("cuda.") and row.available for row in fovea.implementations()
    )
    else []
)
AMX = any(row.name == "cpu.amx.quantize_and_attend" and row.available for row in fovea.implementations())
pytestmark = pytest.mark.parametrize("device", DEVICES)
WAYS = [
    (sageattention.sageattn, {}, 0.02),
    (sageattention.sageattn_qk_int8_pv_fp16_cuda, {}, 0.02),
    (
        sageattention.sageattn_qk_int8_pv_fp16_cuda,
        {"qk_quant_gran": "per_warp", "pv_accum_dtype": "fp16+fp32", "smooth_v": True},
        0.02,
    ),
    (sageattention.sageattn_qk_int8_pv_fp16_triton, {"quantization_backend": "cuda"}, 0.02),
    (sageattention.sageattn_qk_int8_pv_fp8_cuda, {}, 0.055),
    (sageattention.sageattn_qk_int8_pv_fp8_cuda, {"smooth_v": True, "pv_accum_dtype": "fp32+fp32"}, 0.055),
    (sageattention.sageattn_qk_int8_pv_fp8_cuda_sm90, {"qk_quant_gran": "per_thread"}, 0.055),
]


def tensors(device, batch=2, heads=(4, 2), seq=(150, 200), dim=64, dtype=torch.float16):
    """In the layout HND."""
    generator = torch.Generator("cpu").manual_seed(3)
    shapes = ((heads[0], seq[0]), (heads[1], seq[1]), (heads[1], seq[1]))
    return tuple(torch.randn(batch, *shape, dim, generator=generator).to(device, dtype) for shape in shapes)


def exact(q, k, v, causal, scale=None):
    """out and lse in double precision; causal from the first query and key on."""
    q, k, v = (x.cpu().double() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def off(got, want):
    return ((got.cpu().double() - want).abs().sum() / want.abs().sum()).item()


@pytest.mark.parametrize(("way", "options", "most"), WAYS)
@pytest.mark.parametrize("layout", ["HND", "NHD"])
@pytest.mark.parametrize("causal", [False, True])
def test_attends(device, way, options, most, layout, causal):
    q, k, v = tensors(device)
    given = [x if layout == "HND" else x.transpose(1, 2).contiguous() for x in (q, k, v)]
    out, lse = way(*given, tensor_layout=layout, is_causal=causal, return_lse=True, **options)
    assert out.shape == given[0].shape and out.dtype == q.dtype and lse.shape == q.shape[:3] and lse.dtype == torch.float32
    want, want_lse = exact(q, k, v, causal)
    assert off(out if layout == "HND" else out.transpose(1, 2), want) <= most
    torch.testing.assert_close(lse.cpu().double(), want_lse, rtol=0, atol=3e-2)
    without_lse = way(*given, layout, is_causal=causal, **options)
    if device == "cpu" and AMX and "fp8" in way.__name__:
        torch.testing.assert_close(without_lse, out, rtol=2e-2, atol=4e-3)  # its weights are coarser without lse
    else:
        assert torch.equal(without_lse, out)


@pytest.mark.parametrize("dim", [24, 64, 72, 128, 160, 256])
def test_head_dims_are_padded(device, dim):
    q, k, v = tensors(device, dim=dim, dtype=torch.bfloat16)
    out = sageattention.sageattn(q, k, v)
    assert out.shape == q.shape
    assert off(out, exact(q, k, v, False)[0]) <= 0.025


ARGUMENTS = {
    "sm_scale": (0.3, 0.05),
    "smooth_k": (False, 0.02),
    "smooth_v": (True, 0.02),
    "qk_quant_gran": ("per_warp", 0.02),
    "pv_accum_dtype": ("fp32+fp32", 0.02),
    "quantization_backend": ("cuda", 0.02),
    "attn_mask": (None, 0.02),
}
"""By optional argument: a value, and how far results in float16 may be off. test_attends has the others."""
OPTIONAL = [
    (way, name)
    for way in dict.fromkeys(way for way, _, _ in WAYS)
    for name in inspect.signature(way).parameters
    if name in ARGUMENTS and (name != "pv_accum_dtype" or "fp8" in way.__name__)
]


@pytest.mark.parametrize(("way", "name"), OPTIONAL, ids=lambda value: getattr(value, "__name__", value))
def test_each_argument(device, way, name):
    q, k, v = tensors(device, 1, seq=(40, 70))
    value, most = ARGUMENTS[name]
    out = way(q, k, v, **{name: value})
    want, _ = exact(q, k, v, False, value if name == "sm_scale" else None)
    assert off(out, want) <= (0.055 if "fp8" in way.__name__ else most)


def test_scale(device):
    q, k, v = tensors(device)
    assert off(sageattention.sageattn(q, k, v, sm_scale=0.3), exact(q, k, v, False, 0.3)[0]) <= 0.05


def test_ragged(device):
    lengths = [30, 0, 170]
    q, k, v = (x[0].transpose(0, 1) for x in tensors(device, 1, seq=(200, 200)))
    cu = torch.tensor([0, *lengths]).cumsum(0).int().to(device)
    for options in ({"is_causal": True}, {"sm_scale": 0.2}, {"smooth_k": False}):
        out = sageattention.sageattn_varlen(q, k, v, cu, cu, max(lengths), torch.tensor(max(lengths)), **options)
        for begin, end in ((0, 30), (30, 200)):
            parts = (x[None, begin:end].transpose(1, 2) for x in (q, k, v))
            want, _ = exact(*parts, options.get("is_causal", False), options.get("sm_scale"))
            assert off(out[begin:end].transpose(0, 1)[None], want) <= 0.03


@pytest.mark.parametrize(
    ("code", "granularity", "warp_rows"), [(2, "warp", 32), (2, "warp", 16), (3, "thread", 32), (3, "thread", 16)]
)
@pytest.mark.parametrize("layout", [0, 1])
def test_kernels_of_quantised_tensors(device, code, granularity, warp_rows, layout):
    q, k, v = tensors(device)
    qk = fovea.quantize_qk_int8(*(x.transpose(1, 2) for x in (q, k)), granularity=granularity, warp_rows=warp_rows, smooth_k=False)
    given = [x.transpose(1, 2).contiguous() if layout == 1 else x for x in (qk.q, qk.k)] + [v if layout == 1 else v.transpose(1, 2)]
    out = torch.empty_like(q) if layout == 1 else torch.empty_like(q.transpose(1, 2).contiguous())
    numbers = (layout, 1, code, q.shape[-1] ** -0.5, 1)
    lse = sageattention.qk_int8_sv_f16_accum_f32_attn_sm75(*given, out, qk.q_scale, qk.k_scale, *numbers)
    want, want_lse = exact(q, k, v, True)
    assert off(out if layout == 1 else out.transpose(1, 2), want) <= 0.02
    torch.testing.assert_close(lse.cpu().double() * math.log(2), want_lse, rtol=0, atol=3e-2)
    for dtype in (out.dtype, torch.float32):
        mean = torch.ones(q.shape[0], k.shape[1], q.shape[-1], device=device, dtype=dtype)
        other, numbers = torch.empty_like(out), (*numbers[:-1], 0)
        given_scales = (qk.q_scale, qk.k_scale, mean)
        assert sageattention.qk_int8_sv_f16_accum_f16_fuse_v_mean_attn(*given, other, *given_scales, *numbers).numel() == 0
        torch.testing.assert_close(other, out + 1, rtol=2e-3, atol=2e-3)
    with pytest.raises(
        RuntimeError, match=r"^value_mean\.dtype: got torch\.float64, want torch\.float16, as output, or torch\.float32$"
    ):
        sageattention.qk_int8_sv_f16_accum_f16_fuse_v_mean_attn(*given, other, qk.q_scale, qk.k_scale, mean.double(), *numbers)


def test_refusals(device):
    q, k, v = tensors(device)
    with pytest.raises(ValueError, match=r"tensor_layout: got 'BHND', want 'HND' or 'NHD'"):
        sageattention.sageattn(q, k, v, "BHND")
    with pytest.raises(NotImplementedError, match="attn_mask"):
        sageattention.sageattn_qk_int8_pv_fp16_triton(q, k, v, attn_mask=torch.ones(150, 200, device=device))
    with pytest.raises(TypeError, match="attn_mask"):
        sageattention.sageattn(q, k, v, attn_mask=None)
    with pytest.raises(ValueError, match=r"pv_accum_dtype: got 'bf16', want 'fp32' or"):
        sageattention.sageattn_qk_int8_pv_fp16_cuda(q, k, v, pv_accum_dtype="bf16")
    with pytest.raises(RuntimeError, match=r"q.shape \(head_dim\): got 264, want 1 to 256"):
        sageattention.sageattn(*tensors(device, dim=264))
    with pytest.raises(RuntimeError, match=r"q.rank: got 3, want 4 \(\[batch, head, seq, d\]\)"):
        sageattention.sageattn(q[0], k[0], v[0])
    with pytest.raises(RuntimeError, match=r"qk_quant_gran: got 1, want 2"):
        sageattention.qk_int8_sv_f16_accum_f32_attn(q, k, v, q, q[0], q[0], 1, 0, 1, 1.0, 0)


def test_errors_count_axes_in_the_layout_of_the_call(device):
    q, k, v = tensors(device)
    for layout, axis in (("HND", 2), ("NHD", 1)):
        given = [x if layout == "HND" else x.transpose(1, 2) for x in (q, k, v)]
        with pytest.raises(RuntimeError, match=rf"^v\.shape\[{axis}\] \(seq_k\): got 40, want 200 \(rows of k\)$"):
            sageattention.sageattn(*given[:2], given[2].narrow(axis, 0, 40), layout)
    with pytest.raises(RuntimeError, match=r"got 2, want a divisor of 3 \(head\); k is \[batch, head, seq, head_dim\]"):
        sageattention.sageattn(q[:, :3], k, v, sm_scale=torch.tensor(0.5))
    with pytest.raises(RuntimeError, match=r"^sm_scale: got nan"):
        sageattention.sageattn(q, k, v, sm_scale=math.nan)
    with pytest.raises(RuntimeError, match=r"^k\.shape \(head_dim\): got 32, want 64 \(head_dim of q\)$"):
        sageattention.sageattn(q, k[..., :32], v)
    qk = fovea.quantize_qk_int8(q.transpose(1, 2), k.transpose(1, 2), smooth_k=False)
    given = qk.q.transpose(1, 2), qk.k.transpose(1, 2), v, torch.empty_like(q)[:, :, :20], qk.q_scale, qk.k_scale
    with pytest.raises(RuntimeError, match=r"^output\.shape\[2\] \(seq_q\): got 20, want 150 \(rows of query\)$"):
        sageattention.qk_int8_sv_f16_accum_f32_attn(*given, 1, 0, 3, 0.1, 0)
