# SPDX-License-Identifier: Apache-2.0
"""Plans that callers hold: what a function decides from the description of a call, made once and run often.

A plan is made by the function itself. Its body runs as always, up to the operator; that is caught and planned in the place of
running. ``Plan.run`` compares the tensors with the planned ones and runs the C++ plan, in C (``src/torch/plans/python``). Whatever
it does not take as it is comes back to Python: ``_run`` says what does not fit, or calls the operator, which modes, transforms and
subclasses of tensors see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial, wraps
from inspect import Parameter, signature
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fovea._annotations import name_of
from fovea._attention import attention
from fovea._attention_backward import differentiable_attention
from fovea._c_plans import C_PLANS
from fovea._calls import from_gate
from fovea._dispatch import OPERATORS
from fovea._explain import Described, problem
from fovea._latent import latent_attention, sparse_latent_attention
from fovea._library import is_captured, typed
from fovea._paged import paged_attention, paged_cache_append
from fovea._quantized import quantize_and_attend, quantized_attention
from fovea._words import in_python

_Parameters = ParamSpec("_Parameters")
_ALIGNMENT = 16
"""The largest alignment that a plan is promised, in bytes."""
_NAMES = {operator.overload: name for name, operator in OPERATORS.items()}


class _InPython:
    """In the place of the C class, where Python has no limited API: each run calls the operator."""

    def __new__(cls, *_: Any) -> Any:
        return object.__new__(cls)

    def run(self: Any, *tensors: Any, **named: Any) -> Any:
        return self._run(tensors, named)

    def prepare(self: Any, *tensors: Any, **named: Any) -> None:
        self._prepare(tensors, named)


_Base: Any = _InPython if C_PLANS is None else C_PLANS.Plan
IN_C: bool = C_PLANS is not None
"""Whether runs are in C."""


class _Slot(NamedTuple):
    """A tensor of the operator's schema."""

    name: str
    at: int
    """Its place in the operator's arguments."""
    like: Tensor | None
    """Any tensor with the planned description; None where the plan has no such tensor."""
    shape: torch.Size | None
    """As the operator takes it: with a dimension of blocks that the caller's tensor may lack."""
    written: bool
    planned: Tensor | None
    make: Callable[..., Tensor] | None
    """Allocates a new output, like the tensor of the slot ``of`` where that is not -1."""
    of: int


