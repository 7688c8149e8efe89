# SPDX-License-Identifier: Apache-2.0
"""cache_leftpad, attention_chunk and qv of flash-attn's functions on a CUDA device, by the definitions of the tests on CPUs."""

from functools import partial

import pytest
import torch

import fovea.compat.flash_attn as flash_attn
import fovea.compat.flash_attn_interface as flash_attn_3
import kvcache
import plain
from conftest import available
from kvcache import Cache, lengths, rotated

DEVICE = "cuda"
pytestmark = pytest.mark.skipif(not available("paged_attention", DEVICE), reason="needs paged attention on a CUDA device")
INTERFACES = pytest.mark.parametrize("interface", [flash_attn, flash_attn_3], ids=["2", "3"])
DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])
MASKS = {
    "full": ({}, {}),
    "causal": ({"causal": True}, {"right": 0}),
    "window": ({"window_size": (20, 3), "softcap": 3.0}, {"left": 20, "right": 3, "softcap": 3.0}),
}
HEADS, KV_HEADS, DIM, ROOM = 4, 2, 64, 96
COUNTS, LEFTPAD = [70, 33, 90, 5, 0], [31, 0, 90, 4, 0]


def to_device(*tensors):
    return tuple(tensor.to(DEVICE) for tensor in tensors)


int32 = partial(kvcache.int32, device=DEVICE)


def tensors(*seqs, dtype=torch.bfloat16):
    """q, k and v ``[2, seq, head, dim]``, or flat ones of so many rows, on the CPU."""
    heads = HEADS, KV_HEADS, KV_HEADS
    return [torch.randn(2, seq, count, DIM).to(dtype) for seq, count in zip(seqs, heads, strict=True)]


def check_each(out, lse, wants):
    for row, want in enumerate(wants):
        plain.check(out[row].detach().cpu(), lse[row].T.detach().cpu(), plain.Expected(*(x.detach() for x in vars(want).values())))


def check_gradients(got, want):
    for one, other in zip(got, want, strict=True):
        assert (one.double().cpu() - other).norm() <= 1e-2 * other.norm()


# ---- attention_chunk of tensors ------------------------------------------------------------------------------------------------


@DTYPES
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("chunk", [16, 33, 1000])
@pytest.mark.parametrize("seqs", [(130, 130), (40, 200), (200, 70), (1, 90)])
def test_chunks_of_a_fixed_batch(dtype, mask, chunk, seqs):
    given, words = MASKS[mask]
    exact = tensors(seqs[0], seqs[1], seqs[1], dtype=dtype)
    inputs = [x.requires_grad_() for x in to_device(*exact)]
    out, lse = flash_attn_3.flash_attn_func(*inputs, attention_chunk=chunk, return_attn_probs=True, **given)
    exact = [x.double().requires_grad_() for x in exact]
    wants = [plain.in_chunks(*(x[row] for x in exact), chunk, **words) for row in range(2)]
    check_each(out, lse, wants)
    dout = torch.linspace(-1, 1, out.numel()).view(out.shape).to(dtype)
    want = torch.autograd.grad(torch.stack([each.out for each in wants]), exact, dout.double())
    check_gradients(torch.autograd.grad(out, inputs, dout.to(DEVICE)), want)


@DTYPES
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("chunk", [16, 33])
def test_chunks_of_a_ragged_batch(dtype, mask, chunk):
    """Lengths 0 and 1, more queries than keys, and rows that are not used, which hold NaN."""
    given, words = MASKS[mask]
    counts, used = ([60, 0, 3, 100, 1], [80, 9, 2, 70, 0]), ([60, 0, 3, 90, 1], [77, 9, 2, 70, 0])
    rows = [torch.randn(sum(counts[each]), heads, DIM).to(dtype) for each, heads in ((0, HEADS), (1, KV_HEADS), (1, KV_HEADS))]
    for x, each in zip(rows, (0, 1, 1), strict=True):
        for part, count in zip(x.split(counts[each]), used[each], strict=True):
            part[count:] = torch.nan
    inputs = [x.requires_grad_() for x in to_device(*rows)]
    ends = (*to_device(lengths(counts[0]), lengths(counts[1])), 100, 80, int32(*used[0]), int32(*used[1]))
    out, lse = flash_attn_3.flash_attn_varlen_func(*inputs, *ends, attention_chunk=chunk, return_attn_probs=True, **given)
    dout = torch.linspace(-1, 1, out.numel()).view(out.shape).to(dtype)
    got = torch.autograd.grad(out, inputs, dout.to(DEVICE))
    exact = [x.double().requires_grad_() for x in rows]
    loss = 0.0
    parts = [x.split(counts[each]) for x, each in zip((*exact, dout.double()), (0, 1, 1, 0), strict=True)]
    for row, (q, k, v, factors) in enumerate(zip(*parts, strict=True)):
        begin, count, keys = sum(counts[0][:row]), used[0][row], used[1][row]
        want = plain.in_chunks(q[:count], k[:keys], v[:keys], chunk, **words)
        check_each(out[None, begin : begin + count], lse.T[None, begin : begin + count].transpose(1, 2), [want])
        assert not out[begin + count : begin + counts[0][row]].any()
        loss = loss + (want.out * factors[:count]).sum()
    check_gradients(got, [x.nan_to_num() for x in torch.autograd.grad(loss, exact)])


