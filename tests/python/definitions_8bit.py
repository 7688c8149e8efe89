# SPDX-License-Identifier: Apache-2.0
"""As definitions.py, of the operations of 8-bit attention: int8.py sequence by sequence."""

from types import SimpleNamespace

import torch
from torch import Tensor

import fovea
import int8
import plain
from definitions import E4M3, Want, blank, put, scores_of, spans


def sequences(tensor: Tensor, cu_seqlens: Tensor | None) -> list:
    """Where each sequence is in a tensor."""
    assert tensor.dim() == (4 if cu_seqlens is None else 3)
    return list(range(len(tensor))) if cu_seqlens is None else spans(tensor, cu_seqlens)


def groups_at(place: int | slice, b: int, block: int, groups: int, count: int) -> tuple:
    """Where the scales of a sequence are: [batch, head, groups], or of a ragged batch [head, groups]."""
    if isinstance(place, int):
        return (place,)
    first = (place.start // block + b) * groups
    return (slice(None), slice(first, first + count))


def open_value(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Value and bound of scales between those of sequences: any value is right."""
    return torch.zeros(shape, dtype=torch.float64), torch.full(shape, torch.inf, dtype=torch.float64)


def quantize_qk_int8(a: SimpleNamespace) -> dict[str, Want]:
    kind, smooth = (a.granularity, a.warp_rows), a.smooth_k
    if a.out is not None:
        kind, smooth = (a.out.granularity, a.out.warp_rows), a.out.k_mean is not None
    assert kind[1] in (16, 32) and kind[0] in ("block", "warp", "thread") and a.q.shape[-1] == a.k.shape[-1]
    ragged, group = a.cu_seqlens_q is not None, a.q.shape[-2] // a.k.shape[-2]
    rows, keys = sequences(a.q, a.cu_seqlens_q), sequences(a.k, a.cu_seqlens_k)
    per_q, per_k = len(int8.query_groups(1, *kind)), len(int8.key_groups(1, *kind))
    wants = {}
    count_q, count_k = (
        tensor.shape[0] // block + len(rows) if ragged else -(-tensor.shape[1] // block)
        for tensor, block in ((a.q, 128), (a.k, 64))
    )
    batch = () if ragged else (len(rows),)
    q_scale, k_scale = open_value((*batch, a.q.shape[-2], count_q * per_q)), open_value((*batch, a.k.shape[-2], count_k * per_k))
    lse_shape = a.q.shape[:2] if ragged else (len(rows), a.q.shape[2], a.q.shape[1])
    codes_q, codes_k = open_value(a.q.shape), open_value(a.k.shape)
    mean, shift = open_value((len(rows), *a.k.shape[-2:])), open_value(lse_shape)
    for b, (at_q, at_k) in enumerate(zip(rows, keys, strict=True)):
        q, k, rounded = a.q[at_q].float(), a.k[at_k].float(), False
        groups_q, groups_k = int8.query_groups(len(q), *kind), int8.key_groups(len(k), *kind)
        if smooth and len(k):
            own = k.double().mean(dim=0)
            put(mean, b, Want(own, 1e-5 * float(k.nan_to_num(0.0).abs().max()) + 1e-9))
            least = 1e-5 * float(k.nan_to_num(0.0).abs().max())
            k = k - own.float()
            rounded = float(k.nan_to_num(0.0).abs().max()) <= least  # keys that are their mean: codes of its rounding
        own = (q.double() * mean[0][b].repeat_interleave(group, dim=0)).sum(dim=-1)
        if len(k):
            put(
                shift,
                at_q,
                Want(own if ragged else own.T, 1e-4 * float(own.nan_to_num(0.0).abs().max()) + 1e-5 if own.numel() else 0.0),
            )
        for values, groups, into, scales, at in (
            (q, groups_q, codes_q, q_scale, groups_at(at_q, b, 128, per_q, len(groups_q))),
            (k, groups_k, codes_k, k_scale, groups_at(at_k, b, 64, per_k, len(groups_k))),
        ):
            codes, scale = int8.to_int8(values, groups)
            # A mean of other roundoff moves values to the next code where they lie between two.
            step = 0.0 if values is q else torch.inf if rounded else float(smooth)
            put(into, at_q if values is q else at_k, Want(codes.double(), step))
            place = (*at, slice(None), slice(0, scale.shape[1])) if isinstance(at[0], int) else at
            of_scale = torch.inf if rounded and values is not q else scale.abs().nan_to_num(0.0).double() * 1e-5
            put(scales, place, Want(scale.double(), of_scale))
    wants = {"q": Want(*codes_q), "k": Want(*codes_k), "q_scale": Want(*q_scale), "k_scale": Want(*k_scale)}
    return wants | ({"k_mean": Want(*mean), "lse_shift": Want(*shift)} if smooth else {})


def quantised_v(v: Tensor, dtype: torch.dtype, mean: Tensor | None) -> fovea.QuantizedV:
    """One sequence's v, less its mean."""
    values = v.float() if mean is None else v.float() - mean.float()
    if dtype == torch.float16:
        return fovea.QuantizedV(values.half(), None, mean)
    assert dtype == E4M3
    return fovea.QuantizedV(*int8.to_e4m3(values), mean)


def quantize_v(a: SimpleNamespace) -> dict[str, Want]:
    dtype, smooth = (a.dtype, a.smooth_v) if a.out is None else (a.out.v.dtype, a.out.mean is not None)
    places = sequences(a.v, a.cu_seqlens_k)
    codes = open_value(a.v.shape)
    scale, mean = open_value((len(places), *a.v.shape[-2:])), open_value((len(places), *a.v.shape[-2:]))
    for b, at in enumerate(places):
        v = a.v[at]
        if len(v) == 0:
            continue
        own = v.double().mean(dim=0) if smooth else None
        want = quantised_v(v, dtype, own)
        step = want.v.double().abs().nan_to_num(0.0) * (2**-3 if dtype == E4M3 else 2**-9) + 1e-2 if smooth else 0.0
        put(codes, at, Want(want.v.double(), step))
        if want.scale is not None:
            put(scale, b, Want(want.scale.double(), want.scale.double().abs().nan_to_num(0.0) * 1e-5))
        if own is not None:
            put(mean, b, Want(own, 1e-5 * float(v.nan_to_num(0.0).abs().max()) + 1e-9))
    wants = {"v": Want(*codes)} | ({"scale": Want(*scale)} if dtype == E4M3 else {})
    return wants | ({"mean": Want(*mean)} if smooth else {})


def judged(expected: plain.Expected, a: SimpleNamespace, dtype: torch.dtype, v_dtype: torch.dtype) -> tuple[Want, Want]:
    """AMX rounds weights and values to bfloat16, whatever out's dtype. GPUs round weights of e4m3 values to e4m3."""
    eps = 2**-4 if getattr(a, "from_gpu", False) and v_dtype == torch.float8_e4m3fn else 2**-8
    roundoff = max(torch.finfo(dtype).eps, eps) / 2
    size = expected.lse.abs().nan_to_num(0.0, 0.0, 0.0)
    bound = 8 * roundoff * expected.weight.nan_to_num(0.0) + 1e-6
    bound = bound.masked_fill(size[..., None] > 1e4, torch.inf)  # scores so large that rounding decides about weights
    return Want(expected.out, bound), Want(expected.lse, 2e-3 + size * 2**-12)


def quantized_attention(a: SimpleNamespace) -> dict[str, Want]:
    ragged, kind = a.cu_seqlens_q is not None, (a.qk.granularity, a.qk.warp_rows)
    assert a.qk.q.dtype == a.qk.k.dtype == torch.int8
    rows, keys = sequences(a.qk.q, a.cu_seqlens_q), sequences(a.qk.k, a.cu_seqlens_k)
    per_q, per_k = len(int8.query_groups(1, *kind)), len(int8.key_groups(1, *kind))
    dtype = a.dtype if a.out is None else a.out.dtype
    lse_shape = a.qk.q.shape[:2] if ragged else (len(rows), a.qk.q.shape[2], a.qk.q.shape[1])
    out, lse = blank(a.out, (*a.qk.q.shape[:-1], a.v.v.shape[-1]), 0.0), blank(a.lse, lse_shape, -torch.inf)
    for b, (at_q, at_k) in enumerate(zip(rows, keys, strict=True)):
        count_q, count_k = len(a.qk.q[at_q]), len(a.qk.k[at_k])
        groups_q, groups_k = len(int8.query_groups(count_q, *kind)), len(int8.key_groups(count_k, *kind))
        shift = a.qk.lse_shift if a.return_lse or a.lse is not None else None  # not looked at without lse
        shift = None if shift is None else shift[at_q].T if ragged else shift[at_q]
        qk = fovea.QuantizedQk(
            a.qk.q[at_q],
            a.qk.k[at_k],
            a.qk.q_scale[groups_at(at_q, b, 128, per_q, groups_q)],
            a.qk.k_scale[groups_at(at_k, b, 64, per_k, groups_k)],
            None,
            shift,
            *kind,
        )
        v = fovea.QuantizedV(a.v.v[at_k], *(None if part is None else part[b] for part in a.v[1:]))
        one, other = judged(int8.attention(qk, v, **without_extras(a)), a, dtype, v.v.dtype)
        put(out, at_q, one)
        put(lse, at_q, other if ragged else Want(other.value.T, other.bound.T))
    return {"out": Want(*out), "lse": Want(*lse)}


def without_extras(a: SimpleNamespace) -> dict:
    return {name: value for name, value in scores_of(a, True).items() if name not in ("sink", "softcap")}


def quantize_and_attend(a: SimpleNamespace) -> dict[str, Want]:
    """Keys that no row sees enter neither means nor scales."""
    ragged, kind = a.cu_seqlens_q is not None, (a.granularity, a.warp_rows)
    assert kind[1] in (16, 32)
    rows, keys = sequences(a.q, a.cu_seqlens_q), sequences(a.k, a.cu_seqlens_k)
    dtype = a.q.dtype if a.out is None else a.out.dtype
    lse_shape = a.q.shape[:2] if ragged else (len(rows), a.q.shape[2], a.q.shape[1])
    out, lse = blank(a.out, (*a.q.shape[:-1], a.v.shape[-1]), 0.0), blank(a.lse, lse_shape, -torch.inf)
    mask = without_extras(a)
    for _b, (at_q, at_k) in enumerate(zip(rows, keys, strict=True)):
        q, k, v = a.q[at_q].float(), a.k[at_k].float(), a.v[at_k].float()
        seen = plain.visible_keys(len(q), len(k), mask["left"], mask["right"], mask["offset"]).any(dim=0)[:, None, None]
        k, v, count = torch.where(seen, k, 0.0), torch.where(seen, v, 0.0), max(int(seen.sum()), 1)
        k_mean = k.double().sum(dim=0) / count if a.smooth_k else torch.zeros(k.shape[1:], dtype=torch.float64)
        v_mean = v.double().sum(dim=0) / count if a.smooth_v else None
        group = q.shape[1] // k.shape[1]
        shift = torch.einsum("ihd,hd->hi", q.double(), k_mean.repeat_interleave(group, dim=0))
        k = torch.where(seen, k - k_mean.float(), 0.0)
        v = v if v_mean is None else torch.where(seen, v, v_mean.float())
        codes = [int8.to_int8(values, of(len(values), *kind)) for values, of in ((q, int8.query_groups), (k, int8.key_groups))]
        qk = fovea.QuantizedQk(codes[0][0], codes[1][0], codes[0][1], codes[1][1], None, shift, *kind)
        one, other = judged(int8.attention(qk, quantised_v(v, a.v_dtype, v_mean), **mask), a, dtype, a.v_dtype)
        put(out, at_q, one)
        put(lse, at_q, other if ragged else Want(other.value.T, other.bound.T))
    return {"out": Want(*out), "lse": Want(*lse)}
