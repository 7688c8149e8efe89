# SPDX-License-Identifier: Apache-2.0
"""One sequence of tokens computed in every way that a trainer and a server do, to compare the bits of its rows."""

import random
from dataclasses import dataclass

import torch

import fovea


@dataclass
class Sequence:
    """Keys and values of `tokens` tokens, queries of all of them, and the options of the calls."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    options: dict
    names: dict  # implementation of "attention" and "paged_attention"
    finite: bool = False

    @property
    def tokens(self):
        return len(self.q)

    def attend(self, q, k, v, **lengths):
        out, lse = fovea.attention(
            q, k, v, causal=True, return_lse=True, implementation=self.names.get("attention"), **lengths, **self.options
        )
        return (out[0], lse[0].T) if out.dim() == 4 else (out, lse)

    def attend_pages(self, pages, q, kv_len, cu_seqlens_q=None):
        k, v, table = pages
        table = table.expand(len(kv_len), -1).contiguous()
        name = self.names.get("paged_attention")
        kv_len = torch.tensor(kv_len, dtype=torch.int32, device=self.q.device)
        return fovea.paged_attention(q, k, v, table, kv_len, cu_seqlens_q, return_lse=True, implementation=name, **self.options)


def cumulative(*lengths, device="cpu"):
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32).to(device)


def pages_of(s, page):
    """K and V in blocks of random order, with garbage in all other slots and an impossible block after the last. The garbage is
    finite where `s` is, else NaN."""
    count = -(-s.tokens // page)
    order = torch.randperm(count + 1)[:count].to(torch.int32)
    token, device = torch.arange(s.tokens), s.q.device
    slots = order[token // page].long().to(device), (token % page).to(device)
    caches = []
    for rows in (s.k, s.v):
        cache = torch.full((count + 1, page, *rows.shape[1:]), 3e4 if s.finite else torch.nan, device=device).to(rows.dtype)
        cache[slots] = rows
        caches.append(cache)
    return *caches, torch.cat([order, torch.tensor([2147480000], dtype=torch.int32)])[None].to(device)


def ragged(s, begin, end):
    """The rows behind those of another sequence."""
    other, device = random.randint(0, 70), s.q.device
    q = torch.cat([torch.randn(other, *s.q.shape[1:]).to(s.q), s.q[begin:end]])
    k, v = (torch.cat([torch.randn(other, *rows.shape[1:]).to(rows), rows[:end]]) for rows in (s.k, s.v))
    lengths_q, lengths_k = cumulative(other, end - begin, device=device), cumulative(other, end, device=device)
    out, lse = s.attend(q, k, v, cu_seqlens_q=lengths_q, cu_seqlens_k=lengths_k)
    return out[other:], lse[other:]


def chunk(s, begin, end):
    return s.attend(s.q[None, begin:end], s.k[None, :end], s.v[None, :end])


def paged_chunk(s, begin, end, page):
    return s.attend_pages(pages_of(s, page), s.q[begin:end], [end], cumulative(end - begin, device=s.q.device))


def decode(s, rows, page):
    """Single tokens, each a sequence of its own."""
    return s.attend_pages(pages_of(s, page), s.q[rows], [row + 1 for row in rows])


def one_head(s, begin, end):
    """The rows of one kv head's group, as a rank of tensor parallelism has them, in the groups of the whole."""
    group = s.q.shape[1] // s.k.shape[1]
    q, k, v = s.q[begin:end, -group:], s.k[:end, -1:], s.v[:end, -1:]
    sink = s.options.get("sink")
    part = Sequence(q, k, v, s.options | ({} if sink is None else {"sink": sink[-group:].contiguous()}), s.names, s.finite)
    return part.attend(q[None], k[None], v[None])


def bits(tensor):
    """The bits of each element. All NaN are one."""
    tensor = torch.where(tensor.isnan(), torch.full_like(tensor, torch.nan), tensor)
    return tensor.view({2: torch.int16, 4: torch.int32}[tensor.element_size()])


def differing(whole, part, rows, heads=slice(None)):
    """Rows, (token, head), of which `part` has other bits than `whole`, and their number."""
    (out, lse), (part_out, part_lse) = whole, part
    unlike = (bits(out[rows][:, heads]) != bits(part_out)).any(-1) | (bits(lse[rows][:, heads]) != bits(part_lse))
    return int(unlike.sum()), unlike.numel()


def compare(s, page):
    """{way: (rows that differ from those of one dense call, rows)}."""
    whole = s.attend(s.q[None], s.k[None], s.v[None])
    begin, end = sorted(random.sample(range(s.tokens + 1), 2))
    rows, group = slice(begin, end), s.q.shape[1] // s.k.shape[1]
    single = sorted(random.sample(range(s.tokens), min(s.tokens, 12)))
    last = random.randint(1, s.tokens)
    few = slice(max(last - random.randint(1, max(16 // group, 1)), 0), last)
    return {
        "ragged": differing(whole, ragged(s, begin, end), rows),
        "chunk": differing(whole, chunk(s, begin, end), rows),
        "paged prefill": differing(whole, paged_chunk(s, begin, end, page), rows),
        "paged decode": differing(whole, decode(s, single, page), single),
        "one token": differing(whole, decode(s, single[-1:], page), single[-1:]),
        "few tokens": differing(whole, paged_chunk(s, few.start, last, page), few),
        "one kv head": differing(whole, one_head(s, begin, end), rows, slice(-group, None)),
    }


DIMS = ((64, 64), (128, 128), (192, 128), (40, 72))
HEADS = ((1, 1), (4, 4), (8, 2), (6, 1), (9, 3))


def draw(dtype, tokens, names, *, dims=None, heads=None, device="cpu", finite=False):
    """A random sequence. Unless `finite`, some values of late tokens are not finite: earlier rows must not notice."""
    dqk, dv = dims or random.choice(DIMS)
    head, kv_head = heads or random.choice(HEADS)
    q, k, v = (torch.randn(tokens, *shape).to(device, dtype) for shape in ((head, dqk), (kv_head, dqk), (kv_head, dv)))
    if random.random() < 0.3 and not finite:
        v[random.randrange(tokens), random.randrange(kv_head), random.randrange(dv)] = random.choice([torch.nan, torch.inf])
    options = {}
    if random.random() < 0.4:
        options["window"] = (random.randint(0, tokens), None)
    if random.random() < 0.3:
        options["softcap"] = 20.0
    if random.random() < 0.3:
        options["sink"] = torch.randn(head).to(device)
    return Sequence(q, k, v, options, names, finite)
