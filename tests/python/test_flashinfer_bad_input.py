# SPDX-License-Identifier: Apache-2.0
"""Bad calls of FlashInfer's functions over Fovea: plan() says so, and says it in the caller's words; nothing is written."""

import pytest
import torch

import fovea.compat.flashinfer as flashinfer
from flashinfer_pages import DIM, HEADS, KV_HEADS, SHAPE, WORKSPACE, Decode, Pages, Prefill, Ragged, planned_decode, planned_prefill
from fovea.compat.custom_attn import custom_paged_attn


def numbers(*values, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype)


TABLES = [
    ({"last_page_len": numbers(5, 1)}, r"last_page_len\[0\]: got 5, want 1 to 4 \(page_size\)"),
    ({"last_page_len": numbers(1, 0)}, r"last_page_len\[1\]: got 0, want 1 to 4 \(page_size\)"),
    ({"last_page_len": numbers(1, -3)}, r"last_page_len\[1\]: got -3, want 1 to 4 \(page_size\)"),
    ({"last_page_len": torch.tensor([1.7, 1.0])}, r"last_page_len\.dtype: got torch\.float32, want torch\.int32, or "),
    ({"last_page_len": numbers(1)}, r"last_page_len\.shape\[0\]: got 1, want 2 \(sequences of the indptr\)"),
    ({"indptr": numbers(-1, 2, 5)}, r"indptr\[0\]: got -1, want 0 or more"),
    ({"indptr": numbers(0, 3, 2)}, r"indptr\[2\]: got 2, want 3 or more \(indptr\[1\]\)"),
    ({"indptr": torch.tensor([0.0, 2.0, 5.0])}, r"indptr\.dtype: got torch\.float32"),
    ({"indptr": numbers()}, r"indptr\.shape\[0\]: got 0, want 1 or more \(batch \+ 1\)"),
    ({"indptr": numbers(0, 2, 6)}, r"indices\.shape\[0\]: got 5, want 6 or more \(indptr\[-1\]\)"),
    ({"indptr": numbers(0, 2, 1 << 40, dtype=torch.int64)}, r"indptr\[2\]: got 1099511627776, want at most 2147483647"),
    ({"indices": numbers(0, 1, 2, 3, 4).to("meta")}, r"indices\.device: got meta, want cpu"),
    ({"indices": torch.zeros(5)}, r"indices\.dtype: got torch\.float32"),
    ({"page_size": 0}, r"page_size: got 0, want 1 to 2147483647"),
    ({"page_size": -4}, r"page_size: got -4, want 1 to 2147483647"),
]


@pytest.mark.parametrize(("change", "text"), TABLES)
def test_tables_that_plan_refuses(change, text):
    pages = Pages([5, 9])
    call = dict(zip(("indptr", "indices", "last_page_len"), pages.table(), strict=True)) | {"page_size": 4}
    call |= change
    with pytest.raises(ValueError, match=f"^{text}"):
        Decode(WORKSPACE).plan(**call, **SHAPE, q_data_type="float32")
    page_size = call.pop("page_size")
    (name,) = change
    text = (
        text
        if name == "page_size"
        else text.replace("indptr", "paged_kv_indptr").replace("(sequences of the paged_kv_", "(sequences of the ")
    )
    with pytest.raises(ValueError, match=text if name == "page_size" else "^paged_kv_"):
        Prefill(WORKSPACE).plan(numbers(0, 1, 2), *call.values(), *SHAPE.values(), page_size, q_data_type="float32")


@pytest.mark.parametrize(
    ("q_ends", "k_ends", "text"),
    [
        ((-1, 2), (0, 2), r"qo_indptr\[0\]: got -1, want 0 or more"),
        ((0, 2), (0, 2, 1), r"kv_indptr\[2\]: got 1, want 2 or more \(kv_indptr\[1\]\)"),
        ((0, 2), (0, 2, 3), r"kv_indptr\.shape\[0\]: got 3, want 2 \(that of qo_indptr\)"),
        ((0.5, 2), (0, 2), r"qo_indptr\.dtype: got torch\.float32"),
    ],
)
def test_ragged_batches_that_plan_refuses(q_ends, k_ends, text):
    with pytest.raises(ValueError, match=f"^{text}"):
        Ragged(WORKSPACE).plan(torch.tensor(q_ends), torch.tensor(k_ends), *SHAPE.values(), q_data_type="float32")


