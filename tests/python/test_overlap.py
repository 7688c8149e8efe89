# SPDX-License-Identifier: Apache-2.0
"""An output, or a cache that is written, has memory of its own. Views that interleave in one allocation do."""

import pytest
import torch

import fovea


def rows(tokens=16, heads=4, dim=64):
    return torch.randn(tokens, heads, dim)


CU = torch.tensor([0, 3, 8], dtype=torch.int32)
LENGTHS = {"cu_seqlens_q": CU, "cu_seqlens_k": CU}


def shifted(room, first, second, size=8):
    return room[first : first + size], room[second : second + size]


@pytest.mark.parametrize("known", [False, True], ids=["first", "known"])
def test_an_output_over_a_part_of_an_input(known):
    room, kv = rows(24), rows(8)
    for _ in range(4 if known else 0):
        q, out = shifted(room, 0, 16)
        fovea.attention(q, kv, kv, out=out, **LENGTHS)
    before = room.clone()
    for distance in (-7, -1, 1, 7):
        q, out = shifted(room, 8, 8 + distance)
        with pytest.raises(ValueError, match=r"^out \(memory\): got a part of q, want memory of its own$"):
            fovea.attention(q, kv, kv, out=out, **LENGTHS)
    q, out = shifted(room, 8, 8)
    with pytest.raises(ValueError, match=r"^out \(address\): got that of q, want memory of its own$"):
        fovea.attention(q, kv, kv, out=out, **LENGTHS)
    assert room.equal(before)
    for distance in (-8, 8):
        q, out = shifted(room, 8, 8 + distance)
        want = fovea.attention(q, kv, kv, **LENGTHS)
        assert fovea.attention(q, kv, kv, out=out, **LENGTHS).equal(want)


def test_lse_over_a_part_of_out_and_of_lengths():
    q, room = rows(8), torch.zeros(8 * 4 * 64 + 8 * 4)
    out, lse = room[: 8 * 4 * 64].view(8, 4, 64), room[-8 * 4 :].view(8, 4)
    fovea.attention(q, q, q, out=out, lse=lse, **LENGTHS)
    with pytest.raises(ValueError, match=r"\(memory\): got a part of"):
        fovea.attention(q, q, q, out=out, lse=room[-8 * 4 - 1 : -1].view(8, 4), **LENGTHS)
    numbers = torch.zeros(64, dtype=torch.int32)
    numbers[30:33] = CU
    with pytest.raises(ValueError, match=r"^lse \(memory\): got a part of cu_seqlens_q, want memory of its own$"):
        fovea.attention(q, q, q, lse=numbers.view(torch.float32)[:32].view(8, 4), cu_seqlens_q=numbers[30:33], cu_seqlens_k=CU)


def test_slices_of_one_buffer_are_apart():
    """q, k, v and the output of a layer side by side in each token."""
    buffer = torch.randn(8, 4, 4, 64)
    q, k, v, out = buffer.unbind(1)
    want = fovea.attention(q.clone(), k.clone(), v.clone(), **LENGTHS)
    assert fovea.attention(q, k, v, out=out, **LENGTHS).equal(want)
    with pytest.raises(ValueError, match=r"out \(memory\): got a part of (q|v)"):
        fovea.attention(q, k, v, out=buffer.view(8, 16, 64)[:, 3:7], **LENGTHS)


