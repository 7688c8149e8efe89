# SPDX-License-Identifier: Apache-2.0
"""SageAttention's Python interface (version 2.2) over Fovea's 8-bit attention.

Argument names, order, defaults, layouts and results are SageAttention's. Differences:

* Unknown arguments raise TypeError. SageAttention takes and ignores them.
* The CPU and every NVIDIA GPU from compute capability 7.5 on are served, with head dims up to 256.
* ``sageattn`` keeps v in float16, which is the more accurate way. ``..._pv_fp8_...`` make it float8_e4m3fn.
* On Hopper, where 16 bits are faster, ``sageattn`` and ``sageattn_varlen`` attend exactly, in the dtype of q (docs/sageattention.md
  has the measurements). ``set_exact_fallback(False)`` turns this off; :func:`fovea.explain` shows what runs.
* ``pv_accum_dtype`` is checked and changes nothing: sums are float32. ``quantization_backend`` likewise.
* ``attn_mask`` raises NotImplementedError.
* Rows that see no key give 0, and -inf in lse.
"""

import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from fovea._attention import attention
from fovea._calls import adapted, from_gate
from fovea._quantized import QuantizedQk, QuantizedV, quantize_and_attend, quantized_attention
from fovea._words import renamed
from fovea.compat._arguments import bound, check, checked_scale, refuse, rows, whole_eights
from fovea.compat._sage_exact import is_faster, set_exact_fallback

__all__ = [
    "qk_int8_sv_f16_accum_f16_attn",
    "qk_int8_sv_f16_accum_f16_attn_inst_buf",
    "qk_int8_sv_f16_accum_f16_fuse_v_mean_attn",
    "qk_int8_sv_f16_accum_f32_attn",
    "qk_int8_sv_f16_accum_f32_attn_sm75",
    "sageattn",
    "sageattn_qk_int8_pv_fp8_cuda",
    "sageattn_qk_int8_pv_fp8_cuda_sm90",
    "sageattn_qk_int8_pv_fp16_cuda",
    "sageattn_qk_int8_pv_fp16_triton",
    "sageattn_varlen",
    "set_exact_fallback",
]

_Result = Tensor | tuple[Tensor, Tensor]


class _Call(NamedTuple):
    """The arguments that all functions of plain tensors take."""

    tensor_layout: str
    is_causal: bool
    sm_scale: Tensor | float | None
    return_lse: bool = False

    def options(self, head_dim: int) -> dict[str, Any]:
        scale = checked_scale("sm_scale", self.sm_scale)
        scale = head_dim**-0.5 if scale is None and head_dim else scale
        return {"causal": self.is_causal, "anchor": "top_left", "scale": scale}


_PLAIN = adapted({"scale": "sm_scale", "causal": "is_causal"}, error=RuntimeError)
_FLAT = "total, head, d"
_KERNEL_NAMES = {
    "qk.q": "query",
    "qk.k": "key",
    "v.v": "value",
    "q": "query",
    "k": "key",
    "v": "value",
    "out": "output",
    "qk.q_scale": "query_scale",
    "qk.k_scale": "key_scale",
    "q_scale": "query_scale",
    "k_scale": "key_scale",
    "v_mean": "value_mean",
    "v.mean": "value_mean",
    "scale": "sm_scale",
    "causal": "is_causal",
}
# By how errors of tokens before heads say an axis: how "HND" says it.
_HEADS_FIRST = {
    f"{name}.shape[{ours}]": f"{name}.shape[{theirs}]"
    for name in ("q", "k", "v", "qk.q", "qk.k", "v.v", "out")
    for ours, theirs in ((1, 2), (2, 1))
} | {"[batch, seq, head, head_dim]": "[batch, head, seq, head_dim]"}
_KERNEL = adapted(
    _KERNEL_NAMES, axes={"query_scale": "batch, head, groups", "key_scale": "batch, kv_head, groups"}, error=RuntimeError
)
_HEAD_DIMS = (64, 96, 128, 256)
_GRANULARITIES: dict[str, Literal["warp", "thread"]] = {"per_warp": "warp", "per_thread": "thread"}


