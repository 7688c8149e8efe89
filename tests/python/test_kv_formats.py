# SPDX-License-Identifier: Apache-2.0
"""Paged caches of codes and scales, against the formulas of the formats and of vLLM's layouts, written out in torch."""

import pytest
import torch

import fovea
import plain
from kv_values import FORMATS, decoded
from test_paged import cumulative

BLOCKS, PAGE, HEADS, DIM = 7, 16, 2, 64


def vllm_codes(name, rows):
    """Codes and scales that vLLM 0.26 writes for float32 rows, but for rounding ties to even: as integers and as bits."""
    if name == "int8_token":
        scale = (rows.abs().amax(-1) / 127).clamp(min=1e-6)
        return (rows * (1 / scale)[..., None]).round().clamp(-128, 127).to(torch.int8), scale
    if name == "e4m3_token":
        scale = (rows.abs().amax(-1) / 448).clamp(min=1e-6)
        return (rows * (1 / scale)[..., None]).clamp(-448, 448).to(torch.float8_e4m3fn), scale
    scale = ((rows.amax(-1) - rows.amin(-1)) / 15).clamp(min=1e-6)
    zero = (-rows.amin(-1) / scale).round().clamp(0, 15)
    codes = torch.addcmul(zero[..., None].double(), rows.double(), (1 / scale)[..., None].double()).round().clamp(0, 15).int()
    packed = (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8)
    return packed, ((scale.view(torch.int32) & -16) | zero.int()).view(torch.float32)


def poisoned(name, **options):
    """A cache of K or V whose bytes are all ones: NaN scales, garbage codes."""
    cache = FORMATS[name].empty(BLOCKS, PAGE, HEADS, DIM, **options)
    for tensor in cache:
        if tensor is not None:
            tensor.copy_(
                torch.full(tensor.shape, -1, dtype=torch.int8).view(tensor.dtype)
                if tensor.itemsize == 1
                else torch.tensor(torch.nan)
            )
    return cache


def arguments(name, k, v):
    (k_cache, k_scales), (v_cache, v_scales) = k, v
    formats = {"k_format": name, "v_format": name, "k_scale_cache": k_scales, "v_scale_cache": v_scales}
    return (k_cache, v_cache), formats | ({"k_scale": 0.5, "v_scale": 0.25} if FORMATS[name].has_global else {})


def filled(name, **options):
    """Two sequences of 40 and 21 tokens in blocks in random order."""
    caches, formats = arguments(name, poisoned(name, **options), poisoned(name, **options))
    rows = torch.randn(2, 61, HEADS, DIM)
    order = torch.randperm(BLOCKS)[:5]
    slots = torch.cat(
        [(order[:3, None] * PAGE + torch.arange(PAGE)).flatten()[:40], (order[3:, None] * PAGE + torch.arange(PAGE)).flatten()[:21]]
    )
    fovea.paged_cache_append(*rows, *caches, slots, **formats)
    table = torch.full((2, 4), 2147480000, dtype=torch.int32)
    table[0, :3], table[1, :2] = order[:3].int(), order[3:].int()
    return caches, formats, rows, slots, table


@pytest.mark.parametrize("options", [{}, {"inline": True}])
@pytest.mark.parametrize("name", FORMATS)
def test_attention_reads_what_append_wrote(name, options, paged_attention_implementation):
    caches, formats, rows, slots, table = filled(name, **options if FORMATS[name].scale != "none" else {})
    k, v = (
        decoded(name, cache, formats[f"{of}_scale_cache"], formats.get(f"{of}_scale", 1)).flatten(0, 1)[slots]
        for of, cache in zip("kv", caches, strict=True)
    )
    error = {"int8_token": 0.02, "e4m3_token": 0.15, "mxfp8": 0.15, "int4_token": 0.25, "e5m2": 0.3}.get(name, 0.7)
    assert 0 < (k - rows[0]).abs().max() < error
    lengths_q = [1, 9]
    q = torch.randn(10, 4, DIM)
    kv_len = torch.tensor([40, 21], dtype=torch.int32)
    out, lse = fovea.paged_attention(
        q, *caches, table, kv_len, cumulative(lengths_q), return_lse=True, implementation=paged_attention_implementation, **formats
    )
    want = [plain.attention(*each, right=0) for each in zip(q.split(lengths_q), k.split([40, 21]), v.split([40, 21]), strict=True)]
    plain.check(out, lse, plain.join(want))


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("name", ["int8_token", "e4m3_token", "int4_token"])
def test_bytes_are_those_of_vllm(name, inline):
    caches, formats, rows, slots, _ = filled(name, inline=inline)
    for of, cache, new in zip("kv", caches, rows, strict=True):
        codes, scales = vllm_codes(name, new)
        assert torch.equal(formats[f"{of}_scale_cache"].flatten(0, 1)[slots], scales)
        assert torch.equal(cache.flatten(0, 1)[slots].view(torch.uint8), codes.view(torch.uint8))


