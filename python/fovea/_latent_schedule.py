# SPDX-License-Identifier: Apache-2.0
"""The schedule that the layers of a decode step share, and the two operators that take one."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from fovea._dispatch import OPERATORS
from fovea._library import is_captured, typed


class LatentSchedule:
    """How the work of a call is distributed over a GPU. It is the same in every layer of a decode step, so it is computed once.

    >>> schedule = fovea.LatentSchedule()
    >>> for layer in layers:
    ...     out = fovea.latent_attention(q, layer.cache, block_table, kv_len, schedule=schedule)

    The object is empty at first. The first call that gets it, to :func:`fovea.latent_attention` or
    :func:`fovea.sparse_latent_attention`, computes the schedule. Later calls run with it, one after another on the same stream.
    They must have

    * the operation, shapes, strides, dtypes and options of the first call: a difference is refused (ValueError);
    * **the numbers of the first call in kv_len, cu_seqlens_q, topk_length and extra_topk_length**, in any tensors. These lie on the
      device, so this is not checked, and results over other lengths are wrong. All other numbers may change.

    So make a new one, or ``reset()``, for each step; neither costs anything.

    CUDA graphs: a first call that is captured computes the schedule in every replay, from the lengths at that time. A schedule from
    outside of a capture is not used within one, nor the other way round: the call computes a new one. Graphs captured one after
    another may share one, if the first is replayed before the others. ``reset()`` keeps them apart. Compiled functions do not look
    whether they are captured: make the object inside of them.

    The CPU has no schedule to share: lengths may change there, and only the checks are the same.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Starts over, as a new object. The memory stays with torch's allocator, which has it at hand for the next step."""
        self._call: tuple[Any, ...] = ()
        self._captured = False
        self._memory: Tensor | None = None

    def _fits(self, call: tuple[Any, ...]) -> bool:
        """Whether the schedule serves a call of this description. Raises if the caller wrongly says that it does."""
        if call == self._call:
            return True
        raise ValueError(_difference(call, self._call))

    def _memory_for(self, operation: str, arguments: tuple[Any, ...]) -> Tensor:
        """The memory that the operator takes as its schedule."""
        call = (operation, *map(_description, arguments))
        captured = is_captured(arguments[0])
        if self._memory is None or captured != self._captured or not self._fits(call):
            self._memory = _prepare(operation, arguments)
            self._call, self._captured = call, captured
        return self._memory


_OPERATIONS = ("latent_attention", "sparse_latent_attention")
_PREPARE, _BYTES = (
    {operation: getattr(torch.ops.fovea, prefix + operation).default for operation in _OPERATIONS}
    for prefix in ("prepare_", "schedule_bytes_")
)


def run(operation: str, schedule: LatentSchedule | None, *arguments: Any, fills: tuple[bool, ...] = ()) -> None:
    """Calls an operator with its arguments up to the schedule, which does not depend on what is filled after it."""
    memory = None if schedule is None else schedule._memory_for(operation, arguments)
    OPERATORS[operation](*arguments, memory, *fills)


def _prepare(operation: str, arguments: tuple[Any, ...]) -> Tensor:
    try:
        return _PREPARE[operation](*arguments, None)
    except RuntimeError as error:
        raise typed(error) from None


def _description(argument: Any) -> Any:
    """All that a plan knows of an argument, but for the alignment of its memory."""
    if not isinstance(argument, Tensor):
        return argument
    return argument.shape, argument.stride(), argument.dtype, argument.device


def _difference(call: tuple[Any, ...], first: tuple[Any, ...]) -> str:
    """The differences from the first call, in words."""
    if call[0] != first[0]:
        name, got, want = "schedule.operation", call[0], first[0]
    else:
        at = next(index for index, pair in enumerate(zip(call, first, strict=True)) if pair[0] != pair[1])
        name, got, want = OPERATORS[call[0]].names[at - 1], call[at], first[at]
        if isinstance(got, tuple) and isinstance(want, tuple):
            fields = zip(("shape", "strides", "dtype", "device"), got, want, strict=True)
            field, got, want = next(field for field in fields if field[1] != field[2])
            name, got, want = f"{name}.{field}", _text(got), _text(want)
        elif isinstance(got, tuple) or isinstance(want, tuple):
            got, want = ("none" if side is None else "a tensor" for side in (got, want))
    return f"{name}: got {got}, want {want}, as in the first call with this schedule"


def _text(value: Any) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value)


def _register_fake(operation: str) -> None:
    def without_memory(argument: Any) -> Any:
        if isinstance(argument, torch.SymInt):
            return int(argument)
        if not isinstance(argument, Tensor):
            return argument
        shape, strides = (tuple(map(int, numbers)) for numbers in (argument.shape, argument.stride()))
        return torch.empty_strided(shape, strides, dtype=argument.dtype, device="meta")

    def prepare(q: Tensor, *arguments: Any) -> Tensor:
        OPERATORS[operation].fake(q, *arguments)
        if q.is_meta:
            return q.new_empty(0, dtype=torch.uint8)
        with _disable_current_modes():  # the plan is a real one
            size = _BYTES[operation](q.device, *map(without_memory, (q, *arguments)))
        return q.new_empty(size, dtype=torch.uint8)

    torch.library.register_fake(f"fovea::prepare_{operation}", prepare)


for _operation in _OPERATIONS:
    _register_fake(_operation)
