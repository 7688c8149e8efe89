# SPDX-License-Identifier: Apache-2.0
"""The indexer of token-sparse attention, by its definition in float64."""

import pytest
import torch

import fovea
from fovea.compat import deep_gemm

E4M3 = torch.float8_e4m3fn
KINDS = ("normal", "ties", "specials")


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


def ranked(row):
    """Columns in order: NaN last, and the lower of two equals first."""
    values = row.double().tolist()
    return sorted(range(len(values)), key=lambda at: (values[at] != values[at], 0 if values[at] != values[at] else -values[at], at))


def lists(logits, k, first=None, last=None, sorted_by_value=False):
    out = torch.full((len(logits), k), -1, dtype=torch.int32)
    for row in range(len(logits)):
        begin = 0 if first is None else max(int(first[row]), 0)
        end = logits.shape[1] if last is None else min(int(last[row]), logits.shape[1])
        best = ranked(logits[row, begin : max(end, begin)])[:k]
        out[row, : len(best)] = torch.tensor(best if sorted_by_value else sorted(best), dtype=torch.int32)
    return out


def logits_of(kind, rows=6, columns=200, dtype=torch.float32):
    if kind == "normal":
        return torch.randn(rows, columns).to(dtype)
    values = [0.0, -0.0, 1.0, -1.0] if kind == "ties" else [torch.nan, -torch.inf, torch.inf, 0.5, -0.5]
    return torch.tensor(values)[torch.randint(len(values), (rows, columns))].to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sort", [False, True])
def test_topk_rows(dtype, kind, sort, topk_rows_implementation):
    logits = logits_of(kind, dtype=dtype)
    first, last = int32(0, 5, -7, 190, 30, 0), int32(200, 5, 900, 196, 20, 7)
    for k in (1, 40, 200, 230):
        got = fovea.topk_rows(logits, k, sorted=sort, implementation=topk_rows_implementation)
        assert torch.equal(got, lists(logits, k, sorted_by_value=sort))
        got = fovea.topk_rows(logits, k, first=first, last=last, sorted=sort, implementation=topk_rows_implementation)
        assert torch.equal(got, lists(logits, k, first, last, sort))


def test_topk_rows_agrees_with_torch():
    logits = torch.randn(3, 5000)
    got = fovea.topk_rows(logits, 512, sorted=True)
    assert torch.equal(got.long(), logits.topk(512).indices)


