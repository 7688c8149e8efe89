# SPDX-License-Identifier: Apache-2.0
"""flashinfer.fp4_quantization over Fovea: rows of NVFP4 keys and values, whose scales of blocks lie in plain order."""

import torch
from torch import Tensor

from fovea._calls import adapted
from fovea._kv_format import kv_formats
from fovea._paged import paged_cache_append
from fovea.compat._arguments import rows
from fovea.compat.flashinfer._plan import nvfp4, want_integers
from fovea.compat.flashinfer._terms import FOUR_BITS, Cache, want
from fovea.compat.flashinfer.page import nvfp4_pages

__all__ = ["nvfp4_kv_dequantize", "nvfp4_kv_dequantize_paged", "nvfp4_kv_quantize"]

_GROUP = kv_formats()["nvfp4"].group
_PAGED_AXES = {
    "block_tables": "batch, pages",
    "seq_lens": "batch",
    "k_scale": "1",
    "v_scale": "1",
    "output_k": "batch, seq, head, dim",
    "output_v": "batch, seq, head, dim",
}
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


@adapted({"k": "input", "v": "input", "k_scale": "global_scale"}, axes={"input": "rows, dim", "global_scale": "1"})
def nvfp4_kv_quantize(input: Tensor, global_scale: Tensor) -> tuple[Tensor, Tensor]:
    """Rows to NVFP4, as :func:`fovea.paged_cache_append` stores them.

    Args:
        input: ``[rows, dim]``, dim a multiple of 16.
        global_scale: float32 ``[1]``: a value is ``code * block scale * global_scale``.

    Returns:
        Codes uint8 ``[rows, dim // 2]``, and scales of blocks as uint8 ``[rows, dim // 16]``.
    """
    count, dim = input.shape
    want(dim % _GROUP == 0 and dim > 0, "input.shape[1]", dim, f"a multiple of {_GROUP}")
    new = kv_formats()["nvfp4"].empty
    (codes, scales), (spare, spare_scales) = (new(count, 1, 1, width, device=input.device) for width in (dim, _GROUP))
    values, slots = rows(input[:, None]), torch.arange(count, device=input.device)
    options = {"k_scale": global_scale, "v_scale": global_scale, **nvfp4(scales, spare_scales)}
    paged_cache_append(values, values[..., :_GROUP], codes, spare, slots, **options)  # an append has values too
    assert scales is not None
    return codes.view(count, dim // 2), scales.view(torch.uint8).view(count, dim // _GROUP)


@adapted(axes={"fp4_data": "rows, dim / 2", "block_scales": "rows, dim / 16", "global_scale": "1"})
def nvfp4_kv_dequantize(
    fp4_data: Tensor, block_scales: Tensor, global_scale: Tensor, output_dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    """Rows of NVFP4 in ``output_dtype``: ``[rows, dim]``. The arguments are what :func:`nvfp4_kv_quantize` gives and takes."""
    count, dim = fp4_data.shape[0], 2 * fp4_data.shape[1]
    want(fp4_data.dtype == FOUR_BITS, "fp4_data.dtype", fp4_data.dtype, FOUR_BITS)
    want(block_scales.itemsize == 1, "block_scales.dtype", block_scales.dtype, f"{FOUR_BITS} or torch.float8_e4m3fn")
    want(dim % _GROUP == 0, "fp4_data.shape[1]", dim // 2, f"a multiple of {_GROUP // 2}")
    shape = [count, dim // _GROUP]
    want(list(block_scales.shape) == shape, "block_scales.shape", list(block_scales.shape), shape)
    return _decoded(fp4_data, block_scales, global_scale).to(output_dtype)


@adapted(axes=_PAGED_AXES)
def nvfp4_kv_dequantize_paged(
    paged_kv_cache: Cache,
    kv_cache_sf: Cache,
    block_tables: Tensor,
    seq_lens: Tensor,
    k_scale: Tensor,
    v_scale: Tensor,
    output_k: Tensor,
    output_v: Tensor,
    kv_layout: str = "NHD",
) -> None:
    """Writes the keys and values of NVFP4 pages to ``[batch, seq, kv_head, dim]``. Tokens from ``seq_lens[b]`` on stay as they are.

    Args:
        paged_kv_cache: As in :func:`fovea.compat.flashinfer.nvfp4_quantize_append_paged_kv_cache`; kv_cache_sf too.
        block_tables: ``[batch, pages]``, numbers of pages. A token that has none in the cache stays as it is.
        k_scale: float32 ``[1]``, as v_scale: a value is ``code * block scale * k_scale``.
        output_k: float16 or bfloat16, as output_v.
    """
    both = nvfp4_pages(paged_kv_cache, kv_cache_sf, kv_layout)
    codes, scales = both[:2], both[2:]
    want_integers({"block_tables": block_tables, "seq_lens": seq_lens}, codes[0].device)
    batch, seq = output_k.shape[:2]
    for name, tensor in (("block_tables", block_tables), ("seq_lens", seq_lens)):
        want(tensor.shape[0] == batch, f"{name}.shape[0]", tensor.shape[0], f"{batch} (output_k.shape[0])")
    count, page = codes[0].shape[0], max(codes[0].shape[1], 1)
    position = torch.arange(seq, device=codes[0].device)
    missing = max(0, -(-seq // page) - block_tables.shape[1])
    number = torch.nn.functional.pad(block_tables.long(), (0, missing), value=-1)[:, position // page]
    written = (position < seq_lens[:, None]) & (number >= 0) & (number < count)
    outs, factors = {"output_k": output_k, "output_v": output_v}, (k_scale, v_scale)
    for side, (name, out) in enumerate(outs.items()):
        heads, dim = codes[side].shape[2], 2 * codes[side].shape[3]
        want(list(out.shape) == [batch, seq, heads, dim], f"{name}.shape", list(out.shape), [batch, seq, heads, dim])
        blocks = [*codes[side].shape[:3], dim // _GROUP]
        want(list(scales[side].shape) == blocks, f"kv_cache_sf[{side}].shape", list(scales[side].shape), f"{blocks} in order NHD")
    if not count:
        return
    for side, out in enumerate(outs.values()):
        rows_of = (cache.view(FOUR_BITS)[number.clamp(0, count - 1), position % page] for cache in (codes[side], scales[side]))
        out.copy_(torch.where(written[..., None, None], _decoded(*rows_of, factors[side]).to(out.dtype), out))


def _decoded(codes: Tensor, scales: Tensor, factor: Tensor) -> Tensor:
    """float32 ``[.., dim]``."""
    numbers = torch.stack([codes & 15, codes >> 4], -1).flatten(-2).int()
    values = torch.tensor(_E2M1, device=codes.device)[numbers].unflatten(-1, (-1, _GROUP))
    return (values * (scales.view(torch.float8_e4m3fn).float() * factor)[..., None]).flatten(-2)
