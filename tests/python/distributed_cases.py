# SPDX-License-Identifier: Apache-2.0
"""Cases of dense attention over ranks, against float64 attention of the whole."""

from collections.abc import Callable
from functools import lru_cache, partial

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import plain
from fovea import distributed
from fovea.distributed import Layout, cost, shard, unshard

Case = Callable[[int, int], None]

MASKS = {
    "full": {},
    "causal": {"causal": True},
    "window": {"window": (7, 3)},
    "sliding": {"causal": True, "window": (5, None)},
    "softcap": {"causal": True, "softcap": 3.0},
    "sink": {"causal": True, "sink": [0.5, -1.0, float("-inf"), float("inf")]},
    "scale": {"scale": -0.3},
}
FIXED, RAGGED = 37, (5, 0, 33, 1, 16)


def ways(ranks: int) -> tuple[str, ...]:
    """Those that deal four heads to so many ranks."""
    return (*cost.WAYS, "two_level") if 4 % ranks == 0 else ("ring", "gathered")


@lru_cache
def _mesh() -> DeviceMesh:
    """As if two ranks shared a node."""
    ranks = dist.get_world_size()
    return init_device_mesh("cuda" if dist.get_backend() == "nccl" else "cpu", (max(1, ranks // 2), min(2, ranks)))


def by(way: str) -> dict[str, object]:
    """How a call asks for a way."""
    return {"way": way} | ({"mesh": _mesh()} if way == "two_level" else {})


def cases(ranks: int) -> dict[str, Case]:
    table: dict[str, Case] = {}
    for way in ways(ranks):
        for order in ("balanced", "contiguous"):
            for shape, lengths in (("fixed", FIXED), ("ragged", RAGGED)):
                for name, options in MASKS.items():
                    layout = Layout(lengths, ranks, order)
                    table[f"{way}-{order}-{shape}-{name}"] = partial(_matches, layout, None, way, options)
        for anchor in ("bottom_right", "top_left"):
            layouts = Layout(21, ranks), Layout(40, ranks, "contiguous")
            table[f"{way}-cross-{anchor}"] = partial(_matches, *layouts, way, {"causal": True, "anchor": anchor})
            layouts = Layout((9, 4), ranks), Layout((3, 20), ranks)
            table[f"{way}-cross-ragged-{anchor}"] = partial(_matches, *layouts, way, {"causal": True, "anchor": anchor})
        unseen_keys = {"causal": True, "anchor": "top_left", "unseen_keys": 21}
        table[f"{way}-nan-keys"] = partial(_matches, Layout(21, ranks), Layout(40, ranks), way, unseen_keys)
        table[f"{way}-nan-queries"] = partial(_matches, Layout(40, ranks), Layout(21, ranks), way, {"causal": True, "blind": 19})
        table[f"{way}-bf16"] = partial(_matches, Layout(64, ranks), None, way, {"causal": True, "dtype": torch.bfloat16})
        table[f"{way}-bytes"] = partial(_bytes, way)
        table[f"{way}-nothing"] = partial(_matches, Layout((0, 0), ranks), None, way, {"causal": True})
        table[f"{way}-keys-of-none"] = partial(_matches, Layout((4, 9), ranks), Layout((0, 0), ranks), way, {})
        table[f"{way}-repeats"] = partial(_repeats, way)
        table[f"{way}-lse-alone"] = partial(_lse_alone, way)
    table |= {
        "auto": _auto,
        "compiled": _compiled,
        "unshard": _unshard,
        "group-of-some": _group_of_some,
        "disagreements": _disagreements,
        "faults": _faults,
    }
    return table


def _whole(layout: Layout, layout_k: Layout, dtype: torch.dtype) -> list[torch.Tensor]:
    """q, k, v and dout of all ranks, the same on each of them."""
    shapes = [(layout, 4, 16), (layout_k, 2, 16), (layout_k, 2, 24), (layout, 4, 24)]
    batch = () if layout.ragged else (2,)
    return [torch.randn(*batch, sum(of.sequences), heads, dim).to(dtype) for of, heads, dim in shapes]


def _exact(inputs: list[torch.Tensor], dlse: torch.Tensor, layouts: tuple[Layout, Layout], options: dict) -> list[torch.Tensor]:
    """out, lse as ``[tokens, head]`` and gradients of the whole, in float64."""
    options = dict(options)
    offset = 0 if options.pop("anchor", "bottom_right") == "top_left" else None
    left, right = options.pop("window", (None, None))
    if options.pop("causal", False):
        right = 0
    *leaves, dout = (tensor.detach().double() for tensor in inputs)
    leaves = [leaf.requires_grad_() for leaf in leaves]
    sink = options.pop("sink", None)
    if sink is not None:
        sink = sink.detach().double().requires_grad_()
    sequences = zip(
        *(_sequences(leaf, of) for leaf, of in zip(leaves, (layouts[0], layouts[1], layouts[1]), strict=True)), strict=True
    )
    results = [plain.attention(*qkv, left=left, right=right, offset=offset, sink=sink, **options) for qkv in sequences]
    out, lse = torch.cat([each.out for each in results]), torch.cat([each.lse for each in results])
    loss = (out * dout.flatten(0, -3)).sum() + torch.where(lse.isfinite(), lse * dlse.double(), 0.0).sum()
    gradients = torch.autograd.grad(loss, leaves if sink is None else [*leaves, sink])
    return [tensor.detach() for tensor in (out, lse, *gradients)]


def _sequences(tensor: torch.Tensor, layout: Layout) -> list[torch.Tensor]:
    return list(tensor.split(layout.sequences)) if layout.ragged else list(tensor)


def _close(name: str, got: torch.Tensor, want: torch.Tensor) -> None:
    """Element by element, to a few roundings of the largest element."""
    want = want.reshape(got.shape)
    finite = want.isfinite()
    assert torch.equal(got[~finite].double(), want[~finite]), name
    bound = (4e-6 if got.dtype == torch.float32 else 2**-7) * max(1.0, float(want[finite].abs().max()) if finite.any() else 0.0)
    error = (got.double() - want)[finite].abs()
    assert error.numel() == 0 or error.max() <= bound, f"{name} is off by {error.max():.2e}, {bound:.2e} allowed"


def _matches(layout: Layout, layout_k: Layout | None, way: str, options: dict, rank: int, ranks: int) -> None:
    """Forward and backward of the shards are the shards of the whole."""
    options = dict(options)
    dtype = options.pop("dtype", torch.float32)
    layouts = layout, layout_k or layout
    inputs = _whole(*layouts, dtype)
    dlse = torch.randn(inputs[0].flatten(0, -3).shape[:2])
    unseen, blind = options.pop("unseen_keys", None), options.pop("blind", None)
    if unseen is not None:  # keys that no query sees
        inputs[1][:, unseen:] = inputs[2][:, unseen:] = torch.nan
    if "sink" in options:
        options["sink"] = torch.tensor(options["sink"])
    out, lse, *gradients = _exact(inputs, dlse, layouts, options)
    if blind is not None:  # queries that see no key
        inputs[0][:, :blind] = inputs[3][:, :blind] = torch.nan

    sides = (layouts[0], layouts[1], layouts[1], layouts[0])
    *qkv, dout = (shard(tensor, of, rank) for tensor, of in zip(inputs, sides, strict=True))
    leaves = [tensor.requires_grad_() for tensor in qkv]
    if "sink" in options:
        leaves.append(options["sink"].requires_grad_())
    got, got_lse = distributed.attention(*qkv, layout, layout_k=layout_k, **by(way), return_lse=True, **options)

    def own(tensor, of=layout):
        return shard(tensor.reshape(*inputs[0].shape[:-2], *tensor.shape[1:]) if of is layout else tensor, of, rank)

    own_dlse = own(dlse)
    _close("out", got.detach(), own(out))
    _close("lse", got_lse.detach(), own(lse) if layout.ragged else own(lse).transpose(1, 2))
    of_lse = own_dlse if layout.ragged else own_dlse.transpose(1, 2)
    found = torch.autograd.grad((got, got_lse), leaves, (dout, of_lse))
    for name, gradient, want, of in zip(("dq", "dk", "dv"), found, gradients, sides, strict=False):
        _close(name, gradient, shard(want, of, rank))
    if "sink" in options:
        dsink = found[3].clone()
        dist.all_reduce(dsink)
        _close("dsink", dsink, gradients[3])


def _bytes(way: str, rank: int, ranks: int) -> None:
    """The bytes sent are those that the model says."""
    layout = Layout(16 * ranks, ranks)
    q, k, v, dout = (shard(tensor, layout, rank).requires_grad_() for tensor in _whole(layout, layout, torch.bfloat16))
    for backward in (False, True):
        problem = cost.Problem(2 * 16 * ranks, 1.0, 4, 2, 16, 24, 2, ranks, backward)
        with distributed.count_traffic() as traffic:
            out = distributed.attention(q, k, v, layout, causal=True, **by(way))
        if backward:
            with distributed.count_traffic() as traffic:
                out.backward(dout.detach())
        assert traffic.total == _sent_bytes(way, problem), (backward, traffic.sent, _sent_bytes(way, problem))


def _sent_bytes(way: str, problem: cost.Problem) -> int:
    if way != "two_level":
        return cost.sent_bytes(way, problem)
    return cost.two_level(problem, min(2, problem.ranks), cost.HOPPER_NVLINK, cost.HOPPER_INFINIBAND).sent_bytes


def _repeats(way: str, rank: int, ranks: int) -> None:
    """The same bits from run to run."""
    layout = Layout(FIXED, ranks)
    q, k, v, dout = (shard(tensor, layout, rank).requires_grad_() for tensor in _whole(layout, layout, torch.bfloat16))

    def run():
        out = distributed.attention(q, k, v, layout, causal=True, **by(way))
        return out, *torch.autograd.grad(out, (q, k, v), dout)

    for one, other in zip(run(), run(), strict=True):
        assert torch.equal(one, other)


def _lse_alone(way: str, rank: int, ranks: int) -> None:
    """A loss of lse alone has a gradient, and v has none of it."""
    layout = Layout(FIXED, ranks)
    q, k, v, _ = (shard(tensor, layout, rank).requires_grad_() for tensor in _whole(layout, layout, torch.float32))
    _, lse = distributed.attention(q, k, v, layout, **by(way), return_lse=True)
    dq, dk, dv = torch.autograd.grad(lse.sum(), (q, k, v))
    assert dq.any() and dk.any() and not dv.any()


def _auto(rank: int, ranks: int) -> None:
    layout = Layout(FIXED, ranks)
    q, k, v, _ = (shard(tensor, layout, rank) for tensor in _whole(layout, layout, torch.float32))
    outs = [distributed.attention(q, k, v, layout, **by(way)) for way in ("auto", "ring")]
    torch.testing.assert_close(*outs, rtol=1e-5, atol=1e-6)


def _compiled(rank: int, ranks: int) -> None:
    """torch.compile leaves the call as it is: the graph breaks there."""
    layout = Layout(FIXED, ranks)
    q, k, v, _ = (shard(tensor, layout, rank).requires_grad_() for tensor in _whole(layout, layout, torch.float32))

    def step(q):
        return distributed.attention(2 * q, k, v, layout, causal=True) + 1

    compiled = torch.compile(step, backend="aot_eager")
    for _ in range(3):
        (got,), (want,) = (torch.autograd.grad(call(q).square().sum(), q) for call in (compiled, step))
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)


def _unshard(rank: int, ranks: int) -> None:
    for layout in (
        Layout(FIXED, ranks),
        Layout(RAGGED, ranks),
        Layout(3, ranks, "contiguous"),
        Layout((), ranks),
        Layout(0, ranks),
    ):
        whole = torch.randn(() if layout.ragged else (2,)).new_ones(1) * torch.arange(2 * 3 * sum(layout.sequences)).float()
        whole = whole.view(-1, 3)[: sum(layout.sequences)] if layout.ragged else whole.view(2, -1, 3)
        assert torch.equal(unshard(shard(whole, layout, rank), layout), whole)
        positions = torch.cat([torch.arange(0), *(torch.arange(length) for length in layout.sequences)])
        assert torch.equal(layout.position_ids(rank), positions[layout.indices(rank)])


def _group_of_some(rank: int, ranks: int) -> None:
    """A group whose ranks are not those of the world."""
    members = list(range(1, ranks)) or [0]
    group = dist.new_group(members)
    if rank not in members:
        return
    layout = Layout(FIXED, len(members))
    inputs = _whole(layout, layout, torch.float32)[:3]
    q, k, v = (shard(tensor, layout, dist.get_rank(group)) for tensor in inputs)
    out = distributed.attention(q, k, v, layout, group=group, causal=True, way="ring")
    want = torch.stack([plain.attention(*row, right=0).out for row in zip(*inputs, strict=True)])
    torch.testing.assert_close(unshard(out, layout, group).double(), want, rtol=1e-5, atol=1e-5)


def _message(call: Callable[[], object]) -> str:
    try:
        call()
    except (ValueError, NotImplementedError) as error:
        return str(error)
    return "was accepted"


def _disagreements(rank: int, ranks: int) -> None:
    """The last rank differs: all ranks get the same error, and the next call works."""
    layout, last = Layout(FIXED, ranks), rank == ranks - 1
    q, k, v, _ = (shard(tensor, layout, rank) for tensor in _whole(layout, layout, torch.float32))
    of_last = f"on rank {ranks - 1}"
    calls = {
        f"causal: got True {of_last}, want False": lambda: distributed.attention(q, k, v, layout, causal=last),
        f"q.dtype: got torch.bfloat16 {of_last}": lambda: distributed.attention(
            *((x.bfloat16() if last else x) for x in (q, k, v)), layout
        ),
        f"layout: got Layout(lengths=37, ranks={ranks}, order='contiguous') {of_last}": lambda: distributed.attention(
            *(
                shard(x, Layout(FIXED, ranks, "contiguous"), rank) if last else shard(x, layout, rank)
                for x in _whole(layout, layout, torch.float32)[:3]
            ),
            Layout(FIXED, ranks, "contiguous") if last else layout,
        ),
        f"k.shape[2]: got 1 {of_last}, want 2": lambda: distributed.attention(
            q, *((x[..., :1, :] if last else x) for x in (k, v)), layout
        ),
        f"sink: got None {of_last}": lambda: distributed.attention(q, k, v, layout, sink=None if last else torch.zeros(4)),
        f"way: got ring {of_last}": lambda: distributed.attention(q, k, v, layout, way="ring" if last else "gathered"),
    }
    for message, call in calls.items():
        got = _message(call)
        if ranks == 1:
            assert got == "was accepted" or "on rank" not in got
        else:
            assert message in got, got
    distributed.attention(q, k, v, layout)


def _faults(rank: int, ranks: int) -> None:
    """A fault that one rank sees by itself reaches all."""
    layout, last = Layout(FIXED, ranks), rank == ranks - 1
    q, k, v, _ = (shard(tensor, layout, rank) for tensor in _whole(layout, layout, torch.float32))
    at = f"fovea.distributed.attention: rank {ranks - 1}: "
    short = q[:, :-1] if last else q
    assert _message(lambda: distributed.attention(short, k, v, layout)).startswith(at + "q.shape[1] (tokens): got ")
    odd = [x[..., :9] if last else x for x in (q, k)]
    assert _message(lambda: distributed.attention(*odd, v, layout)).startswith(at)
    assert "window: got (-1, 3)" in _message(lambda: distributed.attention(q, k, v, layout, window=(-1, 3)))
    assert "layout.ranks: got" in _message(lambda: distributed.attention(q, k, v, Layout(FIXED, ranks + 1)))
    assert "way: got 'best'" in _message(lambda: distributed.attention(q, k, v, layout, way="best"))
