# SPDX-License-Identifier: Apache-2.0
"""The definition of each operation for a call, in float64 on the CPU: the values of each result, and their bounds.

A formula takes all arguments of the function of its name. A call that it cannot follow contradicts itself.
"""

import inspect
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

import definitions_scores
import fovea
import kv_values
import packed
import plain
from definitions_scores import Undecided, decide, score_terms

E4M3 = torch.float8_e4m3fn


@dataclass
class Want:
    value: Tensor
    bound: Tensor | float = 0.0
    """Where it is infinite, anything will do."""


def with_defaults(function: Callable[..., Any], call: dict[str, Any]) -> SimpleNamespace:
    """All arguments of a call."""
    bound = inspect.signature(function).bind(**call)
    bound.apply_defaults()
    return SimpleNamespace(**bound.arguments)


# ---- attention -----------------------------------------------------------------------------------------------------------------


def scores_of(a: SimpleNamespace, anchored: bool) -> dict[str, Any]:
    """The options that plain.attention takes."""
    left, right = a.window or (None, None)
    if a.causal:
        right = 0 if right is None else min(right, 0)
    offset = 0 if anchored and a.anchor == "top_left" else None
    sink, softcap, scale = getattr(a, "sink", None), float(getattr(a, "softcap", 0.0)), None if a.scale is None else float(a.scale)
    return {"left": left, "right": right, "offset": offset, "scale": scale, "softcap": softcap, "sink": sink}


def bounded(
    expected: plain.Expected,
    q: Tensor,
    k: Tensor,
    scale: float | None,
    dtype: torch.dtype,
    *,
    bias: Tensor | None = None,
    v: Tensor | None = None,
) -> tuple[Want, Want]:
    """out and lse of one sequence. A score's error is relative to the sum of its products' magnitudes, and moves out and lse.

    Where it decides about weights, any mean of the values is right; anything, where float32 does not hold the products.
    """
    factor = 64 if dtype == torch.float32 else 8
    scale = q.shape[-1] ** -0.5 if scale is None else abs(float(scale))
    q, k = (tensor.double().nan_to_num(0.0).abs() for tensor in (q, k))
    reach = torch.einsum("ihd,jhd->hij", q, k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)) * scale
    if bias is not None and len(k):
        counts = bias >= bias.amax(dim=-1, keepdim=True) - 1e4  # the others have no weight, whatever their error
        reach = torch.where(counts, reach + bias.abs().nan_to_num(0.0, 0.0, 0.0), 0.0)
    reach = (reach.amax(dim=-1) if len(k) else reach.sum(dim=-1)).T * 2**-20
    blind, size = expected.lse.isneginf(), expected.lse.abs().nan_to_num(0.0, 0.0, 0.0)
    relative = factor * torch.finfo(dtype).eps / 2 + reach
    bound = relative[..., None] * expected.weight.nan_to_num(0.0) + 1e-6
    most = float(v.double().nan_to_num(0.0, 0.0, 0.0).abs().max()) if v is not None and v.numel() else torch.inf
    bound = torch.where((relative > 0.5)[..., None], 2 * most, bound)
    bound = torch.where((reach > 1e30)[..., None], torch.inf, bound)
    lse_bound = (1e-5 + size * 2**-13 + reach).masked_fill((size > 1e37) | (reach > 1e30), torch.inf)
    exact = torch.zeros((), dtype=torch.float64)
    return Want(expected.out, torch.where(blind[..., None], exact, bound)), Want(expected.lse, torch.where(blind, exact, lse_bound))


def spans(tensor: Tensor, cu_seqlens: Tensor | None) -> list[slice]:
    """The rows of each sequence in a tensor [rows, ..]."""
    if cu_seqlens is None:
        raise ValueError("a fixed batch has no spans")
    ends = cu_seqlens.tolist()
    assert ends[0] >= 0 and ends[-1] <= len(tensor) and ends == sorted(ends), f"lengths {ends} of {len(tensor)} rows"
    return [slice(begin, end) for begin, end in itertools.pairwise(ends)]


def blank(given: Tensor | None, shape: tuple[int, ...], fill: float) -> tuple[Tensor, Tensor]:
    """A value for rows that nothing computes: what the caller's tensor held, or else the value of a row that sees nothing."""
    value = torch.full(shape, fill, dtype=torch.float64) if given is None else given.double()
    return value.clone(), torch.zeros(shape, dtype=torch.float64)


def put(into: tuple[Tensor, Tensor], at: Any, want: Want) -> None:
    into[0][at] = want.value
    into[1][at] = want.bound