@_PLAIN
def sageattn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tensor_layout: str = "HND",
    is_causal: bool = False,
    sm_scale: Tensor | float | None = None,
    return_lse: bool = False,
) -> _Result:
    """8-bit attention of a fixed batch, or exact attention where that is faster: on Hopper.

    Args:
        q: ``[batch, head, seq_q, d]`` in the layout "HND", ``[batch, seq_q, head, d]`` in "NHD"; k and v likewise, with kv heads
            that divide q's. float16 or bfloat16 (float32 on the CPU).
        is_causal: Whether query i sees the keys up to the i-th, also where there are more keys than queries.
        sm_scale: Multiplies the scores; None is ``d ** -0.5``.
        return_lse: Whether to return lse too.

    Returns:
        out in q's layout, or (out, lse float32 ``[batch, head, seq_q]``, natural logarithm).
    """
    return _attend(q, k, v, _Call(tensor_layout, is_causal, sm_scale, return_lse), may_be_exact=True)


@_PLAIN
def sageattn_qk_int8_pv_fp16_cuda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tensor_layout: str = "HND",
    is_causal: bool = False,
    qk_quant_gran: str = "per_thread",
    sm_scale: Tensor | float | None = None,
    pv_accum_dtype: str = "fp32",
    smooth_k: bool = True,
    smooth_v: bool = False,
    return_lse: bool = False,
) -> _Result:
    """:func:`sageattn` with v in float16.

    Args:
        qk_quant_gran: "per_thread" or "per_warp", which tokens share a scale.
        pv_accum_dtype: "fp32", "fp16" or "fp16+fp32"; sums are float32 always.
        smooth_k, smooth_v: Whether each channel's mean is subtracted before quantising.
    """
    _check_one_of("pv_accum_dtype", pv_accum_dtype, ("fp32", "fp16", "fp16+fp32"))
    smoothing = {"smooth_k": smooth_k, "smooth_v": smooth_v}
    return _attend(
        q, k, v, _Call(tensor_layout, is_causal, sm_scale, return_lse), granularity=_granularity(qk_quant_gran), **smoothing
    )


@_PLAIN
def sageattn_qk_int8_pv_fp16_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tensor_layout: str = "HND",
    quantization_backend: str = "triton",
    is_causal: bool = False,
    attn_mask: Tensor | None = None,
    sm_scale: Tensor | float | None = None,
    smooth_k: bool = True,
    return_lse: bool = False,
) -> _Result:
    """:func:`sageattn` with v in float16 and one scale a block of 128 queries or 64 keys."""
    _check_one_of("quantization_backend", quantization_backend, ("triton", "cuda"))
    refuse("Fovea's masks are bands", attn_mask=attn_mask)
    return _attend(q, k, v, _Call(tensor_layout, is_causal, sm_scale, return_lse), granularity="block", smooth_k=smooth_k)


@_PLAIN
def sageattn_qk_int8_pv_fp8_cuda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tensor_layout: str = "HND",
    is_causal: bool = False,
    qk_quant_gran: str = "per_thread",
    sm_scale: Tensor | float | None = None,
    pv_accum_dtype: str = "fp32+fp16",
    smooth_k: bool = True,
    smooth_v: bool = False,
    return_lse: bool = False,
) -> _Result:
    """:func:`sageattn_qk_int8_pv_fp16_cuda` with v in float8_e4m3fn, one scale a channel."""
    _check_one_of("pv_accum_dtype", pv_accum_dtype, ("fp32+fp16", "fp32+fp32", "fp32"))
    options = {"smooth_k": smooth_k, "smooth_v": smooth_v, "v_dtype": torch.float8_e4m3fn}
    return _attend(
        q, k, v, _Call(tensor_layout, is_causal, sm_scale, return_lse), granularity=_granularity(qk_quant_gran), **options
    )


@_PLAIN
def sageattn_qk_int8_pv_fp8_cuda_sm90(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tensor_layout: str = "HND",
    is_causal: bool = False,
    qk_quant_gran: str = "per_thread",
    sm_scale: Tensor | float | None = None,
    pv_accum_dtype: str = "fp32+fp32",
    smooth_k: bool = True,
    return_lse: bool = False,
) -> _Result:
    """:func:`sageattn_qk_int8_pv_fp8_cuda` with 16 query rows a warp, which are Hopper's."""
    _check_one_of("pv_accum_dtype", pv_accum_dtype, ("fp32+fp32",))
    options = {"smooth_k": smooth_k, "v_dtype": torch.float8_e4m3fn, "warp_rows": 16}
    return _attend(
        q, k, v, _Call(tensor_layout, is_causal, sm_scale, return_lse), granularity=_granularity(qk_quant_gran), **options
    )