# ---- attention_chunk of caches -------------------------------------------------------------------------------------------------


@DTYPES
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("page", [None, 16])
@pytest.mark.parametrize("chunk", [16, 24, 1000])
@pytest.mark.parametrize("form", ["decode", "new", "ragged"])
def test_chunks_of_a_cache(dtype, mask, page, chunk, form):
    given, words = MASKS[mask]
    cache, keys = cache_of(dtype, page)
    seq_q = 1 if form == "decode" else 3
    q = torch.randn(5, seq_q, HEADS, DIM).to(dtype)
    options = {"page_table": cache.options["block_table"].to(DEVICE)} if page else {}
    options |= {"cache_seqlens": int32(*COUNTS), "attention_chunk": chunk, "return_softmax_lse": True, **given}
    caches = to_device(cache.k_cache, cache.v_cache)
    if form == "new":
        new = [torch.randn(5, 3, KV_HEADS, DIM).to(dtype) for _ in "kv"]
        options |= dict(zip("kv", to_device(*new), strict=True))
        keys = joined(keys, new)
    if form == "ragged":
        own = [3, 0, 1, 2, 3]
        flat = torch.cat([rows[:count] for rows, count in zip(q, own, strict=True)])
        ends = {"cu_seqlens_q": lengths(own).to(DEVICE), "max_seqlen_q": 3}
        out, lse, *_ = flash_attn_3.flash_attn_with_kvcache(flat.to(DEVICE), *caches, **options, **ends)
        wants = [plain.in_chunks(rows, *pair, chunk, **words) for rows, pair in zip(flat.split(own), keys, strict=True)]
        plain.check(out.cpu(), lse.T.cpu(), plain.join(wants))
        return
    out, lse, *_ = flash_attn_3.flash_attn_with_kvcache(q.to(DEVICE), *caches, **options)
    check_each(out, lse, [plain.in_chunks(q[row], *keys[row], chunk, **words) for row in range(5)])


# ---- cache_leftpad -------------------------------------------------------------------------------------------------------------


def cache_of(dtype, page=None, leftpad=(0, 0, 0, 0, 0)):
    """A cache on the CPU, and the keys and values of each sequence. Rows that hold no key are NaN."""
    cache = Cache(COUNTS, ROOM, page, heads=KV_HEADS, dim=DIM)
    for name in ("k", "v", "k_cache", "v_cache"):
        setattr(cache, name, getattr(cache, name).to(dtype))
    for row, padding in enumerate(leftpad):
        if padding:
            cache.k_cache[row, :padding] = cache.v_cache[row, :padding] = torch.nan
    keys = [tuple(x[row, leftpad[row] : count] for x in (cache.k, cache.v)) for row, count in enumerate(COUNTS)]
    return cache, keys


def joined(keys, new):
    return [tuple(torch.cat([x, more[row]]) for x, more in zip(pair, new, strict=True)) for row, pair in enumerate(keys)]


