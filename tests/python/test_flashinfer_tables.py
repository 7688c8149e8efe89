# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's page tables, merging and refusals over Fovea, its signatures, and the plain form with lengths on the host."""

import inspect

import pytest
import torch

import fovea.compat.flashinfer as flashinfer
import plain
from flashinfer_pages import (
    DIM,
    HEADS,
    KV_HEADS,
    LAYOUTS,
    LOG2E,
    SHAPE,
    WORKSPACE,
    Decode,
    Pages,
    Prefill,
    Ragged,
    check,
    planned_decode,
    planned_prefill,
)
from fovea.compat.custom_attn import custom_paged_attn

PLAN = "pos_encoding_mode use_fp16_qk_reduction"
ROPE, SCORES, DTYPES = "rope_scale rope_theta", "window_left logits_soft_cap", "q_data_type kv_data_type o_data_type"
ITEMS = "prefix_len_ptr token_pos_in_items_ptr token_pos_in_items_len max_item_len_ptr"
MASK = f"custom_mask packed_custom_mask causal {PLAN}"
SIGNATURES = {
    Decode.__init__: "float_workspace_buffer kv_layout use_cuda_graph use_tensor_cores paged_kv_indptr_buffer "
    "paged_kv_indices_buffer paged_kv_last_page_len_buffer backend jit_args",
    Decode.plan: "indptr indices last_page_len num_qo_heads num_kv_heads head_dim page_size pos_encoding_mode "
    f"{SCORES} {DTYPES} data_type sm_scale {ROPE} non_blocking block_tables seq_lens fixed_split_size disable_split_kv "
    "q_len_per_req window_right is_causal",
    Decode.forward: f"q paged_kv_cache pos_encoding_mode q_scale k_scale v_scale {SCORES} sm_scale {ROPE} return_lse",
    Prefill.plan: "qo_indptr paged_kv_indptr paged_kv_indices paged_kv_last_page_len num_qo_heads num_kv_heads head_dim_qk "
    f"page_size head_dim_vo {MASK} sm_scale {SCORES} {ROPE} {DTYPES} non_blocking {ITEMS} seq_lens seq_lens_q block_tables "
    "max_token_per_sequence max_sequence_kv fixed_split_size disable_split_kv uniform_q_len",
    Prefill.forward: f"q paged_kv_cache causal {PLAN} k_scale v_scale {SCORES} sm_scale {ROPE} return_lse",
    Ragged.plan: f"qo_indptr kv_indptr num_qo_heads num_kv_heads head_dim_qk head_dim_vo {MASK} {SCORES} sm_scale {ROPE} "
    f"{DTYPES} non_blocking {ITEMS} fixed_split_size disable_split_kv seq_lens seq_lens_q max_token_per_sequence "
    "max_sequence_kv v_indptr o_indptr uniform_q_len",
    flashinfer.single_prefill_with_kv_cache: "q k v scale_q scale_k scale_v o_dtype custom_mask packed_custom_mask causal "
    f"kv_layout {PLAN} sm_scale {SCORES} {ROPE} backend return_lse kv_cache_sf k_scale v_scale",
    flashinfer.single_decode_with_kv_cache: "q k v kv_layout pos_encoding_mode use_tensor_cores q_scale k_scale v_scale "
    f"{SCORES} sm_scale {ROPE} return_lse",
    flashinfer.append_paged_kv_cache: "append_key append_value batch_indices positions paged_kv_cache kv_indices kv_indptr "
    "kv_last_page_len kv_layout",
    flashinfer.get_batch_indices_positions: "append_indptr seq_lens nnz batch_indices positions",
}


@pytest.mark.parametrize("function", SIGNATURES, ids=lambda function: function.__qualname__)
def test_signatures(function):
    """Names and order: users pass arguments by position."""
    got = [name for name in inspect.signature(function).parameters if name != "self"]
    assert got == SIGNATURES[function].split()


# ---- page tables and appending -----------------------------------------------------------------------------------------------


def test_sequences_and_positions_of_appended_rows():
    """The example of FlashInfer's documentation, with lengths on another device than the rest may be, and rows behind the end."""
    indptr, lengths = torch.tensor([0, 1, 3, 6, 10], dtype=torch.int32), torch.tensor([5, 5, 5, 5])
    sequences, positions = flashinfer.get_batch_indices_positions(indptr, lengths, 12)
    assert sequences.tolist() == [0, 1, 1, 2, 2, 2, 3, 3, 3, 3, -1, -1] and sequences.dtype == torch.int32
    assert positions.tolist() == [4, 3, 4, 2, 3, 4, 1, 2, 3, 4, -1, -1] and positions.dtype == torch.int32
    given = torch.empty(12, dtype=torch.int32), torch.empty(12, dtype=torch.int32)
    again = flashinfer.get_batch_indices_positions(indptr, lengths, 12, *given)
    assert again[0].data_ptr() == given[0].data_ptr() and torch.equal(again[0], sequences) and torch.equal(given[1], positions)
    assert flashinfer.get_seq_lens(torch.tensor([0, 3, 3, 4]), torch.tensor([2, 9, 4]), 4).tolist() == [10, 0, 4]