SHAPES = [
    ({"num_qo_heads": 3}, ValueError, r"^num_qo_heads: got 3, want a multiple of 2 \(num_kv_heads\)"),
    ({"num_kv_heads": 0}, ValueError, r"^num_kv_heads: got 0, want 1 to 65535"),
    ({"head_dim": 0}, ValueError, r"^head_dim\w*: got 0, want 1 to 65535"),
    ({"head_dim": 20}, NotImplementedError, r"head_dim\w*: got 20, want a multiple of 8 up to 512"),
    ({"head_dim": -8}, ValueError, r"^head_dim\w*: got -8, want 1 to 65535"),
    ({"q_data_type": "int32"}, ValueError, r"^q_data_type: got torch\.int32, want torch\.float32 or "),
    ({"q_data_type": "half precision"}, ValueError, r"^q_data_type: got 'half precision', want a torch\.dtype"),
    ({"kv_data_type": "bfloat16"}, ValueError, r"^kv_data_type: got torch\.bfloat16, want torch\.float32"),
    ({"o_data_type": "bfloat16"}, NotImplementedError, r"^o_data_type: got torch\.bfloat16, want torch\.float32"),
    ({"q_data_type": "float8_e4m3fn", "o_data_type": "float32"}, NotImplementedError, r"^o_data_type: got torch\.float32, want "),
    ({"logits_soft_cap": -1.0}, ValueError, r"^logits_soft_cap: got -1, want "),
    ({"sm_scale": 0.0}, ValueError, r"^sm_scale: got 0, want another number"),
    ({"sm_scale": float("nan")}, ValueError, r"^sm_scale: got nan, want "),
    ({"sm_scale": torch.ones(1)}, TypeError, r"^sm_scale: got torch\.Tensor, want a number or None"),
    ({"window_left": 1.5}, TypeError, r"^window_left: got 1\.5, want an int"),
]


@pytest.mark.parametrize("kind", [Decode, Prefill, Ragged])
@pytest.mark.parametrize(("change", "error", "text"), SHAPES)
def test_what_run_does_not_compute_is_refused_by_plan(kind, change, error, text):
    ends, table = numbers(0, 1, 2), Pages([5, 9]).table()
    sizes = SHAPE | {name: value for name, value in change.items() if name in SHAPE}
    options = {"q_data_type": "float32"} | {name: value for name, value in change.items() if name not in SHAPE}
    tables = {Decode: [*table], Prefill: [ends, *table], Ragged: [ends, ends]}[kind]
    with pytest.raises(error, match=text):
        kind(WORKSPACE).plan(*tables, *sizes.values(), *([] if kind is Ragged else [4]), **options)


def test_batches_of_other_sizes_than_planned():
    pages, q = Pages([5, 9]), torch.randn(2, HEADS, DIM)
    with pytest.raises(ValueError, match=r"^qo_indptr\.shape\[0\]: got 2, want 3 \(that of paged_kv_indptr\)"):
        planned_prefill(pages, [1])
    with pytest.raises(ValueError, match=r"^q\.shape\[0\]: got 2, want 3 or more \(qo_indptr\[-1\]\), as planned"):
        planned_prefill(pages, [1, 2]).run(q, pages.cache)
    wrapper = Ragged(WORKSPACE)
    wrapper.plan(numbers(0, 1, 2), numbers(0, 5, 14), *SHAPE.values(), q_data_type="float32")
    with pytest.raises(ValueError, match=r"^k\.shape\[0\]: got 13, want 14 or more \(kv_indptr\[-1\]\), as planned"):
        wrapper.run(q, *torch.randn(2, 13, KV_HEADS, DIM))
    with pytest.raises(ValueError, match=r"^paged_kv_indices_buffer\.dtype: got torch\.int64, want torch\.int32"):
        Decode(WORKSPACE, "NHD", True, False, numbers(0, 0), numbers(0, dtype=torch.int64), numbers(0))


def test_buffers_of_a_graph_have_the_names_of_their_class():
    buffers = [numbers(0, 0, 0), numbers(0, 0), numbers(0, 0)]
    for at, name in enumerate(("indptr_buffer", "indices_buffer", "last_page_len_buffer")):
        wrong = [buffer.long() if at == index else buffer for index, buffer in enumerate(buffers)]
        with pytest.raises(ValueError, match=rf"^{name}\.dtype: got torch\.int64, want torch\.int32"):
            flashinfer.CUDAGraphBatchDecodeWithPagedKVCacheWrapper(WORKSPACE, *wrong)