@pytest.mark.parametrize("name", ["int8_token", "e4m3_token", "int4_token"])
def test_a_row_of_vllm_is_its_codes_and_then_its_scale(name):
    """[blocks, page, kv_head, K codes, K scale, V codes, V scale], as vLLM's Triton backend allocates NHD caches."""
    size = FORMATS[name].row_bytes(DIM)
    assert size == FORMATS[name].code_bytes(DIM) + 4
    memory = torch.full((BLOCKS, PAGE, HEADS, 2 * size), -1, dtype=torch.int8).view(torch.uint8)
    k, v = ((half[..., :-4], half[..., -4:].view(torch.float32)[..., 0]) for half in memory.split(size, -1))
    caches, formats = arguments(name, k, v)
    rows = torch.randn(2, 5, HEADS, DIM)
    fovea.paged_cache_append(*rows, *caches, torch.tensor([3, 40, -1, 17, 16]), **formats)
    codes, scales = vllm_codes(name, rows[1, 1])
    here = memory[40 // PAGE, 40 % PAGE, :, size:]
    assert torch.equal(here[:, :-4], codes.view(torch.uint8)) and torch.equal(
        here[:, -4:].contiguous().view(torch.float32)[:, 0], scales
    )
    assert (memory[0, 4:] == 255).all()


def test_formats_of_k_and_v_differ():
    k, k_scales = poisoned("int8_token", scale_dtype=torch.float16)
    v, v_scales = poisoned("int4_token")
    formats = {"k_format": "int8_token", "v_format": "int4_token", "k_scale_cache": k_scales, "v_scale_cache": v_scales}
    rows = torch.randn(2, 20, HEADS, DIM)
    fovea.paged_cache_append(*rows, k, v, torch.arange(20), **formats)
    table, kv_len = torch.arange(2, dtype=torch.int32)[None], torch.tensor([20], dtype=torch.int32)
    q = torch.randn(1, 4, DIM)
    out = fovea.paged_attention(q, k, v, table, kv_len, **formats)
    values = decoded("int8_token", k, k_scales).flatten(0, 1)[:20], decoded("int4_token", v, v_scales).flatten(0, 1)[:20]
    plain.check(out, None, plain.attention(q, *values, right=0))


@pytest.mark.parametrize("name", FORMATS)
def test_a_zero_row_is_zero(name):
    k, v = poisoned(name), poisoned(name)
    caches, formats = arguments(name, k, v)
    fovea.paged_cache_append(*torch.zeros(2, 1, HEADS, DIM), *caches, torch.tensor([5]), **formats)
    assert (decoded(name, *k).flatten(0, 1)[5] == 0).all()


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan, 3e38])
@pytest.mark.parametrize("name", FORMATS)
def test_no_scale_is_infinite(name, value):
    k, v = poisoned(name), poisoned(name)
    caches, formats = arguments(name, k, v)
    rows = torch.randn(2, 1, HEADS, DIM)
    rows[0, 0, 0, 3] = value
    fovea.paged_cache_append(*rows, *caches, torch.tensor([5]), **formats)
    row = decoded(name, *k).flatten(0, 1)[5, 0]
    assert row[torch.arange(DIM) != 3].isfinite().all()
    assert row[3].isnan() == (value != value and FORMATS[name].code in ("e4m3", "e5m2"))


