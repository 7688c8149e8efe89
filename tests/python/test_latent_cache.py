# SPDX-License-Identifier: Apache-2.0
"""Packed latent caches against packed.py, which states each format on its own."""

import pytest
import torch

import fovea
import packed

FORMATS = list(packed.LAYOUTS)
SLOTS = torch.tensor([5, -1, 0, 13, 7])


def filled(format, rows, *, blocks=3, page=5, gap=24, **options):
    """A cache with free room between blocks, full of 0xff but for the rows."""
    layout = packed.LAYOUTS[format]
    wide = torch.full((blocks, page * layout.bytes + gap), 255, dtype=torch.uint8)
    cache = wide[:, : page * layout.bytes].unflatten(1, (page, layout.bytes))
    fovea.quantize_latent_cache(rows, cache, SLOTS, format=format, **options)
    assert bool((wide[:, page * layout.bytes :] == 255).all())
    return cache


def test_table_is_the_documented_one():
    formats = fovea.cache_formats()
    assert list(formats) == FORMATS
    for name, layout in packed.LAYOUTS.items():
        format = formats[name]
        assert (format.name, format.bytes, format.codes, format.group) == (name, layout.bytes, layout.codes, layout.group)
        assert (format.code_type, format.scale_type, format.rope) == (layout.code, layout.scale, layout.rope)
        assert format.row == layout.codes + layout.rope and format.planar == layout.planar
        assert format.empty(2, 3).shape == (2, 3, layout.bytes) and format.empty(2, 3).dtype == torch.uint8
        assert all(format.empty(2, page).stride(0) % 16 == 0 for page in (1, 3, 64)) and format.empty(2, 64).is_contiguous()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("format", FORMATS)
def test_quantised_values(format, exact, dtype, quantize_latent_cache_implementation):
    layout = packed.LAYOUTS[format]
    rows = (torch.randn(5, layout.codes + layout.rope) * torch.logspace(-2, 1, 5)[:, None]).to(dtype)
    rows[2, : layout.group] = 0
    cache = filled(format, rows, exact_scale=exact, implementation=quantize_latent_cache_implementation)
    used, given = SLOTS[SLOTS >= 0], rows[SLOTS >= 0].float()
    got = packed.decode(cache, format)[used]
    groups, scale = given[:, : layout.codes].unflatten(1, (-1, layout.group)), packed.scales(cache, format).flatten(0, 1)[used]
    largest = groups.abs().amax(dim=-1)
    assert torch.equal(scale, expected_scales(largest, layout, exact))
    if layout.code == "e4m3":  # torch rounds as the format does
        codes = (groups / scale[..., None]).to(torch.float8_e4m3fn).float()
        assert torch.equal(got[:, : layout.codes], (codes * scale[..., None]).flatten(1))
    else:  # the nearest of the values that e2m1 has
        nearest = (groups.abs() / scale[..., None].clamp(min=1e-30))[..., None].sub(packed.E2M1[:8]).abs().amin(dim=-1)
        error = (got.unflatten(1, (-1, layout.group)) - groups).abs()
        torch.testing.assert_close(error, nearest * scale[..., None], rtol=1e-5, atol=1e-6)
    assert torch.equal(got[:, layout.codes :], given[:, layout.codes :].bfloat16().float())


def expected_scales(largest, layout, exact):
    if layout.scale == "e4m3":
        return (largest / 6).to(torch.float8_e4m3fn).float()
    wanted = largest / 448
    wanted = torch.where(wanted == 0, 1.0, wanted) if exact else wanted.clamp(min=1e-4)
    if exact and layout.scale == "f32":
        return wanted
    return torch.exp2(torch.ceil(torch.log2(wanted.double()))).float()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("format", FORMATS)
def test_dequantised_values(format, dtype, dequantize_latent_cache_implementation):
    layout = packed.LAYOUTS[format]
    cache = filled(format, torch.randn(5, layout.codes + layout.rope))
    forced = {"format": format, "implementation": dequantize_latent_cache_implementation}
    rows = fovea.dequantize_latent_cache(cache, SLOTS, dtype=dtype, **forced)
    want = packed.decode(cache, format)[SLOTS.clamp(min=0)].to(dtype)
    assert torch.equal(rows[1], torch.zeros_like(rows[1]))  # skipped
    assert torch.equal(rows[SLOTS >= 0], want[SLOTS >= 0])
    wide = torch.full((5, layout.codes + layout.rope + 8), torch.nan, dtype=dtype)
    given = fovea.dequantize_latent_cache(cache, SLOTS, rows=wide[:, :-8], **forced)
    assert given.data_ptr() == wide.data_ptr() and wide[:, -8:].isnan().all() and wide[1].isnan().all()
    assert torch.equal(given[SLOTS >= 0], want[SLOTS >= 0])


@pytest.mark.parametrize("format", FORMATS)
def test_round_trip_is_stable(format):
    """Values that were quantised once are reproduced exactly, as far as the format can hold them."""
    cache = filled(format, torch.randn(5, packed.LAYOUTS[format].codes + packed.LAYOUTS[format].rope).bfloat16())
    rows = fovea.dequantize_latent_cache(cache, SLOTS, format=format, dtype=torch.float32)
    again = filled(format, rows)
    assert torch.equal(fovea.dequantize_latent_cache(again, SLOTS, format=format, dtype=torch.float32), rows)


def test_nothing_to_do():
    cache = fovea.cache_formats()["v32_fp8"].empty(2, 4)
    before, none = cache.clone(), torch.empty(0, dtype=torch.int64)
    fovea.quantize_latent_cache(torch.empty(0, 576), cache, none, format="v32_fp8")
    assert torch.equal(cache, before)
    assert fovea.dequantize_latent_cache(cache, none, format="v32_fp8").shape == (0, 576)