@INTERFACES
@DTYPES
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("seq_q", [1, 3])
@pytest.mark.parametrize("new", [None, "new", "rotated"])
def test_padding_on_the_left(interface, dtype, mask, seq_q, new):
    """Two sequences have padding alone, whose rows are 0 and -inf where nothing is appended."""
    given, words = MASKS[mask]
    cache, keys = cache_of(dtype, leftpad=LEFTPAD)
    caches, q = to_device(cache.k_cache, cache.v_cache), torch.randn(5, seq_q, HEADS, DIM).to(dtype)
    options = {"cache_seqlens": int32(*COUNTS), "cache_leftpad": int32(*LEFTPAD), "return_softmax_lse": True, **given}
    queries = q
    if new:
        more = [torch.randn(5, 2, KV_HEADS, DIM).to(dtype) for _ in "kv"]
        options |= dict(zip("kv", to_device(*more), strict=True))
    if new == "rotated":
        angles = torch.rand(ROOM + 4, 16) * 6
        tables = {"rotary_cos": angles.cos(), "rotary_sin": angles.sin()}
        options |= dict(zip(tables, to_device(*tables.values()), strict=True))
        places = torch.tensor(COUNTS)[:, None] + torch.arange(3)
        more[0] = torch.stack([rotated(x, at[:2], *tables.values(), True) for x, at in zip(more[0], places, strict=True)]).to(dtype)
        at_q = places[:, :seq_q] if given else places[:, :1].expand(-1, seq_q)
        queries = torch.stack([rotated(x, at, *tables.values(), True) for x, at in zip(q, at_q, strict=True)]).to(dtype)
    out, lse = interface.flash_attn_with_kvcache(q.to(DEVICE), *caches, **options)[:2]
    wants = [plain.attention(queries[row], *pair, **words) for row, pair in enumerate(joined(keys, more) if new else keys)]
    if new != "rotated":
        check_each(out, lse, wants)
        return
    for row, want in enumerate(wants):  # which rounds to neighbours of the definition's numbers
        torch.testing.assert_close(out[row].double().cpu(), want.out, rtol=3e-2, atol=3e-2)
        torch.testing.assert_close(lse[row].T.double().cpu(), want.lse, rtol=1e-2, atol=3e-2)


@DTYPES
@pytest.mark.parametrize("chunk", [0, 24])
def test_ragged_queries_over_a_padded_cache(dtype, chunk):
    cache, keys = cache_of(dtype, leftpad=LEFTPAD)
    own = [3, 1, 2, 0, 1]
    q = torch.randn(7, HEADS, DIM).to(dtype)
    ends = {"cu_seqlens_q": lengths(own).to(DEVICE), "max_seqlen_q": 3, "cache_seqlens": int32(*COUNTS)}
    options = {"cache_leftpad": int32(*LEFTPAD), "attention_chunk": chunk, "return_softmax_lse": True, "causal": True}
    caches = to_device(cache.k_cache, cache.v_cache)
    out, lse, *_ = flash_attn_3.flash_attn_with_kvcache(q.to(DEVICE), *caches, **ends, **options)
    wants = [
        plain.in_chunks(rows, *pair, chunk, right=0) if chunk else plain.attention(rows, *pair, right=0)
        for rows, pair in zip(q.split(own), keys, strict=True)
    ]
    plain.check(out.cpu(), lse.T.cpu(), plain.join(wants))


@INTERFACES
@DTYPES
def test_padding_that_does_not_fit_costs_no_context(interface, dtype):
    """Padding past a sequence's end, or the cache's, is a sequence without keys. Padding below 0 is none."""
    cache, _ = cache_of(dtype)
    q, caches = torch.randn(5, 1, HEADS, DIM).to(dtype), to_device(cache.k_cache, cache.v_cache)
    options = {"cache_seqlens": int32(*COUNTS), "cache_leftpad": int32(71, 1 << 30, -7, 2, -(1 << 31)), "return_softmax_lse": True}
    out, lse = interface.flash_attn_with_kvcache(q.to(DEVICE), *caches, **options)[:2]
    begins = 70, 33, 0, 2, 0
    keys = [tuple(x[row, begins[row] : count] for x in (cache.k, cache.v)) for row, count in enumerate(COUNTS)]
    check_each(out, lse, [plain.attention(q[row], *pair) for row, pair in enumerate(keys)])


# ---- no wait, graphs, torch.compile --------------------------------------------------------------------------------------------


