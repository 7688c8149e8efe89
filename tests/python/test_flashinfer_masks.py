# SPDX-License-Identifier: Apache-2.0
"""Custom masks of FlashInfer's wrappers, against attention written out."""

import re

import pytest
import torch

from fovea.compat import flashinfer
from masked import ends_of, flat, written_out

HEADS, KV_HEADS, DIM, PAGE = 4, 2, 16, 4
ROWS, KEYS = [2, 3, 1], [5, 9, 8]
WORKSPACE = torch.empty(0, dtype=torch.uint8)


class Batch:
    """Three sequences, ragged and over pages."""

    def __init__(self, kind, keys=KEYS):
        torch.manual_seed(5)
        self.kind, self.keys = kind, keys
        self.q = [torch.randn(rows, HEADS, DIM) for rows in ROWS]
        self.k, self.v = ([torch.randn(length, KV_HEADS, DIM) for length in keys] for _ in "kv")
        self.masks = [torch.rand(rows, length) < 0.6 for rows, length in zip(ROWS, keys, strict=True)]
        self.masks[1][0] = False
        counts = [-(-length // PAGE) for length in keys]
        self.indptr = torch.tensor([0, *counts]).cumsum(0)
        self.indices = torch.randperm(sum(counts))
        self.last = torch.tensor([(length - 1) % PAGE + 1 for length in keys])
        self.caches = [torch.full((sum(counts), PAGE, KV_HEADS, DIM), torch.nan) for _ in "kv"]
        for b, length in enumerate(keys):
            for cache, rows in zip(self.caches, (self.k[b], self.v[b]), strict=True):
                for token in range(length):
                    cache[self.indices[self.indptr[b] + token // PAGE], token % PAGE] = rows[token]

    @property
    def custom_mask(self):
        return torch.cat([mask.flatten() for mask in self.masks])

    def plan(self, wrapper=None, **options):
        wrapper = wrapper or self.kind(WORKSPACE)
        paged = self.kind is flashinfer.BatchPrefillWithPagedKVCacheWrapper
        keys = (self.indptr, self.indices, self.last) if paged else (ends_of(self.k),)
        sizes = (HEADS, KV_HEADS, DIM, PAGE) if paged else (HEADS, KV_HEADS, DIM)
        wrapper.plan(ends_of(self.q), *keys, *sizes, **{"q_data_type": "float32"} | options)
        return wrapper

    def run(self, wrapper):
        paged = self.kind is flashinfer.BatchPrefillWithPagedKVCacheWrapper
        return wrapper.run(torch.cat(self.q), *((tuple(self.caches),) if paged else (torch.cat(self.k), torch.cat(self.v))))

    def expect(self):
        return torch.cat([written_out(*part)[0] for part in zip(self.q, self.k, self.v, self.masks, strict=True)]).float()


KINDS = [flashinfer.BatchPrefillWithPagedKVCacheWrapper, flashinfer.BatchPrefillWithRaggedKVCacheWrapper]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("keys", [KEYS, [8, 8, 16]])
@pytest.mark.parametrize("causal", [False, True])
def test_masks_of_a_plan(kind, keys, causal):
    batch = Batch(kind, keys)
    packed, _ = flat(batch.masks)
    for options in ({"custom_mask": batch.custom_mask}, {"packed_custom_mask": packed}):
        wrapper = batch.plan(causal=causal, **options)  # which does not count
        torch.testing.assert_close(batch.run(wrapper), batch.expect())
    both = batch.plan(custom_mask=~batch.custom_mask, packed_custom_mask=packed)
    packed.fill_(0)
    torch.testing.assert_close(batch.run(both), batch.expect())
    batch.plan(both)
    batch.masks = [torch.ones_like(mask) for mask in batch.masks]
    torch.testing.assert_close(batch.run(both), batch.expect())


@pytest.mark.parametrize("kind", KINDS)
def test_masks_of_a_cuda_graph_lie_in_its_buffers(kind):
    batch = Batch(kind)
    ends = [torch.zeros(4, dtype=torch.int32) for _ in range(2)]
    pages = (torch.zeros(30, dtype=torch.int32), torch.zeros(3, dtype=torch.int32)) if kind is KINDS[0] else ()
    bits, indptr = torch.full((64,), 255, dtype=torch.uint8), torch.zeros(4, dtype=torch.int32)
    wrapper = kind(WORKSPACE, "NHD", True, *ends, *pages, bits, indptr)
    batch.plan(wrapper, custom_mask=batch.custom_mask)
    packed, wanted = flat(batch.masks)
    assert torch.equal(bits[: len(packed)], packed) and torch.equal(indptr, wanted)
    torch.testing.assert_close(batch.run(wrapper), batch.expect())
    without = kind(WORKSPACE, "NHD", True, *ends, *pages)
    with pytest.raises(ValueError, match=re.escape("custom_mask_buf: got None, want a tensor (use_cuda_graph=True, and a mask)")):
        batch.plan(without, custom_mask=batch.custom_mask)
    small = kind(WORKSPACE, "NHD", True, *ends, *pages, bits[:3], indptr)
    with pytest.raises(ValueError, match=re.escape("custom_mask_buf.shape[0]: got 3, want 7 or more")):
        batch.plan(small, custom_mask=batch.custom_mask)


def test_a_mask_of_one_sequence():
    torch.manual_seed(6)
    q, k, v, mask = torch.randn(3, HEADS, DIM), torch.randn(7, KV_HEADS, DIM), torch.randn(7, KV_HEADS, DIM), torch.rand(3, 7) < 0.5
    want = written_out(q, k, v, mask)[0].float()
    packed, _ = flat([mask])
    for options in ({"custom_mask": mask}, {"packed_custom_mask": packed}, {"custom_mask": mask, "causal": True}):
        torch.testing.assert_close(flashinfer.single_prefill_with_kv_cache(q, k, v, **options), want)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"custom_mask": torch.ones(45)}, "custom_mask.dtype: got torch.float32, want torch.bool"),
        (
            {"custom_mask": torch.ones(44).bool()},
            "custom_mask (elements): got 44, want 45 (query rows times keys of",
        ),
        ({"packed_custom_mask": torch.ones(7)}, "packed_custom_mask.dtype: got torch.float32, want torch.uint8"),
        ({"packed_custom_mask": torch.ones(8, dtype=torch.uint8)}, "packed_custom_mask (elements): got 8, want 7 (each sequence"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_masks_that_do_not_fit(kind, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Batch(kind).plan(**options)
