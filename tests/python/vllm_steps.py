# SPDX-License-Identifier: Apache-2.0
"""Steps of an engine by hand: what vLLM gives a backend for a batch, and attention by its formula."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from types import SimpleNamespace

import torch
from torch import Tensor
from vllm.v1.attention.backend import CommonAttentionMetadata

from fovea.integrations.vllm._choice import CODES
from fovea.integrations.vllm.attention import FoveaBackend, FoveaImpl, FoveaMetadataBuilder

PAGE = 16


def _is_packed() -> bool:
    """Whether this vLLM packs its caches. Those that ask for no shape do."""
    try:
        shape = tuple(FoveaBackend.get_kv_cache_shape(3, PAGE, 5, 8))
    except AttributeError:
        return True
    assert shape in ((3, 5, PAGE, 16), (2, 3, PAGE, 5, 8))
    return len(shape) == 4


def _on_its_device(method: Callable) -> Callable:
    """Makes new tensors on the engine's device."""

    @wraps(method)
    def there(engine, *args, **kwargs):
        with torch.device(engine.device):
            return method(engine, *args, **kwargs)

    return there


@dataclass
class Engine:
    """One layer with its cache, of ``blocks`` pages full of NaN, and the sequences that it holds."""

    heads: int = 4
    kv_heads: int = 2
    head_size: int = 32
    dtype: torch.dtype = torch.bfloat16
    cache_dtype: str = "auto"
    blocks: int = 64
    packed: bool = field(default_factory=lambda: _is_packed())
    """Whether K and V of a token lie side by side."""
    options: dict = field(default_factory=dict)
    k_scale: Tensor = field(default_factory=lambda: torch.tensor(1.0))
    v_scale: Tensor = field(default_factory=lambda: torch.tensor(1.0))
    device: str = "cpu"

    @_on_its_device
    def __post_init__(self):
        self.scale = self.head_size**-0.5
        self.impl = FoveaImpl(
            self.heads, self.head_size, self.scale, self.kv_heads, kv_cache_dtype=self.cache_dtype, **self.options
        )
        self.impl.process_weights_after_loading(self.dtype)
        self.builder = FoveaMetadataBuilder(SimpleNamespace(), ["layer"], SimpleNamespace(), torch.device(self.device))
        row = self.head_size + (4 if self.cache_dtype in CODES else 0)
        shape = (self.blocks, self.kv_heads, PAGE, 2 * row)
        if not self.packed:
            shape = (2, self.blocks, PAGE, self.kv_heads, row)
        if self.cache_dtype == "auto":
            self.cache = torch.full(shape, torch.nan, dtype=self.dtype)
        else:
            self.cache = torch.full(shape, 0x7F, dtype=torch.uint8)  # NaN
        if self.packed:  # [blocks, token, head, K then V] in memory, as vLLM has it
            self.cache = self.cache.transpose(1, 2).contiguous().transpose(1, 2)
        self.layer = SimpleNamespace(_k_scale=self.k_scale.to(self.device), _v_scale=self.v_scale.to(self.device))
        self.free = torch.randperm(self.blocks).tolist()
        self.tables: list[list[int]] = []
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    @_on_its_device
    def add(self, count: int = 1) -> None:
        for _ in range(count):
            self.tables.append([])
            self.keys.append(torch.empty(0, self.kv_heads, self.head_size, dtype=self.dtype))
            self.values.append(self.keys[-1])

    def fork(self, sequence: int, tokens: int) -> int:
        """A new sequence that shares whole pages of another one: prefix caching."""
        assert tokens % PAGE == 0
        self.tables.append(self.tables[sequence][: tokens // PAGE])
        self.keys.append(self.keys[sequence][:tokens])
        self.values.append(self.values[sequence][:tokens])
        return len(self.tables) - 1

    @_on_its_device
    def metadata(self, new: list[int], *, padded: int = 0, causal: bool = True) -> CommonAttentionMetadata:
        """``padded``: sequences without tokens at the end, as those of a captured batch."""
        slots: list[int] = []
        for table, keys, count in zip(self.tables, self.keys, new, strict=True):
            end = len(keys) + count
            while len(table) * PAGE < end:
                table.append(self.free.pop())
            slots += [table[at // PAGE] * PAGE + at % PAGE for at in range(len(keys), end)]
        width = max(map(len, self.tables)) + 2
        rows = [table + [1 << 30] * (width - len(table)) for table in self.tables] + [[-7] * width] * padded
        starts = torch.tensor([0, *new, *[0] * padded]).cumsum(0).int()
        lengths = [len(keys) + count for keys, count in zip(self.keys, new, strict=True)] + [0] * padded
        return CommonAttentionMetadata(
            query_start_loc=starts,
            query_start_loc_cpu=starts.cpu(),
            seq_lens=torch.tensor(lengths, dtype=torch.int32),
            num_reqs=len(lengths),
            num_actual_tokens=sum(new),
            max_query_len=max(new),
            max_seq_len=max(lengths),
            block_table_tensor=torch.tensor(rows, dtype=torch.int32),
            slot_mapping=torch.tensor(slots, dtype=torch.int64),
            causal=causal,
        )

    @_on_its_device
    def step(self, new: list[int], *, padded: int = 0, padding: int = 0, causal: bool = True) -> tuple[Tensor, Tensor]:
        """The output of the layer, and attention by its formula. ``padding``: rows of q, k and v that nobody has."""
        common = self.metadata(new, padded=padded, causal=causal)
        metadata = self.builder.build(0, common)
        total = sum(new)
        width = (self.heads + 2 * self.kv_heads) * self.head_size
        qkv = torch.randn(total + padding, width).to(self.dtype)  # one projection, which q, k and v are slices of
        qkv[total:] = torch.nan
        q, k, v = qkv.split([part * self.head_size for part in (self.heads, self.kv_heads, self.kv_heads)], dim=-1)
        q, k, v = (part.unflatten(-1, (-1, self.head_size)) for part in (q, k, v))
        output = torch.full((total + padding, self.heads, self.head_size), 7.0, dtype=self.dtype)
        with torch.inference_mode():
            self.impl.do_kv_cache_update(self.layer, k, v, self.cache, common.slot_mapping)
            assert self.impl.forward(self.layer, q, k, v, self.cache, metadata, output) is output
        want = []
        for at, (sequence, count) in enumerate(zip(range(len(new)), new, strict=True)):
            begin = int(common.query_start_loc[at])
            rows = slice(begin, begin + count)
            self.keys[sequence] = torch.cat([self.keys[sequence], k[rows]])
            self.values[sequence] = torch.cat([self.values[sequence], v[rows]])
            want.append(self.formula(q[rows], self.keys[sequence], self.values[sequence], causal))
        assert (output[total:] == 7).all()
        return output[:total], torch.cat(want)

    @_on_its_device
    def formula(self, q: Tensor, keys: Tensor, values: Tensor, causal: bool = True) -> Tensor:
        """Attention in float64, the queries being the last tokens."""
        if self.cache_dtype in CODES:
            keys, values = (_with_scales(rows, CODES[self.cache_dtype]) for rows in (keys, values))
        elif self.cache_dtype != "auto":
            keys, values = (_rounded(rows, scale) for rows, scale in ((keys, self.k_scale), (values, self.v_scale)))
        group = self.heads // self.kv_heads
        k, v = (rows.double().repeat_interleave(group, dim=1) for rows in (keys, values))
        scores = torch.einsum("qhd,khd->hqk", q.double(), k) * self.scale
        softcap = self.options.get("logits_soft_cap")
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        position = torch.arange(len(q))[:, None] + len(k) - len(q)
        behind = position - torch.arange(len(k))
        seen = behind >= 0 if causal else torch.ones_like(behind, dtype=torch.bool)
        window = self.options.get("sliding_window")
        if window is not None:
            seen = seen & (behind < window) & (causal | (behind > -window))
        scores = scores.masked_fill(~seen, -torch.inf)
        sinks = self.options.get("sinks")
        if sinks is not None:
            scores = torch.cat([scores, sinks.to(self.device).double()[:, None, None].expand(-1, len(q), 1)], dim=-1)
        weights = scores.softmax(-1)[..., : len(k)].nan_to_num()
        return torch.einsum("hqk,khd->qhd", weights, v)


def _with_scales(rows: Tensor, format: str) -> Tensor:
    """The rows as a cache of codes holds them, with a scale for each row.

    torch divides by a number in another way on GPUs, which rounds codes between two numbers differently.
    """
    most, values = 127 if format == "int8_token" else 448, rows.float().cpu()
    scale = (values.abs().amax(-1, keepdim=True) / most).clamp(min=1e-6)
    codes = values * (1 / scale)
    codes = codes.round() if format == "int8_token" else codes.clamp(-448, 448).to(torch.float8_e4m3fn)
    return (codes.double() * scale).to(rows.device)


def _rounded(rows: Tensor, scale: Tensor) -> Tensor:
    """The rows as an e4m3 cache holds them."""
    scale = scale.reshape(-1, 1) if scale.numel() > 1 else scale
    return (rows.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn).double() * scale
