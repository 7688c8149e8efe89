# SPDX-License-Identifier: Apache-2.0
"""Decodes with a DeepSeek-V3.2-shaped model, whose indexer chooses what each query reads, and checks it.

The model is transformers' DeepseekV32 with few and small layers and weights from a fixed seed. A layer has
two paged caches. One holds latent rows, which all heads read: 512 values and 64 rotary ones. The other holds
keys of the indexer in 132 bytes a token: 128 e4m3 codes and a scale.

`fovea.index_logits` scores all tokens for each query, and `fovea.topk_rows` lists the best as slots of the
cache. `fovea.sparse_latent_attention` reads those alone. Prefill and decode are the same four calls a layer,
with `fovea.quantize_latent_cache`, which packs new rows.

The model's own eager attention checks the logits, by the same lists. Its indexer, in float32, checks the
lists. Neither has the Hadamard transform of DeepSeek's checkpoints, as it changes no dot product. Small
errors of packed rows send tokens to other experts, which makes the largest error several times the median.

On a GPU latent rows are bfloat16, as kernels there take 16 bits, and all else stays float32.

Needs: torch and transformers 5.23 or newer.
"""

import argparse
import os
import sys
from dataclasses import dataclass, field

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--top-k", type=int, default=32, metavar="N", help="tokens that a query reads (default: %(default)s)")
    parser.add_argument("--new-tokens", type=int, default=8, metavar="N", help="tokens to decode (default: %(default)s)")
    parser.add_argument("--device", default="cpu", metavar="NAME", help="where the model runs (default: %(default)s)")
    options = parser.parse_args(arguments)
    if min(options.top_k, options.new_tokens) < 1:
        parser.error("--top-k and --new-tokens must be at least 1")
    return options


if __name__ == "__main__":
    OPTIONS = parse()  # before the imports of torch, so that --help needs none

import torch
from torch import Tensor
from transformers import DeepseekV32Config, DeepseekV32ForCausalLM
from transformers.models.deepseek_v32.modeling_deepseek_v32 import apply_rotary_pos_emb, apply_rotary_pos_emb_interleave

import fovea

LATENT, ROPE, INDEX = 512, 64, 128
SCALE_BYTES = 4  # of a key of the indexer
PROMPT_LENGTHS = [7, 70, 121]
PAGE = 64
E4M3_MOST = 448.0
F32_TOLERANCE = 1e-4  # what f32 rounding may add up to in a few layers
ROUNDED_TOLERANCE = 1 / 16  # what codes may cost: a value is off by 1/16 of itself at most
LEAST_SHARE = 0.9  # of the tokens of a list that float32 would list too


def small_model(top_k: int) -> DeepseekV32ForCausalLM:
    torch.manual_seed(0)
    config = DeepseekV32Config(
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
        index_head_dim=INDEX,
        index_n_heads=16,
        index_topk=top_k,
        initializer_range=0.05,  # large enough for attention to single tokens out
    )
    return DeepseekV32ForCausalLM._from_config(config, attn_implementation="eager").eval()


def to_e4m3(values: Tensor) -> tuple[Tensor, Tensor]:
    """Codes, and one scale for each row of values."""
    scale = values.abs().amax(dim=-1).clamp(min=1e-4) / E4M3_MOST
    return (values / scale[..., None]).to(torch.float8_e4m3fn), scale


