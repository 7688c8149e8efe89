# SPDX-License-Identifier: Apache-2.0
"""Cases of how distributed attention is called: in checkpoints, under autocast, in threads, by ranks without rows or keys. And of
what one rank finds wrong in its call, which every rank raises."""

import threading
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.utils.checkpoint import checkpoint

import fovea
from distributed_cases import FIXED, RAGGED, Case, _close, _exact, _matches, _message, _whole, by, ways
from fovea import distributed
from fovea.distributed import Layout, PageDeal, shard, unshard


def cases(ranks: int) -> dict[str, Case]:
    table: dict[str, Case] = {}
    for way in ways(ranks):
        for reentrant in (False, True):
            table[f"{way}-checkpoint-{'reentrant' if reentrant else 'saved'}"] = partial(_checkpoint, way, reentrant)
        table[f"{way}-autocast"] = partial(_autocast, way)
        table[f"{way}-thread"] = partial(_thread, way)
        table[f"{way}-views"] = partial(_views, way)
        table[f"{way}-sum"] = partial(_sum, way, FIXED, 2)
        table[f"{way}-sum-no-batch"] = partial(_sum, way, FIXED, 0)
        table[f"{way}-once"] = partial(_once, way)
        for rows, keys in ((1, 1), (ranks - 1, 5), (5, 1), (9, ranks - 1), (0, 7), (3, 0)):
            for name, options in (("causal", {"causal": True}), ("sink", {"sink": [0.5, -1.0, 3.0, 0.0]})):
                layouts = Layout(rows, ranks), Layout(keys, ranks)
                table[f"{way}-{rows}-rows-{keys}-keys-{name}"] = partial(_matches, *layouts, way, options)
            table[f"{way}-sum-{rows}-rows-{keys}-keys"] = partial(_sum, way, (rows, keys), 2)
        table[f"{way}-ragged-few"] = partial(_matches, Layout((1, 0, 2), ranks), Layout((0, 3, 1), ranks), way, {"causal": True})
    return table | {
        "shards-are-checked": _shards_are_checked,
        "one-rank-has-a-bad-table": partial(_bad_on_one_rank, "block_table"),
        "one-rank-has-a-bad-sink": partial(_bad_on_one_rank, "sink"),
        "one-rank-has-a-bad-page": partial(_bad_on_one_rank, "page"),
        "no-decode-rows": _no_decode_rows,
        "not-in-the-group": _not_in_the_group,
        "unshard-any-dtype": _unshard_any_dtype,
        "merges-refuse": _merges_refuse,
    }