def test_places(topk_rows_implementation):
    logits, first = torch.randn(4, 100), int32(0, 10, 20, 99)
    plain = lists(logits, 12, first)
    own = {"first": first, "implementation": topk_rows_implementation}
    got = fovea.topk_rows(logits, 12, offset=first, **own)
    assert torch.equal(got, torch.where(plain < 0, -1, plain + first[:, None]))
    table = torch.randint(0, 50, (2, 6), dtype=torch.int32)
    table[1, 2] = -5
    got = fovea.topk_rows(logits, 12, block_table=table, page=16, **own)
    tokens = plain.clamp(min=0).long()
    inside = (plain >= 0) & (tokens < 6 * 16)
    blocks = table.repeat_interleave(2, dim=0).gather(1, (tokens // 16).clamp(max=5))
    want = torch.where(inside & (blocks >= 0), blocks * 16 + tokens.int() % 16, -1)
    assert torch.equal(got, want)


def scores(q, k, k_scale, weights):
    products = torch.einsum("thd,jd->thj", q.double(), k.double())
    return (products.relu() * weights.double()[..., None]).sum(dim=1) * k_scale.double()


def operands(rows, heads, dim, tokens):
    q, k = torch.randn(rows, heads, dim).to(E4M3), torch.randn(tokens, dim).to(E4M3)
    return q, k, torch.rand(tokens) + 0.1, torch.randn(rows, heads)


@pytest.mark.parametrize("heads", [1, 32, 64, 70])
@pytest.mark.parametrize("dim", [64, 128])
def test_index_logits(heads, dim, index_logits_implementation):
    call = operands(5, heads, dim, 150)
    want = scores(*call)
    got = fovea.index_logits(*call, implementation=index_logits_implementation)
    torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-3)
    first, last = int32(0, 7, -3, 149, 90), int32(150, 7, 999, 150, 60)
    place = torch.arange(150)
    seen = (place >= first[:, None]) & (place < last[:, None])
    got = fovea.index_logits(*call, first=first, last=last, dtype=torch.bfloat16, implementation=index_logits_implementation)
    torch.testing.assert_close(got.double(), torch.where(seen, want, -torch.inf), rtol=1e-2, atol=1e-3)
    kept = torch.full((5, 150), 7.0)
    got = fovea.index_logits(*call, first=first, last=last, keep_outside=True, out=kept, implementation=index_logits_implementation)
    torch.testing.assert_close(got.double(), torch.where(seen, want, 7.0), rtol=1e-4, atol=1e-3)


def test_paged_index_logits(index_logits_implementation):
    page, dim, lengths, queries = 64, 128, (130, 1, 0, 64), 2
    q, k, k_scale, weights = operands(len(lengths) * queries, 16, dim, 12 * page)
    cache = torch.empty(12, page * (dim + 4), dtype=torch.uint8)
    codes, scales = cache[:, : page * dim].view(E4M3).unflatten(1, (page, dim)), cache[:, page * dim :].view(torch.float32)
    codes.copy_(k.unflatten(0, (12, page)))
    scales.copy_(k_scale.unflatten(0, (12, page)))
    table = torch.randperm(12, dtype=torch.int32).view(4, 3)
    got = fovea.index_logits(
        *(q, codes, scales, weights),
        block_table=table,
        kv_len=int32(*lengths),
        implementation=index_logits_implementation,
    )
    want = torch.full((8, 192), -torch.inf, dtype=torch.float64)
    for row in range(8):
        tokens = (table[row // 2].long()[:, None] * page + torch.arange(page)).flatten()
        count = max(lengths[row // 2] - 1 + row % 2, 0)
        want[row, :count] = scores(q[row : row + 1], k[tokens], k_scale[tokens], weights[row : row + 1])[0, :count]
    torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-3)
    fused = cache.view(12, page, 1, dim + 4)
    meta = deep_gemm.get_paged_mqa_logits_metadata(int32(*lengths), page, 132)
    assert meta.shape == (133, 2)
    theirs = (q.unflatten(0, (4, 2)), fused, weights, int32(*lengths), table, meta, 150)
    torch.testing.assert_close(deep_gemm.fp8_paged_mqa_logits(*theirs, clean_logits=True), got[:, :150], rtol=1e-5, atol=1e-4)


def paged_call(**changes):
    """Two sequences of two queries, over six blocks of four tokens."""
    call = {"q": torch.randn(2, 2, 8, 64).to(E4M3), "kv_cache": torch.randint(0, 48, (6, 4, 1, 68), dtype=torch.uint8)}
    call |= {"weights": torch.randn(4, 8), "context_lens": int32(5, 7), "block_table": torch.tensor([[0, 1], [2, 5]]).int()}
    return call | {"schedule_meta": None, "max_context_len": 8, "clean_logits": True} | changes


def test_context_lengths_of_queries():
    """DeepGEMM's newer form, ``[batch, next_n]``: lengths need not ascend along a sequence, and reach anywhere."""
    call = paged_call()
    last = torch.tensor([[4, 5], [6, 7]], dtype=torch.int32)
    want = deep_gemm.fp8_paged_mqa_logits(**call)
    assert want.isfinite().sum() == last.sum()
    assert torch.equal(deep_gemm.fp8_paged_mqa_logits(**call | {"context_lens": last}), want)
    odd = torch.tensor([[8, 0], [-3, 2**31 - 1]], dtype=torch.int32)
    got = deep_gemm.fp8_paged_mqa_logits(**call | {"context_lens": odd})
    assert torch.equal(got.isfinite().sum(dim=1), torch.tensor([8, 0, 0, 8])) and torch.equal(got[0, :4], want[0, :4])
    assert deep_gemm.get_paged_mqa_logits_metadata(odd, 64, 132).shape == (133, 2)
    compiled = torch.compile(deep_gemm.fp8_paged_mqa_logits, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(**call | {"context_lens": last}), want)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_context_len": -1}, ["max_context_len", "-1", "0 or more"]),
        ({"context_lens": torch.zeros(2, 1, dtype=torch.int32)}, ["context_lens.shape", "[2, 1]", "[2] or [2, 2]"]),
        ({"context_lens": int32(5), "block_table": torch.zeros(1, 2, dtype=torch.int32)}, ["block_table.shape[0]", "1", "2"]),
        ({"kv_cache": torch.zeros(6, 3, 1, 67, dtype=torch.uint8)}, ["kv_cache.shape", "67", "68 or 132"]),
        ({"kv_cache": torch.zeros(6, 0, 1, 68, dtype=torch.uint8)}, ["kv_cache.shape", "[6, 0, 1, 68]"]),
        (
            {"kv_cache": torch.zeros(1633, dtype=torch.uint8)[1:].view(6, 4, 1, 68)},
            ["kv_cache.strides", "byte 1", "4 bytes"],
        ),
        ({"kv_cache": torch.zeros(6, 4, 2, 68, dtype=torch.uint8)[:, :, :1]}, ["kv_cache.strides", "one piece"]),
    ],
)
def test_refusals_of_a_paged_call(changes, words):
    with pytest.raises(ValueError) as caught:
        deep_gemm.fp8_paged_mqa_logits(**paged_call(**changes))
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_schedule_of_no_multiprocessor():
    with pytest.raises(ValueError, match="num_sms: got -2, want 0 or more"):
        deep_gemm.get_paged_mqa_logits_metadata(int32(1), 64, -2)


def test_fp8_mqa_logits():
    q, k, k_scale, weights = operands(3, 8, 128, 40)
    first, last = int32(0, 3, 9), int32(40, 20, 9)
    got = deep_gemm.fp8_mqa_logits(q, (k, k_scale), weights, first, last)
    assert torch.equal(got, fovea.index_logits(q, k, k_scale, weights, first=first, last=last))
    kept = deep_gemm.fp8_mqa_logits(q, (k, k_scale), weights, first, last, clean_logits=False)
    assert torch.equal(kept[0], got[0]) and torch.equal(kept[1, 3:20], got[1, 3:20])
    with pytest.raises(ValueError, match="cu_seq_len_k_start"):
        deep_gemm.fp8_mqa_logits(q, (k, k_scale), weights, first[:2], last)


def test_names_that_engines_call():
    """Since DeepGEMM 2.5: queries come in a pair."""
    q, k, k_scale, weights = operands(3, 8, 128, 40)
    first, last = int32(0, 3, 9), int32(40, 20, 9)
    want = fovea.index_logits(q, k, k_scale, weights, first=first, last=last)
    assert torch.equal(deep_gemm.fp8_fp4_mqa_logits((q, None), (k, k_scale), weights, first, last), want)
    narrow = deep_gemm.fp8_fp4_mqa_logits((q, None), (k, k_scale), weights, first, last, logits_dtype=torch.bfloat16)
    assert torch.equal(narrow, want.bfloat16())
    call = paged_call()
    want = deep_gemm.fp8_paged_mqa_logits(**call)
    assert torch.equal(deep_gemm.fp8_fp4_paged_mqa_logits(**call | {"q": (call["q"], None)}), want)
    one = call | {"q": (call["q"][:, 1:], None), "weights": call["weights"][1::2]}
    alone = deep_gemm.fp8_fp4_paged_mqa_logits(**one | {"context_lens": call["context_lens"][:, None]})
    assert torch.equal(alone, want[1::2])


@pytest.mark.parametrize("tokens", [40, 0])
def test_compressed_logits(tokens):
    """In the place of clean_logits too, as DeepGEMM 2.8 has it."""
    q, k, k_scale, weights = operands(4, 8, 128, tokens)
    first, last = int32(0, 3, 9, -2), int32(40, 20, 9, 2**31 - 1)
    call = ((q, None), (k, k_scale), weights, first, last)
    full = deep_gemm.fp8_fp4_mqa_logits(*call)
    got = deep_gemm.fp8_fp4_mqa_logits(*call, max_seqlen_k=25)
    assert got.shape == (4, 25)
    for row, begin in enumerate([0, 3, 9, 0]):
        own = full[row, begin : begin + 25]
        assert torch.equal(got[row, : len(own)], own) and (got[row, len(own) :] == -torch.inf).all()
    kept = deep_gemm.fp8_fp4_mqa_logits(*call, 25)
    seen = got > -torch.inf
    assert kept.shape == (4, 25) and torch.equal(kept[seen], got[seen])
    assert torch.equal(deep_gemm.fp8_mqa_logits(q, *call[1:], max_seqlen_k=25), got)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"q": (torch.zeros(2, 2, 8, 64).to(E4M3), torch.zeros(2, 2, 8))}, ["q[1]", "Tensor", "None", "FP4"]),
        ({"indices": int32(0, 1)}, ["indices", "Tensor", "None"]),
    ],
)
def test_declines_of_names_that_engines_call(changes, words):
    call = paged_call()
    with pytest.raises(NotImplementedError) as caught:
        deep_gemm.fp8_fp4_paged_mqa_logits(**call | {"q": (call["q"], None)} | changes)
    assert all(word in str(caught.value) for word in words), caught.value