class Cache:
    """Latent rows and keys of the indexer of all layers, in blocks which sequences own by number, in any order."""

    def __init__(self, config: DeepseekV32Config, format: str, top_k: int, longest: int):
        self.format, self.top_k = format, top_k  # "rows" or a packed format
        layers, sequences, per_sequence = config.num_hidden_layers, len(PROMPT_LENGTHS), -(-longest // PAGE)
        blocks = sequences * per_sequence
        self.block_table = torch.randperm(blocks, dtype=torch.int32).view(sequences, per_sequence)
        device = self.block_table.device
        self.dtype = torch.float32 if format == "rows" and device.type == "cpu" else torch.bfloat16  # to the kernels
        self.rows = [
            torch.zeros(blocks, PAGE, 1, LATENT + ROPE, dtype=self.dtype)
            if format == "rows"
            else fovea.cache_formats()[format].empty(blocks, PAGE, device=device)
            for _ in range(layers)
        ]
        self.keys = [torch.zeros(blocks, PAGE * (INDEX + SCALE_BYTES), dtype=torch.uint8) for _ in range(layers)]
        self.position = torch.zeros(blocks * PAGE, dtype=torch.long)  # of the token in a slot
        self.lists: list[list[Tensor]] = [[] for _ in range(layers)]  # positions listed in each step, for the check

    def write(self, layer: int, rows: Tensor, keys: Tensor, step: "Step") -> None:
        self.position[step.slots] = step.positions
        if self.format == "rows":
            self.rows[layer].view(-1, LATENT + ROPE)[step.slots] = rows.to(self.dtype)
        else:
            fovea.quantize_latent_cache(rows, self.rows[layer], step.slots, format=self.format)
        codes, scales = self.key_views(layer)
        block, slot = step.slots // PAGE, step.slots % PAGE
        new_codes, scales[block, slot] = to_e4m3(keys)
        codes.view(torch.uint8)[block, slot] = new_codes.view(torch.uint8)

    def key_views(self, layer: int) -> tuple[Tensor, Tensor]:
        """Codes and scales of the indexer's keys. A block holds the codes of all tokens, then their scales: 132 bytes a token."""
        codes, scales = self.keys[layer].split([PAGE * INDEX, PAGE * SCALE_BYTES], dim=-1)
        return codes.view(torch.float8_e4m3fn).unflatten(1, (PAGE, INDEX)), scales.view(torch.float32)

    def choose(self, layer: int, q: Tensor, weights: Tensor, step: "Step") -> Tensor:
        """For each query the slots of its best tokens, and -1 where it has fewer."""
        codes, scale = to_e4m3(q)
        table, seen = self.block_table[step.sequence], (step.positions + 1).int()  # each query is a sequence of its own
        logits = fovea.index_logits(codes, *self.key_views(layer), weights * scale, block_table=table, kv_len=seen)
        slots = fovea.topk_rows(logits, self.top_k, last=seen, block_table=table, page=PAGE)
        self.lists[layer].append(torch.where(slots < 0, -1, self.position[slots.long()]))
        return slots

    def attend(self, layer: int, q: Tensor, slots: Tensor, scale: float) -> Tensor:
        """q [tokens, head, 576] over the listed rows: [tokens, head, 512]."""
        return fovea.sparse_latent_attention(q.to(self.dtype), self.rows[layer], slots, scale=scale, format=self.format).to(q.dtype)


@dataclass
class Step:
    """The new tokens of all sequences, one behind the other."""

    tokens: Tensor
    positions: Tensor
    sequence: Tensor
    slots: Tensor = field(init=False)

    @classmethod
    def of(cls, sequences: list[Tensor], cached: list[int], cache: Cache) -> "Step":
        positions = [torch.arange(begin, len(tokens)) for tokens, begin in zip(sequences, cached, strict=True)]
        owner = torch.arange(len(sequences)).repeat_interleave(torch.tensor([len(new) for new in positions]))
        tokens = torch.cat([tokens[new] for tokens, new in zip(sequences, positions, strict=True)])
        step = cls(tokens, torch.cat(positions), owner)
        step.slots = cache.block_table[owner, step.positions // PAGE].long() * PAGE + step.positions % PAGE
        return step


def indexer_operands(indexer, hidden: Tensor, q_latent: Tensor, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """q [tokens, head, 128], k [tokens, 128] and the weights of heads. The first 64 values are rotated by halves."""
    sizes = [ROPE, INDEX - ROPE]
    q_rope, q_rest = indexer.wq_b(q_latent).unflatten(-1, (indexer.n_heads, INDEX)).split(sizes, dim=-1)
    k_rope, k_rest = indexer.k_norm(indexer.wk(hidden)).split(sizes, dim=-1)
    q_rope, k_rope = apply_rotary_pos_emb(q_rope, k_rope[:, None], *rope)
    weights = indexer.weights_proj(hidden) * (indexer.n_heads**-0.5 * indexer.softmax_scale)
    return torch.cat([q_rope, q_rest], dim=-1), torch.cat([k_rope[:, 0], k_rest], dim=-1), weights


def sparse_attention(attention, hidden: Tensor, rope: tuple[Tensor, Tensor], cache: Cache, layer: int, step: Step) -> Tensor:
    """DeepseekV32Attention in absorbed form: no key or value of a head is ever formed."""
    head, nope = attention.num_heads, attention.qk_nope_head_dim
    q_latent = attention.q_a_layernorm(attention.q_a_proj(hidden))
    q_nope, q_rope = attention.q_b_proj(q_latent).unflatten(-1, (head, -1)).split([nope, ROPE], dim=-1)
    latent, k_rope = attention.kv_a_proj_with_mqa(hidden).split([LATENT, ROPE], dim=-1)
    q_rope, k_rope = apply_rotary_pos_emb_interleave(q_rope, k_rope[:, None], *rope)
    index_q, index_k, weights = indexer_operands(attention.indexer, hidden, q_latent, rope)
    cache.write(layer, torch.cat([attention.kv_a_layernorm(latent), k_rope[:, 0]], dim=-1), index_k, step)
    slots = cache.choose(layer, index_q, weights, step)

    up_k, up_v = attention.kv_b_proj.weight.view(head, -1, LATENT).split([nope, attention.v_head_dim], dim=1)
    absorbed = torch.cat([torch.einsum("thn,hnl->thl", q_nope, up_k), q_rope], dim=-1)
    out = cache.attend(layer, absorbed, slots, attention.scaling)
    return attention.o_proj(torch.einsum("thl,hvl->thv", out, up_v).flatten(1))


def forward(model, step: Step, cache: Cache) -> Tensor:
    """The logits that follow each token of the step."""
    hidden = model.model.embed_tokens(step.tokens)
    rope = tuple(part[0] for part in model.model.rotary_emb(hidden[None], step.positions[None]))
    for index, layer in enumerate(model.model.layers):
        hidden = hidden + sparse_attention(layer.self_attn, layer.input_layernorm(hidden), rope, cache, index, step)
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden)[None])[0]
    return model.lm_head(model.model.norm(hidden))


def decode(model, cache: Cache, prompts: list[Tensor], new_tokens: int) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Prefills, then decodes greedily. Gives the tokens that were read, their logits, and the sequence that each row is of."""
    sequences, cached, logits, owners = prompts, [0] * len(prompts), [], []
    for _ in range(new_tokens):
        step = Step.of(sequences, cached, cache)
        logits.append(forward(model, step, cache))
        owners.append(step.sequence)
        cached = [len(tokens) for tokens in sequences]
        last = [logits[-1][step.sequence == sequence][-1] for sequence in range(len(prompts))]
        read = sequences
        sequences = [torch.cat([tokens, row.argmax().view(1)]) for tokens, row in zip(read, last, strict=True)]
    return read, logits, torch.cat(owners)


class GivenLists(torch.nn.Module):
    """Stands in for an indexer of the model: it gives lists made elsewhere, and counts what the indexer would list too."""

    def __init__(self, indexer: torch.nn.Module):
        super().__init__()
        self.indexer, self.lists, self.listed, self.shared = indexer, torch.empty(0), 0, 0

    def forward(self, *args, **kwargs) -> Tensor:
        own = self.indexer(*args, **kwargs)[0]
        whole = (self.lists >= 0).all(dim=1)  # others list all that they see
        self.listed += self.lists[whole].numel()
        self.shared += int((self.lists[whole][:, :, None] == own[whole][:, None]).sum())
        itself = torch.arange(len(self.lists))[:, None]
        return torch.where(self.lists < 0, itself, self.lists)[None].int()


def eager_with_lists(model, cache: Cache, tokens: list[Tensor], owners: Tensor) -> tuple[list[Tensor], float]:
    """Logits of the model as transformers has it, by the lists of a cache; and the share of these that its indexer has too."""
    attentions, logits = [layer.self_attn for layer in model.model.layers], []
    given = [GivenLists(attention.indexer) for attention in attentions]
    for attention, stand_in in zip(attentions, given, strict=True):
        attention.indexer = stand_in
    for sequence, row in enumerate(tokens):
        for stand_in, lists in zip(given, cache.lists, strict=True):
            stand_in.lists = torch.cat(lists)[owners == sequence][:, : len(row)]
        logits.append(model(row[None], use_cache=False).logits[0])
    for attention, stand_in in zip(attentions, given, strict=True):
        attention.indexer = stand_in.indexer
    listed = sum(stand_in.listed for stand_in in given)
    return logits, sum(stand_in.shared for stand_in in given) / listed if listed else 1.0


@torch.inference_mode()
def main(options: argparse.Namespace) -> int:
    torch.set_default_device(options.device)
    model = small_model(options.top_k)
    prompts = [torch.randint(model.config.vocab_size, (length,)) for length in PROMPT_LENGTHS]
    print(f"{len(prompts)} prompts of {PROMPT_LENGTHS} tokens, {options.new_tokens} new tokens each, pages of {PAGE}")
    print(f"indexer: top {options.top_k}, {INDEX + SCALE_BYTES} bytes a token, on {options.device}\n")
    print("logits against eager attention, and lists against its indexer, which is float32:")
    print(f"{'cache':<10}{'bytes a token':>14}{'median error':>16}{'largest':>12}{'of lists the same':>20}")
    passed = True
    for format in ("rows", "v32_fp8"):
        cache = Cache(model.config, format, options.top_k, max(PROMPT_LENGTHS) + options.new_tokens)
        tokens, logits, owners = decode(model, cache, prompts, options.new_tokens)
        eager, share = eager_with_lists(model, cache, tokens, owners)
        got = torch.cat([torch.cat(logits)[owners == sequence] for sequence in range(len(prompts))])
        want = torch.cat(eager)
        errors = (got - want).norm(dim=-1) / want.norm(dim=-1)
        print(f"{format:<10}{cache.rows[0][0, 0].nbytes:>14}{errors.median():>16.1e}{errors.max():>12.1e}{share:>20.1%}")
        exact = errors.max() <= F32_TOLERANCE and share >= LEAST_SHARE  # NaN is neither this nor close
        close = errors.median() <= ROUNDED_TOLERANCE
        passed = passed and bool(exact if cache.dtype == torch.float32 else close)
    print(f"\nwanted of float32 rows: at most {F32_TOLERANCE:g}, and {LEAST_SHARE:.0%} of lists the same")
    print(f"wanted of others: a median of at most {ROUNDED_TOLERANCE:g}")
    print("passed" if passed else "FAILED")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main(OPTIONS))