class Plan(_Base):
    """A planned call of one of Fovea's functions: ``plan_attention``, ``plan_paged_attention`` and so on make it.

    >>> plan = fovea.plan_paged_attention(q, k_cache, v_cache, block_table, kv_len, out=out)
    >>> for layer in layers:
    ...     plan.run(layer.q, layer.k_cache, layer.v_cache, out=layer.out)

    ``run`` takes the function's tensors, in its order or by name. One that is not given, or None, is the tensor of the planning,
    with the values that it has now. A new output is allocated for each run, unless the planning or the run gives one. A tensor must
    have the dtype, device, shape and strides of the planned one, and start at a multiple of its alignment, 16 bytes at most. All
    other arguments are part of the plan. Rows of no sequence get 0 (``lse``: -inf) in runs of a plan without a given output.

    A plan may run in several threads and on several streams at once: a run takes its workspace from torch's allocator, in the order
    of the current stream, also while a CUDA graph is captured. Prepared runs share one schedule, so they follow each other.

    Runs have no gradient and do not follow autocast. Within torch's modes, transforms and traces, and over subclasses of tensors,
    the operator runs in the plan's place, and says what it says there. ``torch.compile`` breaks its graph at a run: compile the
    function itself. The profiler sees kernels, and no operator.
    """

    implementation: str
    """The implementation that runs, as :func:`fovea.implementations` names it."""
    workspace_bytes: int
    """The memory that a run takes while it lasts."""

    if TYPE_CHECKING:

        def run(self, *tensors: Tensor | None, prepared: bool = False, **named: Tensor | None) -> Any:
            """Computes, and returns what the function returns.

            Args:
                tensors: Those that the function takes by position, in its order.
                prepared: Whether to use the schedule that :meth:`prepare` left.
                named: Tensors by name.
            """

        def prepare(self, *tensors: Tensor | None, **named: Tensor | None) -> None:
            """Computes how a run's work is distributed over the GPU, from the lengths now. The layers of a decode step share it.

            Later runs with ``prepared=True`` use it, on the same stream, over any tensors with **the same lengths**. It stays where
            it is, so that a captured graph of runs replays over what the last ``prepare`` left. The CPU has no schedule.
            """

    def explain(self) -> str:
        """Which implementation runs, with which tuning, and which ones declined and why; then the tensors of the planning."""
        slots = [(self._operator.names[slot.at], slot) for slot in self._slots if not slot.written and slot.shape is not None]
        planned = [(name, self._description[slot.name], slot.shape) for name, slot in slots]
        inputs = [Described(name, each.dtype, each.device, tuple(shape)) for name, each, shape in planned]
        return self._text + problem(_NAMES[self._operator.overload], inputs)

    def __repr__(self) -> str:
        return f"<fovea.Plan of {self._operator.overload._schema.name.removeprefix('fovea::')}: {self.implementation}>"

    @classmethod
    def _of(cls, call: _Call, slots: list[_Slot], order: tuple[int, ...], result: Any) -> Plan:
        """``order``: slots of positional arguments. ``result``: a slot, a tuple of slots, or None."""
        for_c = tuple((slot.name, slot.like, slot.planned, slot.written, slot.make, slot.of) for slot in slots)
        self = _Base.__new__(cls, call.address, for_c, order, result)
        self._operator, self._slots, self._order, self._result = call.operator, slots, order, result
        self._arguments = [None if isinstance(value, Tensor) else value for value in call.arguments]
        self._text, self.workspace_bytes = call.text, call.workspace_bytes
        self.implementation = call.text.partition(":")[0]
        self._description = {slot.name: None if slot.like is None else _Description.of(slot.like) for slot in slots}
        self._slots = [slot._replace(like=None) for slot in slots]  # a new output is not kept
        return self

    def _run(self, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """A run through the operator, of tensors that fit."""
        tensors = self._bound(args, named, ("prepared",))
        arguments = list(self._arguments)
        for index, slot in enumerate(self._slots):
            if slot.make is not None and tensors[index] is None:
                tensors[index] = slot.make() if slot.of < 0 else slot.make(tensors[slot.of])
            tensor = tensors[index]
            arguments[slot.at] = tensor if tensor is None or tensor.shape == slot.shape else tensor.view(slot.shape)
        try:
            self._operator(*arguments)
        except (ValueError, NotImplementedError) as error:
            raise self._in_words(error) from None
        if isinstance(self._result, tuple):
            return tuple(tensors[index] for index in self._result)
        return None if self._result is None else tensors[self._result]

    def _prepare(self, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        self._bound(args, named, ())
        if IN_C:
            raise NotImplementedError("prepare(): got a mode, a transform or an unusual tensor of torch, want plain tensors")

    def _bound(self, args: tuple[Any, ...], named: dict[str, Any], options: Sequence[str]) -> list[Any]:
        """The tensor of each slot, None for new outputs. Raises where one does not fit."""
        names = [slot.name for slot in self._slots]
        if len(args) > len(self._order):
            raise TypeError(f"run() takes {len(self._order)} tensors by position ({len(args)} given)")
        given = {names[index]: value for index, value in zip(self._order, args, strict=False)}
        for name, value in named.items():
            if name not in names and name not in options:
                raise TypeError(f"run() got an unexpected keyword argument {name!r}; want {', '.join((*names, *options))}")
            if name in given:
                raise TypeError(f"run() got multiple values for argument {name!r}")
            if name in options and not isinstance(value, bool):
                raise TypeError(f"{name}: got {name_of(value)}, want a bool")
            given[name] = value
        tensors = []
        for slot in self._slots:
            tensor = given.get(slot.name)
            if tensor is not None:
                self._check(slot.name, tensor)
            elif slot.planned is None and slot.make is None and self._description[slot.name] is not None:
                raise TypeError(f"run() missing a tensor: {slot.name!r}, which this plan does not keep")
            tensors.append(slot.planned if tensor is None else tensor)
        return tensors

    def _check(self, name: str, tensor: Any) -> None:
        """Raises where a tensor is not as planned."""
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name}: got {name_of(tensor)}, want a torch.Tensor")
        want = self._description[name]
        if want is None:
            raise ValueError(f"{name}: got a tensor, want none, as planned")
        got = _Description.of(tensor)
        for field in ("dtype", "device", "shape"):
            one, other = getattr(got, field), getattr(want, field)
            if one != other:
                raise ValueError(f"{name}.{field}: got {_text(one)}, want {_text(other)}, as planned")
        for axis, extent in enumerate(want.shape):
            if extent > 1 and tensor.numel() and got.strides[axis] != want.strides[axis]:
                raise ValueError(f"{name}.strides[{axis}]: got {got.strides[axis]}, want {want.strides[axis]}, as planned")
        if got.alignment < want.alignment:
            raise ValueError(f"{name}.alignment: got {got.alignment} bytes, want {want.alignment}, as planned")

    def _new_schedule(self) -> Tensor | None:
        device = next(want.device for want in self._description.values() if want is not None)
        if device.type == "cpu" or self.workspace_bytes == 0:
            return None
        return torch.empty(self.workspace_bytes, dtype=torch.uint8, device=device)

    def _fail(self, text: str) -> None:
        """Raises what the library says of a run."""
        raise self._in_words(typed(RuntimeError(text)))

    def _in_words(self, error: Exception) -> Exception:
        return from_gate(type(error)(in_python(str(error), dict.fromkeys(self._description))))


class _Description(NamedTuple):
    dtype: torch.dtype
    device: torch.device
    shape: torch.Size
    strides: tuple[int, ...]
    alignment: int

    @classmethod
    def of(cls, tensor: Tensor) -> _Description:
        """A tensor without an address counts as aligned."""
        bits = _ALIGNMENT
        if type(tensor) is Tensor:
            with suppress(RuntimeError):
                bits |= tensor.data_ptr()
        return cls(tensor.dtype, tensor.device, tensor.shape, tensor.stride(), bits & -bits)


def _text(value: Any) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value)


