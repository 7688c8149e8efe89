# SPDX-License-Identifier: Apache-2.0
"""A layer of transformers' continuous batching over pages of codes on this machine's GPU: appends a batch's rows and attends. Each
case is checked against the same layer over bf16 pages, and timed with it by turns. Writes a JSON file. Needs transformers."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from gpu import DEVICE, Bench, Subject
from torch import Tensor
from transformers import AttentionInterface, MistralConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching import continuous_api
from transformers.generation.continuous_batching.requests import RequestState

import fovea.integrations.transformers

HEADS, KV_HEADS, DIM = 32, 8, 128
FORMATS = ("int8_token", "e4m3_token", "int4_token", "nvfp4", "e5m2")
WORST = {"int8_token": 0.02, "e4m3_token": 0.06, "int4_token": 0.2, "nvfp4": 0.2, "e5m2": 0.12}  # of a result's norm
DTYPE = torch.bfloat16


@dataclass
class Case:
    format: str
    batch: int
    past: int  # tokens of each sequence that are in the cache
    new: int = 1
    window: int = 0  # 0: full attention
    page: int = 256

    @property
    def name(self) -> str:
        kind = "decode" if self.new == 1 else f"{self.new} new" if self.past else "prompt"
        window = f" window {self.window}" if self.window else ""
        return f"{kind} {self.batch} x {self.past or self.new}{window} page {self.page} {self.format}"

    def tiny(self) -> "Case":
        smaller = {name: min(getattr(self, name), most) for name, most in (("past", 96), ("new", 48), ("window", 40))}
        return replace(self, batch=2, page=16, **smaller)


SHAPES = [(64, 8192), (64, 4096, 1, 4096), (1, 32768), (1, 8192, 256), (1, 0, 4096), (8, 0, 512)]
CASES = [Case(name, *shape) for shape in SHAPES for name in FORMATS]


class OneRank:
    tp_size = 1


class Layer:
    """A cache of one layer as the manager makes it, its sequences, and a batch of them."""

    def __init__(self, case: Case, format: str | None) -> None:
        fovea.integrations.transformers.register("fovea_bench", k_format=format)
        kind = "sliding_attention" if case.window else "full_attention"
        sizes = {"num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": DIM, "hidden_size": HEADS * DIM}
        config = MistralConfig(**sizes, num_hidden_layers=1, vocab_size=8, layer_types=[kind], sliding_window=case.window or None)
        config._attn_implementation = "fovea_bench"
        tokens = case.past + case.new
        blocks = case.batch * -(-tokens // case.page)
        batching = ContinuousBatchingConfig(page_size=case.page, num_blocks=blocks, max_batch_tokens=8192, max_memory_percent=1.0)
        batching.max_requests_per_batch, batching.max_blocks_per_request = case.batch, -(-tokens // case.page)
        options = {"continuous_batching_config": batching, "device": torch.device(DEVICE), "distributed_helper": OneRank()}
        self.cache: Any = continuous_api.PagedAttentionCache(config=config, dtype=DTYPE, **options)
        self.case, (self.allocator,) = case, self.cache.cache_allocators.values()
        self.module: Any = torch.nn.Module()
        self.module.layer_idx, self.module.is_causal = 0, True
        for sequence in range(case.batch):
            state = RequestState(request_id=str(sequence), initial_tokens=[1])
            assert self.cache.can_store_request_tokens(state, tokens)
        self.past = rows(1, case.past)
        for sequence in range(case.batch if case.past else 0):
            self.update(self.past, self.call([sequence], 0, case.past))
        self.attend = AttentionInterface()["fovea_bench"]
        self.batch = self.call(range(case.batch), case.past, case.new)

    def call(self, sequences: Any, past: int, new: int) -> dict[str, Any]:
        """The arguments that the manager passes to every layer."""
        kind, keys, count = self.allocator.layer_type, self.allocator.get_seqlen_k(past, new), len(sequences)
        ends = torch.arange(count + 1, dtype=torch.int32, device=DEVICE)
        call: dict[str, Any] = {"cu_seq_lens_q": ends * new, "cu_seq_lens_k": {kind: ends * keys}, "block_table": None}
        call |= {"max_length_q": new, "max_length_k": {kind: keys}}
        read: list[list[int]] = [[]]
        write: list[list[int]] = [[]]
        if past and new == 1 and self.allocator.supports_block_table:
            table = torch.full((1, count, self.cache.max_blocks_per_request), -1, dtype=torch.int32)
            for at, sequence in enumerate(sequences):
                self.cache.fill_block_table(str(sequence), past, new, table[:, at])
            call["block_table"] = table.to(DEVICE)
        else:
            for sequence in sequences:
                self.cache.extend_read_and_write_indices(str(sequence), past, new, read if past else None, write)
        lists = {"read_index": read, "write_index": write}
        return call | {name: [torch.tensor(one, device=DEVICE).long() for one in of] for name, of in lists.items()}

    def update(self, qkv: list[Tensor], call: dict[str, Any]) -> None:
        self.cache.update(*qkv[1:], 0, dict(call))

    @torch.inference_mode()
    def run(self, qkv: list[Tensor]) -> Tensor:
        call = self.batch | {name: dict(self.batch[name]) for name in ("cu_seq_lens_k", "max_length_k")}
        window = {"sliding_window": self.case.window} if self.case.window else {}
        return self.attend(self.module, *qkv, None, cache=self.cache, is_causal=True, **window, **call)[0]


def rows(batch: int, tokens: int) -> list[Tensor]:
    """Queries, keys and values ``[1, head, token, dim]``."""
    torch.manual_seed(2)
    shapes = ((batch * tokens, heads, DIM) for heads in (HEADS, KV_HEADS, KV_HEADS))
    return [torch.randn(shape, device=DEVICE, dtype=DTYPE)[None].transpose(1, 2) for shape in shapes]


class Batch(Subject):
    graph, layers = True, False

    def __init__(self, case: Case) -> None:
        self.case, self.qkv = case, rows(case.batch, case.new)
        self.codes = Layer(case, case.format)
        self.plain = Layer(case, None)
        pairs = case.new * case.past + case.new * (case.new + 1) // 2
        keys = min(case.past, case.window - 1) + case.new if case.window else case.past + case.new
        self.flops = 4 * case.batch * HEADS * DIM * (keys if case.new == 1 else pairs)
        row = fovea.kv_formats()[case.format].row_bytes(DIM)
        self.bytes = 2 * case.batch * (keys * KV_HEADS * row + case.new * HEADS * DIM * 2)

    def run(self, schedule: None = None) -> Tensor:
        return self.codes.run(self.qkv)

    def over_bf16(self) -> Tensor:
        return self.plain.run(self.qkv)

    def check(self, call: Callable[[], Tensor] | None = None) -> float:
        got, want = (call or self.run)().float(), self.over_bf16().float()
        error = float((got - want).norm() / want.norm())
        if not error < WORST[self.case.format]:  # NaN must fail too
            raise ArithmeticError(f"relative error {error:.1e}")
        return error

    def peers(self, shared: bool) -> dict[str, Callable[[], Tensor]]:
        return {"bf16": self.over_bf16}


def main() -> None:
    bench = Bench("continuous-batching-codes", __doc__)
    bench.rows(CASES, lambda case: bench.row(Batch(case)), bench.results.setdefault("cases", []))
    bench.finish()


if __name__ == "__main__":
    main()
