# SPDX-License-Identifier: Apache-2.0
"""The paged cache of transformers' continuous batching in formats of codes."""

from math import ceil, prod
from types import FunctionType
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor
from transformers.generation.continuous_batching import PagedAttentionCache
from transformers.generation.continuous_batching import cache as cache_module
from transformers.generation.continuous_batching.cache import PagedAttentionMemoryHandler, group_layers_by_attn_type
from transformers.generation.continuous_batching.cache_allocators import (
    FULL_ATTENTION,
    SLIDING_ATTENTION,
    FullAttentionCacheAllocator,
    SlidingAttentionCacheAllocator,
)
from transformers.generation.continuous_batching.utils import find_head_dim, find_num_key_value_heads

import fovea

_ALIGNED = 128  # bytes: a page of a layer
_COPIED = 16  # bytes at once
_COPY_PAGE = 16  # tokens
_WORDS = (torch.int64, torch.int32, torch.int16, torch.uint8)
Formats = tuple[str, str]


class Pages(NamedTuple):
    """Where a layer's codes lie, ``[blocks, page, kv_head, ...]``, and the options that say their formats."""

    k: Tensor
    v: Tensor
    options: dict[str, Any]


class Copies(NamedTuple):
    """Pages of a batch, made of rings: blocks and tokens to read, where each row goes, and slots there of the new tokens."""

    read: tuple[Tensor, Tensor] | None
    rows: Tensor
    new: Tensor
    blocks: int

    def of(self, ring: Pages) -> Pages:
        """Those of a layer. Rows of new tokens hold anything yet."""
        scales = {name: self._copied(ring.options[name]) for name in ("k_scale_cache", "v_scale_cache")}
        return Pages(self._copied(ring.k), self._copied(ring.v), ring.options | scales)

    def _copied(self, ring: Any) -> Any:
        if ring is None:
            return None
        pages = ring.new_empty(self.blocks, _COPY_PAGE, *ring.shape[2:])
        if self.read is not None:
            word = next(dtype for dtype in _WORDS if not ring[0, 0].nbytes % dtype.itemsize)
            pages.flatten(2).view(word).flatten(0, 1)[self.rows] = ring.flatten(2).view(word)[self.read]
        return pages


class Step(NamedTuple):
    """A batch, as paged attention takes it."""

    slots: Tensor
    block_table: Tensor
    kv_len: Tensor
    options: dict[str, Any]
    copies: Copies | None = None


class Part(NamedTuple):
    """A tensor within the bytes of a page, ``[page, kv_head, ...]``."""

    begin: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def end(self) -> int:
        return self.begin + prod(self.shape) * self.dtype.itemsize


def _parts(formats: Formats, page: int, heads: int, dim: int) -> list[Part | None]:
    """Codes of K, their scales, codes of V, their scales. None: the format has no scales."""
    parts: list[Part | None] = []
    end = 0
    for name in formats:
        for tensor in fovea.kv_formats()[name].empty(1, page, heads, dim, device="meta"):
            if tensor is None:
                parts.append(None)
                continue
            part = Part(ceil(end / _COPIED) * _COPIED, tuple(tensor.shape[1:]), tensor.dtype)
            parts.append(part)
            end = part.end
    return parts