def _leaves(layout: Layout, rank: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """q, k and v of this rank, and the gradient of its out."""
    *qkv, dout = (shard(tensor, layout, rank) for tensor in _whole(layout, layout, torch.float32))
    return [tensor.requires_grad_() for tensor in qkv], dout


def _checkpoint(way: str, reentrant: bool, rank: int, ranks: int) -> None:
    """The same gradients, of a call that runs once more in the backward pass."""
    for lengths in (FIXED, RAGGED):
        layout = Layout(lengths, ranks)
        leaves, dout = _leaves(layout, rank)
        sink = torch.tensor([0.5, -1.0, 3.0, 0.0], requires_grad=True)

        def attend(q, k, v, sink, layout=layout):
            out, lse = distributed.attention(q, k, v, layout, **by(way), causal=True, sink=sink, return_lse=True)
            return out * 2, lse

        results = []
        for call in (attend, partial(checkpoint, attend, use_reentrant=reentrant)):
            out, lse = call(*leaves, sink)
            (out * dout).sum().add(lse.where(lse.isfinite(), 0).sum()).backward()
            results.append([leaf.grad for leaf in (*leaves, sink)])
            for leaf in (*leaves, sink):
                leaf.grad = None
        for one, other in zip(*results, strict=True):
            assert torch.equal(one, other)


def _autocast(way: str, rank: int, ranks: int) -> None:
    """As a cast by hand, with gradients in the dtype of the inputs; inputs of several dtypes are cast to one."""
    layout = Layout(FIXED, ranks)
    (q, k, v), dout = _leaves(layout, rank)
    mixed = v.detach().half().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        out = distributed.attention(q, k, mixed, layout, **by(way), causal=True)
        out_of_scores = fovea.attention(q, k, mixed)
    assert out.dtype == out_of_scores.dtype == torch.bfloat16
    found = torch.autograd.grad(out, (q, k, mixed), dout.bfloat16())
    cast = [tensor.detach().bfloat16().requires_grad_() for tensor in (q, k, mixed)]
    want = distributed.attention(*cast, layout, **by(way), causal=True)
    assert torch.equal(out, want)
    for leaf, got, expected in zip((q, k, mixed), found, torch.autograd.grad(want, cast, dout.bfloat16()), strict=True):
        assert got.dtype == leaf.dtype and torch.equal(got, expected.to(leaf.dtype))


def _in_a_thread(call: Callable[[], object]) -> None:
    faults: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as fault:
            faults.append(fault)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert not faults, faults


def _thread(way: str, rank: int, ranks: int) -> None:
    _in_a_thread(partial(_matches, Layout(FIXED, ranks), None, way, {"causal": True}, rank, ranks))


def _views(way: str, rank: int, ranks: int) -> None:
    """Parts of one packed tensor, and heads before tokens in memory."""
    layout = Layout(FIXED, ranks)
    packed = torch.randn(2, FIXED, 3, 4, 16)
    q, k, v = shard(packed, layout, rank).requires_grad_().unbind(2)
    apart = [x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in (q, k, v)]
    got, want = (distributed.attention(*qkv, layout, **by(way), causal=True) for qkv in ((q, k, v), apart))
    assert torch.equal(got, want)
    dout = torch.randn(*got.shape[:2], 16, 4).transpose(2, 3)
    for one, other in zip(*(torch.autograd.grad(out, of, dout) for out, of in ((got, (q, k, v)), (want, apart))), strict=True):
        assert torch.equal(one, other)


def _sum(way: str, lengths: int | tuple[int, int], batch: int, rank: int, ranks: int) -> None:
    """The gradient of a sum has strides of 0, of a tensor without elements too."""
    rows, keys = (lengths, lengths) if isinstance(lengths, int) else lengths
    layouts = Layout(rows, ranks), Layout(keys, ranks)
    *whole, _ = (tensor[:batch] for tensor in _whole(*layouts, torch.float32))
    leaves = [shard(x, of, rank).requires_grad_() for x, of in zip(whole, (layouts[0], *layouts[1:] * 2), strict=True)]
    distributed.attention(*leaves, layouts[0], layout_k=layouts[1], **by(way)).sum().backward()
    if batch == 0:
        assert all(leaf.grad.shape == leaf.shape for leaf in leaves)
        return
    dout = torch.ones(2, rows, 4, 24)
    _, _, *gradients = _exact([*whole, dout], torch.zeros(2 * rows, 4), layouts, {})
    for name, leaf, want, of in zip(("dq", "dk", "dv"), leaves, gradients, (layouts[0], *layouts[1:] * 2), strict=True):
        _close(name, leaf.grad, shard(want, of, rank))


def _once(way: str, rank: int, ranks: int) -> None:
    """Without gradients there is none; a gradient of the gradient is refused, and so is a tangent."""
    layout = Layout(FIXED, ranks)
    (q, k, v), _ = _leaves(layout, rank)
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            assert not distributed.attention(q, k, v, layout, **by(way)).requires_grad
    dq = torch.autograd.grad(distributed.attention(q, k, v, layout, **by(way)).square().sum(), q, create_graph=True)[0]
    try:
        dq.sum().backward()
    except RuntimeError as error:
        assert "twice" in str(error) or "does not require grad" in str(error)
    else:
        raise AssertionError("was differentiated twice")
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q.detach(), torch.ones_like(q))
        assert "q.tangent: got a tensor, want none" in _message(lambda: distributed.attention(dual, k, v, layout, **by(way)))
    transforms = {
        "torch.func: got grad": torch.func.grad(lambda q: distributed.attention(q, k, v, layout, **by(way)).sum()),
        "torch.vmap: got a mapped tensor": torch.vmap(lambda q: distributed.attention(q[None], k[:1], v[:1], layout, **by(way))),
    }
    for message, call in transforms.items():
        assert message in _message(partial(call, q.detach())), message