class _Call(NamedTuple):
    """An operator's call, caught and planned in the place of running."""

    operator: Any
    arguments: tuple[Any, ...]
    address: int
    """The C++ plan, which the caller owns."""
    workspace_bytes: int
    text: str

    @classmethod
    def of(cls, name: str, arguments: tuple[Any, ...]) -> _Call:
        try:
            words = getattr(torch.ops.fovea, f"{'plan' if IN_C else 'explain'}_{name}").default(*arguments)
        except RuntimeError as error:
            raise typed(error) from None
        text = bytes(words.tolist()).decode()
        address, workspace_bytes, text = text.split("\n", 2) if IN_C else ("0", "0", text)
        return cls(OPERATORS[name], arguments, int(address), int(workspace_bytes), text)


class _Catch(TorchDispatchMode):
    """Catches the operator of a function."""

    call: _Call | None = None

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is differentiable_attention:
            names = (argument.name for argument in func._schema.arguments)
            named = [(name, tensor) for name, tensor in zip(names, args, strict=False) if isinstance(tensor, Tensor)]
            name = next((name for name, tensor in named if tensor.requires_grad), None)
            if name is None:
                raise NotImplementedError(f"{named[0][0]}: got a tensor within torch.vmap, want a plain one in a plan")
            raise NotImplementedError(
                f"{name}.requires_grad: got True, want False (a plan has no gradient; use torch.no_grad() or detach())"
            )
        name = _NAMES.get(func)
        if name is None:
            return func(*args, **(kwargs or {}))
        if is_captured(args[0]):
            raise NotImplementedError(
                "got a call within a CUDA graph's capture, want a plan from before it: its runs can be captured"
            )
        self.call = _Call.of(name, args)
        return None


def _planner(function: Callable[_Parameters, Any]) -> Callable[_Parameters, Plan]:
    """The function that plans calls of another one and takes the same arguments."""
    return _planner_of(function, keeps=True)


def layers_planner(function: Callable[_Parameters, Any]) -> Callable[_Parameters, Plan]:
    """A planner for engines, whose plans outlive a layer's tensors. They keep none given by position: each run gives these."""
    return _planner_of(function, keeps=False)