def padded_step(interface=flash_attn_3, **options):
    """A step of decoding over a padded cache: its call, and what it gives by the definition with so many tokens more."""
    cache, _ = cache_of(torch.bfloat16, leftpad=LEFTPAD)
    q, k, v = (torch.randn(5, 1, heads, DIM).bfloat16() for heads in (HEADS, KV_HEADS, KV_HEADS))
    tensors_ = to_device(q, cache.k_cache, cache.v_cache, k, v, torch.tensor([COUNTS, LEFTPAD]).int())

    def call(q, k_cache, v_cache, k, v, ends):
        given = {"cache_seqlens": ends[0], "cache_leftpad": ends[1], "return_softmax_lse": True, **options}
        return interface.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, **given)[:2]

    def expect(steps):
        chunk = options.get("attention_chunk")
        for row, count in enumerate(COUNTS):
            new = [x[row].expand(steps, -1, -1) for x in (k, v)]
            keys = [torch.cat([x[row, LEFTPAD[row] : count], more]) for x, more in zip((cache.k, cache.v), new, strict=True)]
            yield plain.in_chunks(q[row], *keys, chunk) if chunk else plain.attention(q[row], *keys)

    return call, tensors_, expect


@pytest.mark.parametrize("options", [{}, {"attention_chunk": 24}], ids=str)
def test_steps_do_not_wait_and_are_recorded(options):
    call, given, expect = padded_step(**options)
    check_each(*call(*given), expect(1))
    torch.cuda.set_sync_debug_mode("error")  # a wait for the device raises
    try:
        call(*given)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = call(*given)
    for steps in (1, 2, 3):
        graph.replay()
        check_each(out, lse, expect(steps))
        given[5][0].add_(1)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("options", [{}, {"attention_chunk": 24}], ids=str)
def test_compiled_steps(options, dynamic):
    torch._dynamo.reset()
    call, given, expect = padded_step(**options)
    compiled = torch.compile(call, fullgraph=True, dynamic=dynamic)
    for steps in (1, 2):
        check_each(*compiled(*given), expect(steps))
        given[5][0].add_(1)


def test_compiled_steps_of_flash_attn_2():
    torch._dynamo.reset()
    call, given, expect = padded_step(flash_attn)
    check_each(*torch.compile(call, fullgraph=True)(*given), expect(1))


def test_compiled_chunks_and_their_gradients():
    torch._dynamo.reset()
    exact = tensors(40, 130, 130)
    inputs = [x.requires_grad_() for x in to_device(*exact)]
    compiled = torch.compile(lambda *x: flash_attn_3.flash_attn_func(*x, causal=True, attention_chunk=33), fullgraph=True)
    out = compiled(*inputs)
    dout = torch.linspace(-1, 1, out.numel()).view(out.shape).bfloat16()
    got = torch.autograd.grad(out, inputs, dout.to(DEVICE))
    exact = [x.double().requires_grad_() for x in exact]
    wants = [plain.in_chunks(*(x[row] for x in exact), 33, right=0) for row in range(2)]
    for row, want in enumerate(wants):
        plain.check(out[row].detach().cpu(), None, plain.Expected(*(x.detach() for x in vars(want).values())))
    check_gradients(got, torch.autograd.grad(torch.stack([each.out for each in wants]), exact, dout.double()))


# ---- qv ------------------------------------------------------------------------------------------------------------------------

on_latent = pytest.mark.skipif(not available("latent_attention", DEVICE), reason="needs latent attention on a CUDA device")


def latent(dtype, batch, seq_q):
    """q and qv, and rows ``[v, k]`` of a cache: NaN behind those that sequences have."""
    q, qv = (torch.randn(batch, seq_q, 16, dim).to(dtype) for dim in (64, 512))
    rows = torch.full((batch, ROOM, 1, 576), torch.nan)
    for row, count in enumerate(COUNTS[:batch]):
        rows[row, :count] = torch.randn(count, 1, 576)
    return q, qv, rows.to(dtype)


def parts_of(rows):
    return rows[..., 512:], rows[..., :512]


def check_latent(out, lse, queries, keys, **words):
    """queries: q and qv of each sequence. keys: its rows."""
    for row, ((q, qv), rows) in enumerate(zip(queries, keys, strict=True)):
        plain.check(out[row].cpu(), lse[row].T.cpu(), plain.latent(torch.cat([qv, q], -1), rows[:, 0], **words))