def dequantised(a: SimpleNamespace, name: str, batch: int) -> list[Tensor]:
    """q, k or v of dense attention, times its scale, for each sequence: [seq, head, dim]."""
    tensor, scale = getattr(a, name), getattr(a, f"{name}_scale", None)
    if a.cu_seqlens_q is None:
        assert tensor.dim() == 4
        parts = list(tensor)
    else:
        parts = [tensor[span] for span in spans(tensor, a.cu_seqlens_q if name == "q" else a.cu_seqlens_k)]
    assert len(parts) == batch
    if scale is None:
        return parts
    scale = torch.as_tensor(scale, dtype=torch.float64)
    heads = scale.expand(batch, a.k.shape[-2]) if scale.numel() > 1 else scale.reshape(1, 1).expand(batch, a.k.shape[-2])
    return [
        part.double() * heads[b].repeat_interleave(part.shape[1] // a.k.shape[-2])[None, :, None] for b, part in enumerate(parts)
    ]


def attention(a: SimpleNamespace) -> dict[str, Want]:
    ragged = a.cu_seqlens_q is not None
    batch = a.cu_seqlens_q.numel() - 1 if ragged else a.q.shape[0]
    dtype = a.out.dtype if a.out is not None else torch.bfloat16 if a.q.dtype == E4M3 else a.q.dtype
    q, k, v = (dequantised(a, name, batch) for name in "qkv")
    lse_shape = a.q.shape[:2] if ragged else (batch, a.q.shape[2], a.q.shape[1])
    out, lse = blank(a.out, (*a.q.shape[:-1], a.v.shape[-1]), 0.0), blank(a.lse, lse_shape, -torch.inf)
    places = spans(a.q, a.cu_seqlens_q) if ragged else range(batch)
    rough = torch.bfloat16 if a.q.dtype == E4M3 else dtype
    for b, at in enumerate(places):
        own = score_terms(a, b, at, len(q[b]), len(k[b]), batch)
        decide(own, q[b], k[b], v[b])
        expected = plain.attention(q[b], k[b], v[b], **scores_of(a, True), **own)
        one, other = bounded(expected, q[b], k[b], a.scale, rough, bias=own["bias"], v=v[b])
        put(out, at, one)
        put(lse, at, other if ragged else Want(other.value.T, other.bound.T))
    return {"out": Want(*out), "lse": Want(*lse)}


def scaled_dot_product_attention(a: SimpleNamespace) -> dict[str, Want]:
    assert a.dropout_p == 0 and (a.enable_gqa or a.query.shape[1] == a.key.shape[1])
    assert a.attn_mask is None or not a.is_causal
    q, k, v = (tensor.transpose(1, 2) for tensor in (a.query, a.key, a.value))
    options = dict.fromkeys(("window", "sink", "cu_seqlens_q", "cu_seqlens_k", "out", "lse")) | {"softcap": 0.0}
    if a.attn_mask is not None:
        mask = a.attn_mask[(None,) * (4 - a.attn_mask.dim())]
        torch.broadcast_to(mask, (*a.query.shape[:3], a.key.shape[2]))
        assert mask.dtype == torch.bool or mask.is_floating_point()
        options["bias"] = torch.where(mask, 0.0, -torch.inf) if mask.dtype == torch.bool else mask.to(a.query.dtype)
    call = SimpleNamespace(q=q, k=k, v=v, causal=a.is_causal, anchor="top_left", scale=a.scale, **options)
    out = attention(call)["out"]
    return {"out": Want(out.value.transpose(1, 2), out.bound.transpose(1, 2))}


@torch.inference_mode(False)
@torch.enable_grad()
def attention_backward(a: SimpleNamespace) -> dict[str, Want]:
    """The gradient of the definition, by torch's autograd in float64."""
    forward = attention(SimpleNamespace(**vars(a) | {"out": None, "lse": None, "return_lse": True}))
    for name in ("out", "lse"):
        want, got = forward[name], getattr(a, name).double()
        close = (got - want.value).abs() <= (4 * torch.as_tensor(want.bound) + 1e-3).clamp(max=0.1)
        if not bool((close | (got == want.value) | (got.isnan() & want.value.isnan())).all()):
            raise Undecided(f"{name} is not that of the forward pass")
    if not all(bool(tensor.isfinite().all()) for tensor in (a.q, a.k, a.v, a.dout, a.dout if a.dlse is None else a.dlse)):
        raise Undecided("autograd multiplies what nobody sees with 0")
    ragged, leaves = a.cu_seqlens_q is not None, [a.q, a.k, a.v] if a.sink is None else [a.q, a.k, a.v, a.sink]
    leaves += [a.bias] if a.bias_gradient else []
    leaves = [leaf.double().clone().requires_grad_() for leaf in leaves]
    q, k, v = leaves[:3]
    total, options = q.sum() * 0.0, scores_of(a, True) | {"sink": None if a.sink is None else leaves[3]}
    if ragged:
        pairs = list(zip(spans(a.q, a.cu_seqlens_q), spans(a.k, a.cu_seqlens_k), strict=True))
    else:
        pairs = [(b, b) for b in range(len(a.q))]
    known = SimpleNamespace(**vars(a) | ({"bias": leaves[-1]} if a.bias_gradient else {}))
    for b, (rows, keys) in enumerate(pairs):
        own = score_terms(known, b, rows, len(q[rows]), len(k[keys]), len(pairs))
        part = plain.attention(q[rows], k[keys], v[keys], **options, **own)
        total = total + (part.out * a.dout[rows].double()).sum()
        if a.dlse is not None:
            dlse = a.dlse[rows] if ragged else a.dlse[rows].T
            total = total + torch.where(part.lse.isneginf(), 0.0, part.lse * dlse.double()).sum()
    gradients = torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)
    factor = (64 if a.q.dtype == torch.float32 else 8) * torch.finfo(a.q.dtype).eps
    largest = max((float(gradient.nan_to_num(0.0).abs().max()) for gradient in gradients if gradient.numel()), default=0.0)
    names = ["dq", "dk", "dv", *(["dsink"] if a.sink is not None else []), *(["dbias"] if a.bias_gradient else [])]
    return {name: Want(gradient, factor * largest + 1e-7) for name, gradient in zip(names, gradients, strict=True)}


