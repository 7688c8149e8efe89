# SPDX-License-Identifier: Apache-2.0
"""Decodes with a DeepSeek-V3-shaped model from a paged latent cache, and checks it against the model's own eager attention.

The model is transformers' DeepseekV3 with few and small layers and weights from a fixed seed; its latent rows are DeepSeek's own,
512 values and 64 rotary ones. Attention is absorbed: the up-projection of the keys goes into the query, and that of the values
comes after attention. All heads then read one row of 576 numbers a token, and no key or value is ever formed.

First the exact cache decides what is generated, and must give the logits of eager attention. Then the same tokens go through the
packed FP8 cache, and through token-sparse attention, in which a query reads only the tokens that an indexer chose for it. Both cost
accuracy, which is printed. Random weights show the worst case. Their attention is spread widely, so leaving tokens out hurts. Small
errors send tokens to other experts, which makes the largest error several times the median.

Needs: torch and transformers.
"""

import os
import sys
from dataclasses import dataclass, field

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded

import torch
from torch import Tensor
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM
from transformers.models.deepseek_v3.modeling_deepseek_v3 import apply_rotary_pos_emb_interleave

import fovea

LATENT, ROPE = 512, 64
PROMPT_LENGTHS = [7, 40, 61]
NEW_TOKENS = 12
PAGE = 16
TOP_K = 24
F32_TOLERANCE = 1e-4  # what f32 rounding may add up to in a few layers
BF16_TOLERANCE = 2.0**-6  # likewise, of bf16 rounding


def small_model() -> DeepseekV3ForCausalLM:
    torch.manual_seed(0)
    config = DeepseekV3Config(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=512,
        moe_intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=8,
        num_key_value_heads=8,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        q_lora_rank=128,
        kv_lora_rank=LATENT,
        qk_rope_head_dim=ROPE,
        qk_nope_head_dim=64,
        v_head_dim=64,
        initializer_range=0.05,  # large enough for attention to single tokens out
    )
    return DeepseekV3ForCausalLM._from_config(config, attn_implementation="eager").eval()


