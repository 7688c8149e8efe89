# SPDX-License-Identifier: Apache-2.0
"""The short path: a call of a public function that says what an earlier one said runs that one's plan, in plain C.

The first call of a kind takes the function itself. So does the second, and what it gave its operator is noted: which of its
arguments went where, and which outputs it made. The module ``_short_path`` (``src/torch/python``) keeps that under all that the
call said: dtype, device, shape, strides and alignment of each tensor, and every other argument. A later call that says the same
goes to the plan at once. Function, operator and dispatcher are left out.

Calls within tracing, modes, transforms, autocast or the profiler, and calls that want gradients, always take the function. Not
seen is what has no cheap sign: observers without a profiler, and kernels that others register for the operators.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from inspect import signature
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from fovea._library import is_captured, is_constant

_short_path: Any = None
with suppress(ImportError):  # of a build without Python's headers, or an interpreter without the limited API
    _short_path = import_module("fovea._short_path")

_recording = threading.local()
_Source = int | Tensor | None
"""Where a tensor of the operator comes from: the number of an argument, -1 and so on for new ones, or a constant."""


class Schedule:
    """What several calls share and the first of them computes."""

    _memory: Tensor | None
    _captured: bool
    _token: object
    """Of the known call that the memory is for."""


def _is_ready() -> bool:
    """Gives the module what it asks of torch; without all of that there is no short path."""
    if _short_path is None:
        return False
    try:
        modes = (
            torch._C._len_torch_dispatch_stack,
            torch._C._len_torch_function_stack,
            torch._C._get_tracing_state,
            torch._C._are_functorch_transforms_active,
            torch._C._is_any_autocast_enabled,
            torch._C._autograd._profiler_enabled,
        )
        parts = SimpleNamespace(
            extension=torch.ops.fovea.short_path(),
            exchange=torch.Tensor.__dlpack_c_exchange_api__,
            tensor_type=Tensor,
            parameter_type=torch.nn.Parameter,
            dtype_type=torch.dtype,
            schedule_type=Schedule,
            modes=modes,
            forward_ad=forward_ad,
            is_grad_enabled=torch.is_grad_enabled,
            is_negative=Tensor.is_neg,
            is_capturing=getattr(torch._C, "_cuda_isCurrentStreamCapturing", bool),
            increment_version=torch._C._increment_version,
            storage=Tensor.untyped_storage,
            storage_offset=Tensor.storage_offset,
        )
        _short_path.setup(parts)
    except (AttributeError, ImportError, ValueError):
        return False
    return True


READY = _is_ready()


def record(operator: Any, arguments: tuple[Any, ...]) -> None:
    """Called right after each run of an operator, before another one can run in this thread."""
    calls = getattr(_recording, "calls", None)
    if calls is not None:
        calls.append((_short_path.take_operator_call(), operator, arguments))


class Repeats:
    """The calls of a function that hands its tensors to one operator as they are, beside uninitialised memory for its results."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._names = tuple(signature(function).parameters)
        self._known = _short_path.Calls()
        self.run = self._known.run
        """``run(args, kwargs)``: the result of a known call, NotImplemented for ``second``, or Ellipsis for the function itself."""

    def second(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls the function, as for the first call of a kind, and keeps how for later ones."""
        outer, _recording.calls = getattr(_recording, "calls", None), []
        try:
            result = self._function(*args, **kwargs)
            calls = _recording.calls
        finally:
            _recording.calls = outer
        given, schedule = self._given(args, kwargs)
        noted = None
        if len(calls) == 1 and calls[0][0] is not None:
            operator_call, operator, arguments = calls[0]
            noted = _noted(given, result, operator, arguments)
        if noted is None and any(is_captured(tensor) for _, tensor in given):
            return result  # a capture has constants of its own
        token = self._known.learn(args, kwargs, *((operator_call, *noted) if noted else (None,) * 5))
        if schedule is not None:
            schedule._token = token
        return result

    def _given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[tuple[str, Tensor]], Schedule | None]:
        """The tensors of a call in the order in which the module counts them, and the schedule, whose memory is one."""
        tensors, schedule = [], None
        for name, value in (*zip(self._names, args, strict=False), *kwargs.items()):
            if isinstance(value, Schedule):
                schedule, value = value, value._memory
            if isinstance(value, Tensor):
                tensors.append((name, value))
        return tensors, schedule


def _noted(given: list[tuple[str, Tensor]], result: Any, operator: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """What ``learn`` takes beside the call, or None where a tensor of the operator is a copy or a view of an argument."""
    sources: list[_Source] = []
    new: list[tuple[Any, ...]] = []
    sources_by_identity: dict[int, _Source] = {id(None): None}
    written = []
    for name, tensor, is_written in operator.tensors(arguments):
        source = None
        if tensor is not None:
            source = _source(name, tensor, given)
            if source is None and is_written and _is_new(tensor):
                new.append(_made_again(tensor, given))
                source = -len(new)
            if source is None:
                return None
            if is_written and isinstance(source, int) and source >= 0:
                written.append(source)
        sources.append(source)
        sources_by_identity[id(tensor)] = source
    parts = result if type(result) is tuple else (result,)
    if any(id(part) not in sources_by_identity for part in parts):
        return None
    returned = tuple(sources_by_identity[id(part)] for part in parts)
    return tuple(sources), tuple(new), returned if type(result) is tuple else returned[0], tuple(written)


def _source(name: str, tensor: Tensor, given: Sequence[tuple[str, Tensor]]) -> _Source:
    """The argument of this name, if it is this very tensor; else the only one that is; else the tensor, if it stays as it is."""
    same = [index for index, (_, argument) in enumerate(given) if argument is tensor]
    named = [index for index in same if given[index][0] == name]
    if named or len(same) == 1:
        return (named or same)[0]
    return tensor if is_constant(tensor) else None


def _is_new(tensor: Tensor) -> bool:
    """Whether it can be memory that the function has just allocated."""
    return tensor._base is None and tensor.is_contiguous() and tensor.storage_offset() == 0


def _made_again(tensor: Tensor, given: Sequence[tuple[str, Tensor]]) -> tuple[Any, ...]:
    """How to allocate such a tensor: a function, the argument that it is like, the other arguments, and options."""
    for index, (_, argument) in enumerate(given):
        if (argument.shape, argument.dtype, argument.device) == (tensor.shape, tensor.dtype, tensor.device):
            return torch.empty_like, index, (), {"memory_format": torch.contiguous_format}  # twice as fast as torch.empty
    return torch.empty, None, (tuple(tensor.shape),), {"dtype": tensor.dtype, "device": tensor.device}
