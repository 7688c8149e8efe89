# SPDX-License-Identifier: Apache-2.0
"""A small good call of each function, as a dictionary of arguments, with changes."""

import torch

import fovea
import plain


def dense(**changes):
    call = {"q": torch.randn(2, 5, 4, 64), "k": torch.randn(2, 7, 2, 64), "v": torch.randn(2, 7, 2, 64)}
    call["out"] = torch.full((2, 5, 4, 64), torch.nan)
    call["lse"] = torch.full((2, 4, 5), torch.nan)
    return call | changes


def ragged(**changes):
    cu = torch.tensor([0, 2, 5], dtype=torch.int32)
    call = {
        "q": torch.randn(5, 4, 64),
        "k": torch.randn(5, 2, 64),
        "v": torch.randn(5, 2, 64),
        "cu_seqlens_q": cu,
        "cu_seqlens_k": cu,
    }
    call["out"] = torch.full((5, 4, 64), torch.nan)
    return call | changes


def paged(**changes):
    call = {
        "q": torch.randn(3, 4, 64),
        "k_cache": torch.randn(6, 8, 2, 64),
        "v_cache": torch.randn(6, 8, 2, 64),
        "block_table": torch.tensor([[0, 1], [2, 3]], dtype=torch.int32),
        "kv_len": torch.tensor([12, 9], dtype=torch.int32),
        "cu_seqlens_q": torch.tensor([0, 2, 3], dtype=torch.int32),
        "out": torch.full((3, 4, 64), torch.nan),
    }
    return call | changes


def append(**changes):
    call = {"k": torch.randn(3, 2, 64), "v": torch.randn(3, 2, 64), "slot_mapping": torch.tensor([0, 1, 2])}
    call |= {"k_cache": torch.full((2, 8, 2, 64), torch.nan), "v_cache": torch.full((2, 8, 2, 64), torch.nan)}
    return call | changes


def merge(**changes):
    call = {"outs": [torch.randn(3, 2, 64)] * 2, "lses": [torch.randn(3, 2)] * 2}
    call |= {"out": torch.full((3, 2, 64), torch.nan), "lse": torch.full((3, 2), torch.nan)}
    return call | changes


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


def index(**changes):
    q, k = torch.randn(3, 4, 64).to(torch.float8_e4m3fn), torch.randn(9, 64).to(torch.float8_e4m3fn)
    call = {"q": q, "k": k, "k_scale": torch.rand(9), "weights": torch.randn(3, 4), "out": torch.full((3, 9), torch.nan)}
    return call | {"first": int32(0, 2, 9), "last": int32(9, 5, 9)} | changes


def topk(**changes):
    call = {"logits": torch.randn(4, 40), "k": 6, "out": torch.zeros(4, 6, dtype=torch.int32)}
    return call | {"first": int32(0, 2, 9, 40), "last": int32(9, 5, 40, 40)} | changes


def backward(**changes):
    """After a forward pass by the definition."""
    call = dense() | {"dout": torch.randn(2, 5, 4, 64)}
    forward = [plain.attention(*(call[name][b] for name in "qkv")) for b in range(2)]
    call["out"] = torch.stack([sequence.out for sequence in forward]).float()
    call["lse"] = torch.stack([sequence.lse.T for sequence in forward]).float()
    return call | changes


def latent(**changes):
    call = {
        "q": torch.randn(2, 3, 4, 576),
        "cache": torch.randn(6, 8, 1, 576),
        "block_table": int32([0, 1], [2, 3]),
        "kv_len": int32(12, 9),
        "out": torch.full((2, 3, 4, 512), torch.nan),
    }
    return call | changes


def packed_latent(**changes):
    cache = fovea.cache_formats()["v32_fp8"].empty(6, 8)
    return latent(q=torch.randn(2, 3, 4, 576).bfloat16(), cache=cache, format="v32_fp8", out=None) | changes


def sparse(**changes):
    call = {
        "q": torch.randn(2, 3, 4, 512),
        "cache": torch.randn(6, 8, 1, 512),
        "indices": torch.zeros(2, 3, 5, dtype=torch.int32),
        "out": torch.full((2, 3, 4, 512), torch.nan),
    }
    return call | changes


def quantize(**changes):
    cache = torch.zeros(2, 8, 656, dtype=torch.uint8)
    return {"rows": torch.randn(3, 576), "cache": cache, "slot_mapping": torch.tensor([0, -1, 2]), "format": "v32_fp8"} | changes


def dequantize(**changes):
    call = quantize(**changes)
    return {name: value for name, value in call.items() if name != "rows"} | {"rows": torch.full((3, 576), torch.nan)}


def quantize_qk(**changes):
    call = {"q": torch.randn(2, 5, 4, 64), "k": torch.randn(2, 7, 2, 64)}
    return call | changes


def codes(**changes):
    """Arguments of quantized_attention; changes are of the tuples' fields, or of the other arguments."""
    qk = fovea.quantize_qk_int8(**quantize_qk())
    v = fovea.quantize_v(torch.randn(2, 7, 2, 64), dtype=torch.float8_e4m3fn)
    call = {"qk": qk._replace(**{name: value for name, value in changes.items() if name in qk._fields})}
    call["v"] = v._replace(**{name[2:]: value for name, value in changes.items() if name.startswith("v_")})
    call["out"] = torch.full((2, 5, 4, 64), torch.nan)
    return call | {name: value for name, value in changes.items() if name not in qk._fields and not name.startswith("v_")}
