# SPDX-License-Identifier: Apache-2.0
"""flashinfer.fp4_quantization over Fovea: rows of NVFP4 keys and values, whose scales of blocks lie in plain order."""

import torch
from torch import Tensor

from fovea._calls import adapted
from fovea._kv_format import kv_formats
from fovea._paged import paged_cache_append
from fovea.compat._arguments import rows
from fovea.compat.flashinfer._plan import nvfp4
from fovea.compat.flashinfer._terms import FOUR_BITS, want

__all__ = ["nvfp4_kv_dequantize", "nvfp4_kv_quantize"]

_GROUP = kv_formats()["nvfp4"].group
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
    values = torch.tensor(_E2M1, device=fp4_data.device)
    codes = torch.stack([fp4_data & 15, fp4_data >> 4], -1).flatten(1)
    scales = block_scales.view(torch.float8_e4m3fn).float() * global_scale
    return (values[codes.int()].unflatten(1, (-1, _GROUP)) * scales[..., None]).flatten(1).to(output_dtype)
