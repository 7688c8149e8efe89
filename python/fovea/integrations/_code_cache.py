# SPDX-License-Identifier: Apache-2.0
"""A cache of transformers in a format of codes, and attention that reads the codes in place."""

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

import fovea
from fovea._calls import adapted
from fovea.integrations._masked import NEED_EAGER, bands_of
from fovea.integrations._row_bands import MaskRefused, RowBand, times_in_batch
from fovea.integrations._segments import Segments

_PAGE = 16


class KvCache(Cache):
    """``past_key_values`` of a model with ``attn_implementation="fovea"``, in a format of codes.

    :func:`fovea.kv_formats` lists the formats.

    >>> model.generate(tokens, past_key_values=KvCache("int8_token"))

    Attention reads the codes in place. Padding and sliding windows work. Other masks raise
    NotImplementedError. The cache grows as tokens come, and beam search reorders it.
    """

    @adapted()
    def __init__(self, k_format: str, v_format: str | None = None) -> None:
        """
        Args:
            k_format: A name of :func:`fovea.kv_formats`, of keys.
            v_format: The format of values; that of keys if None.
        """
        formats = formats_of(k_format, v_format)
        super().__init__(layer_class_to_replicate=lambda: CodesLayer(*formats))  # type: ignore[arg-type]


def formats_of(k_format: str, v_format: str | None) -> tuple[str, str]:
    """Those of keys and of values."""
    formats = (k_format, k_format if v_format is None else v_format)
    for name, got in zip(("k_format", "v_format"), formats, strict=True):
        if got not in fovea.kv_formats():
            raise ValueError(f"{name}: got {got!r}, want one of {', '.join(fovea.kv_formats())}")
    return formats


