# SPDX-License-Identifier: Apache-2.0
"""Types that a checker knows of the results. test_typing.py gives this file to mypy; nothing runs it."""

from typing import TYPE_CHECKING

from torch import Tensor

import fovea
import fovea.distributed
from fovea.distributed import Layout

if TYPE_CHECKING:
    from typing_extensions import assert_type

Both = tuple[Tensor, Tensor]
Three = tuple[Tensor, Tensor, Tensor]
Four = tuple[Tensor, Tensor, Tensor, Tensor]


def dense(q: Tensor, lse: Tensor, maybe: Tensor | None, asked: bool) -> None:
    assert_type(fovea.attention(q, q, q), Tensor)
    assert_type(fovea.attention(q, q, q, causal=True, window=(7, None), scale=0.1, out=q, return_lse=False), Tensor)
    assert_type(fovea.attention(q, q, q, return_lse=True), Both)
    assert_type(fovea.attention(q, q, q, lse=lse), Both)
    assert_type(fovea.attention(q, q, q, lse=lse, return_lse=False), Both)
    assert_type(fovea.attention(q, q, q, lse=maybe), Tensor | Both)
    assert_type(fovea.attention(q, q, q, lse=None, return_lse=True), Both)
    assert_type(fovea.attention(q, k=q, v=q, lse=maybe, return_lse=True), Both)
    assert_type(fovea.attention(q, q, q, return_lse=asked), Tensor | Both)
    out, _ = fovea.attention(q, q, q, return_lse=True)
    assert_type(out, Tensor)


def backward(q: Tensor, lse: Tensor, maybe: Tensor | None) -> None:
    assert_type(fovea.attention_backward(q, q, q, q, q, lse, causal=True), Three)
    assert_type(fovea.attention_backward(q, q, q, q, q, lse, sink=lse, softcap=3.0), Four)
    assert_type(fovea.attention_backward(q, q, q, q, q, lse, sink=maybe), Three | Four)


def paged(q: Tensor, table: Tensor, lse: Tensor, asked: bool) -> None:
    assert_type(fovea.paged_attention(q, q, q, table, table, max_seqlen_q=1, k_scale=2.0), Tensor)
    assert_type(fovea.paged_attention(q, q, q, table, table, table, return_lse=True), Both)
    assert_type(fovea.paged_attention(q, q, q, table, kv_len=table, lse=lse), Both)
    assert_type(fovea.paged_attention(q, q, q, table, table, return_lse=asked), Tensor | Both)
    assert_type(fovea.latent_attention(q, q, table, table, format="v32_fp8", schedule=fovea.LatentSchedule()), Tensor)
    assert_type(fovea.latent_attention(q, q, table, table, return_lse=True), Both)
    assert_type(fovea.latent_attention(q, q, table, table, lse=lse), Both)
    assert_type(fovea.latent_attention(q, q, table, table, return_lse=asked), Tensor | Both)


def sparse(q: Tensor, indices: Tensor, lse: Tensor, asked: bool) -> None:
    assert_type(fovea.sparse_latent_attention(q, q, indices, extra_cache=q, extra_indices=indices, sink=lse), Tensor)
    assert_type(fovea.sparse_latent_attention(q, q, indices, return_lse=True), Both)
    assert_type(fovea.sparse_latent_attention(q, q, indices, lse=lse), Both)
    assert_type(fovea.sparse_latent_attention(q, q, indices, return_max_logits=True), Both)
    assert_type(fovea.sparse_latent_attention(q, q, indices, max_logits=lse), Both)
    assert_type(fovea.sparse_latent_attention(q, q, indices, return_lse=True, return_max_logits=True), Three)
    assert_type(fovea.sparse_latent_attention(q, q, indices, return_lse=True, max_logits=lse), Three)
    assert_type(fovea.sparse_latent_attention(q, q, indices, lse=lse, return_max_logits=True), Three)
    assert_type(fovea.sparse_latent_attention(q, q, indices, lse=lse, max_logits=lse), Three)
    assert_type(fovea.sparse_latent_attention(q, q, indices, return_lse=asked), Tensor | tuple[Tensor, ...])


