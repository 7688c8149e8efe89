# SPDX-License-Identifier: Apache-2.0
"""Code written for FlashMLA over Fovea, against FlashMLA's definitions in float64, row by row."""

import pytest
import torch

import fovea
import fovea.compat.flash_mla as flash_mla
import plain
from calls import Calls
from pages import Pages, flat_lse

LENGTHS = [37, 5, 0, 64, 1]
TRAPS = torch.tensor([-1, -(2**31), 2**31 - 1], dtype=torch.int32)


def define(q, rows_of, *, scale=None, sink=None):
    """FlashMLA's results and the largest score, each row of q [rows, head, d] by itself.

    rows_of(i): the cache rows that query row i reads, [keys, kv_head, d]; K is the row, V its first 512 values.
    """
    q, results = q.double(), []
    for i, row in enumerate(q):
        keys = rows_of(i).double()
        keys = keys.repeat_interleave(row.shape[0] // keys.shape[1], dim=1)
        scores = (keys * row).sum(dim=-1).T * (row.shape[-1] ** -0.5 if scale is None else scale)  # [head, keys]
        if scores.shape[1] == 0:
            nothing = torch.zeros(row.shape[0], 512, dtype=torch.float64)
            results.append((nothing, torch.full(row.shape[:1], torch.inf), nothing, torch.full(row.shape[:1], -torch.inf)))
            continue
        largest = scores.amax(dim=1)
        weights = torch.exp(scores - largest[:, None])
        lse = largest + torch.log(weights.sum(dim=1))
        p = weights / weights.sum(dim=1, keepdim=True)
        if sink is not None:
            p = p / (1 + torch.exp(sink.double() - lse))[:, None]
        values = keys[..., :512].transpose(0, 1)  # [head, keys, 512]
        results.append(((p[..., None] * values).sum(1), lse, (p[..., None] * values.abs()).sum(1), largest))
    out, lse, weight, largest = (torch.stack([result[k].double() for result in results]) for k in range(4))
    return plain.Expected(out, lse, weight), largest


def dense_rows(pages, seq_q, causal):
    """The rows that each query row of a dense call sees; the last query of a sequence is its last token."""

    def rows_of(i):
        sequence, query = divmod(i, seq_q)
        tokens = pages.tokens[pages.slots[sequence]]
        return tokens[: max(0, len(tokens) - (seq_q - 1 - query))] if causal else tokens

    return rows_of


def gaps(tensor):
    """The same numbers with NaN between the rows, heads and batches."""
    wide = torch.full((*(2 * size for size in tensor.shape[:-1]), tensor.shape[-1] + 8), torch.nan, dtype=tensor.dtype)
    view = wide[tuple(slice(0, None, 2) for _ in tensor.shape[:-1])][..., : tensor.shape[-1]]
    return view.copy_(tensor)


# ---- dense decode ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("page", "kv_head", "d"), [(64, 1, 576), (64, 2, 576), (7, 1, 576), (64, 1, 512)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dense(dtype, page, kv_head, d, causal):
    pages = Pages(LENGTHS, page=page, d=d, kv_head=kv_head, dtype=dtype)
    q = gaps(torch.randn(5, 3, 4, d).to(dtype))
    metadata, num_splits = flash_mla.get_mla_metadata()
    call = (q, pages.cache, pages.table, pages.kv_len, 512, metadata, num_splits)
    out, lse = flash_mla.flash_mla_with_kvcache(*call, softmax_scale=192**-0.5, causal=causal)
    assert out.shape == (5, 3, 4, 512) and out.dtype == dtype and lse.shape == (5, 4, 3) and lse.dtype == torch.float32
    want, _ = define(q.flatten(0, 1), dense_rows(pages, 3, causal), scale=192**-0.5)
    assert want.lse.isposinf().any()  # the empty sequence, and with causal the first queries of the one with a single token
    plain.check(out.flatten(0, 1), flat_lse(lse), want)


def decode_of_2025(q, cache, table, lengths, causal):
    """As in FlashMLA's first documentation: three arguments for the metadata, and seven by position."""
    metadata, splits = flash_mla.get_mla_metadata(lengths, q.shape[1] * q.shape[2] // cache.shape[2], cache.shape[2])
    return flash_mla.flash_mla_with_kvcache(q, cache, table, lengths, 512, metadata, splits, causal=causal)


def decode_with_sparse_arguments(q, cache, table, lengths, causal):
    """As between September 2025 and January 2026."""
    rows = q.shape[1] * q.shape[2] // cache.shape[2]
    metadata, splits = flash_mla.get_mla_metadata(lengths, rows, cache.shape[2], num_heads_q=None, is_fp8_kvcache=False, topk=None)
    return flash_mla.flash_mla_with_kvcache(q, cache, table, lengths, 512, metadata, splits, None, causal, False, None)


def decode_with_lazy_object(q, cache, table, lengths, causal):
    metadata, _ = flash_mla.get_mla_metadata()
    nothing = dict.fromkeys(("indices", "attn_sink", "extra_k_cache", "extra_indices_in_kvcache", "topk_length"))
    return flash_mla.flash_mla_with_kvcache(
        q=q,
        k_cache=cache,
        block_table=table,
        cache_seqlens=lengths,
        head_dim_v=512,
        tile_scheduler_metadata=metadata,
        causal=causal,
        extra_topk_length=None,
        **nothing,
    )


@pytest.mark.parametrize("decode", [decode_of_2025, decode_with_sparse_arguments, decode_with_lazy_object])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_call_forms(decode, causal, dtype):
    pages, q = Pages(LENGTHS, page=64, dtype=dtype), torch.randn(5, 2, 4, 576, dtype=dtype)
    out, lse = decode(q, pages.cache, pages.table, pages.kv_len, causal)
    want, _ = define(q.flatten(0, 1), dense_rows(pages, 2, causal))
    plain.check(out.flatten(0, 1), flat_lse(lse), want)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize(("format", "d"), [("v32_fp8", 576), ("v4_fp8", 512)])
def test_dense_from_a_packed_cache(format, d, dtype):
    pages, q = Pages(LENGTHS, page=64, d=d, format=format), torch.randn(5, 2, 16, d).bfloat16()
    metadata, _ = flash_mla.get_mla_metadata()
    cache = pages.cache.unsqueeze(2).view(dtype)
    out, lse = flash_mla.flash_mla_with_kvcache(
        q, cache, pages.table, pages.kv_len, 512, metadata, causal=True, is_fp8_kvcache=True
    )
    want, _ = define(q.flatten(0, 1), dense_rows(pages, 2, True))
    plain.check(out.flatten(0, 1), flat_lse(lse), want)


# ---- sparse decode ---------------------------------------------------------------------------------------------------------


def lists(batch, seq_q, topk, slots):
    """Lists of tokens that hold numbers, in memory with gaps, with traps in them; the first query's has nothing else."""
    indices = slots[torch.randint(len(slots), (batch, seq_q, topk))].int()
    trap = torch.rand(batch, seq_q, topk) < 0.2
    indices[trap] = TRAPS[torch.randint(3, (int(trap.sum()),))]
    indices[0, 0] = -1
    wide = torch.full((batch, 2 * seq_q, topk + 3), 12345, dtype=torch.int32)
    return wide[:, ::2, :topk].copy_(indices)


def read(pages, indices, length):
    """The rows that one list names."""
    entries = indices if length is None else indices[:length]
    return pages.tokens[entries[(entries >= 0) & (entries < len(pages.tokens))].long()]


@pytest.mark.parametrize(("format", "d"), [("v32_fp8", 576), ("v4_fp8", 512)])
@pytest.mark.parametrize("extra", [False, True])
def test_sparse_decode(format, d, extra):
    main, other = Pages([90, 21], page=64, d=d, format=format), Pages([9, 12], page=4, d=d, format=format)
    q, sink = gaps(torch.randn(2, 3, 16, d).bfloat16()), torch.randn(16)
    sink[:2] = torch.tensor([torch.inf, -torch.inf])
    indices, lengths = lists(2, 3, 40, torch.cat(main.slots)), torch.tensor([40, 17], dtype=torch.int32)
    unused = ~torch.isin(torch.arange(len(main.tokens)), torch.cat(main.slots))
    indices[1, :, 17:] = int(unused.nonzero()[0])  # a token of NaN past the end of the lists
    more = lists(2, 3, 10, torch.cat(other.slots))
    last = (
        (other.cache.unsqueeze(2), more, lengths, torch.tensor([3, 0], dtype=torch.int32)) if extra else (None, None, lengths, None)
    )
    metadata, _ = flash_mla.get_mla_metadata()
    # All sixteen by position, as engines do.
    out, lse = flash_mla.flash_mla_with_kvcache(
        q,
        main.cache.unsqueeze(2).view(torch.float8_e4m3fn),
        None,
        None,
        512,
        metadata,
        None,
        0.05,
        False,
        True,
        indices,
        sink,
        *last,
    )
    assert out.shape == (2, 3, 16, 512) and out.dtype == torch.bfloat16 and lse.shape == (2, 16, 3)

    def rows_of(i):
        sequence, query = divmod(i, 3)
        rows = read(main, indices[sequence, query], int(lengths[sequence]))
        return torch.cat([rows, read(other, more[sequence, query], [3, 0][sequence])]) if extra else rows

    want, _ = define(q.flatten(0, 1), rows_of, scale=0.05, sink=sink)
    assert want.lse[0].isposinf().all() and want.lse[1].isfinite().all()
    plain.check(out.flatten(0, 1), flat_lse(lse), want)
    assert bool((out[:, :, 0] == 0).all())  # an infinite sink takes everything, and lse does not show it


# ---- sparse prefill --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [576, 512])
@pytest.mark.parametrize("lengths", [None, torch.tensor([33, 33, 0, 1, 20, 7], dtype=torch.int32)])
@pytest.mark.parametrize("sink", [None, torch.tensor([0.5, -torch.inf, torch.inf, -2.0])])
def test_sparse_prefill(d, lengths, sink):
    kv = torch.randn(50, 1, d).bfloat16()
    kv[40:] = torch.nan
    q, indices = gaps(torch.randn(6, 4, d).bfloat16()), lists(6, 1, 33, torch.arange(40))
    indices[1, 0, :3] = torch.tensor([50, 5, 5])  # one past the end; twice the same
    if lengths is not None:
        for row, length in enumerate(lengths):
            indices[row, 0, length:] = 45
    out, max_logits, lse = flash_mla.flash_mla_sparse_fwd(q, kv, indices, sm_scale=0.05, attn_sink=sink, topk_length=lengths)
    assert out.shape == (6, 4, 512) and out.dtype == torch.bfloat16 and max_logits.shape == lse.shape == (6, 4)

    def rows_of(i):
        entries = indices[i, 0] if lengths is None else indices[i, 0, : lengths[i]]
        return kv[entries[(entries >= 0) & (entries < 50)].long()]

    want, largest = define(q, rows_of, scale=0.05, sink=sink)
    plain.check(out, lse, want)
    torch.testing.assert_close(max_logits.double(), largest, rtol=1e-4, atol=1e-5)


def test_sparse_prefill_by_position_and_over_nothing():
    q, indices = torch.randn(2, 4, 576), torch.zeros(2, 1, 8, dtype=torch.int32)
    out, max_logits, lse = flash_mla.flash_mla_sparse_fwd(q, torch.empty(0, 1, 576), indices, 0.1, 512, None, None)
    assert bool((out == 0).all() and lse.isposinf().all() and max_logits.isneginf().all())


# ---- metadata --------------------------------------------------------------------------------------------------------------


def test_metadata_is_filled_by_the_first_call_and_keeps_no_lengths():
    pages, q = Pages([37, 64], page=64), torch.randn(2, 3, 4, 576)
    metadata, num_splits = flash_mla.get_mla_metadata()
    assert isinstance(metadata, flash_mla.FlashMLASchedMeta) and num_splits is None
    assert not metadata.have_initialized and metadata.config is None
    assert metadata is not flash_mla.get_mla_metadata()[0]
    for length in (None, 5):
        if length:
            pages.kv_len.fill_(length)
            pages.slots = [slots[:length] for slots in pages.slots]
        out, lse = flash_mla.flash_mla_with_kvcache(q, pages.cache, pages.table, pages.kv_len, 512, metadata)
        plain.check(out.flatten(0, 1), flat_lse(lse), define(q.flatten(0, 1), dense_rows(pages, 3, False))[0])
    assert metadata.have_initialized
    assert metadata.config == flash_mla.FlashMLASchedMeta.Config(2, 3, 4, 64, 1, False, False, None, None, None)


def prepared(call, *changes):
    """How many schedules are computed by a call and those after it, each with one more change."""
    metadata, _ = flash_mla.get_mla_metadata()
    with Calls() as calls:
        for change in ({}, *changes):
            call = call | (change() if callable(change) else change)
            flash_mla.flash_mla_with_kvcache(**call, tile_scheduler_metadata=metadata)
    return sum(name.startswith("prepare_") for name in calls.names)


def write(tensor):
    """A change of its numbers, by torch."""
    return lambda: tensor.sub_(1) is None or {}


def test_metadata_shares_a_schedule_as_long_as_the_lengths_are_the_same_tensors():
    pages, q = Pages([37, 64], page=64), torch.randn(2, 3, 4, 576)
    dense = {"q": q, "k_cache": pages.cache, "block_table": pages.table, "cache_seqlens": pages.kv_len, "head_dim_v": 512}
    assert prepared(dense, {}, {"q": torch.randn_like(q)}, {}) == 1
    assert prepared(dense, write(pages.kv_len), {}) == 2
    assert prepared(dense, {"cache_seqlens": pages.kv_len.clone()}, {}) == 2
    assert prepared(dense, {"softmax_scale": 0.5}, {}) == 2
    with torch.inference_mode():
        lengths = pages.kv_len.clone()
        assert prepared(dense | {"cache_seqlens": lengths}, write(lengths)) == 1  # FlashMLA's rule is broken, and nobody can notice


def test_metadata_shares_a_schedule_of_sparse_calls():
    pages, q = Pages([37, 64], page=64, format="v32_fp8"), torch.randn(2, 1, 16, 576).bfloat16()
    indices, lengths = torch.zeros(2, 1, 8, dtype=torch.int32), torch.tensor([8, 3], dtype=torch.int32)
    sparse = {"q": q, "k_cache": pages.cache.unsqueeze(2), "block_table": None, "cache_seqlens": None, "head_dim_v": 512}
    sparse |= {"is_fp8_kvcache": True, "indices": indices}
    assert prepared(sparse, {}, {"indices": indices + 1}) == 1
    assert prepared(sparse, {"topk_length": lengths}, {}, write(lengths), {}) == 3


def test_metadata_in_a_compiled_function():
    torch._dynamo.reset()
    pages, q = Pages([37, 64], page=64), torch.randn(2, 3, 4, 576)

    def layers(q, cache, lengths):
        metadata, _ = flash_mla.get_mla_metadata()
        once = flash_mla.flash_mla_with_kvcache(q, cache, pages.table, lengths, 512, metadata)[0]
        return once + flash_mla.flash_mla_with_kvcache(q * 2, cache, pages.table, lengths, 512, metadata)[0]

    compiled = torch.compile(layers, fullgraph=True, dynamic=False)
    torch.testing.assert_close(compiled(q, pages.cache, pages.kv_len), layers(q, pages.cache, pages.kv_len))


# ---- CUDA ------------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(
    not any(
        row.name.startswith("cuda.") and row.operation == "latent_attention" and row.available for row in fovea.implementations()
    ),
    reason="needs a device with a CUDA kernel of latent_attention",
)
@pytest.mark.parametrize("causal", [False, True])
def test_cuda_graph_with_metadata_made_outside(causal):
    pages, q = Pages(LENGTHS, page=64, dtype=torch.bfloat16), torch.randn(5, 2, 16, 576).bfloat16()
    call = [tensor.cuda() for tensor in (q, pages.cache, pages.table, pages.kv_len)]
    metadata, _ = flash_mla.get_mla_metadata()
    flash_mla.flash_mla_with_kvcache(*call, 512, metadata, causal=causal)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        flash_mla.flash_mla_with_kvcache(*call, 512, metadata, causal=causal)
        out, lse = flash_mla.flash_mla_with_kvcache(*call, 512, metadata, causal=causal)
    for shorter in (0, 3):
        pages.slots = [slots[: max(0, len(slots) - shorter)] for slots in pages.slots]
        call[3].copy_(torch.tensor([len(slots) for slots in pages.slots]))
        graph.replay()
        want, _ = define(q.flatten(0, 1), dense_rows(pages, 2, causal))
        plain.check(out.cpu().flatten(0, 1), flat_lse(lse.cpu()), want)
        eager = flash_mla.flash_mla_with_kvcache(*call, 512, metadata, causal=causal)
        assert torch.equal(eager[0], out) and torch.equal(eager[1], lse)
