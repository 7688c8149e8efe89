# SPDX-License-Identifier: Apache-2.0
"""Arguments against a function's annotations: which classes each takes, and what is wrong with those of a call that failed."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Real
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import torch
from torch import SymBool, SymFloat, SymInt, Tensor

from fovea._foreign import lesson
from fovea._library import INTEGERS, WINDOW


class _Kind(NamedTuple):
    """The values that an annotation takes."""

    classes: tuple[type, ...]
    """The commonest first, as isinstance() asks in this order."""
    words: str
    entries: tuple[Any, ...] = ()
    """Annotations of the entries of a list or tuple; the last one holds for all further entries."""
    length: int | None = None
    """The length of a tuple whose annotation says it."""


_KINDS = {
    Tensor: _Kind((Tensor,), "a torch.Tensor"),
    float: _Kind((float, int, SymFloat, SymInt, Real), "a number"),
    int: _Kind(INTEGERS, "an int"),
    bool: _Kind((bool, int, SymBool), "a bool"),
    str: _Kind((str,), "a str"),
    torch.dtype: _Kind((torch.dtype,), "a torch.dtype"),
    NoneType: _Kind((NoneType,), "None"),
}
_ANY = _Kind((object,), "anything")
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

Axes = Mapping[str, str | tuple[str, ...]]
"""The axes of tensors, by tensor: a text as "batch, seq, head, head_dim", or one such text for each rank that is taken."""


class Arguments:
    """The arguments that a function takes."""

    def __init__(self, function: Callable[..., Any], axes: Axes, *, nested: bool = False) -> None:
        self._nested = nested
        """Whether its tensors may be nested; the body says what else they must be."""
        self.of = function.__qualname__.rpartition("<locals>.")[2].removesuffix(".__init__")
        """The name of the function in errors."""
        self._signature = inspect.signature(function)
        parameters = self._signature.parameters.values()
        hints = get_type_hints(function)
        self.kinds = {each.name: _ANY if each.kind in _VARIADIC else _kind(hints.get(each.name, Any)) for each in parameters}
        in_order = [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
        self.in_order = tuple(self.kinds[name].classes for name in in_order)
        """The classes that each positional argument takes."""
        self.by_name = {name: kind.classes for name, kind in self.kinds.items()}
        self._axes = {name: (text,) if isinstance(text, str) else text for name, text in axes.items()}
        everywhere = {name: in_order.index(name) if name in in_order else len(in_order) for name in axes}
        self.ranks = tuple((name, at, tuple(map(_rank, self._axes[name]))) for name, at in everywhere.items())
        """Tensors whose rank is known: name, place among the positional arguments, and the ranks that are taken."""

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Arguments by name. Raises a TypeError that says what to write, as far as that is known."""
        try:
            return self._signature.bind(*args, **kwargs).arguments
        except TypeError as mismatch:
            raise TypeError(f"{self.of}() {lesson(kwargs, self.kinds) or mismatch}") from None

    def wrong(self, given: dict[str, Any]) -> Exception | None:
        """A refusal of the first argument that has another type, is a tensor, but not one of plain memory, or has another rank."""
        for name, value, kind in _values(given, self.kinds):
            if not isinstance(value, kind.classes):
                return TypeError(f"{name}: got {name_of(value)}, want {kind.words}")
            if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
                return ValueError(f"{name}: got {value}, want a number of 64 bits")
            if isinstance(value, Tensor):
                text = self._unusual(name, value) or self._wrong_rank(name, value)
                if text is not None:
                    return ValueError(text)
        return _without_data(given, self.kinds)

    def wrong_length(self, given: dict[str, Any]) -> TypeError | None:
        """A refusal of the first tuple that has another length than its annotation says."""
        for name, value, kind in _values(given, self.kinds):
            if kind.length is not None and isinstance(value, list | tuple) and len(value) != kind.length:
                return TypeError(f"{name}: got a tuple of {len(value)}, want {kind.words}")
        return None

    def axes_of(self, given: dict[str, Any]) -> dict[str, list[str]]:
        """The axes of the tensors of a call whose axes have names."""
        tensors = ((name, text, given.get(name)) for name, texts in self._axes.items() for text in texts)
        return {
            name: text.split(", ") for name, text, tensor in tensors if isinstance(tensor, Tensor) and tensor.dim() == _rank(text)
        }

    def _unusual(self, name: str, tensor: Tensor) -> str | None:
        return None if self._nested and tensor.is_nested else unusual(name, tensor)

    def _wrong_rank(self, name: str, tensor: Tensor) -> str | None:
        axes = self._axes.get(name)
        if axes is None or tensor.dim() in map(_rank, axes):
            return None
        return f"{name}.rank: got {tensor.dim()}, want {' or '.join(f'{_rank(text)} ([{text}])' for text in axes)}"