class CodesAllocator(FullAttentionCacheAllocator):
    """Gives a sequence blocks, which have a page of codes and scales for each layer.

    Indices are slots of paged attention, ``block * page + token``. Every layer sees all blocks: its pages are strided.
    """

    formats: Formats

    @classmethod
    def get_bytes_per_page(cls, num_key_value_heads: int, head_dim: int, cache_dtype: torch.dtype, page_size: int) -> int:
        last = max(part.end for part in _parts(cls.formats, page_size, num_key_value_heads, head_dim) if part is not None)
        return ceil(last / _ALIGNED) * _ALIGNED

    def register_cache_tensor(self, bytes_per_sector: int, non_trash_bytes: int, cache_tensor: Tensor, pool: Any) -> None:
        self.bytes_per_sector, self.block_physical_stride = bytes_per_sector, self.tokens_per_page
        blocks = self._copy_view = cache_tensor.view(-1, self.bytes_per_block)
        self._after_cache_tensor_init(non_trash_bytes, bytes_per_sector, cache_tensor, pool)
        parts = _parts(self.formats, self.tokens_per_page, self.num_key_value_heads, self.head_dim)
        self.pages = {layer: self._pages(blocks, parts, at) for at, layer in enumerate(self.layer_indices)}

    def _pages(self, blocks: Tensor, parts: list[Part | None], at: int) -> Pages:
        page = blocks[:, at * self.bytes_per_page : (at + 1) * self.bytes_per_page]
        k, k_scales, v, v_scales = (
            None if part is None else page[:, part.begin : part.end].view(part.dtype).unflatten(1, part.shape) for part in parts
        )
        assert k is not None and v is not None
        k_format, v_format = self.formats
        return Pages(k, v, {"k_format": k_format, "v_format": v_format, "k_scale_cache": k_scales, "v_scale_cache": v_scales})

    def step(self, call: dict[str, Any]) -> Step:
        """Turns the manager's lists of a batch into slots and tables. Every number stays on the device."""
        starts = call["cu_seq_lens_k"][self.layer_type].to(torch.int32)
        kv_len, tables = starts.diff(), call.get("block_table")
        if tables is not None:  # a token of each
            table, ends = tables[self.index], {"cu_seqlens_q": call["cu_seq_lens_q"], "max_seqlen_q": 1}
            return Step(last_slots(table, kv_len, self.tokens_per_page), table, kv_len, ends)
        read, write = (call[f"{name}_index"][self.index] for name in ("read", "write"))
        listed = read if read.numel() else write  # whole prompts need not be read back, and have all their slots written
        options = self.bounds(call)
        first = starts[:-1, None] + torch.arange(0, options["max_kv_len"], self.tokens_per_page, device=starts.device)
        table = (listed[first.clamp(max=listed.numel() - 1)] // self.tokens_per_page).to(torch.int32)
        return Step(write, table, kv_len, options)

    def bounds(self, call: dict[str, Any]) -> dict[str, Any]:
        longest = call["max_length_k"][self.layer_type]
        return {"cu_seqlens_q": call["cu_seq_lens_q"], "max_seqlen_q": call["max_length_q"], "max_kv_len": longest}

    def store(self, k: Tensor, v: Tensor, layer: int, step: Step) -> Pages:
        """Appends new rows. Returns the pages that attention reads."""
        pages = self.pages[layer]
        fovea.paged_cache_append(k, v, pages.k, pages.v, step.slots, **pages.options)
        return pages


class WindowCodesAllocator(CodesAllocator, SlidingAttentionCacheAllocator):
    """Rings of codes: a new token takes the place of one that left its window.

    The first of several new tokens see what the last ones overwrite. So attention reads copies of the codes, whose sequences lie in
    pages of their own.
    """

    def step(self, call: dict[str, Any]) -> Step:
        starts, ends = call["cu_seq_lens_k"][self.layer_type].long(), call["cu_seq_lens_q"].long()
        read, write = (call[f"{name}_index"][self.index] for name in ("read", "write"))
        kv_len, page = starts.diff(), _COPY_PAGE
        first = torch.nn.functional.pad(-(kv_len // -page), (1, 0)).cumsum(0)  # page of each sequence, and the end
        most = -(max(read.numel(), write.numel()) // -page) + len(kv_len)  # pages; the next one has rows of no sequence
        old, new = (torch.arange(rows.numel(), device=starts.device) for rows in (read, write))
        in_order = first[:-1] * page - starts[:-1], first[:-1] * page + kv_len - ends[1:]
        targets = [
            torch.where(
                row < bound[-1], row + shift[torch.searchsorted(bound[1:], row, right=True).clamp(max=len(shift) - 1)], none
            )
            for row, bound, shift, none in zip((old, new), (starts, ends), in_order, (most * page, -1), strict=True)
        ]
        options = self.bounds(call)
        table = first[:-1, None] + torch.arange(-(options["max_kv_len"] // -page), device=starts.device)
        places = (read // self.tokens_per_page, read % self.tokens_per_page) if read.numel() else None
        copies = Copies(places, *targets, most + 1)
        return Step(write, table.clamp(max=most).int(), kv_len.int(), options, copies)

    def store(self, k: Tensor, v: Tensor, layer: int, step: Step) -> Pages:
        assert step.copies is not None
        copied = step.copies.of(self.pages[layer])
        fovea.paged_cache_append(k, v, copied.k, copied.v, step.copies.new, **copied.options)
        super().store(k, v, layer, step)
        return copied


def last_slots(block_table: Tensor, kv_len: Tensor, page: int) -> Tensor:
    """The slot of each sequence's last token; -1 of a sequence without tokens, which pads a batch."""
    position = kv_len.long() - 1
    block = block_table.gather(1, (position.clamp(min=0) // page)[:, None])[:, 0]
    return torch.where(position < 0, -1, block * page + position % page)


class _Memory(PagedAttentionMemoryHandler):
    """Counts no keys and values beside the cache where nothing is copied from it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if SLIDING_ATTENTION not in kwargs["attn_types"]:
            self.kv_heads_at_peak = 0


class CodesCache(PagedAttentionCache):
    """The manager's cache, whose blocks hold codes. It shares, copies and offloads them as those of any dtype."""

    def __init__(self, formats: Formats, *args: Any, **kwargs: Any) -> None:
        kinds = {kind: type(base.__name__, (base,), {"formats": formats}) for kind, base in _ALLOCATORS.items()}
        _constructor(kinds)(self, *args, **kwargs)
        if not all(isinstance(own, CodesAllocator) for own in self.cache_allocators.values()):
            want = "5.23 or 5.24, whose cache takes its allocators by name"
            raise NotImplementedError(f"transformers: got {transformers.__version__}, want {want}")
        self.attention = self.config._attn_implementation
        self._steps: dict[int, tuple[Any, Step]] = {}

    @torch.compiler.disable
    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, kwargs: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Appends a layer's rows as codes, and says in kwargs where they are. Returns the rows."""
        if self.config._attn_implementation != self.attention:
            got, want = self.config._attn_implementation, f"{self.attention!r}, which this cache of codes was made for"
            raise NotImplementedError(f"attn_implementation: got {got!r}, want {want}")
        allocator: Any = self.layer_to_allocator[layer_idx]
        step = self._shared_step(allocator, layer_idx, kwargs)
        k, v = (rows[0].transpose(0, 1) for rows in (key_states, value_states))
        kwargs["fovea_codes"] = allocator.store(k, v, layer_idx, step), step
        return key_states, value_states

    def _shared_step(self, allocator: Any, layer: int, call: dict[str, Any]) -> Step:
        """The first layer of an allocator computes it, and the others share it. So a CUDA graph has it inside."""
        of, step = self._steps.get(allocator.index, (None, None))
        if step is None or of is not call["write_index"] or layer == allocator.layer_indices[0]:
            step = allocator.step(call)
            self._steps[allocator.index] = call["write_index"], step
        return step


_ALLOCATORS = {FULL_ATTENTION: CodesAllocator, SLIDING_ATTENTION: WindowCodesAllocator}


def _constructor(kinds: dict[str, Any]) -> FunctionType:
    """The base class's constructor with other allocators in its scope. It sizes blocks and memory by what they say."""
    names = {
        "ATTN_TYPE_TO_ALLOCATOR": kinds,
        "FullAttentionCacheAllocator": kinds[FULL_ATTENTION],
        "PagedAttentionMemoryHandler": _Memory,
    }
    init: Any = PagedAttentionCache.__init__
    own = FunctionType(init.__code__, vars(cache_module) | names, init.__name__, init.__defaults__, init.__closure__)
    own.__kwdefaults__ = init.__kwdefaults__
    return own


def check_model(config: Any, formats: Formats) -> None:
    """Refuses in the caller's thread what the manager's would only log."""
    for kind in group_layers_by_attn_type(config):
        if kind not in _ALLOCATORS:
            raise NotImplementedError(f"layer_types: got {kind!r}, want one of {list(_ALLOCATORS)} over a cache of codes")
    _parts(formats, 1, find_num_key_value_heads(config), find_head_dim(config))
