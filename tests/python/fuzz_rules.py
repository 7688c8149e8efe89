# SPDX-License-Identifier: Apache-2.0
"""Rules that every call must keep to, accepted or refused: the words of a refusal, and the memory that it may write."""

import re
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from fuzz_mutations import is_plain, tensors

_NAME = r"[A-Za-z_]\w*"
_FIELD = re.compile(rf"^({_NAME})(?: and ({_NAME}))?[\w.\[\]()\-:+ /]*(?: \([^:]*\))?: got .+, want .+", re.DOTALL)
_SIGNATURE = re.compile(rf"^{_NAME}(?:\.{_NAME})*\(\) (?:missing|got|multiple|too many)")
_NOBODY = "no implementation on this device accepts the call"
_OF_TORCH = re.compile(
    r"fovea::|INTERNAL ASSERT|IndexError|AttributeError|KeyError|UnboundLocalError|OverflowError|c10::|aoti_torch"
)


def complaint(error: BaseException, names: Collection[str], kinds: tuple[type[BaseException], ...]) -> str | None:
    """The fault in a refusal, if any: of a function with arguments of these names that raises these kinds."""
    text = str(error)
    if type(error) not in kinds:
        return f"raises {type(error).__name__}"
    if _OF_TORCH.search(text):
        return "is not in words of this library"
    if isinstance(error, TypeError) and _SIGNATURE.match(text):
        return None
    if _NOBODY in text:
        names = {*names, "device"}
    if text.startswith(_NOBODY):
        return None
    match = _FIELD.match(text)
    if match is None:
        return "does not read `tensor.field (meaning): got X, want Y`"
    strange = [name for name in match.groups() if name is not None and name not in names]
    return f"names {strange[0]}, which is no argument" if strange else None


def _bytes(tensor: Tensor) -> Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


class Memory:
    """The memory of a call's tensors before it."""

    def __init__(self, call: dict[str, Any], written: Collection[str]) -> None:
        plain = {name: [tensor.detach() for tensor in tensors(value) if is_plain(tensor)] for name, value in call.items()}
        self._before: dict[int, tuple[Tensor, Tensor]] = {}
        for tensor in (tensor for each in plain.values() for tensor in each):
            memory = _bytes(tensor)
            if memory.numel():
                self._before.setdefault(memory.data_ptr(), (memory, memory.clone()))
        self._outputs = [tensor for name, each in plain.items() if name in written for tensor in each if tensor.numel()]

    def changed(self, accepted: bool) -> str | None:
        """Says whether a refused call has written anything, or an accepted one beside its outputs."""
        may_write = {at: torch.zeros(len(memory), dtype=torch.bool) for at, (memory, _) in self._before.items()}
        for tensor in self._outputs if accepted else ():
            size, memory = tensor.element_size(), _bytes(tensor)
            strides, offset = [stride * size for stride in tensor.stride()], tensor.storage_offset() * size
            may_write[memory.data_ptr()].as_strided((*tensor.shape, size), (*strides, 1), offset).fill_(True)
        for at, (memory, old) in self._before.items():
            if bool(((memory != old) & ~may_write[at]).any()):
                return "wrote beside its outputs" if accepted else "was refused and has written"
        return None


def must_be_refused(call: dict[str, Any]) -> bool:
    """Whether a tensor has no memory that could be read."""
    return any(not is_plain(tensor) and tensor.device.type == "cpu" for tensor in tensors(call))


def has_no_data(call: dict[str, Any]) -> bool:
    return any(tensor.device.type == "meta" for tensor in tensors(call))