def _shards_are_checked(rank: int, ranks: int) -> None:
    """Without the other ranks, too: nothing hangs, and no head is left out."""
    layout = Layout(4 * ranks, ranks)
    q, k, v = (torch.randn(2, 4, heads, 16) for heads in (4, 2, 2))
    flat = init_device_mesh("cpu", (ranks,))
    calls = {
        f"layout.ranks: got {ranks + 1}, want {ranks}": lambda: distributed.attention(q, k, v, Layout(8, ranks + 1), check=False),
        "q.shape[1] (tokens): got 3, want 4": lambda: distributed.attention(q[:, :3], k, v, layout, check=False),
        "v.shape[2] (kv_head): got 1, want 2": lambda: distributed.attention(q, k, v[:, :, :1], layout, check=False),
        "k.shape[2] (kv_head): got 3, want a divisor of 4": lambda: distributed.attention(
            q, *torch.randn(2, 2, 4, 3, 16), layout, way="gathered", check=False
        ),
        "sink.shape[0] (head): got 3, want 4": lambda: distributed.attention(q, k, v, layout, sink=torch.zeros(3), check=False),
        "sink.dtype: got torch.float16": lambda: distributed.attention(q, k, v, layout, sink=torch.zeros(4).half(), check=False),
        "way: got 'best'": lambda: distributed.attention(q, k, v, layout, way="best", check=False),
        "mesh: got None, want a DeviceMesh": lambda: distributed.attention(q, k, v, layout, way="two_level", check=False),
        "mesh.ndim: got 1, want 2": lambda: distributed.attention(q, k, v, layout, mesh=flat, check=False),
    }
    if ranks > 1:
        other = DeviceMesh("cpu", torch.arange(ranks).flip(0)[None])
        message = f"mesh.mesh: got the ranks {other.mesh.flatten().tolist()}, want {list(range(ranks))}"
        calls[message] = lambda: distributed.attention(q, k, v, layout, mesh=other, check=False)
    for message, call in calls.items():
        assert message in _message(call), message
    assert f"layout.ranks: got {ranks + 1}" in _message(lambda: unshard(q, Layout(4, ranks + 1)))


def _bad_on_one_rank(what: str, rank: int, ranks: int) -> None:
    """The last rank has a block outside its cache, another sink, or no token in a page. All raise the same, and go on."""
    deal, last = PageDeal(4, ranks), rank == ranks - 1
    q, caches = torch.randn(1, 4, 16), list(torch.randn(2, 4, 4, 2, 16))
    table, kv_len = torch.arange(4, dtype=torch.int32)[None], torch.tensor([4 * ranks + 1], dtype=torch.int32)
    bad_table, sink = table.clone(), torch.zeros(4)
    if last and what == "block_table":
        bad_table[0, 0] = -1
    if last and what == "sink":
        sink = torch.zeros(3)
    if last and what == "page":
        caches = list(torch.randn(2, 4, 0, 2, 16))
    said = {"block_table": "block_table[0][0] (block number): got -1", "sink": "sink.shape[0] (head): got 3, want 4"}
    said["page"] = "k_cache.shape[1] (page): got 0, want 1 or more"
    got = _message(lambda: distributed.paged_attention(q, *caches, bad_table, kv_len, sink=sink))
    assert got.startswith(f"fovea.distributed.paged_attention: rank {ranks - 1}: {said[what]}"), got
    everyone = [""] * ranks
    dist.all_gather_object(everyone, got)
    assert set(everyone) == {got}
    assert deal.local_length(kv_len, rank).item() == (5 if rank == 0 and ranks > 1 else 4 if ranks > 1 else 5)
    distributed.paged_attention(q, *torch.randn(2, 4, 4, 2, 16), table, kv_len)