def test_a_forward_that_is_refused_leaves_the_scores_of_the_plan():
    pages, q = Pages([5, 9]), torch.randn(2, HEADS, DIM)
    wrapper = planned_decode(pages, window_left=1)
    before = wrapper.run(q, pages.cache)
    with pytest.raises(ValueError, match=r"^logits_soft_cap: got -1, want "):
        wrapper.forward(q, pages.cache, logits_soft_cap=-1.0)
    assert torch.equal(wrapper.run(q, pages.cache), before)
    assert not torch.equal(wrapper.forward(q, pages.cache), before)


def test_rows_of_a_long_batch_are_counted_in_more_than_the_dtype_of_its_ends():
    sequences, positions = flashinfer.get_batch_indices_positions(torch.tensor([0, 3], dtype=torch.uint8), numbers(9), 300)
    assert sequences.tolist() == [0] * 3 + [-1] * 297 and positions.tolist() == [6, 7, 8] + [-1] * 297


def test_page_numbers_beyond_int32_are_no_pages():
    pages = Pages([5, 9])
    pages.indices = pages.indices.long()
    pages.indices[3] += 1 << 32
    with pytest.raises(ValueError, match=r"^indices\[1\]\[1\] \(block number\): got 2147483647, want 0 to "):
        planned_decode(pages).run(torch.randn(2, HEADS, DIM), pages.cache)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"q": None}, TypeError, "q: got None, want a torch.Tensor"),
        ({"q": torch.zeros(2, DIM)}, ValueError, "q.rank: got 2, want 3 ([rows, head, head_dim])"),
        ({"paged_kv_cache": 3}, TypeError, "paged_kv_cache: got 3, want a torch.Tensor or a tuple of 2"),
        ({"paged_kv_cache": (torch.zeros(1),)}, ValueError, "paged_kv_cache: got 1 tensors, want 2: keys and values"),
        (
            {"paged_kv_cache": (torch.zeros(1, 1), torch.zeros(1, 1))},
            ValueError,
            "paged_kv_cache[0].rank: got 2, want 4, or 3 for ",
        ),
        ({"sinks": torch.zeros(3)}, ValueError, "sinks.shape: got [3], want [4]"),
        ({"k_scale": 0.0}, ValueError, "k_scale: got 0.0, want a finite number other than 0"),
        ({"q_scale": float("inf")}, ValueError, "q_scale: got inf, want a finite number other than 0"),
        ({"v_scale": float("nan")}, ValueError, "v_scale: got nan, want at most 3.4e+38 in magnitude"),
        (
            {"paged_kv_cache": torch.zeros(7, 2, 4, KV_HEADS, DIM).half()},
            ValueError,
            "paged_kv_cache[0].dtype: got torch.float16, want ",
        ),
        ({"lse": torch.zeros(6).as_strided((2, HEADS), (1, 1))}, ValueError, "lse.strides: got [1, 1], want an element of memory "),
        ({"v_scale": 1e39}, ValueError, "v_scale: got 1e+39, want at most 3.4e+38 in magnitude"),
        ({"window_left": "all"}, TypeError, "window_left: got 'all', want an int or None"),
        ({"softmax_scale": 1.0}, TypeError, "BatchDecodeWithPagedKVCacheWrapper.run() got "),
    ],
)
def test_what_run_refuses(change, error, text):
    pages = Pages([5, 9])
    call = {"q": torch.randn(2, HEADS, DIM), "paged_kv_cache": pages.cache} | change
    with pytest.raises(error) as caught:
        planned_decode(pages).run(**call)
    assert str(caught.value).startswith(text)


# ---- appending ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("empty", [numbers(), torch.tensor([])])
def test_appending_nothing(empty):
    """Every row is skipped, and no page is listed."""
    cache, row = torch.zeros(3, 2, 4, KV_HEADS, DIM), torch.ones(2, KV_HEADS, DIM)
    flashinfer.append_paged_kv_cache(row, row, numbers(-1, -1), numbers(-1, -1), cache, empty, numbers(0, 0), numbers(0))
    flashinfer.append_paged_kv_cache(row[:0], row[:0], empty, empty, cache, empty, numbers(0), empty)
    assert not cache.any()
    found = flashinfer.get_batch_indices_positions(numbers(0), empty, 2)
    assert [x.tolist() for x in found] == [[-1, -1], [-1, -1]]