def test_other_refusals_of_names_that_engines_call():
    q, k, k_scale, weights = operands(3, 8, 128, 40)
    flat = {"kv": (k, k_scale), "weights": weights, "cu_seq_len_k_start": int32(0, 3, 9), "cu_seq_len_k_end": int32(40, 20, 9)}
    with pytest.raises(ValueError, match="max_seqlen_k: got -1, want 0 or more"):
        deep_gemm.fp8_fp4_mqa_logits((q, None), **flat, max_seqlen_k=-1)
    with pytest.raises(ValueError, match=r"q\[0\].rank: got 4, want 3"):
        deep_gemm.fp8_fp4_mqa_logits((q[None], None), **flat)
    with pytest.raises(ValueError, match=r"logits_dtype: got torch\.float16, want torch\.float32 or torch\.bfloat16"):
        deep_gemm.fp8_fp4_mqa_logits((q, None), **flat, logits_dtype=torch.float16)
    call = paged_call()
    with pytest.raises(ValueError, match=r"q\[0\].rank: got 3, want 4 \(batch, next_n, heads, head_dim\)"):
        deep_gemm.fp8_fp4_paged_mqa_logits(**call | {"q": (call["q"].flatten(0, 1), None)})
    with pytest.raises(NotImplementedError, match="indices"):
        deep_gemm.get_paged_mqa_logits_metadata(int32(1), 64, 132, int32(0))
    for pair in [(q,), (q, None, None)]:
        with pytest.raises(TypeError, match=f"q: got a tuple of {len(pair)}, want a tuple of 2"):
            deep_gemm.fp8_fp4_mqa_logits(pair, **flat)
    for pair in [(k,), (k, k_scale, k_scale)]:
        with pytest.raises(TypeError, match=f"kv: got a tuple of {len(pair)}, want a tuple of 2"):
            deep_gemm.fp8_mqa_logits(q, pair, *list(flat.values())[1:])