# ---- caches --------------------------------------------------------------------------------------------------------------------


def tokens(a: SimpleNamespace, cache: Tensor, sequence: int, queries: int) -> Tensor:
    """The tokens of a sequence in a cache [blocks, page, ..], in order. Tokens that no query sees may lie outside."""
    page, count = cache.shape[1], int(a.kv_len[sequence])
    assert 0 <= count <= page * a.block_table.shape[1], f"kv_len {count}"
    blocks = a.block_table[sequence, : -(-count // page)].long()
    mask = scores_of(a, False)
    seen = plain.visible_keys(queries, count, mask["left"], mask["right"]).any(dim=0)
    inside = ((blocks >= 0) & (blocks < len(cache))).repeat_interleave(page)[:count]
    assert bool((inside | ~seen).all()), "a visible key in a block outside of the cache"
    if len(cache) == 0:
        return cache.new_zeros((count, *cache.shape[2:]))
    return cache[blocks.clamp(0, len(cache) - 1)].flatten(0, 1)[:count]


def query_rows(a: SimpleNamespace) -> list[slice]:
    batch = a.block_table.shape[0]
    cu = torch.arange(batch + 1) if a.cu_seqlens_q is None else a.cu_seqlens_q
    assert a.kv_len.shape == (batch,) and cu.numel() == batch + 1
    assert a.cu_seqlens_q is not None or len(a.q) == batch
    return spans(a.q, cu)


def of_heads(scale: Tensor | float | None, heads: int) -> Tensor:
    scale = torch.as_tensor(1.0 if scale is None else scale, dtype=torch.float64).flatten()
    return scale.expand(heads)[None, :, None]


def stored(a: SimpleNamespace, name: str) -> Tensor:
    """The values of the cache of K or of V, without a scale for all of them."""
    cache, format, scales = (getattr(a, each) for each in (f"{name}_cache", f"{name}_format", f"{name}_scale_cache"))
    if format == "rows":
        assert scales is None
        return cache
    assert (scales is None) == (kv_values.FORMATS[format].scale == "none")
    return kv_values.decoded(format, cache, scales)


def paged_attention(a: SimpleNamespace) -> dict[str, Want]:
    k_cache, v_cache = stored(a, "k"), stored(a, "v")
    out, lse = blank(a.out, (*a.q.shape[:-1], v_cache.shape[-1]), 0.0), blank(a.lse, a.q.shape[:2], -torch.inf)
    for sequence, rows in enumerate(query_rows(a)):
        k, v = (tokens(a, cache, sequence, len(a.q[rows])).double() for cache in (k_cache, v_cache))
        k, v = k * of_heads(a.k_scale, k.shape[1]), v * of_heads(a.v_scale, v.shape[1])
        own = definitions_scores.terms(a, sequence, rows, len(k), len(a.block_table), anchored=False)
        expected = plain.attention(a.q[rows], k, v, **scores_of(a, False), **own)
        for into, want in zip((out, lse), bounded(expected, a.q[rows], k, a.scale, a.q.dtype, v=v), strict=True):
            put(into, rows, want)
    return {"out": Want(*out), "lse": Want(*lse)}


def slots_of(a: SimpleNamespace, cache: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The rows that are not skipped, and their slots."""
    assert a.slot_mapping.shape == (count,)
    kept = a.slot_mapping >= 0
    slots = a.slot_mapping[kept].long()
    assert bool((a.slot_mapping >= -1).all()) and bool((slots < cache.shape[0] * cache.shape[1]).all()), "a slot outside"
    return kept, slots


def quantised(cache: Tensor, format: str, rows: Tensor, slots: Tensor, scale: Tensor | float | None) -> Want:
    """The values that a cache of codes holds after ``rows`` were stored in ``slots``; without the scale of all values."""
    if not bool(rows.double().isfinite().all()):
        raise Undecided("what becomes of numbers that are not finite depends on the format")
    factor = of_heads(scale, rows.shape[1])
    values, (block, slot) = rows.double() / factor, (slots // cache.shape[1], slots % cache.shape[1])
    value, bound = cache.clone(), torch.zeros_like(cache)
    value[block, slot] = values
    bound[block, slot] = kv_values.step(format, values)
    return Want(value, bound)


def paged_cache_append(a: SimpleNamespace) -> dict[str, Want]:
    wants = {}
    for name in "kv":
        rows, cache = getattr(a, name), getattr(a, f"{name}_cache")
        kept, slots = slots_of(a, cache, len(rows))
        if len(slots.unique()) < len(slots):
            raise Undecided("two rows with one slot")
        values, format = rows[kept], getattr(a, f"{name}_format")
        if format != "rows":
            wants[f"{name}_cache"] = quantised(stored(a, name), format, values, slots, getattr(a, f"{name}_scale"))
            continue
        if cache.dtype == E4M3:
            scale = of_heads(getattr(a, f"{name}_scale"), rows.shape[1]).float()
            values = (values.float() / scale).clamp(-448, 448)  # NaN stays NaN
        else:
            assert rows.dtype == cache.dtype
        filled = cache.clone()
        filled[slots // cache.shape[1], slots % cache.shape[1]] = values.to(cache.dtype)
        wants[f"{name}_cache"] = Want(filled)
    return wants


def latent_rows(cache: Tensor, format: str) -> Tensor:
    """[blocks, page, kv_head, d] of a cache in any format."""
    if format == "rows":
        return cache
    assert cache.dtype == torch.uint8 and cache.shape[2] == packed.LAYOUTS[format].bytes
    return packed.decode(cache, format).bfloat16().unflatten(0, cache.shape[:2])[:, :, None]


def latent_attention(a: SimpleNamespace) -> dict[str, Want]:
    cache = latent_rows(a.cache, a.format)
    batched = a.q.dim() == 4
    lse_shape = (a.q.shape[0], a.q.shape[2], a.q.shape[1]) if batched else a.q.shape[:2]
    out, lse = blank(a.out, (*a.q.shape[:-1], 512), 0.0), blank(a.lse, lse_shape, -torch.inf)
    assert not batched or (a.cu_seqlens_q is None and len(a.block_table) == len(a.q) == len(a.kv_len))
    scale = 1.0 if a.cache_scale is None else float(a.cache_scale)
    for sequence, at in enumerate(range(len(a.q)) if batched else query_rows(a)):
        q = a.q[at]
        rows = tokens(a, cache, sequence, len(q)).double() * scale
        parts = []
        for index, group in enumerate(q.chunk(cache.shape[2], dim=1)):
            keys = rows[:, index : index + 1]
            parts.append(bounded(plain.latent(group, keys[:, 0], **scores_of(a, False)), group, keys, a.scale, a.q.dtype))
        one, other = (Want(*(torch.cat([getattr(p[i], f) for p in parts], dim=1) for f in ("value", "bound"))) for i in (0, 1))
        put(out, at, one)
        put(lse, at, Want(other.value.T, other.bound.T) if batched else other)
    return {"out": Want(*out), "lse": Want(*lse)}


def sparse_latent_attention(a: SimpleNamespace) -> dict[str, Want]:
    """Flat calls are of one sequence, with lengths for each row; batches have one length for a sequence."""
    caches = []
    for cache, format, indices, lengths in (
        (a.cache, a.format, a.indices, a.topk_length),
        (a.extra_cache, a.extra_format, a.extra_indices, a.extra_topk_length),
    ):
        if cache is not None:
            tokens_of = cache[:, 0] if format == "rows" and cache.dim() == 3 else latent_rows(cache, format).flatten(0, 1)[:, 0]
            caches.append((tokens_of, indices, lengths))
        else:
            assert indices is None and lengths is None
    batched = a.q.dim() == 4
    lse_shape = (a.q.shape[0], a.q.shape[2], a.q.shape[1]) if batched else a.q.shape[:2]
    out = blank(a.out, (*a.q.shape[:-1], 512), 0.0)
    lse, largest = (blank(given, lse_shape, -torch.inf) for given in (a.lse, a.max_logits))
    for b, q in enumerate(a.q if batched else [a.q]):
        own = []
        for cache, indices, lengths in caches:
            indices = indices[b] if batched else indices
            lengths = None if lengths is None else lengths[b].expand(len(q)) if batched else lengths
            own.append((cache, indices[:, 0] if indices.dim() == 3 else indices, lengths))
        if len(q) == 0:
            continue
        expected, scores = plain.sparse(q, own, scale=None if a.scale is None else float(a.scale), sink=a.sink)
        every = torch.cat([cache.nan_to_num(0.0) for cache, *_ in own])[:, None]
        one, other = bounded(expected, q, every, a.scale, a.q.dtype)
        at = b if batched else slice(None)
        put(out, at, one)
        for into, value in ((lse, other.value), (largest, scores)):
            put(into, at, Want(value.T, other.bound.T) if batched else Want(value, other.bound))
    return {"out": Want(*out), "lse": Want(*lse), "max_logits": Want(*largest)}


def quantize_latent_cache(a: SimpleNamespace) -> dict[str, Want]:
    """The values that slots then hold, within the step of their codes; all other tokens keep their bytes."""
    layout = packed.LAYOUTS[a.format]
    kept, slots = slots_of(a, a.cache, len(a.rows))
    if len(slots.unique()) < len(slots):
        raise Undecided("two rows with one slot")
    rows = a.rows[kept].double()
    if not bool((rows.abs() <= (6 * 448 if layout.code != "e4m3" else torch.finfo(torch.float32).max)).all()):
        raise Undecided("what becomes of large numbers, and of those that are not finite, depends on the format")
    value = packed.decode(a.cache, a.format).double()
    bound = torch.zeros_like(value)
    largest = rows[:, : layout.codes].unflatten(1, (-1, layout.group)).abs().amax(dim=2).repeat_interleave(layout.group, dim=1)
    codes = rows[:, : layout.codes].abs()
    step = codes / 16 + (largest / 448).clamp(min=1e-4) * 2 * 2**-9 if layout.code == "e4m3" else largest / 6 * 1.1 + 0.006
    value[slots] = rows
    bound[slots] = torch.cat([step, rows[:, layout.codes :].abs() / 256], dim=1)
    return {"cache": Want(value, bound)}


def dequantize_latent_cache(a: SimpleNamespace) -> dict[str, Want]:
    kept, slots = slots_of(a, a.cache, len(a.slot_mapping))
    dtype = a.dtype if a.rows is None else a.rows.dtype
    shape = (len(kept), fovea.cache_formats()[a.format].row)
    value = torch.zeros(shape, dtype=dtype) if a.rows is None else a.rows.clone()
    value[kept] = packed.decode(a.cache, a.format)[slots].to(dtype)
    return {"rows": Want(value)}


def merge_states(a: SimpleNamespace) -> dict[str, Want]:
    assert len({tuple(out.shape) for out in a.outs}) == 1 and all(lse.shape == a.outs[0].shape[:2] for lse in a.lses)
    assert len(a.lses) == len(a.outs)
    outs, lses = torch.stack(a.outs).double(), torch.stack(a.lses).double()
    lses = torch.where(lses.isfinite(), lses, -torch.inf)
    lse = lses.logsumexp(dim=0)
    weight = torch.where(lses.isneginf(), 0.0, (lses - lse).exp())[..., None]
    parts = torch.where(weight > 0, outs, 0.0)
    bound = (weight * parts.nan_to_num(0.0).abs()).sum(dim=0) * (
        torch.finfo(a.outs[0].dtype).eps + lse.abs().nan_to_num(0, 0, 0)[..., None] * 2**-20
    )
    return {"out": Want((weight * parts).sum(dim=0), bound + 1e-6), "lse": Want(lse, 1e-5 + lse.abs().nan_to_num(0, 0, 0) * 2**-20)}
