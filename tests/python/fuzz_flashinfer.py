# SPDX-License-Identifier: Apache-2.0
"""Good random calls of the drop-in for FlashInfer, and what they give by the definitions.

A wrapper counts as one function of what its constructor, plan() and run() take."""

import inspect
import itertools
import math
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

import definitions
import fovea
from definitions import Want, with_defaults
from fovea.compat import flashinfer
from fuzz_draw import FLOATS, Draw
from fuzz_flash import ours, paged
from judge import compare

Call = dict[str, Any]
LOG2E = math.log2(math.e)
WORKSPACE = torch.empty(1, dtype=torch.uint8)


def base_2(want: Want, sink: Tensor | None = None) -> Want:
    value = want.value if sink is None else torch.logaddexp(want.value, sink.double())
    return Want(value * LOG2E, torch.as_tensor(want.bound) * LOG2E + 1e-6)


def compare_with_lse(result: Any, out: Want, lse: Want, asked: bool) -> None:
    parts = result if isinstance(result, tuple) else (result,)
    assert len(parts) == 1 + bool(asked)
    for name, got, want in zip(("out", "lse"), parts, (out, lse), strict=False):
        compare(name, got, want)


def left_open(want: Want, given: Tensor | None, ends: Tensor) -> Want:
    """Rows of a given tensor that no sequence has may hold anything."""
    if given is None:
        return want
    open_rows = torch.ones(len(want.value), dtype=torch.bool)
    open_rows[int(ends[0]) : int(ends[-1])] = False
    bound = torch.as_tensor(want.bound).expand_as(want.value).clone()
    bound[open_rows] = torch.inf
    return Want(want.value, bound)


def scaled(want: Want, factor: Any) -> Want:
    factor = 1.0 if factor is None else float(factor)
    if abs(factor) > torch.finfo(torch.float32).max:
        raise definitions.Undecided("a factor that float32 does not hold")
    return Want(want.value * factor, 2 * torch.as_tensor(want.bound) * abs(factor) + want.value.abs() * 2**-8 * (factor != 1.0))


def scores(a: SimpleNamespace, head_dim: int) -> Call:
    assert a.pos_encoding_mode == "NONE"
    left = int(a.window_left)
    scale = (head_dim**-0.5 if a.sm_scale is None else float(a.sm_scale)) * factor_of(a, "q_scale") * factor_of(a, "k_scale")
    return {"window": None if left < 0 else (left, None), "scale": scale, "softcap": float(a.logits_soft_cap or 0.0)}


def factor_of(a: SimpleNamespace, name: str) -> float:
    value = getattr(a, name, None)
    return 1.0 if value is None else float(value)


def score_options(draw: Draw) -> Call:
    return draw.some(sm_scale=0.3, window_left=3, logits_soft_cap=5.0)


def token_major(tensor: Tensor, layout: str) -> Tensor:
    assert layout in ("NHD", "HND")
    return tensor.transpose(-3, -2) if layout == "HND" else tensor


# ---- one sequence --------------------------------------------------------------------------------------------------------------


def single(draw: Draw, decode: bool) -> Call:
    (head, kv_head), dim, dtype, layout = draw.heads(), draw.one_of(16, 64), draw.one_of(*FLOATS), draw.one_of("NHD", "HND")
    rows, keys = draw.randint(1, 5), draw.randint(1, 9)
    call = {"q": draw.rows(head, dim, dtype=dtype) if decode else draw.rows(rows, head, dim, dtype=dtype)}
    kv = (keys, kv_head, dim) if layout == "NHD" else (kv_head, keys, dim)
    call |= {name: draw.rows(*kv, dtype=dtype) for name in "kv"} | {"kv_layout": layout}
    call |= score_options(draw) | draw.some(return_lse=True, k_scale=0.5, v_scale=2.0)
    return call | (draw.some(q_scale=0.5) if decode else draw.some(causal=True))


