# SPDX-License-Identifier: Apache-2.0
"""Changes that the fuzzer makes to a good call: one argument, or one entry of it, becomes something else."""

import contextlib
import math
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy
import torch
from torch import Tensor

import fovea
from fuzz_draw import E4M3, Draw

Path = tuple[str, int | None]
"""An argument, or an entry of a list or named tuple."""

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    E4M3,
    torch.float8_e5m2,
    torch.int8,
    torch.uint8,
    torch.int32,
)
DTYPES += (torch.int64, torch.int16, torch.bool, torch.complex64)
FOREIGN = {"softmax_scale": 0.1, "window_size": (-1, -1), "is_causal": True, "attn_mask": None, "dropout_p": 0.0, "colour": "red"}
NUMBERS = (0, -1, 1, 2, 3, 7, 1 << 31, (1 << 31) - 1, (1 << 63) - 1, 1 << 63, 1 << 64, -(1 << 31), -(1 << 63))
NUMBERS += (0.0, 0.7, -2.5, 1e-46, 1e39, math.nan, math.inf, -math.inf, True, False, 1e300)

SIZES = {"lengths": math.inf, "nnz": math.inf, "k": 1 << 31}
"""Sizes of results, by argument: the least one that is refused. Large ones below are good, and take all memory and time."""


SCALES_OF_CODES = ("k_scale_cache", "v_scale_cache")
SHARING = ("in another's memory", "rows lie over one another")
"""Slots keep the caches of one pool apart, so no call looks whether scales lie in the bytes of codes."""


class Subclass(Tensor):
    pass


