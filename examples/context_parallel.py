# SPDX-License-Identifier: Apache-2.0
"""Trains the small language model of train.py with its sequences cut over processes, then generates text over a cache that is cut
over them too. Both are compared with one process that has everything.

    torchrun --nproc-per-node 4 examples/context_parallel.py

Without torchrun it runs on one process. Needs: torch.
"""

import argparse
import os
import sys
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from train import LOSS_TOLERANCE, Model, by_fovea

import fovea
import fovea.distributed
from fovea.distributed import Layout, PageDeal, shard, unshard

PAGE = 16


def hidden(model: Model, tokens: Tensor, positions: Tensor) -> Tensor:
    """The hidden states of tokens at positions of their sequence, as the model's head takes them."""
    return model.norm(model.blocks(model.embedding(tokens) + model.position(positions)))


def batches(text: Tensor, options: argparse.Namespace):
    """The same ones on every rank: inputs and targets ``[batch, seq]``."""
    torch.manual_seed(1)
    for _ in range(options.steps):
        begin = torch.randint(len(text) - options.seq - 1, (options.batch, 1))
        tokens = text[begin + torch.arange(options.seq + 1)].long().to(options.device)
        yield tokens[:, :-1], tokens[:, 1:]


def train(text: Tensor, options: argparse.Namespace, layout: Layout | None) -> tuple[Model, list[float]]:
    """The model and the loss of each step: of this rank's tokens, or, without a layout, of all of them in one process."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if layout is None:
            return by_fovea(q, k, v)
        return fovea.distributed.attention(q, k, v, layout, way=options.way, causal=True)

    torch.manual_seed(2)
    model = Model(options, attend).to(options.device, options.dtype)
    optimiser, losses = torch.optim.AdamW(model.parameters(), lr=1e-3), []
    positions = torch.arange(options.seq) if layout is None else layout.position_ids(dist.get_rank())
    for inputs, targets in batches(text, options):
        if layout is not None:
            inputs, targets = shard(inputs, layout, dist.get_rank()), shard(targets, layout, dist.get_rank())
        logits = model.head(hidden(model, inputs, positions.to(options.device)))
        loss = cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="sum") / (options.batch * options.seq)
        optimiser.zero_grad()
        loss.backward()
        if layout is not None:  # the gradient of a weight is the sum over ranks; FSDP and DDP do this by themselves
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            dist.all_reduce(loss.detach())
        optimiser.step()
        losses.append(loss.item())
    return model, losses


class Cache:
    """K and V of one layer: this rank's pages of one sequence."""

    def __init__(self, block: nn.Module, tokens: int):
        self.deal, self.rank = PageDeal(PAGE, dist.get_world_size()), dist.get_rank()
        pages = self.deal.local_bound(tokens) // PAGE
        self.k, self.v = block.qkv.weight.new_zeros(2, pages, PAGE, block.kv_heads, block.head_dim)
        self.table = torch.arange(pages, dtype=torch.int32, device=self.k.device)[None]
        self.length = 0

    def append(self, k: Tensor, v: Tensor) -> None:
        """Rows ``[tokens, kv_head, head_dim]`` of the next tokens; those of other ranks' pages are skipped."""
        positions = torch.arange(self.length, self.length + len(k), device=k.device)
        slots = self.deal.local_slots(positions[None], self.table, self.rank)[0]
        fovea.paged_cache_append(k.contiguous(), v.contiguous(), self.k, self.v, slots)
        self.length += len(k)

    def prefill(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        self.append(unshard(k, layout)[0], unshard(v, layout)[0])
        return fovea.distributed.attention(q, k, v, layout, causal=True)

    def decode(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.append(k[0], v[0])
        kv_len = torch.tensor([self.length], dtype=torch.int32, device=q.device)
        return fovea.distributed.paged_attention(q[0], self.k, self.v, self.table, kv_len)[None]


@torch.no_grad()
def generate(model: Model, prompt: Tensor, count: int) -> list[int]:
    """Greedy text after a prompt: its prefill cut over the ranks, then one token at a time over a cache cut over them."""
    layout, device = Layout(len(prompt), dist.get_world_size()), prompt.device
    caches = [Cache(block, len(prompt) + count) for block in model.blocks]
    for block, cache in zip(model.blocks, caches, strict=True):
        block.attend = lambda q, k, v, cache=cache: cache.prefill(q, k, v, layout)
    positions = layout.position_ids(dist.get_rank(), device)
    last = unshard(hidden(model, shard(prompt[None], layout, dist.get_rank()), positions), layout)[:, -1]
    text = [int(model.head(last).argmax())]
    for block, cache in zip(model.blocks, caches, strict=True):
        block.attend = cache.decode
    while len(text) < count:
        position = torch.tensor([len(prompt) + len(text) - 1], device=device)
        last = hidden(model, torch.tensor([text[-1:]], device=device), position)
        text.append(int(model.head(last[:, -1]).argmax()))
    return text


@torch.no_grad()
def generate_whole(model: Model, prompt: Tensor, count: int) -> list[int]:
    """The same by attention over everything at each token."""
    for block in model.blocks:
        block.attend = by_fovea
    tokens = prompt[None]
    for _ in range(count):
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        tokens = torch.cat([tokens, model.head(hidden(model, tokens, positions)[:, -1:]).argmax(-1)], dim=1)
    return tokens[0, len(prompt) :].tolist()


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="(default: %(default)s)")
    parser.add_argument("--way", choices=["auto", "ring", "gathered", "heads"], default="auto", help="(default: %(default)s)")
    sizes = {"steps": 40, "batch": 4, "seq": 256, "layers": 2, "width": 128, "head-dim": 32, "prompt": 160, "generate": 24}
    for name, value in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=value, help="default: %(default)s")
    options = parser.parse_args(arguments)
    if options.generate < 0 or min(getattr(options, name.replace("-", "_")) for name in sizes if name != "generate") < 1:
        parser.error(f"--{', --'.join(sizes)} must be at least 1 (--generate 0)")
    options.dtype = torch.float32 if options.device == "cpu" else torch.bfloat16
    return options


def join(device: str) -> None:
    """The group that torchrun describes, or one of this process alone."""
    backend = "nccl" if device == "cuda" else "gloo"
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    join(options.device)
    text = torch.frombuffer(bytearray("\n".join(topics.values()).encode()), dtype=torch.uint8)
    say = print if dist.get_rank() == 0 else lambda *_: None
    model, losses = train(text, options, Layout(options.seq, dist.get_world_size()))
    _, whole = train(text, options, None)
    for step in range(0, options.steps, max(options.steps // 5, 1)):
        say(f"step {step + 1:4}: loss {losses[step]:.4f} on {dist.get_world_size()} ranks, {whole[step]:.4f} on one")
    apart = max(abs(a - b) for a, b in zip(losses, whole, strict=True))
    say(f"losses differ by {apart:.1e} at most")
    good = apart < LOSS_TOLERANCE[options.dtype]  # NaN is not
    if options.generate:
        prompt = text[1000 : 1000 + options.prompt].long().to(options.device)
        got, want = generate(model, prompt, options.generate), generate_whole(model, prompt, options.generate)
        say(f"generated {bytes(got)!r} over a cache on {dist.get_world_size()} ranks")
        say("the same as one rank alone" if got == want else f"one rank alone: {bytes(want)!r}")
        good &= got == want
    dist.destroy_process_group()
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