@on_latent
@DTYPES
@pytest.mark.parametrize("form", ["dense", "dense apart", "pages", "pages apart"])
@pytest.mark.parametrize("seq_q", [1, 3])
@pytest.mark.parametrize("causal", [False, True])
def test_qv_over_a_cache(dtype, form, seq_q, causal):
    q, qv, rows = latent(dtype, 5, seq_q)
    keys = [rows[row, :count].clone() for row, count in enumerate(COUNTS)]
    options = {"cache_seqlens": int32(*COUNTS), "causal": causal, "return_softmax_lse": True}
    if form.startswith("pages"):
        table = torch.randperm(5 * ROOM // 16, dtype=torch.int32).view(5, -1)
        pages = torch.empty(table.numel(), 16, 1, 576, dtype=dtype)
        pages[table.flatten().long()] = rows.view(-1, 16, 1, 576)
        rows, options["page_table"] = pages, table.to(DEVICE)
    k, v = parts_of(rows.to(DEVICE))
    if form.endswith("apart"):
        k, v = k.clone(), v.clone()
    out, lse, *_ = flash_attn_3.flash_attn_with_kvcache(q.to(DEVICE), k, v, qv=qv.to(DEVICE), **options)
    check_latent(out, lse, zip(q, qv, strict=True), keys, right=0 if causal else None)


@on_latent
@DTYPES
def test_qv_with_new_rows_padding_and_chunks(dtype):
    q, qv, rows = latent(dtype, 5, 1)
    new = torch.randn(5, 1, 1, 576).to(dtype)
    keys = [torch.cat([rows[row, LEFTPAD[row] : count], new[row]]) for row, count in enumerate(COUNTS)]
    keys = [each[(len(each) - 1) // 24 * 24 :] for each in keys]
    on_device = rows.to(DEVICE)
    (k_cache, v_cache), (k, v) = parts_of(on_device), parts_of(new.to(DEVICE))
    options = {"cache_seqlens": int32(*COUNTS), "cache_leftpad": int32(*LEFTPAD), "attention_chunk": 24, "return_softmax_lse": True}
    out, lse, *_ = flash_attn_3.flash_attn_with_kvcache(q.to(DEVICE), k_cache, v_cache, k, v, qv.to(DEVICE), **options)
    check_latent(out, lse, zip(q, qv, strict=True), keys)
    assert all(torch.equal(on_device[row, count].cpu(), new[row, 0]) for row, count in enumerate(COUNTS))


@on_latent
@DTYPES
@pytest.mark.parametrize("causal", [False, True])
def test_qv_of_tensors(dtype, causal):
    q, qv, _ = latent(dtype, 2, 40)
    rows = torch.randn(2, 70, 1, 576).to(dtype)
    options = {"causal": causal, "return_attn_probs": True}
    given = to_device(q, *parts_of(rows), qv)
    out, lse = flash_attn_3.flash_attn_func(*given[:3], qv=given[3], **options)
    check_latent(out, lse, zip(q, qv, strict=True), rows, right=0 if causal else None)
    counts, k_counts = [33, 0, 47], [50, 9, 81]
    q, qv, rows = q.flatten(0, 1), qv.flatten(0, 1), rows.flatten(0, 1)
    ends = (*to_device(lengths(counts), lengths(k_counts)), 47, 81)
    given = to_device(q, *parts_of(rows), qv)
    out, lse = flash_attn_3.flash_attn_varlen_func(*given[:3], *ends, qv=given[3], **options)
    lists = zip(out.split(counts), lse.split(counts, 1), q.split(counts), qv.split(counts), rows.split(k_counts), strict=True)
    for out_, lse_, q_, qv_, rows_ in lists:
        check_latent(out_[None], lse_[None], [(q_, qv_)], [rows_], right=0 if causal else None)


@on_latent
def test_compiled_qv():
    torch._dynamo.reset()
    q, qv, rows = latent(torch.bfloat16, 5, 1)
    keys = [rows[row, :count] for row, count in enumerate(COUNTS)]

    def call(q, qv, rows, seqlens):
        return flash_attn_3.flash_attn_with_kvcache(q, *parts_of(rows), qv=qv, cache_seqlens=seqlens, return_softmax_lse=True)[:2]

    out, lse = torch.compile(call, fullgraph=True)(*to_device(q, qv, rows), int32(*COUNTS))
    check_latent(out, lse, zip(q, qv, strict=True), keys)