APPENDS = [
    ({"positions": numbers(0, 12)}, r"positions\[1\]: got 12, want 0 to 11 \(of the pages of sequence 1\)"),
    ({"positions": numbers(8, 0)}, r"positions\[0\]: got 8, want 0 to 7 \(of the pages of sequence 0\)"),
    ({"positions": numbers(-1, 0)}, r"positions\[0\]: got -1, want 0 to 7"),
    ({"batch_indices": numbers(0, 2)}, r"batch_indices\[1\]: got 2, want at most 1 \(sequences of kv_indptr\), or -1 "),
    ({"batch_indices": torch.tensor([0.0, 0.7])}, r"batch_indices\.dtype: got torch\.float32"),
    ({"batch_indices": numbers(0)}, r"batch_indices\.shape\[0\]: got 1, want 2 \(append_key\.shape\[0\]\)"),
    ({"kv_indices": numbers(0, 1, -1, 3, 4)}, r"kv_indices\[2\]: got -1, want 0 to 6 \(pages of paged_kv_cache\)"),
    ({"kv_indices": numbers(0, 1, 1 << 32, 3, 4, dtype=torch.int64)}, r"kv_indices\[2\]: got 4294967296, want 0 to 6"),
    ({"kv_indptr": numbers(0, 0, 5)}, r"positions\[0\]: got 0, want a page for it \(sequence 0 has none\)"),
    ({"kv_indptr": numbers(-1, 2, 5)}, r"kv_indptr\[0\]: got -1, want 0 or more"),
    ({"kv_indptr": numbers(0, 3, 1)}, r"kv_indptr\[2\]: got 1, want 3 or more \(kv_indptr\[1\]\)"),
    ({"append_key": torch.ones(2, 1, DIM)}, r"paged_kv_cache\S* \(kv_head\): got 2, want 1"),
    ({"append_key": torch.ones(2, DIM)}, r"append_key\.rank: got 2, want 3 \(\[rows, head, head_dim\]\)"),
    ({"append_value": torch.ones(2, KV_HEADS, DIM).half()}, r"paged_kv_cache\.dtype: got torch\.float32, want torch\.float16 or "),
    ({"kv_indptr": numbers(0, 2, 5).to("meta")}, r"kv_indptr\.device: got meta, want cpu"),
    ({"kv_last_page_len": numbers(1, 1).to_sparse()}, r"kv_last_page_len\.layout: got torch\.sparse_coo, want torch\.strided"),
    ({"kv_layout": "NDH"}, r"kv_layout: got 'NDH', want 'NHD' or 'HND'"),
]


@pytest.mark.parametrize(("change", "text"), APPENDS)
def test_rows_without_a_place_are_errors_and_nothing_is_written(change, text):
    pages, row = Pages([5, 9]), torch.ones(2, KV_HEADS, DIM)
    cache = torch.zeros(7, 2, 4, KV_HEADS, DIM)
    names = ("append_key", "append_value", "batch_indices", "positions", "paged_kv_cache", "kv_indices", "kv_indptr")
    values = (row, row, numbers(0, 1), numbers(0, 0), cache, pages.indices, pages.indptr)
    call = dict(zip(names, values, strict=True)) | {"kv_last_page_len": pages.last_page_len} | change
    with pytest.raises(ValueError, match=f"^{text}"):
        flashinfer.append_paged_kv_cache(**call)
    assert not cache.any()


