# SPDX-License-Identifier: Apache-2.0
"""Cases of distributed attention on GPUs, against one GPU: over gloo, where the ranks may share one, or over NCCL."""

from functools import partial

import torch

import fovea
from distributed_cases import Case, by
from distributed_decode_cases import LENGTHS, PAGE, Dealt
from fovea import distributed
from fovea.distributed import Layout, PageDeal, cost, shard


def cases(ranks: int) -> dict[str, Case]:
    table: dict[str, Case] = {}
    for way in (*cost.WAYS, "two_level"):
        table |= {f"{way}-fixed": partial(_dense, 193, way), f"{way}-ragged": partial(_dense, (65, 0, 130, 1, 40), way)}
    table |= {"ring-twice": partial(_twice, "ring"), "gathered-twice": partial(_twice, "gathered")}
    return table | {f"latent-{merge}": partial(_latent, merge) for merge in ("gather", "scatter")}


def _close(name: str, got: torch.Tensor, want: torch.Tensor) -> None:
    error = (got.float() - want.float()).abs().max() / want.float().abs().max()
    assert error < 2**-6, f"{name} is off by {error:.2e} of its largest element"


def _dense(lengths, way: str, rank: int, ranks: int) -> None:
    """Forward and backward of a function of out and lse."""
    layout = Layout(lengths, ranks)
    batch = () if layout.ragged else (2,)
    whole = [torch.randn(*batch, sum(layout.sequences), heads, 64).cuda().bfloat16().requires_grad_() for heads in (4, 2, 2)]
    own = [shard(tensor.detach(), layout, rank).requires_grad_() for tensor in whole]
    ragged = {}
    if layout.ragged:
        cu = torch.tensor([0, *lengths], device="cuda").cumsum(0).int()
        ragged = {"cu_seqlens_q": cu, "cu_seqlens_k": cu}

    def gradients(out, lse, inputs):
        return torch.autograd.grad(out.float().sin().sum() + lse.cos().sum(), inputs)

    out, lse = distributed.attention(*own, layout, **by(way), causal=True, return_lse=True)
    want, want_lse = fovea.attention(*whole, causal=True, return_lse=True, **ragged)
    _close("out", out, shard(want, layout, rank))
    names = zip(("dq", "dk", "dv"), gradients(out, lse, own), gradients(want, want_lse, whole), strict=True)
    for name, got, expected in names:
        _close(name, got, shard(expected, layout, rank))


def _twice(way: str, rank: int, ranks: int) -> None:
    """Calls of several sizes one after another, and on another stream, have the bits of calls that wait for each other."""
    calls = []
    for lengths in (64, 1200, 700, (65, 0, 130)):
        layout = Layout(lengths, ranks)
        batch = () if layout.ragged else (2,)
        whole = [torch.randn(*batch, sum(layout.sequences), heads, 64).cuda().bfloat16() for heads in (4, 2, 2)]
        calls.append(([shard(tensor, layout, rank) for tensor in whole], layout))

    def run(wait: bool) -> list[torch.Tensor]:
        outs = []
        for index, (own, layout) in enumerate(calls * 2):
            stream = torch.cuda.Stream() if index % 2 else torch.cuda.current_stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                outs.append(distributed.attention(*own, layout, way=way, causal=True, check=wait))
            torch.cuda.current_stream().wait_stream(stream)
            if wait:
                torch.cuda.synchronize()
        return outs

    for one, other in zip(run(True), run(False), strict=True):
        assert torch.equal(one, other)


def _latent(merge: str, rank: int, ranks: int) -> None:
    tokens = [torch.randn(length, 1, 576).bfloat16() for length in LENGTHS]
    q = torch.randn(len(LENGTHS), 2, 16, 576).cuda().bfloat16()
    results = []
    for deal, own in ((PageDeal(PAGE, ranks), rank), (PageDeal(PAGE, 1), 0)):
        torch.manual_seed(1)
        dealt = Dealt(deal, own, [tokens])
        inputs = q, dealt.caches[0].cuda(), dealt.table.cuda(), dealt.kv_len.cuda()
        if deal.ranks == ranks:
            results.append(distributed.latent_attention(*inputs, scale=0.05, merge=merge))
        if deal.ranks == 1:
            results.append(fovea.latent_attention(*inputs, scale=0.05))
    _close("out", results[0], results[-1])