def tensors(value: Any) -> list[Tensor]:
    """All tensors of a call."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, fovea.BlockMask):
        return tensors(vars(value))
    if isinstance(value, dict):
        return [tensor for item in value.values() for tensor in tensors(item)]
    return [tensor for item in value for tensor in tensors(item)] if isinstance(value, list | tuple) else []


def paths(call: dict[str, Any]) -> Iterator[Path]:
    for name, value in call.items():
        yield name, None
        if isinstance(value, list | tuple) and len(value) < 12:
            yield from ((name, index) for index in range(len(value)))


def look(call: dict[str, Any], path: Path) -> Any:
    return call[path[0]] if path[1] is None else call[path[0]][path[1]]


def put(call: dict[str, Any], path: Path, value: Any) -> None:
    name, index = path
    if index is None:
        call[name] = value
        return
    parts = [*call[name]]
    parts[index] = value
    call[name] = type(call[name])(*parts) if hasattr(call[name], "_fields") else type(call[name])(parts)


def show(value: Any) -> str:
    if isinstance(value, Tensor):
        if value.is_nested or value.layout != torch.strided:
            return f"{value.layout}"
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}, strides {list(value.stride())}, {value.device}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}({', '.join(map(show, value))})"
    if isinstance(value, fovea.BlockMask):
        return f"BlockMask({', '.join(map(show, vars(value).values()))})"
    return repr(value)


def mutate(draw: Draw, call: dict[str, Any], without: Collection[str] = ()) -> str:
    """Changes the call, and says how."""
    if draw.random() < 0.06:
        return change_keywords(draw, call)
    path = draw.choice([*paths(call)]) if call else None
    if path is None:
        return "nothing is left"
    value, label = look(call, path), path[0] if path[1] is None else f"{path[0]}[{path[1]}]"
    if label in without:
        return f"{label} stays"
    if isinstance(value, Tensor) and draw.random() < 0.9:
        placed = SHARING if path[0] in SCALES_OF_CODES else ()
        how, changed = draw.choice([how for how in OF_TENSORS if how not in without and how not in placed]), None
        if is_plain(value):  # a changed one may be
            with contextlib.suppress(RuntimeError):  # what torch does not do for every dtype
                changed = OF_TENSORS[how](draw, value, call)
        if changed is None:
            return f"{label} stays"
        put(call, path, changed)
        return f"{label}: {how}"
    changed = other_value(draw, value)
    if isinstance(changed, int | float) and 1e6 < changed < SIZES.get(path[0], 0):
        changed = 1000
    put(call, path, changed)
    return f"{label} = {show(changed)}"


def change_keywords(draw: Draw, call: dict[str, Any]) -> str:
    if call and draw.random() < 0.5:
        name = draw.choice(list(call))
        del call[name]
        return f"without {name}"
    name = draw.choice(list(FOREIGN))
    call[name] = FOREIGN[name]
    return f"with {name}"


def other_value(draw: Draw, value: Any) -> Any:
    """A value of another kind, or another number or text."""
    if isinstance(value, str):
        return draw.one_of("", "nonsense", None, 3, value.upper(), "rows", "block")
    if isinstance(value, torch.dtype):
        return draw.choice([*DTYPES, None, "float16"])
    if isinstance(value, bool):
        return draw.one_of(not value, None, 2, "yes", 0.5)
    if isinstance(value, int | float) or value is None:
        return draw.choice([*NUMBERS, None, "1", [1.0], torch.tensor(1), torch.tensor([0.5]), numpy.float32(0.5), numpy.int64(2)])
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return draw.one_of(type(value)(), type(value)([*value, *value[:1]]), type(value)(value[:-1]), tuple(value), None, 3)
    return draw.one_of(None, 1, 2.5, "text", [], (), object)


# ---- tensors -------------------------------------------------------------------------------------------------------------------


def like(tensor: Tensor, shape: list[int] | torch.Size) -> Tensor:
    """Other values of the dtype."""
    return torch.randn(shape).to(tensor.dtype) if tensor.is_floating_point() else torch.zeros(shape, dtype=tensor.dtype)


def resized(draw: Draw, tensor: Tensor, _: Any) -> Tensor | None:
    if tensor.dim() == 0:
        return None
    at, shape = draw.randrange(tensor.dim()), [*tensor.shape]
    shape[at] = draw.one_of(0, 1, shape[at] + 1, max(shape[at] - 1, 0), 2 * shape[at])
    return like(tensor, shape)


def swapped(draw: Draw, tensor: Tensor, _: Any) -> Tensor | None:
    return tensor.transpose(*draw.sample(range(tensor.dim()), 2)) if tensor.dim() > 1 else None


def spread(_: Draw, tensor: Tensor, __: Any) -> Tensor | None:
    """Every other element of its rows."""
    if tensor.dim() == 0:
        return None
    wide = torch.zeros((*tensor.shape, 2), dtype=tensor.dtype)
    wide[..., 0] = tensor
    return wide[..., 0]


def columns(_: Draw, tensor: Tensor, __: Any) -> Tensor | None:
    return tensor.transpose(-1, -2).contiguous().transpose(-1, -2) if tensor.dim() > 1 else None


def expanded(draw: Draw, tensor: Tensor, _: Any) -> Tensor | None:
    if tensor.dim() == 0 or 0 in tensor.shape:
        return None
    return (
        tensor.narrow(draw.randrange(tensor.dim()), 0, 1).expand(tensor.shape)
        if tensor.dim() > 1
        else tensor[:1].expand(tensor.shape)
    )


def overlapping(draw: Draw, tensor: Tensor, _: Any) -> Tensor | None:
    """Rows that lie over one another."""
    if tensor.dim() < 2 or 0 in tensor.shape:
        return None
    strides = [
        max(stride // 2, 1) if extent > 1 else stride for stride, extent in zip(tensor.stride()[:-1], tensor.shape, strict=False)
    ]
    return tensor.as_strided(tensor.shape, (*strides, tensor.stride(-1)), tensor.storage_offset())


def unaligned(draw: Draw, tensor: Tensor, _: Any) -> Tensor | None:
    """Begins at an odd element, or at an odd byte."""
    count, size = tensor.numel(), tensor.element_size()
    shift = draw.one_of(size, 1)
    memory = bytearray((count + 2) * size + 16)
    return (
        torch.frombuffer(memory, dtype=tensor.dtype, count=count, offset=shift).view(tensor.shape).copy_(tensor) if count else None
    )


def shrunk(draw: Draw, tensor: Tensor, _: Any) -> Tensor:
    """Storage that is smaller than the tensor says."""
    tensor = tensor.clone()
    tensor.untyped_storage().resize_(draw.one_of(0, tensor.untyped_storage().nbytes() // 2))
    return tensor


def shared(draw: Draw, tensor: Tensor, call: dict[str, Any]) -> Tensor | None:
    """In the memory of another argument, from its begin or a bit later. Caches of one pool may reach into each other: slots, not
    their extents, keep them apart."""
    caches = [call.get(name) for name in ("k_cache", "v_cache")]
    apart = [tensor, *caches] if any(tensor is cache for cache in caches) else [tensor]
    others = [other.detach() for other in tensors(call) if is_plain(other) and not any(other is each for each in apart)]
    others = others if tensor.numel() else []
    if not others:
        return None
    other = draw.choice(others)
    storage = other.untyped_storage()
    at = -(-other.storage_offset() * other.element_size() // tensor.element_size()) + draw.one_of(0, 0, 8, 64)
    if (at + tensor.numel()) * tensor.element_size() > storage.nbytes():
        return None
    memory = torch.empty(0, dtype=tensor.dtype).set_(storage, at, tensor.shape)
    return memory


def is_plain(tensor: Tensor) -> bool:
    """Whether it lies in memory that holds all of it."""
    if tensor.is_nested or tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
        return False
    if tensor.numel() == 0:
        return True
    last = sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (tensor.storage_offset() + last + 1) * tensor.element_size() <= tensor.untyped_storage().nbytes()


def another(draw: Draw, tensor: Tensor, call: dict[str, Any]) -> Tensor:
    return draw.choice(tensors(call))


def marked(draw: Draw, tensor: Tensor, _: Any) -> Tensor | None:
    """One element becomes another."""
    if tensor.numel() == 0:
        return None
    changed = tensor.clone(memory_format=torch.contiguous_format)
    is_integer = not (tensor.is_floating_point() or tensor.is_complex())
    value = draw.choice([-1, -2, 1, 5, 100, 2**31 - 1] if is_integer else [torch.nan, 3e4])
    info = torch.iinfo(tensor.dtype) if is_integer and tensor.dtype != torch.bool else None
    changed.view(-1)[draw.randrange(tensor.numel())] = value if info is None else max(info.min, min(value, info.max))
    return changed


def other_numbers(draw: Draw, tensor: Tensor, _: Any) -> Tensor | None:
    if tensor.is_floating_point():
        return (tensor.float() * draw.one_of(0.0, 30.0, -1.0)).to(tensor.dtype)
    return draw.one_of(tensor.flip(0) if tensor.dim() else tensor, torch.zeros_like(tensor), (tensor + 1).to(tensor.dtype))


def unusual(draw: Draw, tensor: Tensor, _: Any) -> Tensor | None:
    """No strided memory of plain numbers."""
    kind = draw.randrange(4)
    if kind == 0:
        return tensor.to_sparse()
    values = torch.randn(tensor.shape)
    if kind == 1:
        return torch.quantize_per_tensor(values, 0.1, 0, torch.quint8)
    if kind == 2 and tensor.dim() == 2:
        return values.to_sparse_csr()
    return torch.nested.nested_tensor(list(values), layout=torch.jagged) if tensor.dim() > 1 and 0 not in tensor.shape else None


def negative(_: Draw, tensor: Tensor, __: Any) -> Tensor | None:
    return torch.complex(tensor.float(), -tensor.float()).conj().imag if tensor.dtype == torch.float32 else None


OF_TENSORS: dict[str, Callable[[Draw, Tensor, dict[str, Any]], Tensor | None]] = {
    "another argument's": another,
    "another dimension": lambda draw, tensor, _: tensor[None] if draw.random() < 0.5 else tensor[..., None],
    "another dtype": lambda draw, tensor, _: tensor.to(draw.choice(DTYPES)),
    "another extent": resized,
    "another number": marked,
    "begins elsewhere": unaligned,
    "broadcast": expanded,
    "columns": columns,
    "dimensions swapped": swapped,
    "flattened": lambda _, tensor, __: tensor.flatten(),
    "in another's memory": shared,
    "negative view": negative,
    "no element": lambda _, tensor, __: torch.empty(0, dtype=tensor.dtype),
    "one dimension fewer": lambda _, tensor, __: tensor[0] if tensor.dim() and len(tensor) else None,
    "one number": lambda _, tensor, __: torch.zeros((), dtype=tensor.dtype),
    "other numbers": other_numbers,
    "parameter": lambda _, tensor, __: torch.nn.Parameter(tensor) if tensor.is_floating_point() else None,
    "rows lie over one another": overlapping,
    "spread": spread,
    "storage shrunk": shrunk,
    "subclass": lambda _, tensor, __: tensor.as_subclass(Subclass),
    "unusual": unusual,
    "wants a gradient": lambda _, tensor, __: tensor.detach().requires_grad_() if tensor.is_floating_point() else None,
    "without data": lambda _, tensor, __: tensor.to("meta"),
}