@dataclass
class Cache:
    """Latent rows of all layers in blocks, which sequences own by number, in any order."""

    config: DeepseekV3Config
    format: str  # "rows" or a packed format
    top_k: int | None = None  # tokens that a query reads; None is all, by dense attention
    layers: list[Tensor] = field(init=False)
    block_table: Tensor = field(init=False)

    def __post_init__(self):
        per_sequence = -(-(max(PROMPT_LENGTHS) + NEW_TOKENS) // PAGE)
        blocks = per_sequence * len(PROMPT_LENGTHS)
        self.block_table = torch.randperm(blocks, dtype=torch.int32).view(len(PROMPT_LENGTHS), per_sequence)
        self.layers = [
            torch.empty(blocks, PAGE, 1, LATENT + ROPE)
            if self.format == "rows"
            else fovea.cache_formats()[self.format].empty(blocks, PAGE)
            for _ in range(self.config.num_hidden_layers)
        ]

    @property
    def bytes_per_token(self) -> int:
        return self.layers[0][0, 0].nbytes

    def slots(self, sequence: int, positions: Tensor) -> Tensor:
        return self.block_table[sequence, positions // PAGE].long() * PAGE + positions % PAGE

    def write(self, layer: int, rows: Tensor, slots: Tensor) -> None:
        if self.format == "rows":
            self.layers[layer].view(-1, LATENT + ROPE)[slots] = rows
        else:
            fovea.quantize_latent_cache(rows, self.layers[layer], slots, format=self.format)

    def read(self, layer: int, slots: Tensor) -> Tensor:
        if self.format == "rows":
            return self.layers[layer].view(-1, LATENT + ROPE)[slots]
        return fovea.dequantize_latent_cache(self.layers[layer], slots, format=self.format, dtype=torch.float32)

    def attend(self, layer: int, q: Tensor, step: "Step", scale: float) -> Tensor:
        """q [total_q, head, 576] over the cache: [total_q, head, 512]."""
        same = {"scale": scale, "format": self.format, "schedule": step.schedule}
        given = q if self.format == "rows" else q.bfloat16()  # packed rows are bf16 to the kernels
        if self.top_k is None:
            out = fovea.latent_attention(given, self.layers[layer], self.block_table, step.kv_len, step.cu_seqlens, **same)
        else:
            out = fovea.sparse_latent_attention(given, self.layers[layer], self.choose(layer, q, step), **same)
        return out.to(q.dtype)

    def choose(self, layer: int, q: Tensor, step: "Step") -> Tensor:
        """For each query the slots of the tokens it should read. DeepSeek-V3.2 learns a small indexer for this; here it is
        the sum of the positive scores over the heads. -1 fills the lists of queries that have fewer tokens."""
        chosen = torch.full((len(q), self.top_k), -1, dtype=torch.int32)
        for sequence, length in enumerate(step.kv_len.tolist()):
            rows = slice(int(step.cu_seqlens[sequence]), int(step.cu_seqlens[sequence + 1]))
            slots = self.slots(sequence, torch.arange(length))
            relevance = torch.einsum("qhd,td->qht", q[rows], self.read(layer, slots)).relu().sum(dim=1)
            relevance.masked_fill_(torch.arange(length) > step.positions[rows, None], -1)  # the future
            best, tokens = relevance.topk(min(self.top_k, length), dim=-1)
            chosen[rows, : tokens.shape[1]] = torch.where(best < 0, -1, slots[tokens]).int()
        return chosen


@dataclass
class Step:
    """One ragged batch: the new tokens of each sequence, and where they go in the cache."""

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    cu_seqlens: Tensor
    kv_len: Tensor
    schedule: fovea.LatentSchedule = field(default_factory=fovea.LatentSchedule)  # the same in all layers

    @classmethod
    def of(cls, sequences: list[Tensor], cached: list[int], cache: Cache) -> "Step":
        positions = [torch.arange(begin, len(tokens)) for tokens, begin in zip(sequences, cached, strict=True)]
        ends = torch.tensor([0, *(len(new) for new in positions)]).cumsum(0)
        return cls(
            torch.cat([tokens[new] for tokens, new in zip(sequences, positions, strict=True)]),
            torch.cat(positions),
            torch.cat([cache.slots(sequence, new) for sequence, new in enumerate(positions)]),
            ends.int(),
            torch.tensor([len(tokens) for tokens in sequences], dtype=torch.int32),
        )


def latent_attention(attention, hidden: Tensor, rope: tuple[Tensor, Tensor], cache: Cache, layer: int, step: Step) -> Tensor:
    """Computes DeepseekV3Attention in absorbed form."""
    head, nope = attention.num_heads, attention.qk_nope_head_dim
    q = attention.q_b_proj(attention.q_a_layernorm(attention.q_a_proj(hidden))).unflatten(-1, (head, -1))
    q_nope, q_rope = q.split([nope, ROPE], dim=-1)
    latent, k_rope = attention.kv_a_proj_with_mqa(hidden).split([LATENT, ROPE], dim=-1)
    latent = attention.kv_a_layernorm(latent)
    q_rope, k_rope = apply_rotary_pos_emb_interleave(q_rope, k_rope[:, None], *rope)
    cache.write(layer, torch.cat([latent, k_rope[:, 0]], dim=-1), step.slots)

    up_k, up_v = attention.kv_b_proj.weight.view(head, -1, LATENT).split([nope, attention.v_head_dim], dim=1)
    absorbed = torch.cat([torch.einsum("thn,hnl->thl", q_nope, up_k), q_rope], dim=-1)
    out = cache.attend(layer, absorbed, step, attention.scaling)
    return attention.o_proj(torch.einsum("thl,hvl->thv", out, up_v).flatten(1))


@torch.inference_mode()
def forward(model, step: Step, cache: Cache) -> Tensor:
    """The logits that follow the last token of each sequence."""
    hidden = model.model.embed_tokens(step.tokens)
    rope = tuple(part[0] for part in model.model.rotary_emb(hidden[None], step.positions[None]))
    for index, layer in enumerate(model.model.layers):
        hidden = hidden + latent_attention(layer.self_attn, layer.input_layernorm(hidden), rope, cache, index, step)
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden)[None])[0]
    return model.lm_head(model.model.norm(hidden[step.cu_seqlens[1:].long() - 1]))