@adapted(
    {"scale": "sm_scale", "causal": "is_causal"},
    axes={"q": _FLAT, "k": _FLAT, "v": _FLAT, "cu_seqlens_q": "batch + 1", "cu_seqlens_k": "batch + 1"},
    error=RuntimeError,
)
def sageattn_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: Tensor | int,
    max_seqlen_k: Tensor | int,
    is_causal: bool = False,
    sm_scale: Tensor | float | None = None,
    smooth_k: bool = True,
) -> Tensor:
    """:func:`sageattn` of a ragged batch: rows ``cu[b]`` to ``cu[b + 1] - 1`` belong to sequence b.

    q is ``[total_q, head, d]``, k and v are ``[total_k, kv_head, d]``. Keys are smoothed by the mean of their own sequence;
    SageAttention takes that of all sequences.
    """
    lengths = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    bounds = {"max_seqlen_q": bound(max_seqlen_q, "max_seqlen_q"), "max_seqlen_k": bound(max_seqlen_k, "max_seqlen_k")}
    call = _Call("", is_causal, sm_scale)
    options = call.options(q.shape[-1]) | lengths | bounds
    out: Tensor = _run(q, k, v, options, may_be_exact=True, granularity="block", smooth_k=smooth_k)
    return out


# ---- kernels on quantised tensors ----------------------------------------------------------------------------------------------


@_KERNEL
def qk_int8_sv_f16_accum_f32_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    query_scale: Tensor,
    key_scale: Tensor,
    tensor_layout: int,
    is_causal: int,
    qk_quant_gran: int,
    sm_scale: Tensor | float,
    return_lse: int,
) -> Tensor:
    """Attention on tensors that are quantised already; writes ``output``.

    Args:
        query: int8, ``[batch, head, seq_q, d]`` where ``tensor_layout`` is 1 and ``[batch, seq_q, head, d]`` where it is 0; key and
            value (float16) likewise.
        query_scale: float32 ``[batch, head, groups]``: for each 128 rows, 4 or 8 warps of 32 or 16 rows, and of each warp 8 groups
            where ``qk_quant_gran`` is 3 (per thread), one where it is 2 (per warp).
        key_scale: float32 ``[batch, kv_head, groups]``: for each 64 keys 4 groups, or one.

    Returns:
        lse in base 2, float32 ``[batch, head, seq_q]``; empty without ``return_lse``.
    """
    kernel = _Kernel(tensor_layout, is_causal, qk_quant_gran, sm_scale, return_lse)
    return kernel((query, key, value), output, (query_scale, key_scale))


# Other ways to sum; Fovea's sums are float32.
qk_int8_sv_f16_accum_f32_attn_sm75 = qk_int8_sv_f16_accum_f32_attn
qk_int8_sv_f16_accum_f16_attn = qk_int8_sv_f16_accum_f32_attn
qk_int8_sv_f16_accum_f16_attn_inst_buf = qk_int8_sv_f16_accum_f32_attn


@_KERNEL
def qk_int8_sv_f16_accum_f16_fuse_v_mean_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    query_scale: Tensor,
    key_scale: Tensor,
    value_mean: Tensor,
    tensor_layout: int,
    is_causal: int,
    qk_quant_gran: int,
    sm_scale: Tensor | float,
    return_lse: int,
) -> Tensor:
    """:func:`qk_int8_sv_f16_accum_f32_attn`, to whose result ``value_mean``, ``[batch, kv_head, d]`` in the dtype of ``output`` or
    float32, is added."""
    kernel = _Kernel(tensor_layout, is_causal, qk_quant_gran, sm_scale, return_lse)
    return kernel((query, key, value), output, (query_scale, key_scale), value_mean)