def call(name="int8_token", **changed):
    (k, k_scales), (v, v_scales) = poisoned(name), poisoned(name)
    given = {
        "k_cache": k,
        "v_cache": v,
        "k_format": name,
        "v_format": name,
        "k_scale_cache": k_scales,
        "v_scale_cache": v_scales,
    } | changed
    table, kv_len = torch.zeros(1, 1, dtype=torch.int32), torch.ones(1, dtype=torch.int32)
    return fovea.paged_attention(torch.zeros(1, 4, DIM), block_table=table, kv_len=kv_len, **given)


@pytest.mark.parametrize(
    ("name", "changed", "text"),
    [
        ("int8_token", {"k_format": "int2"}, r'k_format: got "int2", want rows, int8_token'),
        ("int8_token", {"k_scale_cache": None}, "k_scale_cache: got none, want the scales of int8_token"),
        (
            "int8_token",
            {"v_scale_cache": torch.zeros(BLOCKS, PAGE, HEADS, dtype=torch.bfloat16)},
            r"v_scale_cache\.dtype: got torch\.bfloat16, want torch\.float32 or torch\.float16",
        ),
        ("int8_token", {"v_scale_cache": torch.zeros(BLOCKS, PAGE, 3)}, r"v_scale_cache.shape\[2\] \(kv_head\): got 3, want 2"),
        ("int8_token", {"k_cache": torch.zeros(BLOCKS, PAGE, HEADS, DIM)}, r"k_cache\.dtype: got torch\.float32, want torch\.int8"),
        ("int8_token", {"k_scale": 0.5}, "k_scale: got a scale for int8_token, want none"),
        (
            "int4_token",
            {"k_cache": torch.zeros(BLOCKS, PAGE, HEADS, DIM, dtype=torch.uint8)},
            r"k_cache.shape\[3\] .*: got 64, want 32",
        ),
        (
            "nvfp4",
            {"k_scale_cache": torch.zeros(BLOCKS, PAGE, HEADS, 3, dtype=torch.uint8)},
            r"k_scale_cache.shape\[3\] \(group\): got 3, want 4",
        ),
        ("e5m2", {"k_scale_cache": torch.zeros(BLOCKS, PAGE, HEADS)}, r"k_scale_cache: got a tensor, want none \(e5m2\)"),
        ("int8_token", {"k_format": "rows"}, r"k_cache\.dtype: got torch\.int8"),
    ],
)
def test_what_does_not_fit_is_named(name, changed, text):
    with pytest.raises(ValueError, match=text):
        call(name, **changed)


def test_empty_says_what_it_lacks():
    with pytest.raises(ValueError, match=r"head_dim: got 40, want a multiple of 16"):
        FORMATS["nvfp4"].empty(1, 16, 1, 40)
    with pytest.raises(ValueError, match=r"scale_dtype: got torch\.float16"):
        FORMATS["int4_token"].empty(1, 16, 1, 64, scale_dtype=torch.float16)


def test_head_dims_that_codes_do_not_have():
    caches, formats, _, slots, table = filled("nvfp4")
    kv_len = torch.tensor([40, 21], dtype=torch.int32)
    with pytest.raises(ValueError, match=r"^q\.shape\[2\] \(head_dim_qk\): got 63, want a multiple of 16 \(nvfp4\)"):
        fovea.paged_attention(torch.randn(2, 4, 63), *caches, table, kv_len, **formats)
    with pytest.raises(ValueError, match=r"^v\.shape\[2\] \(head_dim\): got 65, want a multiple of 16 \(nvfp4\)"):
        fovea.paged_cache_append(torch.randn(61, HEADS, DIM), torch.randn(61, HEADS, 65), *caches, slots, **formats)
    with pytest.raises(ValueError, match=r"^v_cache\.rank: got 0, want 4"):
        fovea.paged_attention(torch.randn(2, 4, DIM), caches[0], caches[1].new_zeros(()), table, kv_len, **formats)
