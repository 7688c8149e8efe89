# SPDX-License-Identifier: Apache-2.0
"""torch.vmap and torch.func.grad: what dense attention does with them, and what the others say."""

from typing import Any

import torch
from torch import Tensor

from fovea._dispatch import OPERATORS

differentiable_attention = torch.ops.fovea.differentiable_attention.default
_FIXED = ("q", "k", "v")
_NAMES = [argument.name for argument in differentiable_attention._schema.arguments]


def is_mapped(*tensors: Tensor | None) -> bool:
    """Whether torch.vmap maps one of the tensors: the operator must return its results then instead of writing them."""
    if torch.compiler.is_compiling() or not torch._C._are_functorch_transforms_active():
        return False
    return any(tensor is not None and torch._C._functorch.is_batchedtensor(tensor) for tensor in tensors)


def refuse_grad_transforms(*tensors: Tensor | None) -> None:
    """Raises within torch.func.grad, vjp and jacrev, which take no operator with a gradient of its own."""
    if torch.compiler.is_compiling() or not torch._C._are_functorch_transforms_active():
        return
    for tensor in tensors:
        if tensor is not None and torch._C._functorch.is_gradtrackingtensor(tensor):
            raise NotImplementedError("torch.func: got grad, vjp or jacrev, want torch.autograd.grad or backward()")


def _map_attention(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, tuple[int, int]]:
    """The mapped dimension joins the batch, which is where callers would have put it."""
    for name, dim in zip(_NAMES, in_dims, strict=True):
        if dim is not None and name not in _FIXED:
            raise NotImplementedError(f"{name}: got a tensor mapped by torch.vmap, want only q, k and v mapped")
    call = dict(zip(_NAMES, args, strict=True))
    if call["cu_seqlens_q"] is not None:
        raise NotImplementedError("cu_seqlens_q: got a tensor within torch.vmap, want None (make one ragged batch of all)")
    for name in ("alibi_slopes", "bias", "dropout_state", "packed_mask"):
        if call[name] is not None:
            raise NotImplementedError(f"{name}: got a tensor within torch.vmap, want None (map the batch yourself)")
    refuse_grad_transforms(*args[:3], call["sink"])
    for name, dim in zip(_FIXED, in_dims, strict=False):
        tensor = call[name]
        moved = tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        call[name] = moved.flatten(0, 1)
    out, lse = differentiable_attention(*call.values())
    return tuple(result.unflatten(0, (info.batch_size, -1)) for result in (out, lse)), (0, 0)


def _refusal(name: str) -> Any:
    def refuse(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        mapped = next(argument for argument, dims in zip(OPERATORS[name].names, in_dims, strict=False) if _has_dim(dims))
        raise NotImplementedError(
            f"{mapped}: got a tensor mapped by torch.vmap, want a plain one (put the mapped dimension into the batch yourself)"
        )

    return refuse


def _has_dim(dims: Any) -> bool:
    """Whether a tensor is mapped, or one of a list."""
    return any(dim is not None for dim in dims) if isinstance(dims, list | tuple) else dims is not None


torch.library.register_vmap("fovea::differentiable_attention", _map_attention)
for _name in OPERATORS:
    torch.library.register_vmap(f"fovea::{_name}", _refusal(_name))
torch.library.register_vmap("fovea::differentiable_merge", _refusal("merge_states"))
