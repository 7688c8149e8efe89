# SPDX-License-Identifier: Apache-2.0
"""Generates text greedily with drafted trees, and checks that it is what plain decoding gives.

Each step drafts a tree of tokens, runs the model once over all of them, and keeps the path that the model agrees with. The
drafts are what followed earlier occurrences of the last tokens, so there is no second model. A packed mask shows each drafted
token its ancestors (`fovea.tree_mask`); every token before the tree is visible. Accepted tokens move together in the cache.

The model has the shape of SmolLM2-135M, fewer layers and random weights. Needs: torch.
"""

import argparse
import sys
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm, silu

import fovea

HIDDEN, HEADS, KV_HEADS, DIM, INNER, VOCABULARY = 576, 9, 3, 64, 1536, 512
PAGE = 16


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(HIDDEN, (HEADS + 2 * KV_HEADS) * DIM, bias=False)
        self.out = nn.Linear(HEADS * DIM, HIDDEN, bias=False)
        self.up, self.down = nn.Linear(HIDDEN, 2 * INNER, bias=False), nn.Linear(INNER, HIDDEN, bias=False)

    def forward(self, hidden: Tensor, rotary: tuple[Tensor, Tensor], attend) -> Tensor:
        rows = self.qkv(rms_norm(hidden, (HIDDEN,))).unflatten(-1, (-1, DIM))
        q, k, v = rows.split([HEADS, KV_HEADS, KV_HEADS], dim=-2)
        hidden = hidden + self.out(attend(rotated(q, rotary), rotated(k, rotary), v).flatten(1))
        gate, up = self.up(rms_norm(hidden, (HIDDEN,))).chunk(2, dim=-1)
        return hidden + self.down(silu(gate) * up)


def rotated(x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = rotary
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)


class Model(nn.Module):
    """A causal language model over a block-table cache."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))

    def forward(self, tokens: Tensor, positions: Tensor, attend) -> Tensor:
        """Logits of rows of tokens. `attend(layer, q, k, v)` stores the keys and values, and attends."""
        turns = 1e4 ** -(torch.arange(DIM // 2, device=tokens.device) / (DIM // 2))
        angles = positions[:, None, None] * turns
        hidden, rotary = self.embed(tokens), (angles.cos(), angles.sin())
        for index, layer in enumerate(self.layers):
            hidden = layer(hidden, rotary, lambda q, k, v, index=index: attend(index, q, k, v))
        return (rms_norm(hidden, (HIDDEN,)) @ self.embed.weight.T).float()


@dataclass
class Cache:
    """Keys and values of all layers, in blocks. Each sequence has its own, in any order."""

    k: Tensor
    v: Tensor
    block_table: Tensor

    @classmethod
    def of(cls, model: Model, batch: int, tokens: int) -> "Cache":
        each, like = -(-tokens // PAGE), model.embed.weight
        shape = (len(model.layers), batch * each, PAGE, KV_HEADS, DIM)
        table = torch.randperm(batch * each, device=like.device).view(batch, each)
        return cls(like.new_empty(shape), like.new_empty(shape), table.to(torch.int32))

    def slots(self, positions: Tensor) -> Tensor:
        """positions: [batch, n], places in each sequence."""
        return self.block_table.gather(1, positions // PAGE).long() * PAGE + positions % PAGE

    def move(self, source: Tensor, target: Tensor) -> None:
        """Tokens of all layers from slots to slots, which may overlap."""
        for cache in (self.k, self.v):
            rows = cache.flatten(1, 2)
            rows[:, target] = rows[:, source].clone()


# [verify]
def verify(model: Model, cache: Cache, drafts: "Drafts", lengths: Tensor) -> Tensor:
    """Logits of every drafted token, [batch, tokens, vocabulary]. `lengths`: tokens of each sequence before its tree."""
    batch, tokens = drafts.tokens.shape
    slots = cache.slots(lengths[:, None] + torch.arange(tokens, device=lengths.device)).flatten()
    ends = torch.arange(0, batch * tokens + 1, tokens, dtype=torch.int32, device=lengths.device)
    mask = fovea.tree_mask(drafts.parents).flatten(0, 1)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        fovea.paged_cache_append(k, v, cache.k[layer], cache.v[layer], slots)
        where = (cache.k[layer], cache.v[layer], cache.block_table, (lengths + tokens).int(), ends)
        return fovea.paged_attention(q, *where, max_seqlen_q=tokens, packed_mask=mask, mask_tail=tokens)

    positions = (lengths[:, None] + drafts.depths).flatten()  # siblings share a position
    return model(drafts.tokens.flatten(), positions, attend).view(batch, tokens, -1)
    # [/verify]


@dataclass
class Drafts:
    """A tree for each sequence. Token 0 is the last one of the text, whose keys are not in the cache yet."""

    tokens: Tensor
    parents: Tensor
    depths: Tensor

    @classmethod
    def of(cls, texts: list[list[int]], size: int, device: torch.device) -> "Drafts":
        trees = [draft(text, size) for text in texts]
        columns = (torch.tensor([[node[i] for node in tree] for tree in trees], device=device) for i in range(3))
        return cls(*columns)


def draft(text: list[int], size: int, depth: int = 6) -> list[tuple[int, int, int]]:
    """(token, parent, depth) of each node: what followed the latest occurrences of the text's last token, as one tree."""
    tree = [(text[-1], -1, 0)]
    children: dict[tuple[int, int], int] = {}
    for begin in reversed([at + 1 for at, token in enumerate(text[:-1]) if token == text[-1]]):
        node = 0
        for token in text[begin : begin + depth]:
            if (node, token) not in children:
                if len(tree) == size:
                    return tree
                children[node, token] = len(tree)
                tree.append((token, node, tree[node][2] + 1))
            node = children[node, token]
    return tree + [(0, 0, 1)] * (size - len(tree))  # guesses like any others