def check_single(function: Callable[..., Any], decode: bool, call: Call, result: Any, before: Call) -> None:
    a = with_defaults(function, before)
    q, k, v = a.q[None] if decode else a.q, *(token_major(tensor, a.kv_layout) for tensor in (a.k, a.v))
    causal = False if decode else bool(a.causal)
    wants = ours(q[None], k[None], v[None], causal=causal, **scores(a, a.q.shape[-1]))
    out = scaled(Want(wants["out"].value[0], wants["out"].bound[0]), a.v_scale)
    lse = Want(wants["lse"].value[0].T, wants["lse"].bound[0].T)
    if decode:
        out, lse = Want(out.value[0], out.bound[0]), Want(lse.value[0], lse.bound[0])
    compare_with_lse(result, out, base_2(lse), a.return_lse)


# ---- wrappers ------------------------------------------------------------------------------------------------------------------


def wrapped(wrapper: type) -> Callable[..., Any]:
    """One function of all that a wrapper takes."""
    parts = [inspect.signature(function).parameters for function in (wrapper.__init__, wrapper.plan, wrapper.run)]
    ignored = ("self", "args", "use_cuda_graph")
    parameters = {
        name: each for part in reversed(parts) for name, each in part.items() if name not in ignored
    }  # plan's window_left

    def function(**call: Any) -> Any:
        unknown = call.keys() - parameters.keys()
        if unknown:
            raise TypeError(f"{wrapper.__name__}() got an unexpected keyword argument '{min(unknown)}'")
        made, plan, run = ({name: value for name, value in call.items() if name in part} for part in parts)
        own = wrapper(**made)
        own.plan(**plan)
        return own.run(**{name: value for name, value in run.items() if name not in plan})

    function.__name__ = function.__qualname__ = wrapper.__name__
    function.__module__ = wrapper.__module__
    each = [parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in parameters.values()]
    function.__signature__ = inspect.Signature(each)  # type: ignore[attr-defined]
    return function


DECODE, PREFILL, RAGGED = map(
    wrapped,
    (
        flashinfer.BatchDecodeWithPagedKVCacheWrapper,
        flashinfer.BatchPrefillWithPagedKVCacheWrapper,
        flashinfer.BatchPrefillWithRaggedKVCacheWrapper,
    ),
)


