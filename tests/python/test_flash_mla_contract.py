# SPDX-License-Identifier: Apache-2.0
"""Behaviour that FlashMLA's users rely on beside numbers: the exceptions and the metadata object."""

import pytest
import torch

import fovea.compat.flash_mla as flash_mla

# ---- metadata --------------------------------------------------------------------------------------------------------------


def dense(**changes):
    return {
        "q": torch.randn(2, 3, 4, 576).bfloat16(),
        "k_cache": torch.randn(4, 64, 1, 576).bfloat16(),
        "block_table": torch.zeros(2, 2, dtype=torch.int32),
        "cache_seqlens": torch.tensor([70, 9], dtype=torch.int32),
        "head_dim_v": 512,
        "tile_scheduler_metadata": flash_mla.FlashMLASchedMeta(),
        "num_splits": None,
    } | changes


def sparse(**changes):
    return (
        dense(
            k_cache=torch.zeros(4, 64, 1, 656, dtype=torch.uint8),
            block_table=None,
            cache_seqlens=None,
            is_fp8_kvcache=True,
            indices=torch.zeros(2, 3, 8, dtype=torch.int32),
            extra_k_cache=torch.zeros(4, 2, 1, 656, dtype=torch.uint8),
            extra_indices_in_kvcache=torch.zeros(2, 3, 5, dtype=torch.int32),
        )
        | changes
    )


NO_EXTRA = {"extra_k_cache": None, "extra_indices_in_kvcache": None}
OTHER_SHAPES = {
    "b": {"q": torch.zeros(1, 3, 4, 576).bfloat16(), "indices": torch.zeros(1, 3, 8, dtype=torch.int32)},
    "s_q": {"q": torch.zeros(2, 2, 4, 576).bfloat16(), "indices": torch.zeros(2, 2, 8, dtype=torch.int32)},
    "h_q": {"q": torch.zeros(2, 3, 5, 576).bfloat16()},
    "page_block_size": {"k_cache": torch.zeros(8, 32, 1, 656, dtype=torch.uint8)},
    "h_k": {"k_cache": torch.zeros(4, 64, 2, 656, dtype=torch.uint8)},
    "causal": {"causal": True},
    "is_fp8_kvcache": {"is_fp8_kvcache": False},
    "topk": {"indices": torch.zeros(2, 3, 9, dtype=torch.int32)},
    "extra_page_block_size": NO_EXTRA,
    "extra_topk": {"extra_indices_in_kvcache": torch.zeros(2, 3, 6, dtype=torch.int32)},
}


@pytest.mark.parametrize("field", OTHER_SHAPES)
def test_metadata_of_other_shapes_is_refused(field):
    metadata, _ = flash_mla.get_mla_metadata()
    flash_mla.flash_mla_with_kvcache(**sparse(tile_scheduler_metadata=metadata))
    flash_mla.flash_mla_with_kvcache(**sparse(tile_scheduler_metadata=metadata))
    with pytest.raises(AssertionError, match=rf"config\.{field}: got .*, want .* as in the first call"):
        flash_mla.flash_mla_with_kvcache(**sparse(tile_scheduler_metadata=metadata, **OTHER_SHAPES[field]))


def test_a_refused_call_leaves_the_metadata_empty():
    call = dense(head_dim_v=256)
    with pytest.raises(RuntimeError):
        flash_mla.flash_mla_with_kvcache(**call)
    assert call["tile_scheduler_metadata"] == flash_mla.FlashMLASchedMeta()


# ---- refusals --------------------------------------------------------------------------------------------------------------

