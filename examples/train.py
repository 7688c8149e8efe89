# SPDX-License-Identifier: Apache-2.0
"""Trains a small language model on the text of Python's own documentation, once with Fovea's attention and once with
PyTorch's, from the same weights over the same batches, and compares the losses.

The text is the module pydoc_data.topics, which comes with Python; a token is a byte. Needs: torch; matplotlib for --plot.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import fovea

# Bound of the difference of the losses at each step, in nats a byte. Training amplifies the rounding of attention.
LOSS_TOLERANCE = {torch.float32: 2e-3, torch.bfloat16: 5e-2}

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]  # of [batch, seq, head, head_dim]


def by_fovea(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return fovea.attention(q, k, v, causal=True)


def by_torch(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)


class Block(nn.Module):
    """Attention with fewer kv heads than query heads, then a feed-forward network."""

    def __init__(self, width: int, head_dim: int, attend: Attend):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim, self.attend = width // head_dim, width // head_dim // 2, head_dim, attend
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv = nn.Linear(width, (self.heads + 2 * self.kv_heads) * head_dim, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.norms[0](x)).unflatten(-1, (-1, self.head_dim))
        q, k, v = qkv.split([self.heads, self.kv_heads, self.kv_heads], dim=2)
        x = x + self.out(self.attend(q, k, v).flatten(2))
        return x + self.feed(self.norms[1](x))


class Model(nn.Module):
    def __init__(self, options: argparse.Namespace, attend: Attend):
        super().__init__()
        self.embedding, self.position = nn.Embedding(256, options.width), nn.Embedding(options.seq, options.width)
        self.blocks = nn.Sequential(*(Block(options.width, options.head_dim, attend) for _ in range(options.layers)))
        self.norm, self.head = nn.LayerNorm(options.width), nn.Linear(options.width, 256, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(x)))


def train(name: str, attend: Attend, text: Tensor, options: argparse.Namespace) -> list[float]:
    """The loss of each step. The same weights and batches, whatever `attend` is."""
    torch.manual_seed(1)
    model = Model(options, attend).to(options.device, options.dtype)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    start, losses = time.monotonic(), []
    for step in range(1, options.steps + 1):
        begin = torch.randint(len(text) - options.seq - 1, (options.batch, 1), device=text.device)
        tokens = text[begin + torch.arange(options.seq + 1, device=text.device)].long()
        loss = cross_entropy(model(tokens[:, :-1]).float().flatten(0, 1), tokens[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        if step % max(options.steps // 10, 1) == 0:
            print(f"{name:8} step {step:4} of {options.steps}: loss {losses[-1]:.4f}, {time.monotonic() - start:.1f} s", flush=True)
    return losses


def plot(losses: dict[str, list[float]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    for (name, curve), style in zip(losses.items(), ("-", "--"), strict=True):
        axes.plot(range(1, len(curve) + 1), curve, style, label=name)
    axes.set(xlabel="step", ylabel="loss (nats a byte)", title="The same model, batches and weights")
    axes.legend()
    figure.savefig(path, bbox_inches="tight")
    print(f"wrote {path}")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], help="default: float32 on a CPU, bfloat16 on a GPU")
    sizes = {"steps": 100, "batch": 8, "seq": 256, "layers": 2, "width": 128, "head-dim": 32}
    for name, value in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=value, help="default: %(default)s")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw both curves of the loss, as SVG or PNG")
    options = parser.parse_args(arguments)
    if min(getattr(options, name.replace("-", "_")) for name in sizes) < 1:
        parser.error(f"--{', --'.join(sizes)} must be at least 1")
    options.dtype = getattr(torch, options.dtype or ("float32" if options.device == "cpu" else "bfloat16"))
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    text = torch.frombuffer(bytearray("\n".join(topics.values()).encode()), dtype=torch.uint8).to(options.device)
    losses = {name: train(name, attend, text, options) for name, attend in (("Fovea", by_fovea), ("PyTorch", by_torch))}
    if options.plot:
        plot(losses, options.plot)
    apart = max(abs(a - b) for a, b in zip(*losses.values(), strict=True))
    print(f"losses differ by {apart:.1e} at most")
    return int(not apart < LOSS_TOLERANCE[options.dtype])  # NaN fails too


if __name__ == "__main__":
    sys.exit(main())