def decode(model, cache: Cache, sequences: list[Tensor], given: list[Tensor] | None = None) -> tuple[list[Tensor], Tensor]:
    """Prefills, then decodes greedily, or along `given` sequences. Gives tokens and logits [new token, sequence, vocabulary]."""
    cached, logits = [0] * len(sequences), []
    for _ in range(NEW_TOKENS):
        logits.append(forward(model, Step.of(sequences, cached, cache), cache))
        cached = [len(tokens) for tokens in sequences]
        following = logits[-1].argmax(dim=-1) if given is None else [tokens[n] for tokens, n in zip(given, cached, strict=True)]
        sequences = [torch.cat([tokens, token.view(1)]) for tokens, token in zip(sequences, following, strict=True)]
    return sequences, torch.stack(logits)


@torch.inference_mode()
def eager_logits(model, sequences: list[Tensor]) -> Tensor:
    """The same logits by the model as transformers has it."""
    rows = [model(tokens[None, :-1]).logits[0, -NEW_TOKENS:] for tokens in sequences]
    return torch.stack(rows, dim=1)


def error(logits: Tensor, exact: Tensor) -> Tensor:
    """The relative error of each row of logits."""
    return ((logits - exact).norm(dim=-1) / exact.norm(dim=-1)).flatten()


def main() -> int:
    model = small_model()
    prompts = [torch.randint(model.config.vocab_size, (length,)) for length in PROMPT_LENGTHS]
    everything = max(PROMPT_LENGTHS) + NEW_TOKENS
    print(f"{len(prompts)} prompts of {PROMPT_LENGTHS} tokens, {NEW_TOKENS} new tokens each, pages of {PAGE}\n")
    sequences, exact = decode(model, Cache(model.config, "rows"), prompts)
    eager = eager_logits(model, sequences)

    print("relative error of the logits, against eager attention:")
    print(f"{'cache':<10}{'attention':<14}{'bytes a token':>14}{'median':>12}{'largest':>12}{'same next token':>18}")
    results = {("rows", None): exact}
    for format, top_k in (("rows", None), ("v32_fp8", None), ("v32_fp8", everything), ("rows", TOP_K), ("v32_fp8", TOP_K)):
        cache = Cache(model.config, format, top_k)
        if (format, top_k) not in results:
            results[format, top_k] = decode(model, cache, prompts, given=sequences)[1]
        errors = error(results[format, top_k], eager)
        same = int((results[format, top_k].argmax(dim=-1) == eager.argmax(dim=-1)).sum())
        row = f"{format:<10}{'dense' if top_k is None else f'top {top_k}':<14}{cache.bytes_per_token:>14}"
        print(f"{row}{errors.median():>12.1e}{errors.max():>12.1e}{f'{same} of {len(errors)}':>18}")

    plain = error(exact, eager).max().item()
    sparse = error(results["v32_fp8", everything], results["v32_fp8", None]).max().item()
    passed = plain <= F32_TOLERANCE and sparse <= BF16_TOLERANCE  # NaN does not pass
    print(f"\nexact cache against eager attention: {plain:.1e} (at most {F32_TOLERANCE:g} wanted)")
    print(f"packed cache, all tokens listed against dense: {sparse:.1e} (at most {BF16_TOLERANCE:g} wanted)")
    print("passed" if passed else "FAILED")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