ASSERTED = [
    (dense(tile_scheduler_metadata=torch.zeros(132, 8, dtype=torch.int32)), "tile_scheduler_metadata: got Tensor"),
    (dense(tile_scheduler_metadata=None), "tile_scheduler_metadata: got NoneType"),
    (dense(num_splits=torch.zeros(3, dtype=torch.int32)), "num_splits: got Tensor, want None"),
    (dense(block_table=None), "block_table: got None"),
    (dense(cache_seqlens=None), "cache_seqlens: got None"),
    (dense(attn_sink=torch.zeros(4)), "attn_sink: got a tensor"),
    (dense(topk_length=torch.zeros(2, dtype=torch.int32)), "topk_length: got a tensor"),
    (dense(extra_topk_length=torch.zeros(2, dtype=torch.int32)), "extra_topk_length: got a tensor"),
    (dense(extra_k_cache=torch.zeros(4, 2, 1, 656, dtype=torch.uint8)), "extra_k_cache: got a tensor"),
    (dense(extra_indices_in_kvcache=torch.zeros(2, 3, 5, dtype=torch.int32)), "extra_indices_in_kvcache: got a tensor"),
    (sparse(causal=True), "causal: got True, want False"),
    (sparse(is_fp8_kvcache=False), "is_fp8_kvcache: got False, want True"),
]
PACKED = {"is_fp8_kvcache": True}
REFUSED = [
    (dense(head_dim_v=128), r"head_dim_v: got 128, want 512"),
    (dense(q=torch.randn(2, 4, 576).bfloat16()), r"q\.rank: got 3, want 4"),
    (dense(k_cache=torch.randn(4, 64, 576).bfloat16()), r"k_cache\.rank: got 3, want 4"),
    (dense(k_cache=torch.randn(4, 64, 1, 576)), r"dtype: got torch.float32, want torch.bfloat16"),
    (dense(k_cache=torch.randn(4, 64, 3, 576).bfloat16()), r"kv_head.*: got 3"),
    (dense(k_cache=torch.randn(4, 64, 1, 512).bfloat16()), r"q\.shape \(d\): got 576, want 512"),
    (dense(cache_seqlens=torch.tensor([70, 9])), r"^cache_seqlens\.dtype: got torch.int64, want torch.int32"),
    (dense(cache_seqlens=torch.tensor([129, 9], dtype=torch.int32)), r"^cache_seqlens\[0\].*: got 129"),
    (dense(block_table=torch.full((2, 2), 4, dtype=torch.int32)), r"block_table.*: got 4"),
    (dense(softmax_scale=0.0), r"softmax_scale: got 0\.0"),
    (dense(softmax_scale=float("nan")), r"^softmax_scale: got nan"),
    (dense(softmax_scale=torch.ones(2)), r"^softmax_scale\.shape: got \[2\], want \[\]"),
    (dense(q=torch.randn(2, 3, 4, 576).half()), r"^k_cache\.dtype: got torch\.bfloat16"),
    (dense(block_table=torch.zeros(2, dtype=torch.int32)), r"^block_table\.rank: got 1, want 2"),
    (dense(k_cache=torch.zeros(4, 64, 1, 656, dtype=torch.uint8)), r"is_fp8_kvcache: got False, want True"),
    (dense(k_cache=torch.zeros(4, 64, 1, 576, dtype=torch.uint8), **PACKED), r"k_cache\.shape\[3\].*: got 576, want 656"),
    (dense(k_cache=torch.zeros(4, 64, 1, 1312, dtype=torch.uint8)[..., ::2], **PACKED), r"stride"),
    (sparse(k_cache=torch.zeros(4, 64, 1, 576).bfloat16()), r"k_cache\.dtype: got torch\.bfloat16"),
    (sparse(k_cache=torch.zeros(4, 64, 2, 656, dtype=torch.uint8)), r"k_cache\.shape\[2\] \(h_k\): got 2, want 1"),
    (sparse(k_cache=torch.zeros(4, 64, 1, 528, dtype=torch.uint8)), r"got 528, want 656 \(v32_fp8\) or 584 \(v4_fp8\)"),
    (sparse(k_cache=torch.zeros(4, 64, 1, 584, dtype=torch.uint8)), r"cache.*: got 512, want 576"),
    (sparse(extra_k_cache=torch.zeros(4, 2, 1, 288, dtype=torch.uint8)), r"extra_k_cache\.shape\[3\].*: got 288"),
    (sparse(extra_indices_in_kvcache=None), r"^extra_indices_in_kvcache: got none"),
    (sparse(extra_indices_in_kvcache=torch.zeros(2, 2, 5, dtype=torch.int32)), r"^extra_indices_in_kvcache\.shape\[1\]"),
    (sparse(extra_k_cache=None), r"^extra_k_cache: got none"),
    (sparse(q=torch.randn(2, 3, 4, 576)), r"q\.dtype: got torch.float32, want torch.bfloat16"),
    (sparse(indices=torch.zeros(2, 3, 8, dtype=torch.int64)), r"indices\.dtype: got torch.int64, want torch.int32"),
    (sparse(indices=torch.zeros(2, 8, dtype=torch.int32)), r"indices\.rank: got 2"),
    (sparse(topk_length=torch.zeros(3, dtype=torch.int32)), r"topk_length\.shape: got \[3\], want \[2\]"),
    (sparse(attn_sink=torch.zeros(5)), r"^attn_sink\.shape: got \[5\], want \[4\]"),
]