class _Kernel(NamedTuple):
    """The numbers that functions of quantised tensors take."""

    tensor_layout: int
    is_causal: int
    qk_quant_gran: int
    sm_scale: float
    return_lse: int

    def __call__(
        self, tensors: tuple[Tensor, ...], output: Tensor, scales: tuple[Tensor, Tensor], value_mean: Tensor | None = None
    ) -> Tensor:
        check(self.tensor_layout in (0, 1), "tensor_layout", self.tensor_layout, "0 (NHD) or 1 (HND)")
        check(self.qk_quant_gran in (2, 3), "qk_quant_gran", self.qk_quant_gran, "2 (per warp) or 3 (per thread)")
        layout = "HND" if self.tensor_layout == 1 else "NHD"
        named = zip(("query", "key", "value", "output"), (*tensors, output), strict=True)
        query, key, value, out = (_rows_first(name, x, layout) for name, x in named)
        groups_of_warp = 1 if self.qk_quant_gran == 2 else 8
        warps = scales[0].shape[2] // groups_of_warp // max(1, -(-query.shape[1] // 128))  # of 128 rows
        granularity: Literal["warp", "thread"] = "warp" if self.qk_quant_gran == 2 else "thread"
        qk = QuantizedQk(query, key, *scales, granularity=granularity, warp_rows=16 if warps == 8 else 32)
        if value_mean is not None:
            dtypes = (output.dtype, torch.float32)
            check(value_mean.dtype in dtypes, "value_mean.dtype", value_mean.dtype, f"{output.dtype}, as output, or torch.float32")
            value_mean = value_mean.float()
        lse = scales[0].new_empty(query.shape[0], query.shape[2], query.shape[1]) if self.return_lse else None
        options: dict[str, Any] = {"causal": bool(self.is_causal), "anchor": "top_left"}
        options["scale"] = checked_scale("sm_scale", self.sm_scale)
        try:
            quantized_attention(qk, QuantizedV(value, mean=value_mean), **options, out=out, lse=lse)
        except ValueError as error:
            raise _in_layout(error, layout) from None
        return scales[0].new_empty(0) if lse is None else lse.mul_(math.log2(math.e))


# ---- arguments -----------------------------------------------------------------------------------------------------------------


def _attend(q: Tensor, k: Tensor, v: Tensor, call: _Call, **options: Any) -> _Result:
    _check_one_of("tensor_layout", call.tensor_layout, ("HND", "NHD"))
    tensors = (_rows_first(name, x, call.tensor_layout) for name, x in (("q", q), ("k", k), ("v", v)))
    try:
        result = _run(*tensors, call.options(q.shape[-1]) | {"return_lse": call.return_lse}, **options)
    except ValueError as error:
        raise _in_layout(error, call.tensor_layout) from None
    out, lse = result if call.return_lse else (result, None)
    out = out.transpose(1, 2) if call.tensor_layout == "HND" else out
    return out if lse is None else (out, lse)


def _run(q: Tensor, k: Tensor, v: Tensor, call: dict[str, Any], may_be_exact: bool = False, **options: Any) -> Any:
    """Rows are padded with zeros to the next head dim, which changes no score. ``options`` are of 8 bits alone."""
    dim = q.shape[-1]
    check(0 < dim <= _HEAD_DIMS[-1], "q.shape (head_dim)", dim, f"1 to {_HEAD_DIMS[-1]}")
    for name, x in (("k", k), ("v", v)):
        check(x.shape[-1] == dim, f"{name}.shape (head_dim)", x.shape[-1], f"{dim} (head_dim of q)")
    if may_be_exact and is_faster(q, k, v):
        more = -dim % 8
        result = attention(*whole_eights(*map(rows, (q, k, v))), **call)
    else:
        more = next(larger for larger in _HEAD_DIMS if larger >= dim) - dim
        padded = (torch.nn.functional.pad(x, (0, more)) if more else rows(x) for x in (q, k, v))
        result = quantize_and_attend(*padded, **call, **options)
    if not more:
        return result
    return (result[0][..., :dim], result[1]) if isinstance(result, tuple) else result[..., :dim]


def _rows_first(name: str, tensor: Tensor, layout: str) -> Tensor:
    """``[batch, seq, head, d]``."""
    axes = "batch, head, seq, d" if layout == "HND" else "batch, seq, head, d"
    check(tensor.dim() == 4, f"{name}.rank", tensor.dim(), f"4 ([{axes}])")
    return tensor.transpose(1, 2) if layout == "HND" else tensor


def _in_layout(error: ValueError, layout: str) -> ValueError:
    return from_gate(ValueError(renamed(str(error), _HEADS_FIRST if layout == "HND" else {})))


def _granularity(name: str) -> Literal["warp", "thread"]:
    _check_one_of("qk_quant_gran", name, tuple(_GRANULARITIES))
    return _GRANULARITIES[name]


def _check_one_of(name: str, value: object, names: tuple[str, ...]) -> None:
    """A ValueError, as in SageAttention."""
    if value not in names:
        raise ValueError(f"{name}: got {value!r}, want {' or '.join(map(repr, names))}")