@pytest.mark.parametrize(("layout", "form"), LAYOUTS)
def test_append(layout, form):
    """All tokens of the sequences but the first ones are appended, among rows that belong to none."""
    pages = Pages([5, 0, 9, 3], 4, layout, form)
    cache = pages.cache.clone() if form == "one" else tuple(x.clone() for x in pages.cache)
    new = [3, 0, 9, 1]
    rows = [torch.cat([x[len(x) - count :] for x, count in zip(each, new, strict=True)]) for each in (pages.k, pages.v)]
    for tensor in [cache] if form == "one" else cache:
        for row, count in enumerate(new):
            views = [tensor[:, 0], tensor[:, 1]] if form == "one" else [tensor]
            for view in views:
                tokens = view if layout == "NHD" else view.transpose(1, 2)
                for position in range(pages.lengths[row] - count, pages.lengths[row]):
                    tokens[pages.indices[pages.indptr[row] + position // 4], position % 4] = torch.nan
    padded = [torch.cat([x, torch.full((2, KV_HEADS, DIM), 7.0)]) for x in rows]
    indptr = torch.tensor([0, *new]).cumsum(0).int()
    lengths = flashinfer.get_seq_lens(pages.indptr, pages.last_page_len, 4)
    assert lengths.tolist() == pages.lengths
    places = flashinfer.get_batch_indices_positions(indptr, lengths, 15)
    flashinfer.append_paged_kv_cache(*padded, *places, cache, pages.indices, pages.indptr, pages.last_page_len, layout)
    for got, want in zip([cache] if form == "one" else cache, [pages.cache] if form == "one" else pages.cache, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


# ---- merging -----------------------------------------------------------------------------------------------------------------


def states(parts):
    q, k, v = torch.randn(7, HEADS, DIM), torch.randn(50, KV_HEADS, DIM), torch.randn(50, KV_HEADS, DIM)
    pieces = [plain.attention(q, *piece) for piece in zip(k.chunk(parts), v.chunk(parts), strict=True)]
    return [p.out.float() for p in pieces], [(p.lse * LOG2E).float() for p in pieces], plain.attention(q, k, v)


def test_merging():
    (v_a, v_b), (s_a, s_b), want = states(2)
    check(*flashinfer.merge_state(v_a, s_a, v_b, s_b), want)
    outs, lses, want = states(3)
    check(*flashinfer.merge_states(torch.stack(outs, 1), torch.stack(lses, 1)), want)
    empty = torch.full_like(s_a, -torch.inf)
    out, lse = flashinfer.merge_state(v_a, s_a, torch.full_like(v_a, torch.nan), empty)
    torch.testing.assert_close((out, lse), (v_a, s_a))


def test_merging_in_place():
    (v, v_other), (s, s_other), want = states(2)
    before = v.clone(), s.clone()
    mask = torch.tensor([1, 0, 1, 1, 0, 0, 1], dtype=torch.bool)
    some = v.clone(), s.clone()
    flashinfer.merge_state_in_place(*some, v_other, s_other, mask)
    flashinfer.merge_state_in_place(v, s, v_other, s_other)
    check(v, s, want)
    for got, old, new in zip(some, before, (v, s), strict=True):
        assert torch.equal(got[mask], new[mask]) and torch.equal(got[~mask], old[~mask])


# ---- refusals ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pos_encoding_mode": "ROPE_LLAMA"}, "^pos_encoding_mode: got 'ROPE_LLAMA', want 'NONE'"),
        ({"pos_encoding_mode": "ALIBI"}, "^pos_encoding_mode: got 'ALIBI', want 'NONE'"),
        ({"prefix_len_ptr": torch.ones(4)}, "^prefix_len_ptr: got Tensor, want None"),
        ({"token_pos_in_items_len": 3}, "^token_pos_in_items_len: got 3, want 0"),
        ({"o_data_type": "float16"}, r"^o_data_type: got torch\.float16, want torch\.float32"),
    ],
)
def test_what_a_plan_refuses(options, message):
    with pytest.raises(NotImplementedError, match=message):
        planned_prefill(Pages([4]), [2], **options)
    ends = torch.tensor([0, 4])
    with pytest.raises(NotImplementedError, match=message):
        Ragged(WORKSPACE).plan(ends, ends, *SHAPE.values(), q_data_type="float32", **options)


def test_what_is_not_computed():
    with pytest.raises(NotImplementedError, match=r"^jit_args: got list, want None"):
        Decode(WORKSPACE, jit_args=[1])
    with pytest.raises(NotImplementedError, match=r"^variant_owns_mask: got True"):
        Prefill(WORKSPACE, variant_owns_mask=True)
    with pytest.raises(NotImplementedError, match=r"^window_right: got 1, want 0"):
        planned_decode(Pages([4]), window_right=1)
    with pytest.raises(NotImplementedError, match=r"^is_causal: got True, want None or False"):
        planned_decode(Pages([4]), is_causal=True)
    pages, q = Pages([4]), torch.randn(1, HEADS, DIM)
    wrapper = planned_decode(pages)
    for options in ({"kv_cache_sf": torch.ones(1)}, {"skip_softmax_threshold_scale_factor": 1.0}):
        with pytest.raises(NotImplementedError, match=rf"^{next(iter(options))}: got "):
            wrapper.run(q, pages.cache, **options)
    with pytest.raises(NotImplementedError, match=r"^args: got tuple"):
        wrapper.run(q, pages.cache, 1.0)
    with pytest.raises(NotImplementedError, match=r"^pos_encoding_mode: got 'ALIBI'"):
        flashinfer.single_decode_with_kv_cache(q[0], q, q, pos_encoding_mode="ALIBI")


def test_what_contradicts_itself():
    pages, q = Pages([4, 6]), torch.randn(2, HEADS, DIM)
    with pytest.raises(ValueError, match=r"^kv_layout: got 'HDN', want 'NHD' or 'HND'$"):
        Decode(WORKSPACE, "HDN")
    with pytest.raises(RuntimeError, match=r"plan\(\) comes before run\(\)"):
        Decode(WORKSPACE).run(q, pages.cache)
    wrapper = planned_decode(pages)
    with pytest.raises(ValueError, match=r"^q\.dtype: got torch\.float16, want torch\.float32, as planned$"):
        wrapper.run(q.half(), pages.cache)
    with pytest.raises(ValueError, match=r"^paged_kv_cache\[0\]\.shape\[-2:\].*: got \(4, 16\), want \(2, 16\), as planned$"):
        wrapper.run(q, tuple(x.transpose(1, 2) for x in pages.cache))
    with pytest.raises(ValueError, match=r"^paged_kv_cache \(page size\): got 3, want 4, as planned$"):
        wrapper.run(q, tuple(x[:, :3] for x in pages.cache))
    with pytest.raises(ValueError, match=r"^paged_kv_cache\.shape: got \[4, 4, 2, 16\], want \[pages, 2, \.\.\]"):
        wrapper.run(q, pages.cache[0][:4])
    pages.indices = pages.indices[:1]
    with pytest.raises(ValueError, match=r"^indices\.shape\[0\]: got 1, want 3 or more \(indptr\[-1\]\)$"):
        planned_decode(pages)
    pages.indptr = torch.tensor([0, 2, 1])
    with pytest.raises(ValueError, match=r"^indptr\[2\]: got 1, want 2 or more \(indptr\[1\]\)$"):
        planned_decode(pages)


# ---- the plain form ----------------------------------------------------------------------------------------------------------


def test_custom_paged_attn():
    pages, lengths = Pages([5, 9, 4]), [1, 4, 0]
    q = torch.randn(5, HEADS, DIM)
    table = torch.full((3, 3), 2147480000, dtype=torch.int32)
    for row in range(3):
        own = pages.indices[pages.indptr[row] : pages.indptr[row + 1]]
        table[row, : len(own)] = own
    call = (q, *pages.cache, lengths, pages.lengths, table, 0.3)
    plain.check(custom_paged_attn(*call), None, pages.expect(q.split(lengths), right=0, scale=0.3))
    plain.check(custom_paged_attn(*call, soft_cap=2.0), None, pages.expect(q.split(lengths), right=0, scale=0.3, softcap=2.0))
    with pytest.raises(ValueError, match=r"^query_lens: got 4 rows in all, want 5"):
        custom_paged_attn(q, *pages.cache, [1, 3, 0], pages.lengths, table, 0.3)
    with pytest.raises(ValueError, match=r"^query_lens: got 2 lengths, want 3"):
        custom_paged_attn(q, *pages.cache, [1, 4], pages.lengths, table, 0.3)