def _planner_of(function: Any, keeps: bool) -> Any:
    """``keeps``: whether plans keep the tensors given by position."""
    name = function.__name__
    parameters = signature(function).parameters
    by_position = [each.name for each in parameters.values() if each.kind is Parameter.POSITIONAL_OR_KEYWORD]

    @wraps(function)
    def plan(*args: Any, **kwargs: Any) -> Plan:
        if "schedule" in parameters and kwargs.get("schedule") is not None:
            raise ValueError("schedule: got a schedule, want None (a plan has its own: Plan.prepare)")
        share = kwargs.get("dropout_p") if "dropout_state" in parameters else None
        if isinstance(share, Real) and share != 0 and kwargs.get("dropout_state") is None:
            raise ValueError("dropout_state: got None, want a tensor (a plan draws no seed and offset of its own)")
        with _Catch() as catch, torch._C._DisableAutocast():
            result = function(*args, **kwargs)
        call = catch.call
        if call is None:
            raise NotImplementedError(f"plan_{name}(): got {name} within a transform of torch, want plain tensors")
        given = dict(zip(parameters, args, strict=False)) | kwargs
        slots = _slots_of(call, given)
        order = tuple(index for each in by_position for index in _slots_at(each, given.get(each), slots, call))
        if not keeps:
            own = {id(tensor) for value in args for tensor in _tensors(value)}
            slots = [slot._replace(planned=None) if id(slot.planned) in own else slot for slot in slots]
        return Plan._of(call, slots, order, _places(result, call, slots))

    plan.__name__, plan.__qualname__ = f"plan_{name}", f"plan_{name}"
    plan.__annotations__ = plan.__annotations__ | {"return": Plan}
    plan.__doc__ = f"""Plans a call of :func:`fovea.{name}`: takes its arguments, raises its errors and runs nothing.

    Returns:
        A :class:`fovea.Plan`, which runs over these tensors or others like them.
    """
    return plan


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors of an argument: itself, or those of a tuple."""
    for item in value if isinstance(value, tuple) else (value,):
        if isinstance(item, Tensor):
            yield item


def _slots_of(call: _Call, given: dict[str, Any]) -> list[_Slot]:
    operator, arguments = call.operator, call.arguments
    own = {id(tensor) for value in given.values() for tensor in _tensors(value)}
    slots: list[_Slot] = []
    for at in operator.tensor_places:
        tensor, name, written = arguments[at], operator.names[at], at in operator.written
        if name == "schedule":
            continue
        made, of = None, -1
        planned = like = tensor
        if tensor is not None and written and id(tensor) not in own:
            of = next((index for index, slot in enumerate(slots) if slot.make is None and _same(slot.planned, tensor)), -1)
            made, planned = _maker(tensor, of), None
        elif tensor is not None and id(tensor) not in own and isinstance(given.get(name), Tensor):
            planned = like = given[name]  # of which the operator takes a view
        elif tensor is not None and id(tensor) not in own and given.get(name) is None:
            name = f"({name})"  # the function's own, on which other arguments rest: no run gives another
        slots.append(_Slot(name, at, like, None if tensor is None else tensor.shape, written, planned, made, of))
    return slots


def _same(one: Tensor | None, other: Tensor) -> bool:
    return one is not None and (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)


def _maker(tensor: Tensor, of: int) -> Callable[..., Tensor]:
    if of >= 0:
        return partial(torch.empty_like, memory_format=torch.contiguous_format)  # twice as fast as torch.empty
    return partial(torch.empty, tuple(tensor.shape), dtype=tensor.dtype, device=tensor.device)


def _slots_at(name: str, value: Any, slots: list[_Slot], call: _Call) -> Iterator[int]:
    """The slots of an argument by position: that of its name, or those that hold the tensors of a tuple."""
    names = [slot.name for slot in slots]
    if not isinstance(value, tuple):
        return iter([names.index(name)] if name in names else [])
    held = [id(call.arguments[slot.at]) for slot in slots]
    return (held.index(id(tensor)) for tensor in _tensors(value) if id(tensor) in held)


def _places(result: Any, call: _Call, slots: list[_Slot]) -> Any:
    """The slots of a function's result."""
    if result is None:
        return None
    held = {id(call.arguments[slot.at]): index for index, slot in enumerate(slots) if slot.written}
    return tuple(held[id(each)] for each in result) if isinstance(result, tuple) else held[id(result)]


plan_attention = _planner(attention)
plan_paged_attention = _planner(paged_attention)
plan_paged_cache_append = _planner(paged_cache_append)
plan_latent_attention = _planner(latent_attention)
plan_sparse_latent_attention = _planner(sparse_latent_attention)
plan_quantized_attention = _planner(quantized_attention)
plan_quantize_and_attend = _planner(quantize_and_attend)
