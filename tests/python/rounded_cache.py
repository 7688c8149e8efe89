# SPDX-License-Identifier: Apache-2.0
"""Rows as a model reads them from a cache of codes, held by transformers' own cache."""

import torch
from transformers import DynamicCache

import fovea

FORMATS = ["int8_token", "e4m3_token", "int4_token", "e5m2", "nvfp4"]


class Rounded(DynamicCache):
    """transformers' own cache, of rows that went through a quantiser."""

    def __init__(self, k_format, v_format):
        super().__init__()
        self.formats = k_format, v_format

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        rows = (restored(side, name) for side, name in zip((key_states, value_states), self.formats, strict=True))
        return super().update(*rows, layer_idx, *args, **kwargs)


def restored(rows, name):
    """Rows as attention reads them: the only key of a sequence has all weight."""
    batch, heads, tokens, dim = rows.shape
    flat = rows.transpose(1, 2).flatten(0, 1).contiguous()
    kind = fovea.kv_formats()[name]
    (k, k_scales), (v, v_scales) = (kind.empty(batch * tokens, 1, heads, dim, device=flat.device) for _ in "kv")
    formats = {"k_format": name, "v_format": name, "k_scale_cache": k_scales, "v_scale_cache": v_scales}
    fovea.paged_cache_append(flat, flat, k, v, torch.arange(batch * tokens, device=flat.device), **formats)
    integers = {"dtype": torch.int32, "device": flat.device}
    table, lengths = torch.arange(batch * tokens, **integers)[:, None], torch.ones(batch * tokens, **integers)
    out = fovea.paged_attention(torch.zeros_like(flat), k, v, table, lengths, **formats)
    return out.unflatten(0, (batch, tokens)).transpose(1, 2)


def pieces(tokens):
    """A prompt in chunks, then single tokens."""
    ends = [12, 18, 19, 20, 21]
    return [(tokens[:, begin:end], end) for begin, end in zip([0, *ends], ends, strict=False)]
