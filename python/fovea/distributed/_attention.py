# SPDX-License-Identifier: Apache-2.0
"""Dense attention of sequences whose tokens lie on several ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from fovea._autocast import autocast
from fovea._block_mask import NO_BLOCKS
from fovea._calls import adapted, untraced
from fovea._dispatch import refuse_tangents
from fovea._functorch import is_mapped, refuse_grad_transforms
from fovea._library import NO_SCALES, NO_TERMS, band, score_scale, top_left, typed
from fovea._options import DenseMask
from fovea.distributed._agree import agree
from fovea.distributed._blocks import Mask
from fovea.distributed._call import Call
from fovea.distributed._checks import one_of, place
from fovea.distributed._compute import Forward, Scores, check_sink
from fovea.distributed._cost import WAYS, Problem, between_of, choose, machine_of
from fovea.distributed._gathered import Gathered
from fovea.distributed._heads import Heads, refusal, refusal_of_node
from fovea.distributed._layout import Layout
from fovea.distributed._nodes import check_mesh, nodes_of
from fovea.distributed._ring import Ring

if TYPE_CHECKING:
    from typing_extensions import Unpack

_NAME = "fovea.distributed.attention"
_ROWS = ("batch, tokens, head, head_dim", "tokens, head, head_dim")
_Way = Literal["auto", "ring", "gathered", "heads", "two_level"]
_Run = Ring | Gathered | Heads


class _Inputs(NamedTuple):
    q: Tensor
    k: Tensor
    v: Tensor
    sink: Tensor | None


class AttentionOptions(DenseMask, total=False):
    group: ProcessGroup | None
    layout_k: Layout | None
    way: _Way
    mesh: DeviceMesh | None
    softcap: float
    sink: Tensor | None
    check: bool


# fmt: off
@overload
def attention(q: Tensor, k: Tensor, v: Tensor, layout: Layout, *, return_lse: Literal[False] = False,
        **options: Unpack[AttentionOptions]) -> Tensor: ...
@overload
def attention(q: Tensor, k: Tensor, v: Tensor, layout: Layout, *, return_lse: Literal[True],
        **options: Unpack[AttentionOptions]) -> tuple[Tensor, Tensor]: ...
@overload
def attention(q: Tensor, k: Tensor, v: Tensor, layout: Layout, *, return_lse: bool = False,
        **options: Unpack[AttentionOptions]) -> Tensor | tuple[Tensor, Tensor]: ...
# fmt: on
@untraced
@adapted(axes={"q": _ROWS, "k": _ROWS, "v": _ROWS, "sink": "head"})
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: Layout,
    *,
    group: ProcessGroup | None = None,
    layout_k: Layout | None = None,
    way: _Way = "auto",
    mesh: DeviceMesh | None = None,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    anchor: Literal["bottom_right", "top_left"] = "bottom_right",
    scale: float | None = None,
    softcap: float = 0.0,
    sink: Tensor | None = None,
    return_lse: bool = False,
    check: bool = True,
) -> Tensor | tuple[Tensor, Tensor]:
    """:func:`fovea.attention` over the ranks of a group, each of which has the tokens that a layout gives it.

    Args:
        q: This rank's shard: ``[batch, tokens, head, dqk]``, or ``[tokens, head, dqk]`` of a ragged layout.
        k, v: This rank's shards, likewise.
        layout: Which rank holds which tokens (:class:`Layout`): the same on every rank.
        group: The ranks; None is the default group.
        layout_k: The layout of k and v, where they have other lengths than q.
        way: How keys and queries meet. ``"ring"``: K and V travel from rank to rank. ``"gathered"``: each rank gets all K and V
            while it attends to its own. ``"heads"``: each rank gets all tokens of some heads. ``"two_level"``: heads within a
            node, a ring between nodes. ``"auto"``: the one that the cost model takes for the fastest.
        mesh: The ranks of the group as ``[nodes, ranks of a node]``, where there are several nodes. ``"two_level"`` needs it, and
            ``"auto"`` considers it.
        causal, window, anchor, scale, softcap: As in :func:`fovea.attention`, of the positions in the whole sequence.
        sink: float32 ``[head]``, the same on every rank.
        return_lse: Whether to return this rank's log-sum-exp too.
        check: Whether ranks first make sure that they make the same call: one all-gather of 8 bytes, and a wait for the GPU.

    Returns:
        out, or (out, lse), of this rank's tokens. Both are differentiable once with respect to q, k, v and sink. The gradient of
        the sink is this rank's part of a sum over ranks, as are those of all weights. Gradients
        have the same bits from run to run with ``torch.use_deterministic_algorithms(True)``, out and lse always.

    Raises:
        ValueError: The call contradicts itself, or ranks differ: the same error on every rank.
        NotImplementedError: No implementation accepts it.
        RuntimeError: A rank left, or torch's timeout has passed: the error names the call and its step.
    """
    _refuse_transforms(_Inputs(q, k, v, sink))
    if torch._C._is_any_autocast_enabled():
        q, k, v, _ = autocast(q, k, v, None)
    rank, _ = place(group)
    options: dict[str, Any] = {"causal": causal, "window": window, "anchor": anchor, "scale": scale, "softcap": softcap, "way": way}
    options["mesh"] = None if mesh is None else tuple(mesh.shape)
    inputs = _Inputs(q, k, v, sink)
    layouts = layout, layout if layout_k is None else layout_k
    if check:
        fault = None
        try:
            _check_shards(inputs, layouts, way, group, mesh)
            _plan(inputs, options)
        except (ValueError, NotImplementedError) as error:
            fault = error
        agree(_NAME, _fields(inputs, layouts, options | {"return_lse": return_lse}), fault, q.device, group)
    else:
        _check_shards(inputs, layouts, way, group, mesh)
    chosen = _choose(inputs, layouts, causal, mesh) if way == "auto" else way
    call = Call(
        name=f"{_NAME} by {chosen}",
        group=group,
        rank=rank,
        layout=layouts[0],
        layout_k=layouts[1],
        mask=Mask(*band(causal, window), top_left(anchor)),
        scores=Scores(score_scale(scale), softcap),
    )
    out, lse = _Attention.apply(q, k, v, sink, _run(chosen, call, mesh))
    return (out, lse) if return_lse else out


def _run(way: str, call: Call, mesh: DeviceMesh | None) -> _Run:
    if way == "ring":
        return Ring(call)
    if way == "gathered":
        return Gathered(call)
    return Heads(call) if way == "heads" or mesh is None else Heads(call, nodes_of(mesh))


def _refuse_transforms(inputs: _Inputs) -> None:
    """Refuses transforms that an autograd function with messages inside does not take."""
    refuse_tangents(_Inputs._fields, inputs)
    refuse_grad_transforms(*inputs)
    if is_mapped(*inputs):
        raise NotImplementedError(
            "torch.vmap: got a mapped tensor, want plain ones (put the mapped dimension into the batch yourself)"
        )


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, run: _Run) -> tuple[Tensor, Tensor]:
        out, lse = run.forward(q, k, v, sink)
        ctx.save_for_backward(q, k, v, sink, out, lse)
        ctx.set_materialize_grads(False)
        ctx.run = run
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Any, ...]:
        q, k, v, sink, out, lse = ctx.saved_tensors
        if dout is None:
            dout = torch.zeros_like(out)
        if dout.stride(-1) != 1:
            dout = dout.clone(memory_format=torch.contiguous_format)  # contiguous() leaves the strides of an empty one
        forward = Forward(q, out, lse, dout, dlse, sink)
        return *ctx.run.backward(forward, k, v), None


def _check_shards(
    inputs: _Inputs, layouts: tuple[Layout, Layout], way: str, group: ProcessGroup | None, mesh: DeviceMesh | None
) -> None:
    """Checks all that this rank can see by itself, before any rank waits for another."""
    rank, ranks = place(group)
    q, k, v, _ = inputs
    for name, layout in zip(("layout", "layout_k"), layouts, strict=True):
        if layout.ranks != ranks:
            raise ValueError(f"{name}.ranks: got {layout.ranks}, want {ranks}, those of the group")
    if len(layouts[0].sequences) != len(layouts[1].sequences) or layouts[0].ragged != layouts[1].ragged:
        raise ValueError(f"layout_k.lengths: got {layouts[1].lengths}, want as many sequences as layout: {layouts[0].lengths}")
    dim = 0 if layouts[0].ragged else 1
    for name, tensor, layout in (("q", q, layouts[0]), ("k", k, layouts[1]), ("v", v, layouts[1])):
        if tensor.dim() != dim + 3:
            raise ValueError(f"{name}.dim(): got {tensor.dim()}, want {dim + 3} for this layout")
        if tensor.shape[dim] != layout.rows(rank):
            raise ValueError(f"{name}.shape[{dim}] (tokens): got {tensor.shape[dim]}, want {layout.rows(rank)} by the layout")
    one_of("way", way, ("auto", *WAYS, "two_level"))
    heads, kv_heads = q.shape[-2], k.shape[-2]
    if kv_heads == 0 or heads % kv_heads != 0:
        raise ValueError(f"k.shape[{dim + 1}] (kv_head): got {kv_heads}, want a divisor of {heads}")
    if v.shape[-2] != kv_heads:
        raise ValueError(f"v.shape[{dim + 1}] (kv_head): got {v.shape[-2]}, want {kv_heads} (kv_head of k)")
    check_sink(inputs.sink, q)
    check_mesh(mesh, way, group)
    reason = refusal(heads, kv_heads, ranks) if way == "heads" else None
    if way == "two_level" and mesh is not None:
        reason = refusal_of_node(heads, kv_heads, mesh.size(1))
    if reason is not None:
        raise ValueError(reason)


def _plan(inputs: _Inputs, options: dict[str, Any]) -> None:
    """Planning of a call like those of the blocks, without rows: it refuses what they would refuse."""
    q, k, v = (tensor.detach()[..., :0, :, :] for tensor in inputs[:3])
    out, lse = q.new_empty((*q.shape[:-1], v.shape[-1])), q.new_empty((*q.shape[:-3], q.shape[-2], 0), dtype=torch.float32)
    ragged: tuple[Any, ...] = (None,) * 4
    if q.dim() == 3:
        cu = torch.zeros(1, dtype=torch.int32, device=q.device)
        lse, ragged = lse.transpose(0, 1), (cu, cu, 0, 0)
    mask = (*band(options["causal"], options["window"]), top_left(options["anchor"]))
    scores = (score_scale(options["scale"]), options["softcap"])
    sink = None if inputs.sink is None else inputs.sink.detach()
    try:
        others = (sink, *NO_BLOCKS, *NO_TERMS, *NO_SCALES)
        torch.ops.fovea.explain_attention(q, k, v, out, lse, *ragged, *mask, *scores, *others, "", False)
    except RuntimeError as error:
        raise typed(error) from None


def _fields(inputs: _Inputs, layouts: tuple[Layout, Layout], options: dict[str, Any]) -> dict[str, Any]:
    """The fields that must be equal on all ranks, in the words of an error."""
    fields: dict[str, Any] = {"layout": str(layouts[0]), "layout_k": str(layouts[1])}
    for name, tensor in zip(_Inputs._fields, inputs, strict=True):
        fields[name] = "None" if tensor is None else "a tensor"
        if tensor is None:
            continue
        tokens = tensor.dim() - 3 if name != "sink" else -1
        fields[f"{name}.dtype"] = str(tensor.dtype)
        fields[f"{name}.dim()"] = tensor.dim()
        fields |= {f"{name}.shape[{axis}]": extent for axis, extent in enumerate(tensor.shape) if axis != tokens}
    return fields | options


def _choose(inputs: _Inputs, layouts: tuple[Layout, Layout], causal: bool, mesh: DeviceMesh | None) -> str:
    q, k, v, _ = inputs
    copies = 1 if layouts[0].ragged else q.shape[0]
    pairs = sum(one * other for one, other in zip(layouts[0].sequences, layouts[1].sequences, strict=True)) / (2 if causal else 1)
    problem = Problem(
        tokens=copies * max(sum(layouts[1].sequences), 1),
        pairs=copies * pairs,
        heads=q.shape[-2],
        kv_heads=k.shape[-2],
        dim_qk=q.shape[-1],
        dim_v=v.shape[-1],
        element_bytes=q.element_size(),
        ranks=layouts[0].ranks,
    )
    if mesh is None or mesh.size(0) == 1:
        return choose(problem, machine_of(q.device))
    return choose(problem, machine_of(q.device), between_of(q.device), mesh.size(1))