@pytest.mark.parametrize("layout", ["token", "block", "head", "whole", "heads first"])
def test_caches_of_one_allocation_are_apart(layout):
    blocks, page, heads, dim = 3, 8, 2, 64
    k_cache, v_cache = {
        "token": torch.zeros(blocks, page, 2, heads, dim).unbind(2),
        "block": torch.zeros(blocks, 2, page, heads, dim).unbind(1),
        "head": torch.zeros(blocks, page, heads, 2, dim).unbind(3),
        "whole": torch.zeros(2, blocks, page, heads, dim).unbind(0),
        "heads first": torch.zeros(blocks, 2, heads, page, dim).transpose(2, 3).unbind(1),
    }[layout]
    k, v, slots = torch.randn(5, heads, dim), torch.randn(5, heads, dim), torch.tensor([0, 7, 8, 15, 23])
    fovea.paged_cache_append(k, v, k_cache, v_cache, slots)
    assert k_cache[slots // page, slots % page].equal(k) and v_cache[slots // page, slots % page].equal(v)


def test_caches_over_new_tokens():
    room = torch.zeros(4, 8, 2, 64)
    k, slots = torch.randn(1, 2, 64), torch.tensor([0])
    with pytest.raises(ValueError, match=r"^k_cache \(memory\): got a part of k, want memory of its own$"):
        fovea.paged_cache_append(room[1, :1], k, room[:2], room[2:], slots)
    assert (room == 0).all()


def test_caches_of_one_pool_are_told_apart_by_slots():
    """A layer's keys and values in every other block of a pool: the caches begin a block apart, and block numbers are even."""
    pool, k, v = torch.zeros(9, 4, 2, 64), rows(4, 2), rows(4, 2)
    k_cache, v_cache = pool[:8], pool[1:]
    fovea.paged_cache_append(k, v, k_cache, v_cache, torch.arange(4) + 2 * 4)
    assert pool[2].equal(k) and pool[3].equal(v)
    with pytest.raises(ValueError, match=r"^v_cache \(address\): got that of k_cache|^k_cache \(address\): got that of v_cache"):
        fovea.paged_cache_append(k, v, k_cache, k_cache, torch.arange(4))


def test_paged_and_latent_outputs_over_a_part_of_the_cache():
    table, kv_len = torch.zeros(2, 1, dtype=torch.int32), torch.tensor([3, 5], dtype=torch.int32)
    cache = torch.randn(4, 8, 4, 64)
    with pytest.raises(ValueError, match=r"^out \(memory\): got a part of k_cache, want memory of its own$"):
        fovea.paged_attention(rows(2), cache, rows(32).view(4, 8, 4, 64), table, kv_len, out=cache[3, :2])
    cache = torch.randn(4, 8, 1, 576)
    with pytest.raises(ValueError, match=r"^out \(memory\): got a part of cache, want memory of its own$"):
        fovea.latent_attention(torch.randn(2, 4, 576), cache, table, kv_len, out=cache.view(-1)[-2 * 4 * 512 :].view(2, 4, 512))


def test_latent_caches_over_a_part_of_the_rows():
    cache = fovea.cache_formats()["v32_fp8"].empty(2, 8).fill_(0)
    values = cache.view(-1)[: 576 * 2 * 3].view(torch.bfloat16).view(3, 576)
    with pytest.raises(ValueError, match=r"\((address|memory)\): got"):
        fovea.quantize_latent_cache(values, cache, torch.arange(3), format="v32_fp8")


def test_merges_in_place():
    """The result may be a part, exactly. A row further on, it would overwrite what is read later."""
    outs, lses = torch.randn(3, 9, 2, 64), torch.randn(3, 9, 2)
    parts = list(outs[:, :8].clone()), list(lses[:, :8].clone())
    want, want_lse = fovea.merge_states(*parts)
    for at in range(3):
        own = [part.clone() for part in parts[0]], [lse.clone() for lse in parts[1]]
        out, lse = fovea.merge_states(*own, out=own[0][at], lse=own[1][at])
        assert out.equal(want) and lse.equal(want_lse)
    with pytest.raises(ValueError, match=r"^out \(memory\): got a part of outs\[1\], want memory of its own$"):
        fovea.merge_states(list(outs[:, :8]), parts[1], out=outs[1, 1:])
    with pytest.raises(ValueError, match=r"^lse \(memory\): got a part of lses\[2\], want memory of its own$"):
        fovea.merge_states(parts[0], list(lses[:, :8]), lse=lses[2, 1:])
    with pytest.raises(ValueError, match=r"^lse \(address\): got that of lses\[0\], want memory of its own$"):
        fovea.merge_states(parts[0], list(lses[:, :8]), lse=lses[0].view(2, 9)[:, :8].t())


def test_gradients_over_a_part_of_what_they_are_of():
    room = rows(24)
    q, dq = shifted(room, 8, 11)
    k, lse = rows(8), torch.zeros(8, 4)
    operator = torch.ops.fovea.attention_backward
    blocks, terms = (*(None,) * 5, 0, 0), (None, None, 0.0, None, None, None, None)
    forward = (q, k, k, rows(8), lse, CU, CU, None, None, None, None, False, 0.0, 0.0, None, *blocks, *terms)
    with pytest.raises(ValueError, match=r"args\.dq \(memory\): got a part of q, want memory of its own"):
        operator(*forward, rows(8), None, dq, rows(8), rows(8), None, None, "", False)