def page_table(draw: Draw, lengths: list[int], page: int) -> tuple[Call, int]:
    """indptr, indices and last_page_len, and how many pages the cache has."""
    counts = [-(-length // page) for length in lengths]
    total = sum(counts) + 1
    indices = draw.sample(range(total), sum(counts))
    last = [(length - 1) % page + 1 if length else draw.one_of(0, 1) for length in lengths]
    return {"indptr": draw.ends(counts), "indices": draw.int32(indices), "last_page_len": draw.int32(last)}, total


def wrapper_call(draw: Draw, decode: bool) -> Call:
    (head, kv_head), dim, dtype, layout = draw.heads(), draw.one_of(16, 64), draw.one_of(*FLOATS), draw.one_of("NHD", "HND")
    batch, page = draw.randint(1, 3), draw.one_of(1, 4, 16)
    lengths = draw.lengths(batch, 12)
    table, total = page_table(draw, lengths, page)
    each = draw.one_of(1, 1, 2) if decode else 0
    rows = [each] * batch if decode else draw.lengths(batch, 4)
    call: Call = {"float_workspace_buffer": WORKSPACE, "kv_layout": layout, "num_qo_heads": head, "num_kv_heads": kv_head}
    if decode:
        call |= table | {"head_dim": dim} | ({"q_len_per_req": each} if each > 1 else {})
    else:
        call |= {f"paged_kv_{name}": value for name, value in table.items()}
        call |= {"qo_indptr": draw.ends(rows), "head_dim_qk": dim} | draw.some(causal=True, lse_base="ln")
    call |= {"page_size": page, "q_data_type": dtype, "q": draw.rows(sum(rows), head, dim, dtype=dtype)} | score_options(draw)
    shape = (page, kv_head, dim) if layout == "NHD" else (kv_head, page, dim)
    both = draw.rows(total, 2, *shape, dtype=dtype)
    call["paged_kv_cache"] = both if draw.random() < 0.5 else tuple(both.unbind(1))
    call |= draw.some(k_scale=0.5, v_scale=2.0, sinks=draw.rows(head), return_lse=True, disable_split_kv=True)
    return call | draw.some(out=draw.poison(sum(rows), head, dim, dtype=dtype), lse=draw.poison(sum(rows), head))


def block_table(indptr: Tensor, indices: Tensor, last: Tensor, page: int) -> tuple[Tensor, Tensor]:
    ends = [int(end) for end in indptr]
    assert ends[0] >= 0 and ends == sorted(ends) and ends[-1] <= len(indices) and page > 0 and len(last) == len(ends) - 1
    counts = [end - begin for begin, end in itertools.pairwise(ends)]
    table = torch.zeros(len(counts), max(counts, default=0) or 1, dtype=torch.int64)
    lengths = torch.zeros(len(counts), dtype=torch.int64)
    for row, count in enumerate(counts):
        table[row, :count] = indices[ends[row] : ends[row] + count]
        if count:
            assert 1 <= int(last[row]) <= page and not last.is_floating_point(), f"last_page_len {last[row]}"
            lengths[row] = (count - 1) * page + last[row]
    return table, lengths


def check_wrapper(function: Callable[..., Any], decode: bool, call: Call, result: Any, before: Call) -> None:
    a = with_defaults(function, before)
    names = ("indptr", "indices", "last_page_len")
    table, lengths = block_table(*(getattr(a, name if decode else f"paged_kv_{name}") for name in names), a.page_size)
    caches = a.paged_kv_cache.unbind(1) if isinstance(a.paged_kv_cache, Tensor) else a.paged_kv_cache
    caches = tuple(token_major(cache, a.kv_layout) for cache in caches)
    assert a.q.shape[1:] == (a.num_qo_heads, a.head_dim if decode else a.head_dim_qk) and caches[0].shape[1] == a.page_size
    assert caches[0].shape[2] == a.num_kv_heads
    ends = torch.arange(len(lengths) + 1) * a.q_len_per_req if decode else a.qo_indptr
    causal = a.q_len_per_req > 1 if decode else bool(a.causal)
    options = scores(a, a.q.shape[-1]) | {"causal": causal, "sink": a.sinks}
    wants = paged(a.q, caches, table, lengths, ends, options)
    lse = base_2(wants["lse"], a.sinks)
    if not decode and a.lse_base == "ln":
        lse = Want(lse.value / LOG2E, lse.bound)
    out = left_open(scaled(wants["out"], a.v_scale), a.out, ends)
    compare_with_lse(result, out, left_open(lse, a.lse, ends), a.return_lse)
    assert call.get("out") is None or (result[0] if isinstance(result, tuple) else result) is call["out"]


def ragged_call(draw: Draw) -> Call:
    (head, kv_head), dim, dtype, layout = draw.heads(), draw.one_of(16, 64), draw.one_of(*FLOATS), "NHD"
    batch = draw.randint(1, 3)
    rows, keys = draw.lengths(batch, 4), draw.lengths(batch)
    call: Call = {"float_workspace_buffer": WORKSPACE, "kv_layout": layout, "num_qo_heads": head, "num_kv_heads": kv_head}
    call |= {"head_dim_qk": dim, "q_data_type": dtype, "qo_indptr": draw.ends(rows), "kv_indptr": draw.ends(keys)}
    call |= {"q": draw.rows(sum(rows), head, dim, dtype=dtype)} | {
        name: draw.rows(sum(keys), kv_head, dim, dtype=dtype) for name in "kv"
    }
    call |= score_options(draw) | draw.some(causal=True, return_lse=True, lse_base="ln")
    return call | draw.some(out=draw.poison(sum(rows), head, dim, dtype=dtype), lse=draw.poison(sum(rows), head))


def check_ragged(call: Call, result: Any, before: Call) -> None:
    a = with_defaults(RAGGED, before)
    k, v = (token_major(tensor, a.kv_layout) for tensor in (a.k, a.v))
    assert a.q.shape[1:] == (a.num_qo_heads, a.head_dim_qk) and k.shape[1] == a.num_kv_heads
    lengths = {"cu_seqlens_q": a.qo_indptr, "cu_seqlens_k": a.kv_indptr}
    wants = ours(a.q, k, v, causal=bool(a.causal), **lengths, **scores(a, a.q.shape[-1]))
    lse = wants["lse"] if a.lse_base == "ln" else base_2(wants["lse"])
    out = left_open(scaled(wants["out"], factor_of(a, "v_scale")), a.out, a.qo_indptr)
    compare_with_lse(result, out, left_open(lse, a.lse, a.qo_indptr), a.return_lse)


# ---- pages, merging ------------------------------------------------------------------------------------------------------------


def append_call(draw: Draw) -> Call:
    (kv_head, dim), dtype, page, layout = (
        draw.one_of((2, 16), (1, 64)),
        draw.one_of(*FLOATS),
        draw.one_of(1, 4),
        draw.one_of("NHD", "HND"),
    )
    lengths = [length + 1 for length in draw.lengths(draw.randint(1, 3), 8)]
    table, total = page_table(draw, lengths, page)
    places = [(row, at) for row, length in enumerate(lengths) for at in range(length)]
    chosen = draw.sample(places, draw.randint(0, min(len(places), 4)))
    skipped = [(-1, at) if draw.random() < 0.2 else (row, at) for row, at in chosen]
    shape = (page, kv_head, dim) if layout == "NHD" else (kv_head, page, dim)
    both = draw.poison(total, 2, *shape, dtype=dtype)
    call: Call = {"paged_kv_cache": both if draw.random() < 0.5 else tuple(both.unbind(1)), "kv_layout": layout}
    call |= {name: draw.rows(len(chosen), kv_head, dim, dtype=dtype) for name in ("append_key", "append_value")}
    call |= {"batch_indices": draw.int32([row for row, _ in skipped]), "positions": draw.int32([at for _, at in skipped])}
    return call | {f"kv_{name}": value for name, value in table.items()}


def check_append(call: Call, result: Any, before: Call) -> None:
    a = with_defaults(flashinfer.append_paged_kv_cache, before)
    caches, got = (x.unbind(1) if isinstance(x, Tensor) else x for x in (a.paged_kv_cache, call["paged_kv_cache"]))
    assert not any(tensor.is_floating_point() and tensor.numel() for tensor in (a.batch_indices, a.positions))
    written = set()
    for name, rows, cache, after in zip(("keys", "values"), (a.append_key, a.append_value), caches, got, strict=True):
        cache, after = token_major(cache.clone(), a.kv_layout), token_major(after, a.kv_layout)
        for row, (sequence, position) in enumerate(zip(a.batch_indices.tolist(), a.positions.tolist(), strict=True)):
            if sequence < 0:
                continue
            begin, end = int(a.kv_indptr[sequence]), int(a.kv_indptr[sequence + 1])
            assert 0 <= position < (end - begin) * cache.shape[1], "a position outside of the request's pages"
            page = int(a.kv_indices[begin + position // cache.shape[1]])
            assert 0 <= page < len(cache)
            if (name, page, position % cache.shape[1]) in written:
                raise definitions.Undecided("two rows with one place")
            written.add((name, page, position % cache.shape[1]))
            cache[page, position % cache.shape[1]] = rows[row].to(cache.dtype)
        compare(name, after, Want(cache))


def merge_call(draw: Draw, kind: str) -> Call:
    rows, head, dim, dtype, parts = (
        draw.randint(0, 4),
        draw.randint(1, 3),
        draw.one_of(8, 64),
        draw.one_of(*FLOATS),
        draw.randint(1, 3),
    )
    if kind == "states":
        return {"v": draw.rows(rows, parts, head, dim, dtype=dtype), "s": draw.rows(rows, parts, head)}
    names = ("v", "s", "v_other", "s_other") if kind == "in place" else ("v_a", "s_a", "v_b", "s_b")
    call = {name: draw.rows(rows, head, dim, dtype=dtype) if name.startswith("v") else draw.rows(rows, head) for name in names}
    return call | (draw.some(mask=torch.rand(rows) < 0.5) if kind == "in place" else {})


def check_merge(kind: str, call: Call, result: Any, before: Call) -> None:
    a = SimpleNamespace(**{"mask": None} | before)
    if kind == "states":
        outs, lses = a.v.unbind(1), a.s.unbind(1)
    else:
        outs, lses = ((a.v, a.v_other), (a.s, a.s_other)) if kind == "in place" else ((a.v_a, a.v_b), (a.s_a, a.s_b))
    natural = [lse.float() / LOG2E for lse in lses]
    wants = definitions.merge_states(with_defaults(fovea.merge_states, {"outs": list(outs), "lses": natural}))
    out, lse = wants["out"], base_2(wants["lse"])
    lse.bound = lse.bound + 1e-5 * lse.value.abs().nan_to_num(0.0, 0.0, 0.0)
    if kind == "in place":
        result = call["v"], call["s"]
        lse.bound = lse.bound + torch.finfo(a.s.dtype).eps * lse.value.abs().nan_to_num(0.0, 0.0, 0.0)  # rounded to what is given
        if a.mask is not None:
            assert a.mask.shape == a.s.shape[:1]
            kept = ~a.mask.bool()
            out.value[kept], lse.value[kept] = a.v[kept].double(), a.s[kept].double()
    for name, got, want in zip(("v", "s"), result, (out, lse), strict=True):
        compare(name, got, want)


def positions_call(draw: Draw) -> Call:
    rows = draw.lengths(draw.randint(1, 3), 4)
    return {
        "append_indptr": draw.ends(rows),
        "seq_lens": draw.int32([count + draw.randint(0, 3) for count in rows]),
        "nnz": sum(rows) + draw.randint(0, 2),
    }


def check_positions(call: Call, result: Any, before: Call) -> None:
    a = with_defaults(flashinfer.get_batch_indices_positions, before)
    ends = [int(end) for end in a.append_indptr]
    assert ends[0] >= 0 and ends == sorted(ends) and len(a.seq_lens) == len(ends) - 1
    want = [(-1, -1)] * a.nnz
    for row, (begin, end) in enumerate(itertools.pairwise(ends)):
        for at in range(begin, min(end, a.nnz)):
            want[at] = (row, int(a.seq_lens[row]) - (end - at))
    for name, got, index in zip(("batch_indices", "positions"), result, (0, 1), strict=True):
        compare(name, got, Want(torch.tensor([pair[index] for pair in want], dtype=torch.int64)))


def lens_call(draw: Draw) -> Call:
    table, _ = page_table(draw, draw.lengths(draw.randint(1, 3), 12), 4)
    return {"kv_indptr": table["indptr"], "kv_last_page_len": table["last_page_len"], "page_size": 4}


def check_lens(call: Call, result: Any, before: Call) -> None:
    a = with_defaults(flashinfer.get_seq_lens, before)
    pages, last = a.kv_indptr.diff().long(), a.kv_last_page_len.long()
    assert a.kv_indptr.dim() == 1 and last.shape == pages.shape
    want = torch.where(pages > 0, (pages - 1) * a.page_size + last, 0)
    if bool((want.abs() > torch.iinfo(torch.int32).max).any()):
        raise definitions.Undecided("more tokens than int32 counts")
    compare("lens", result, Want(want))


REFUSES = (ValueError, NotImplementedError, TypeError)
OUTPUTS = ("out", "lse")
SINGLE = (flashinfer.single_decode_with_kv_cache, flashinfer.single_prefill_with_kv_cache)
FUNCTIONS = [
    *(
        (each, partial(single, decode=first), partial(check_single, each, first), (), REFUSES)
        for each, first in zip(SINGLE, (True, False), strict=True)
    ),
    (DECODE, partial(wrapper_call, decode=True), partial(check_wrapper, DECODE, True), OUTPUTS, REFUSES),
    (PREFILL, partial(wrapper_call, decode=False), partial(check_wrapper, PREFILL, False), OUTPUTS, REFUSES),
    (RAGGED, ragged_call, check_ragged, OUTPUTS, REFUSES),
    (flashinfer.append_paged_kv_cache, append_call, check_append, ("paged_kv_cache",), REFUSES),
    (flashinfer.merge_state, partial(merge_call, kind="state"), partial(check_merge, "state"), (), REFUSES),
    (flashinfer.merge_states, partial(merge_call, kind="states"), partial(check_merge, "states"), (), REFUSES),
    (flashinfer.merge_state_in_place, partial(merge_call, kind="in place"), partial(check_merge, "in place"), ("v", "s"), REFUSES),
    (flashinfer.get_batch_indices_positions, positions_call, check_positions, ("batch_indices", "positions"), REFUSES),
    (flashinfer.get_seq_lens, lens_call, check_lens, (), REFUSES),
]
"""Function, maker, check, what it may write, what it raises."""
