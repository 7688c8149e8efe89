# SPDX-License-Identifier: Apache-2.0
"""The gate around every public function: it checks the types and ranks of arguments, and puts errors in their names."""

import re
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

from fovea._annotations import Arguments, Axes, said
from fovea._library import typed
from fovea._words import in_python, placed, renamed

_Function = TypeVar("_Function", bound=Callable[..., Any])

_ESCAPED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Errors that a body raises where it cannot use a value. A text with ``_GOT`` in it says which value."""
_CAUGHT = (*_ESCAPED, RuntimeError)
_GOT = ": got "
_SCHEMA = r"fovea::\w+\(\) "
"""How torch's dispatcher refuses what an operator's schema does not have."""


def checked(function: _Function) -> _Function:
    """Wraps a public function: refuses arguments of other types than annotated, and puts errors in the names of its arguments."""
    return _gate(function, Arguments(function, {}))


def adapted(
    names: Mapping[str, str] | None = None,
    *,
    axes: Axes | None = None,
    nested: bool = False,
    error: type[Exception] = ValueError,
) -> Callable[[_Function], _Function]:
    """``checked`` for functions, methods and classes that call public functions of this package under names of their own.

    Args:
        names: By the name of an argument of the function that is called inside: the caller's argument that it comes from.
        axes: The axes of tensors, by name; a tuple where several ranks are taken. The body sees no other rank.
        nested: Whether the body takes nested tensors.
        error: The class of the error of a bad call. A ValueError of the function that is called inside gets this class too.
            TypeError and NotImplementedError stay. An error that the body itself raises stays too if its text says what it got.
    """

    def around(function: Any) -> Any:
        if isinstance(function, type):
            function.__init__ = around(function.__init__)  # type: ignore[misc]
            return function
        return _gate(function, Arguments(function, axes or {}, nested=nested), names=names or {}, refusal=error)

    return around


def _gate(
    function: _Function,
    arguments: Arguments,
    *,
    names: Mapping[str, str] | None = None,
    refusal: type[Exception] = ValueError,
) -> _Function:
    in_order, by_name, ranks = arguments.in_order, arguments.by_name, arguments.ranks

    def said_here(error: Exception, call: tuple[Any, Any]) -> Exception:
        """A function, so that a tracer that meets the gate without a source for it meets no class of this package in it."""
        return _refused(error, arguments, call, names or {}, refusal)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            if not all(map(isinstance, args, in_order)):
                raise TypeError  # which one, said below
            for name, value in kwargs.items():
                if not isinstance(value, by_name.get(name, object)):
                    raise TypeError
            for name, at, taken in ranks:
                value = args[at] if at < len(args) else kwargs.get(name)
                if isinstance(value, Tensor) and value.dim() not in taken and not _has_rank(value, taken):
                    raise TypeError
            return function(*args, **kwargs)
        except _CAUGHT as error:
            if torch.compiler.is_compiling():
                raise
            refused = said_here(error, (args, kwargs))
            if refused is error:
                raise
            raise refused from refused.__cause__

    return call  # type: ignore[return-value]


def _has_rank(value: Tensor, taken: tuple[int, ...]) -> bool:
    """By `==`: Dynamo makes the numbers of a closure symbolic under ``dynamic=True``, and then finds none with `in`."""
    return any(value.dim() == rank for rank in taken)


def _refused(
    error: Exception, arguments: Arguments, call: tuple[Any, Any], names: Mapping[str, str], refusal: type[Exception]
) -> Exception:
    """The error in the names of the function's own arguments; the error itself where they say nothing of it."""
    try:
        given = arguments.bind(*call)
    except TypeError as mismatch:
        return from_gate(mismatch)
    wrong = arguments.wrong(given)
    if wrong is not None:
        return from_gate(wrong if isinstance(wrong, TypeError) else refusal(str(wrong)))
    if hasattr(error, "of_gate"):
        kind = refusal if type(error) is ValueError else type(error)
        return from_gate(kind(placed(renamed(str(error), names), arguments.axes_of(given))))
    known = typed(error)
    if re.match(_SCHEMA, str(known)) or (isinstance(known, _ESCAPED) and _GOT not in str(known)):
        wrong = arguments.wrong_length(given)
        if wrong is not None:
            return from_gate(wrong, error)
        text = f"{arguments.of}(): got {said(given)}, want arguments that go together"
        return from_gate(refusal(f"{text} ({type(error).__name__}: {error})"), error)
    return from_gate(type(known)(in_python(str(known), given))) if type(known) in (ValueError, NotImplementedError) else error


def from_gate(error: Exception, cause: Exception | None = None) -> Exception:
    """Notes that an error is in the names of a function with a gate, for the gate around its caller."""
    error.of_gate = True  # type: ignore[attr-defined]
    error.__cause__ = cause
    return error


def untraced(function: _Function) -> _Function:
    """``torch.compiler.disable``, but its import of the compiler waits until a compiler traces the function.

    The import takes a second. It keeps the default process group of torch.distributed until the program ends.
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