def test_multiprocessors_are_kept():
    deep_gemm.set_num_sms(100)
    assert deep_gemm.get_num_sms() == 100
    deep_gemm.set_num_sms(0)
    assert deep_gemm.get_num_sms() >= 0


def test_not_a_number(index_logits_implementation):
    q, k, k_scale, weights = operands(2, 8, 64, 20)
    k.view(torch.uint8)[3, 9] = 0x7F
    got = fovea.index_logits(q, k, k_scale, weights, implementation=index_logits_implementation)
    assert got[:, 3].isnan().all() and got.isnan().sum() == 2


def test_refusals():
    logits = torch.randn(3, 50)
    for call, words in (
        ({"first": torch.zeros(2, dtype=torch.int32)}, ["first.shape", "[2]", "[3]"]),
        ({"page": 4}, ["page", "4", "0 without a block_table"]),
        ({"block_table": torch.zeros(2, 5, dtype=torch.int32), "page": 4}, ["logits.shape[0]", "3", "multiple"]),
        ({"out": torch.zeros(3, 9, dtype=torch.int32)}, ["out.shape[1]", "9", "7"]),
    ):
        with pytest.raises(ValueError) as caught:
            fovea.topk_rows(logits, 7, **call)
        assert all(word in str(caught.value) for word in words), caught.value
    q, k, k_scale, weights = operands(2, 8, 64, 20)
    for args, words in (
        ((q, k, k_scale[:9], weights), ["k_scale.shape[0]", "9", "20"]),
        ((q, k[:, :32], k_scale, weights), ["k.shape[1]", "32", "64"]),
        ((q, k, k_scale, weights[:1]), ["weights.shape[0]", "1", "2"]),
    ):
        with pytest.raises(ValueError) as caught:
            fovea.index_logits(*args)
        assert all(word in str(caught.value) for word in words), caught.value


def test_a_page_past_31_bits():
    """Blocks times page would pass 64 bits."""
    page = 2**40
    q, _, _, weights = operands(1, 8, 128, 1)
    cache = {"k": torch.empty(0, page, 128, dtype=E4M3), "k_scale": torch.empty(0, page)}
    table = {"block_table": torch.zeros(1, 2**23, dtype=torch.int32), "kv_len": int32(5)}
    with pytest.raises(ValueError) as caught:
        fovea.index_logits(q, **cache, weights=weights, **table, out=torch.zeros(1, 7))
    assert str(caught.value) == f"k.shape[1] (page): got {page}, want 1 to 2^31 - 1"