class CodesLayer(CacheLayerMixin):
    """Codes and scales of one layer, ``[batch, token, kv_head, ...]``. The tensors that update() returns stand for them."""

    is_sliding = False
    is_croppable = True

    def __init__(self, *formats: str) -> None:
        super().__init__()
        self.formats, self.length = formats, 0
        self.value_dim = 0
        self.sides: list[tuple[Tensor, Tensor | None]] = []
        """Cache and scales of K, then of V."""

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.value_dim = value_states.shape[3]
        self.sides, self.is_initialized = self._empty((key_states, value_states), key_states.shape[2]), True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Appends, and returns tensors of the whole cache's shape.

        Each holds one NaN, which no other attention can miss.
        """
        new = (key_states, value_states)
        if not self.is_initialized:
            self.lazy_initialization(*new)
        batch, _, tokens, _ = key_states.shape
        if batch != self.sides[0][0].shape[0]:
            raise ValueError(f"key_states.shape[0] (batch): got {batch}, want {self.sides[0][0].shape[0]}, that of the cache")
        end = self.length + tokens
        if end > self._capacity:
            self._grow(new, max(end, 2 * self._capacity))
        slots = torch.arange(batch, device=key_states.device)[:, None] * self._capacity
        slots = (slots + torch.arange(self.length, end, device=key_states.device)).flatten()
        caches, options = self.paged(1)
        k, v = (rows.transpose(1, 2).flatten(0, 1) for rows in new)
        fovea.paged_cache_append(k, v, *caches, slots, **options)
        self.length = end
        return tuple(self._stand_in(rows) for rows in new)  # type: ignore[return-value]

    def paged(self, page: int) -> tuple[tuple[Tensor, Tensor], dict[str, Any]]:
        """K and V as blocks of a paged cache, and the options that say their formats."""
        k, v = (cache.reshape(-1, page, *cache.shape[2:]) for cache, _ in self.sides)
        scales = [None if scales is None else scales.reshape(-1, page, *scales.shape[2:]) for _, scales in self.sides]
        (k_format, v_format), (k_scales, v_scales) = self.formats, scales
        return (k, v), {"k_format": k_format, "v_format": v_format, "k_scale_cache": k_scales, "v_scale_cache": v_scales}

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1

    def reset(self) -> None:
        self.sides, self.length, self.is_initialized = [], 0, False

    def crop(self, tokens_to_remove: int) -> None:
        """Removes the last tokens. transformers passes their number, negated."""
        if tokens_to_remove > 0:
            raise ValueError(f"tokens_to_remove: got {tokens_to_remove}, want 0 or less")
        self.length = max(0, self.length + tokens_to_remove)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        self._map(lambda tensor: tensor[indices.to(tensor.device)])

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._map(lambda tensor: tensor.repeat_interleave(repeats, dim=0))

    def offload(self) -> None:
        raise NotImplementedError("offloading: got a cache of codes, want one of transformers'")

    @property
    def _capacity(self) -> int:
        return self.sides[0][0].shape[1]

    def _empty(self, rows: tuple[Tensor, Tensor], capacity: int) -> list[tuple[Tensor, Tensor | None]]:
        """Capacities are whole pages."""
        tokens = -(-capacity // _PAGE) * _PAGE
        return [
            fovea.kv_formats()[name].empty(side.shape[0], tokens, side.shape[1], side.shape[3], device=side.device)
            for name, side in zip(self.formats, rows, strict=True)
        ]

    def _grow(self, rows: tuple[Tensor, Tensor], capacity: int) -> None:
        grown = self._empty(rows, capacity)
        for old, new in zip(self.sides, grown, strict=True):
            for source, target in zip(old, new, strict=True):
                if source is not None and target is not None:
                    target[:, : self.length] = source[:, : self.length]
        self.sides = grown

    def _map(self, change: Any) -> None:
        def changed(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else change(tensor.view(torch.uint8)).view(tensor.dtype)

        def of_scales(scales: Tensor | None) -> Tensor | None:
            return None if scales is None else change(scales)

        self.sides = [(changed(cache), of_scales(scales)) for cache, scales in self.sides]  # type: ignore[misc]

    def _stand_in(self, rows: Tensor) -> Tensor:
        batch, heads, _, dim = rows.shape
        stand_in = rows.new_full((1, 1, 1, 1), torch.nan).expand(batch, heads, self.length, dim)
        stand_in._fovea_codes = self  # type: ignore[attr-defined]
        return stand_in


def codes_of(key: Tensor) -> CodesLayer | None:
    """The layer whose keys a tensor stands for."""
    return getattr(key, "_fovea_codes", None)


@torch.compiler.disable
def attend(codes: CodesLayer, q: Tensor, mask: Tensor | None, window: Any, options: dict[str, Any]) -> Tensor:
    """Attention ``[batch, seq, head, dim]`` of the last tokens over a layer's codes.

    Args:
        codes: The layer, which has these tokens already.
        q: Their queries.
        mask: The mask that transformers passes, or None.
        window: ``(left, right)``, the keys that queries see around their positions; counts where mask is None.
        options: Others of fovea.attention.
    """
    shape = (*q.shape[:2], codes.length)
    bands = _bands(mask, window, shape)
    groups = defaultdict(list)
    for row, band in enumerate(bands):
        if band.queries != slice(0, 0):
            groups[_window(band, shape)].append(row)
    out = q.new_zeros(*q.shape[:3], codes.value_dim)
    for seen, rows in groups.items():
        parts = [q[row, bands[row].queries] for row in rows]
        results = _over_rows(codes, parts, {row: bands[row] for row in rows}, {"window": seen, "causal": False, **options})
        for row, part in zip(rows, results, strict=True):
            out[row, bands[row].queries] = part
    return out


def _bands(mask: Tensor | None, window: Any, shape: tuple[int, int, int]) -> tuple[RowBand, ...]:
    batch, queries, keys = shape
    if mask is None:
        left, right = window or (None, None)
        offset = keys - queries
        bounds = (None if left is None else left - offset, None if right is None else right + offset)
        return (RowBand(slice(0, queries), slice(0, keys), *bounds),) * batch
    bands, made_for = bands_of(mask, shape)
    if isinstance(bands, Segments):
        raise MaskRefused(
            f"attention_mask: got several sequences in a row over a cache of codes, want one and padding ({NEED_EAGER})"
        )
    return bands * times_in_batch(made_for, shape)


def _count(part: slice | tuple[int, ...], size: int) -> int:
    return len(range(size)[part]) if isinstance(part, slice) else len(part)


def _window(band: RowBand, shape: tuple[int, int, int]) -> tuple[int | None, int | None]:
    """The window ``(left, right)`` of the queries. The position of the last query is that of the last key."""
    queries, keys = _count(band.queries, shape[1]), _count(band.keys, shape[2])
    offset = keys - queries
    left = None if band.left is None or band.left + offset >= keys - 1 else band.left + offset
    right = None if band.right is None or band.right - offset >= queries - 1 else band.right - offset
    if (left is not None and left < 0) or (right is not None and right < 0):
        raise MaskRefused(
            f"attention_mask: got queries that do not see their own key over a cache of codes, want them to ({NEED_EAGER})"
        )
    return left, right


def _over_rows(codes: CodesLayer, parts: list[Tensor], bands: dict[int, RowBand], options: dict[str, Any]) -> tuple[Tensor, ...]:
    """Rows of the batch with one window. A block is a page, or one token where padding comes first."""
    batch, capacity = codes.sides[0][0].shape[:2]
    kept = [list(range(codes.length)[band.keys]) if isinstance(band.keys, slice) else list(band.keys) for band in bands.values()]
    page = _PAGE if all(keys == list(range(len(keys))) for keys in kept) else 1
    if page == _PAGE:
        table = torch.arange(batch * capacity // page, dtype=torch.int32).view(batch, -1)[list(bands)]
    else:
        table = torch.zeros(len(kept), capacity, dtype=torch.int32)
        for place, (row, keys) in enumerate(zip(bands, kept, strict=True)):
            table[place, : len(keys)] = row * capacity + torch.tensor(keys, dtype=torch.int32)
    q, lengths = torch.cat(parts), [len(part) for part in parts]
    ends = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    kv_len = torch.tensor([len(keys) for keys in kept], dtype=torch.int32)
    (k, v), formats = codes.paged(page)
    table, kv_len, ends = (tensor.to(q.device) for tensor in (table, kv_len, ends))
    options = {name: option for name, option in options.items() if name != "implementation"}  # that of dense attention
    out = fovea.paged_attention(q, k, v, table, kv_len, ends, max_seqlen_q=max(lengths), **options, **formats)
    return out.split(lengths)