def test_rows_without_a_place_are_skipped_where_nobody_looks(monkeypatch):
    """As on a GPU: every index that torch's kernels get is one that they have, and no other sequence's page is written."""
    from fovea.compat.flashinfer import page

    monkeypatch.setattr(page, "readable", lambda *tensors: False)
    pages = Pages([5, 9])
    pages.indices = torch.tensor([0, 1, 2, 77, -3], dtype=torch.int32)
    cache = torch.zeros(7, 2, 4, KV_HEADS, DIM)
    places = [(0, 7), (0, 8), (0, -1), (0, 1 << 30), (1, 0), (1, 4), (1, 8), (1, 12), (2, 0), (1 << 30, 0), (-7, 0), (-1, 5)]
    row = torch.arange(1.0, len(places) + 1)[:, None, None].expand(-1, KV_HEADS, DIM).contiguous()
    batch, position = torch.tensor(places).T
    flashinfer.append_paged_kv_cache(row, row, batch, position, cache, pages.indices, pages.indptr, pages.last_page_len)
    want = torch.zeros_like(cache)
    want[1, :, 3], want[2, :, 0] = 1.0, 5.0
    assert torch.equal(cache, want)
    for indptr in (numbers(-5, 2, 99), numbers(0, 9, 1)):
        flashinfer.append_paged_kv_cache(row, row, batch, position, cache, pages.indices, indptr, pages.last_page_len)
    lengths = flashinfer.get_seq_lens(numbers(0, 3, 1), numbers(1, 1), 4)
    flashinfer.get_batch_indices_positions(numbers(3, -2, 9), lengths, 12)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((numbers(0, 2), numbers(5, 6), 2), r"seq_lens\.shape\[0\]: got 2, want 1 \(sequences of append_indptr\)"),
        ((numbers(0, 2), numbers(5).to("meta"), 2), r"seq_lens\.device: got meta, want cpu"),
        ((numbers(0, 2), numbers(5), -1), r"nnz: got -1, want 0 to "),
        ((numbers(-2, 2), numbers(5), 2), r"append_indptr\[0\]: got -2, want 0 or more"),
        ((torch.tensor([0.0, 2.0]), numbers(5), 2), r"append_indptr\.dtype: got torch\.float32"),
        ((numbers(0, 2), numbers(5), 2, numbers(0)), r"batch_indices\.shape\[0\]: got 1, want 2 or more \(nnz\)"),
        ((numbers(0, 2), numbers(5), 2, None, torch.zeros(2)), r"positions\.dtype: got torch\.float32"),
    ],
)
def test_places_that_are_refused(arguments, text):
    with pytest.raises(ValueError, match=f"^{text}"):
        flashinfer.get_batch_indices_positions(*arguments)


def test_lengths_that_are_refused():
    for arguments, text in (
        ((numbers(0, 2), numbers(5), 4), r"kv_last_page_len\[0\]: got 5, want 1 to 4 \(page_size\)"),
        ((numbers(0, 2), numbers(1, 2), 4), r"kv_last_page_len\.shape\[0\]: got 2, want 1"),
        ((numbers(-1, 2), numbers(1), 4), r"kv_indptr\[0\]: got -1, want 0 or more"),
        ((numbers(0, 2), numbers(1), 0), r"page_size: got 0, want 1 to "),
    ):
        with pytest.raises(ValueError, match=f"^{text}"):
            flashinfer.get_seq_lens(*arguments)


# ---- merging, one sequence, lengths as lists ---------------------------------------------------------------------------------


V, S = torch.zeros(3, HEADS, DIM), torch.zeros(3, HEADS)


def test_merging_into_what_cannot_be_written():
    room = torch.zeros(204)
    for v, s, error, text in (
        (V[:1].expand(3, -1, -1), S, ValueError, r"^v\.strides: got \[0, 16, 1\], want an element of memory for each"),
        (V.clone(), S[:, :1].expand(-1, HEADS), ValueError, r"^s\.strides: got \[4, 0\], want an element of memory for each"),
        (
            torch.zeros(99).as_strided(V.shape, (16, 8, 1)),
            S,
            ValueError,
            r"^v\.strides: got \[16, 8, 1\], want an element of memory",
        ),
        (V.clone(), S.to(torch.float8_e4m3fn), ValueError, r"^s\.dtype: got torch\.float8_e4m3fn, want torch\.float32"),
        (room[:192].view(V.shape), room[190:202].view(S.shape), ValueError, "^s: got memory of v, want memory of its own"),
        (V.clone(), S.int(), ValueError, r"^s\.dtype: got torch\.int32, want torch\.float32"),
        (V.clone().requires_grad_(), S.clone(), NotImplementedError, r"^v\.requires_grad: got True, want False"),
    ):
        with pytest.raises(error, match=text):
            flashinfer.merge_state_in_place(v, s, V, S)