def accepted(drafts: Drafts, best: Tensor) -> list[list[int]]:
    """The nodes of each tree that the model would have generated, from the root on. best: its choice after each node."""
    paths = []
    for tokens, parents, choices in zip(drafts.tokens.tolist(), drafts.parents.tolist(), best.tolist(), strict=True):
        path = [0]
        while True:
            step = [i for i, parent in enumerate(parents) if parent == path[-1] and tokens[i] == choices[path[-1]]]
            if not step:
                break
            path.append(step[0])
        paths.append(path)
    return paths


@dataclass
class Result:
    texts: list[list[int]]
    steps: int = 0
    new: list[int] = field(default_factory=list)


@torch.inference_mode()
def generate(model: Model, prompts: list[list[int]], count: int, tree: int) -> Result:
    """Trees of one token are plain decoding."""
    device, result = model.embed.weight.device, Result([list(prompt) for prompt in prompts])
    longest = max(map(len, prompts)) + count + 2 * tree
    cache = Cache.of(model, len(prompts), longest)
    for b, prompt in enumerate(prompts):  # but for its last token: a tree without branches
        own, depths = Cache(cache.k, cache.v, cache.block_table[b : b + 1]), torch.arange(len(prompt) - 1, device=device)[None]
        chain = Drafts(torch.tensor([prompt[:-1]], device=device), depths - 1, depths)
        verify(model, own, chain, torch.zeros(1, dtype=torch.long, device=device))
    lengths = torch.tensor([len(prompt) - 1 for prompt in prompts], device=device)
    while min(len(text) - len(prompt) for text, prompt in zip(result.texts, prompts, strict=True)) < count:
        drafts = Drafts.of(result.texts, tree, device)
        best = verify(model, cache, drafts, lengths).argmax(-1)
        paths = accepted(drafts, best)
        result.steps += 1
        for b, path in enumerate(paths):
            if len(result.texts[b]) - len(prompts[b]) >= count:
                continue
            begin = int(lengths[b])
            at = cache.slots(torch.arange(longest, device=device).expand(len(prompts), -1))[b]
            cache.move(at[[begin + node for node in path]], at[begin : begin + len(path)])
            result.texts[b] += [int(drafts.tokens[b, node]) for node in path[1:]] + [int(best[b, path[-1]])]
            lengths[b] += len(path)
            result.new.append(len(path))
    result.texts = [text[: len(prompt) + count] for text, prompt in zip(result.texts, prompts, strict=True)]
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=int, default=16, metavar="N", help="tokens of a tree (default: %(default)s)")
    parser.add_argument("--new-tokens", type=int, default=48, metavar="N", help="tokens to generate (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=3, metavar="N", help="layers of the model (default: %(default)s)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: %(default)s)")
    options = parser.parse_args()
    if min(options.tree, options.new_tokens, options.layers) < 1:
        parser.error("--tree, --new-tokens and --layers must be at least 1")
    torch.manual_seed(0)
    dtype = torch.float32 if options.device == "cpu" else torch.bfloat16
    model = Model(options.layers).to(options.device, dtype).eval()
    prompts = [torch.randint(VOCABULARY, (length,)).tolist() for length in (24, 9, 40)]
    plain = generate(model, prompts, options.new_tokens, 1)
    trees = generate(model, prompts, options.new_tokens, options.tree)
    print(f"steps: {trees.steps} with trees of {options.tree} tokens instead of {plain.steps}")
    print(f"tokens of a step and sequence: {sum(trees.new) / len(trees.new):.2f}")
    same = trees.texts == plain.texts
    print("the same tokens as plain decoding" if same else "OTHER tokens than plain decoding")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