def _no_decode_rows(rank: int, ranks: int) -> None:
    """Batches without sequences, rows of no sequence, and sequences of rows without one."""
    caches, table = torch.randn(2, 4, 4, 2, 16), torch.arange(4, dtype=torch.int32)[None]
    none = torch.zeros(0, dtype=torch.int32)
    for merge in ("gather", "scatter"):
        out, lse = distributed.paged_attention(torch.randn(0, 4, 16), *caches, table[:0], none, merge=merge, return_lse=True)
        assert out.shape == (0, 4, 16) and lse.shape == (0, 4)
        q, kv_len, cu = torch.randn(5, 4, 16), torch.tensor([9], dtype=torch.int32), torch.tensor([1, 3], dtype=torch.int32)
        dist.broadcast(q, src=0)
        out, lse = distributed.paged_attention(q, *caches, table, kv_len, cu, merge=merge, return_lse=True)
        for row in (0, 3, 4):
            assert not out[row].any() and (lse[row] == -torch.inf).all()
        own = distributed.paged_attention(q[1:3], *caches, table, kv_len, cu - 1, merge=merge, return_lse=True)
        assert torch.equal(out[1:3], own[0]) and torch.equal(lse[1:3], own[1])
    assert "q.shape[0] (total_q): got 5, want 0" in _message(
        lambda: distributed.paged_attention(q, *caches, table[:0], none, cu[:1])
    )


def _not_in_the_group(rank: int, ranks: int) -> None:
    """Who is not in a group has no rank there: an error before anything is sent."""
    group = dist.new_group([0])
    layout = Layout(4, 1)
    calls = (
        lambda: distributed.attention(*torch.randn(3, 1, 4, 2, 16), layout, group=group, check=False),
        lambda: unshard(torch.randn(1, 4), layout, group),
        lambda: distributed.merge_over_ranks(torch.randn(1, 2, 8), torch.randn(1, 2), group),
    )
    for call in calls:
        try:
            call()
        except (TypeError, ValueError) as error:
            assert rank != 0 and str(error).startswith("group: got "), error
        else:
            assert rank == 0


def _unshard_any_dtype(rank: int, ranks: int) -> None:
    layout = Layout(FIXED, ranks)
    for dtype in (torch.float8_e4m3fn, torch.bool, torch.int16):
        whole = torch.arange(2 * FIXED).view(2, FIXED).remainder(3).to(torch.float32).to(dtype)
        assert torch.equal(unshard(shard(whole.view(2, FIXED), layout, rank), layout).float(), whole.float())


def _merges_refuse(rank: int, ranks: int) -> None:
    out, lse = torch.randn(3, 4, 8), torch.randn(3, 4)
    calls = {
        "merge: got 'best', want 'auto', 'gather' or 'scatter'": lambda: distributed.merge_over_ranks(out, lse, merge="best"),
        "lse.shape: got (3, 3), want (3, 4)": lambda: distributed.merge_over_ranks(out, lse[:, :3]),
        "lse.dtype: got torch.float64": lambda: distributed.merge_over_ranks(out, lse.double()),
        "out.dtype: got torch.int32": lambda: distributed.merge_over_ranks(out.int(), lse),
        "out.requires_grad: got True": lambda: distributed.merge_over_ranks(out.clone().requires_grad_(), lse),
    }
    for message, call in calls.items():
        assert message in _message(call), _message(call)