@pytest.mark.parametrize(
    ("function", "arguments", "error", "text"),
    [
        (flashinfer.merge_state, (V, S, V[:2], S), ValueError, r"v_b\.shape\[0\] .*: got 2, want 3"),
        (flashinfer.merge_state, (V, S, V, S[:2]), ValueError, r"s_b\.shape\[0\] .*: got 2, want 3"),
        (flashinfer.merge_state, (V, S, V.half(), S), ValueError, r"v_b\.dtype: got torch\.float16, want torch\.float32"),
        (flashinfer.merge_state, (V, S, V[0], S), ValueError, r"v_b\.rank: got 2, want 3 \(\[rows, head, head_dim\]\)"),
        (flashinfer.merge_state, (V, 1.0, V, S), TypeError, r"s_a: got 1\.0, want a torch\.Tensor"),
        (flashinfer.merge_states, (V[:, None], S[:, None, :0]), ValueError, r"s\[0\]\.shape\[1\] \(head\): got 0, want 4"),
        (flashinfer.merge_states, (V[:, None][:, :0], S[:, None]), ValueError, r"v\.shape\[1\] \(parts\): got 0, want 1 or more"),
        (flashinfer.single_decode_with_kv_cache, (V, V, V), ValueError, r"q\.rank: got 3, want 2 \(\[head, dim\]\)"),
        (flashinfer.single_prefill_with_kv_cache, (V, V.half(), V), ValueError, r"k\.dtype: got torch\.float16"),
        (
            flashinfer.single_prefill_with_kv_cache,
            (V, V[:, :3], V[:, :3]),
            ValueError,
            r"k\.shape\S* \(kv_head\): got 3, want a divisor",
        ),
    ],
)
def test_other_functions_say_the_names_of_their_arguments(function, arguments, error, text):
    with pytest.raises(error, match=f"^({text})"):
        function(*arguments)
    if function is flashinfer.single_prefill_with_kv_cache:
        for options, words in (
            ({"kv_layout": "x"}, r"kv_layout: got 'x'"),
            ({"o_dtype": torch.int32}, r"o_dtype: got torch\.int32, want a floating-point dtype"),
            ({"sm_scale": 0.0}, r"sm_scale: got 0, want another number"),
            ({"q": V[..., :0], "k": V[..., :0]}, r"q\.shape\S* \(head_dim_qk\): got 0, want 1 or more"),
            ({"logits_soft_cap": -2.0}, r"logits_soft_cap: got -2, want "),
        ):
            with pytest.raises(ValueError, match=f"^{words}"):
                function(**{"q": V, "k": V, "v": V} | options)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"block_tables": torch.zeros(2, 3) + 0.7}, ValueError, r"block_tables\.dtype: got torch\.float32, want torch\.int32 or "),
        (
            {"block_tables": torch.zeros(2, 3).long() + (1 << 32)},
            ValueError,
            r"block_tables\[0\]\[0\] \(block number\): got 2147483647",
        ),
        (
            {"block_tables": torch.zeros(2, 3).long() - (1 << 32)},
            ValueError,
            r"block_tables\[0\]\[0\] \(block number\): got -1, want ",
        ),
        ({"block_tables": torch.zeros(1, 3).int()}, ValueError, r"block_tables\.shape\[0\]: got 1, want 2, as of kv_lens"),
        ({"query_lens": [0.7, 1]}, TypeError, r"query_lens\[0\]: got 0\.7, want an int"),
        ({"query_lens": [-1, 3]}, ValueError, r"query_lens\[0\]: got -1, want an int from 0 to "),
        ({"query_lens": torch.tensor([0.5, 1.5])}, ValueError, r"query_lens\[0\]: got 0\.5, want an int from 0 to "),
        ({"query_lens": torch.tensor(2)}, ValueError, r"query_lens\.rank: got 0, want 1"),
        ({"kv_lens": [1, 13]}, ValueError, r"kv_lens\[1\]: got 13, want at most 12 "),
        ({"kv_lens": [1 << 40, 1]}, ValueError, r"kv_lens\[0\]: got 1099511627776, want an int from 0 to "),
        ({"kv_lens": 3}, TypeError, r"kv_lens: got 3, want a list or a torch\.Tensor"),
        ({"scale": 0}, ValueError, r"scale: got 0, want another number"),
        ({"soft_cap": float("nan")}, ValueError, r"soft_cap: got nan, want "),
        ({"query": V[0]}, ValueError, r"query\.rank: got 2, want 3 \(\[total_q, head, dim\]\)"),
        ({"key_cache": torch.zeros(7, 4, KV_HEADS, DIM).half()}, ValueError, r"key_cache\.dtype: got torch\.float16"),
    ],
)
def test_what_custom_paged_attn_refuses(change, error, text):
    cache = torch.zeros(7, 4, KV_HEADS, DIM)
    call = {"query": V[:2], "key_cache": cache, "value_cache": cache, "query_lens": [1, 1], "kv_lens": [5, 9], "scale": 0.3}
    call["block_tables"] = torch.zeros(2, 3, dtype=torch.int32)
    assert custom_paged_attn(**call).shape == V[:2].shape
    with pytest.raises(error, match=f"^{text}"):
        custom_paged_attn(**call | change)
