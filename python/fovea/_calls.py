# SPDX-License-Identifier: Apache-2.0
"""What every public function does around its body: it checks the types of its arguments, and puts errors in their names."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from numbers import Real
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import torch
from torch import SymBool, SymFloat, SymInt, Tensor

from fovea._library import INTEGERS, WINDOW, typed
from fovea._repeat import READY, Repeats
from fovea._words import in_python

_Function = TypeVar("_Function", bound=Callable[..., Any])


class _Kind(NamedTuple):
    """What an annotation takes."""

    classes: tuple[type, ...]
    """The commonest first, as isinstance() asks in this order."""
    words: str
    entry: Any = None
    """Of a sequence: the annotation of its entries."""


_KINDS = {
    Tensor: _Kind((Tensor,), "a torch.Tensor"),
    float: _Kind((float, int, SymFloat, SymInt, Real), "a number"),
    int: _Kind(INTEGERS, "an int"),
    bool: _Kind((bool, int, SymBool), "a bool"),
    str: _Kind((str,), "a str"),
    torch.dtype: _Kind((torch.dtype,), "a torch.dtype"),
    NoneType: _Kind((NoneType,), "None"),
}


def checked(function: _Function) -> _Function:
    """Wraps a public function: refuses arguments of other types than annotated, and puts errors in the names of its arguments."""
    return _checked(function, None)


def repeatable(function: _Function) -> _Function:
    """``checked``, and calls that say what an earlier one said take the short path (``_repeat.py``)."""
    return _checked(function, Repeats(function) if READY else None)


def _checked(function: _Function, repeats: Repeats | None) -> _Function:
    run: Any = None if repeats is None else repeats.run
    second: Any = None if repeats is None else repeats.second
    signature = inspect.signature(function)
    kinds = _kinds(function)
    in_order = tuple(kind.classes for kind in kinds.values())
    classes_of = {name: kind.classes for name, kind in kinds.items()}

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            result = Ellipsis if run is None or torch.compiler.is_dynamo_compiling() else run(args, kwargs)
            if result is not Ellipsis and result is not NotImplemented:
                return result
            named = [
                isinstance(value, classes_of[name]) for name, value in kwargs.items()
            ]  # dict.__getitem__ stops torch 2.11's tracer
            if not all(map(isinstance, args, in_order)) or not all(named):
                raise TypeError  # which one, said below
            return second(args, kwargs) if result is NotImplemented else function(*args, **kwargs)
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            if torch.compiler.is_compiling():
                raise
            try:
                arguments = signature.bind(*args, **kwargs).arguments
            except TypeError as mismatch:
                raise TypeError(f"{function.__name__}() {mismatch}") from None
            raise _said(error, arguments, kinds) from None

    return call  # type: ignore[return-value]


def untraced(function: _Function) -> _Function:
    """``torch.compiler.disable``, but its import of the compiler waits until a compiler traces the function.

    That import takes a second. It keeps the default process group of torch.distributed until the program ends.
    """
    disabled = None

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal disabled
        if not torch.compiler.is_compiling():
            return function(*args, **kwargs)
        disabled = disabled or torch.compiler.disable(function)
        return disabled(*args, **kwargs)

    return call  # type: ignore[return-value]


def _kinds(annotated: Any) -> dict[str, _Kind]:
    return {name: _kind(annotation) for name, annotation in get_type_hints(annotated).items() if name != "return"}


def _kind(annotation: Any) -> _Kind:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        kinds = [_kind(part) for part in parts]
        return _Kind(tuple(one for kind in kinds for one in kind.classes), " or ".join(kind.words for kind in kinds))
    if origin is Literal:
        return _Kind((str,), " or ".join(map(repr, parts)))
    if origin is tuple:
        return _Kind((tuple, list), WINDOW)
    if origin is Sequence:
        return _Kind((list, tuple), "a list of tensors", entry=parts[0])
    return _KINDS.get(annotation) or _Kind((annotation,), f"a fovea.{annotation.__name__}")


def _wrong(arguments: dict[str, Any], kinds: dict[str, _Kind]) -> Exception | None:
    """A refusal of the first argument that has another type, or is a tensor, but not one of plain memory."""
    for name, value, kind in _values(arguments, kinds):
        if not isinstance(value, kind.classes):
            return TypeError(f"{name}: got {_name(value)}, want {kind.words}")
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            return ValueError(f"{name}: got {value}, want a number of 64 bits")
        if not isinstance(value, Tensor):
            continue
        if value.is_nested:
            return ValueError(f"{name}: got a nested tensor, want a padded one, or the rows of a ragged batch with cu_seqlens")
        if value.layout != torch.strided:
            return ValueError(f"{name}.layout: got {value.layout}, want torch.strided ({name}.to_dense())")
        if value.is_quantized:
            return ValueError(f"{name}.dtype: got {value.dtype}, want a plain one ({name}.dequantize())")
    return None


def _values(arguments: dict[str, Any], kinds: dict[str, _Kind]) -> Iterator[tuple[str, Any, _Kind]]:
    """Arguments by name, and what lists and named tuples of tensors hold."""
    for name, value in arguments.items():
        kind = kinds[name]
        yield name, value, kind
        if kind.entry is not None and isinstance(value, list | tuple):
            yield from ((f"{name}[{index}]", entry, _kind(kind.entry)) for index, entry in enumerate(value))
        elif hasattr(value, "_fields"):
            yield from ((f"{name}.{field}", getattr(value, field), of) for field, of in _kinds(type(value)).items())


def _name(value: Any) -> str:
    """A value where it is short, and its type otherwise."""
    if isinstance(value, bool | int | float | complex | str | torch.dtype | NoneType):
        return repr(value)
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__.partition('.')[0]}.{kind.__name__}"


def _said(error: Exception, arguments: dict[str, Any], kinds: dict[str, _Kind]) -> Exception:
    """What went wrong, in the names of the function's own arguments."""
    wrong = _wrong(arguments, kinds)
    if wrong is not None:
        return wrong
    if isinstance(error, RuntimeError):
        error = typed(error)
    return type(error)(in_python(str(error), arguments)) if type(error) in (ValueError, NotImplementedError) else error