def _rank(axes: str) -> int:
    return axes.count(",") + 1


def unusual(name: str, tensor: Tensor) -> str | None:
    """Why no function of this package takes the tensor, or None."""
    if tensor.is_nested:
        return f"{name}: got a nested tensor, want a padded one, or the rows of a ragged batch with cu_seqlens"
    if tensor.layout != torch.strided:
        return f"{name}.layout: got {tensor.layout}, want torch.strided ({name}.to_dense())"
    if tensor.is_quantized:
        return f"{name}.dtype: got {tensor.dtype}, want a plain one ({name}.dequantize())"
    return _short_storage(name, tensor)


def _without_data(given: dict[str, Any], kinds: dict[str, _Kind]) -> Exception | None:
    """A refusal of the first tensor that has data among others without, or has none among others that do."""
    tensors = [(name, value) for name, value, _ in _values(given, kinds) if isinstance(value, Tensor)]
    for name, tensor in tensors:
        first = tensors[0][1].device
        if tensor.is_meta != (first.type == "meta"):
            return ValueError(f"{name}.device: got {tensor.device}, want {first}, as the tensors before it")
    return None


def _short_storage(name: str, tensor: Tensor) -> str | None:
    """The operators see it too. Where a function of torch's gets the tensor first, that says it in words of its own."""
    try:
        held = tensor.untyped_storage().nbytes()
    except RuntimeError:  # of a wrapper, as those of torch.vmap
        return None
    last = sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True))
    needed = (tensor.storage_offset() + last + 1) * tensor.element_size() if tensor.numel() else 0
    return f"{name}.storage: got {held} bytes, want at least {needed}" if held < needed and not tensor.is_meta else None


def _kind(annotation: Any) -> _Kind:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        kinds = [_kind(part) for part in parts]
        classes = tuple(one for kind in kinds for one in kind.classes)
        of_tuple = next((kind for kind in kinds if kind.entries), _ANY)
        return _Kind(classes, " or ".join(kind.words for kind in kinds), of_tuple.entries, of_tuple.length)
    if origin is Literal:
        return _Kind((str,), " or ".join(map(repr, parts)))
    if origin is tuple:
        if parts == (int | None, int | None):
            return _Kind((tuple, list), WINDOW)
        return _Kind(
            (tuple, list),
            "a tuple" if Ellipsis in parts else f"a tuple of {len(parts)}",
            tuple(part for part in parts if part is not Ellipsis),
            None if Ellipsis in parts else len(parts),
        )
    if origin is Sequence:
        return _Kind((list, tuple), "a list of tensors" if parts == (Tensor,) else "a list", parts)
    if annotation is Any or isinstance(annotation, TypeVar):
        return _ANY
    return _KINDS.get(annotation) or _Kind((origin or annotation,), f"a {_class_name(origin or annotation)}")


def _values(given: dict[str, Any], kinds: dict[str, _Kind]) -> Iterator[tuple[str, Any, _Kind]]:
    """Arguments by name, and what lists, tuples and named tuples of them hold."""
    for name, value in given.items():
        kind = kinds[name]
        yield name, value, kind
        if hasattr(value, "_fields"):
            yield from ((f"{name}.{field}", getattr(value, field), _kind(of)) for field, of in get_type_hints(type(value)).items())
        elif kind.entries and isinstance(value, list | tuple):
            last = len(kind.entries) - 1
            yield from ((f"{name}[{index}]", entry, _kind(kind.entries[min(index, last)])) for index, entry in enumerate(value))


def name_of(value: Any) -> str:
    """A value where it is short, and its type otherwise."""
    return (
        repr(value) if isinstance(value, bool | int | float | complex | str | torch.dtype | NoneType) else _class_name(type(value))
    )


def _class_name(kind: type) -> str:
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__.partition('.')[0]}.{kind.__name__}"


def said(given: dict[str, Any]) -> str:
    """The arguments of a call in one line, tensors by dtype and shape."""
    return ", ".join(f"{name} {_brief(value)}" for name, value in given.items() if name != "self")


def _brief(value: Any) -> str:
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}" if isinstance(value, Tensor) else name_of(value)