def quantized(q: Tensor, lse: Tensor, asked: bool) -> None:
    qk, v = fovea.quantize_qk_int8(q, q), fovea.quantize_v(q)
    assert_type(fovea.quantized_attention(qk, v, causal=True), Tensor)
    assert_type(fovea.quantized_attention(qk, v, return_lse=True), Both)
    assert_type(fovea.quantized_attention(qk, v, lse=lse), Both)
    assert_type(fovea.quantized_attention(qk, v, return_lse=asked), Tensor | Both)
    assert_type(fovea.quantize_and_attend(q, q, q, granularity="warp"), Tensor)
    assert_type(fovea.quantize_and_attend(q, q, q, return_lse=True), Both)
    assert_type(fovea.quantize_and_attend(q, q, q, lse=lse), Both)
    assert_type(fovea.quantize_and_attend(q, q, q, return_lse=asked), Tensor | Both)


def merged(parts: list[Tensor], lse: Tensor, asked: bool) -> None:
    assert_type(fovea.merge_states(parts, parts), Both)
    assert_type(fovea.merge_states(parts, parts, out=lse, return_lse=True), Both)
    assert_type(fovea.merge_states(parts, parts, return_lse=False), Tensor)
    assert_type(fovea.merge_states(parts, parts, lse=lse, return_lse=False), Both)
    assert_type(fovea.merge_states(parts, parts, return_lse=asked), Tensor | Both)


def one_result_each(q: Tensor, slots: Tensor) -> None:
    assert_type(fovea.quantize_qk_int8(q, q), fovea.QuantizedQk)
    assert_type(fovea.quantize_v(q), fovea.QuantizedV)
    assert_type(fovea.dequantize_latent_cache(q, slots, format="v32_fp8"), Tensor)
    assert_type(fovea.cache_formats()["v32_fp8"].empty(2, 64), Tensor)


def distributed(q: Tensor, table: Tensor, asked: bool) -> None:
    layout = Layout((3, 4), 2)
    assert_type(fovea.distributed.attention(q, q, q, layout, causal=True, way="ring"), Tensor)
    assert_type(fovea.distributed.attention(q, q, q, layout, return_lse=True, sink=None), Both)
    assert_type(fovea.distributed.attention(q, q, q, layout, return_lse=asked), Tensor | Both)
    assert_type(fovea.distributed.paged_attention(q, q, q, table, table, check=False), Tensor)
    assert_type(fovea.distributed.latent_attention(q, q, table, table, return_lse=True), Both)
    assert_type(fovea.distributed.sparse_latent_attention(q, q, table, merge="gather"), Tensor)
    assert_type(fovea.distributed.merge_over_ranks(q, q), Both)


def wrong(q: Tensor) -> None:
    """Each comment is an error of its own where mypy sees nothing wrong."""
    fovea.attention(q, q)  # type: ignore[call-overload]
    fovea.attention(q, q, q, windows=(1, 1))  # type: ignore[call-overload]
    fovea.attention(q, q, q, window=4)  # type: ignore[call-overload]
    fovea.attention(q, q, q, anchor="middle")  # type: ignore[call-overload]
    fovea.attention(q, q, q, return_lse=True).sum()  # type: ignore[attr-defined]
    fovea.paged_attention(q, q, q, [[0, 1]], q)  # type: ignore[call-overload]
    fovea.quantize_v(q, dtype="float16")  # type: ignore[arg-type]
    fovea.distributed.attention(q, q, q, Layout(4, 2), way="best")  # type: ignore[call-overload]


def plans(q: Tensor, table: Tensor) -> None:
    plan = fovea.plan_paged_attention(q, q, q, table, table, causal=False, out=q)
    assert_type(plan, fovea.Plan)
    assert_type(fovea.plan_attention(q, q, q, return_lse=True), fovea.Plan)
    assert_type(fovea.plan_latent_attention(q, q, table, table, format="rows"), fovea.Plan)
    assert_type(plan.implementation, str)
    assert_type(plan.workspace_bytes, int)
    plan.prepare(q, kv_len=table)
    plan.run(q, q, q, out=None, prepared=True)