@pytest.mark.parametrize(("call", "message"), ASSERTED, ids=lambda value: value if isinstance(value, str) else "")
def test_what_flash_mla_asserts(call, message):
    with pytest.raises(AssertionError, match=message):
        flash_mla.flash_mla_with_kvcache(**call)


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=lambda value: value if isinstance(value, str) else "")
def test_what_flash_mla_throws(call, message):
    with pytest.raises(RuntimeError, match=message):
        flash_mla.flash_mla_with_kvcache(**call)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"d_v": 256}, r"d_v: got 256, want 512"),
        ({"sm_scale": 0.0}, r"sm_scale: got 0\.0"),
        ({"kv": torch.randn(5, 576)}, r"kv\.rank: got 2, want 3"),
        ({"kv": torch.randn(5, 2, 576)}, r"kv\.shape\[1\] \(h_kv\): got 2, want 1"),
        ({"kv": torch.randn(5, 1, 512)}, r"got 512, want 576"),
        ({"indices": torch.zeros(2, 8, dtype=torch.int32)}, r"indices\.rank: got 2, want 3"),
        ({"indices": torch.zeros(2, 2, 8, dtype=torch.int32)}, r"indices\.shape\[1\] \(h_kv\): got 2, want 1"),
        ({"topk_length": torch.zeros(3, dtype=torch.int32)}, r"topk_length\.shape: got \[3\]"),
        ({"sm_scale": float("inf")}, r"^sm_scale: got inf"),
        ({"kv": torch.randn(5, 1, 576).half()}, r"^kv\.dtype: got torch\.float16"),
        ({"attn_sink": torch.zeros(3)}, r"^attn_sink\.shape: got \[3\], want \[4\]"),
    ],
)
def test_what_prefill_throws(changes, message):
    call = {
        "q": torch.randn(2, 4, 576),
        "kv": torch.randn(5, 1, 576),
        "indices": torch.zeros(2, 1, 8, dtype=torch.int32),
        "sm_scale": 0.1,
    }
    with pytest.raises(RuntimeError, match=message):
        flash_mla.flash_mla_sparse_fwd(**call | changes)


def test_a_scale_may_be_a_tensor_of_one_number():
    call = dense()
    got = flash_mla.flash_mla_with_kvcache(**call | {"softmax_scale": torch.tensor(0.25)})
    want = flash_mla.flash_mla_with_kvcache(**call | {"softmax_scale": 0.25})
    assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])


def test_gradients_are_refused_and_not_cut():
    call = dense()
    with pytest.raises(NotImplementedError, match="requires_grad"):
        flash_mla.flash_mla_with_kvcache(**call | {"q": call["q"].requires_grad_()})
