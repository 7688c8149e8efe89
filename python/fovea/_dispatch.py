# SPDX-License-Identifier: Apache-2.0
"""The steps around an operator in torch's dispatcher: derivatives are refused, and written tensors count as changed. Views whose
values are not those of their memory are resolved. Errors get their type, and tracing runs nothing.

Kernels of the extension see none of this: torch's stable ABI has no way to ask for it.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from fovea._c_plans import C_PLANS
from fovea._library import typed

_BELOW = torch._C._after_ADInplaceOrView_keyset
_KINDS = {"Tensor": "T", "Optional[Tensor]": "t", "int": "i", "Optional[int]": "j", "float": "f", "bool": "b", "str": "s"}
"""Types of schemas, as the C module has them. It leaves calls with others to the operator."""
_library = torch.library.Library("fovea", "IMPL")  # what it registers lives as long as it does


class _Operator:
    """An operator and what surrounds it, as kernels that torch calls before the operator's own and as a function."""

    def __init__(self, name: str) -> None:
        self.overload = getattr(torch.ops.fovea, name).default
        arguments = self.overload._schema.arguments
        self.names = [argument.name for argument in arguments]
        self.written = [at for at, argument in enumerate(arguments) if argument.alias_info and argument.alias_info.is_write]
        for key in ("Autograd", "ADInplaceOrView"):  # inference mode passes by the first, and tensors made in it by both
            _library.impl(name, self.redispatch, key, with_keyset=True)
        for key in ("Conjugate", "Negative"):
            _library.impl(name, self.resolve, key)
        torch.library.register_fake(f"fovea::{name}", self.fake)
        self.run_known = _known(name, arguments, self.written)
        self.tensor_places = [at for at, argument in enumerate(arguments) if str(argument.type) in ("Tensor", "Optional[Tensor]")]

    def __call__(self, *args: Any) -> None:
        """For the functions of this package: the same without the call from torch to Python and back, which costs some 5 us. A
        call that says what an earlier one of its thread said runs that one's plan, without torch's dispatcher."""
        try:
            if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
                self.overload(*args)
            elif torch._C._autograd._profiler_enabled() or not self.run_known(args):
                self.run(self.overload, args, args)
        except RuntimeError as error:
            raise typed(error) from None

    def redispatch(self, keys: Any, *args: Any) -> None:
        try:
            self.run(self.overload.redispatch, (keys & _BELOW, *args), args)
        except RuntimeError as error:
            raise typed(error) from None

    def run(self, call: Callable[..., None], call_args: tuple[Any, ...], args: tuple[Any, ...]) -> None:
        self.check_derivatives(args)
        with torch._C._AutoDispatchBelowADInplaceOrView():
            call(*call_args)
        self.mark_written(args)

    def check_derivatives(self, args: tuple[Any, ...]) -> None:
        """Refuses to cut the graph."""
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*args):
            self.refuse_gradients(args)
        if forward_ad._current_level >= 0:
            refuse_tangents(self.names, args)

    def mark_written(self, args: tuple[Any, ...]) -> None:
        torch._C._increment_version([args[at] for at in self.written if args[at] is not None])

    def refuse_gradients(self, args: tuple[Any, ...]) -> None:
        """Raises where autograd would cut the graph silently. Under no_grad an output may require a gradient, as in torch."""
        name = next(name for name, tensor in _tensors(self.names, args) if tensor.requires_grad)
        raise NotImplementedError(f"{name}.requires_grad: got True, want False (no backward pass; use torch.no_grad() or detach())")

    def resolve(self, *args: Any) -> None:
        for at in self.written:
            if args[at] is not None and (args[at].is_neg() or args[at].is_conj()):
                raise ValueError(
                    f"{self.names[at]}: got a view of the negative or conjugate of its memory, want memory of these values"
                )
        self.overload(*map(_resolved, args))

    def fake(self, *args: Any, **kwargs: Any) -> None:
        """An operator returns nothing and its outputs are the caller's, so tracing has nothing to work out. A call with one meta
        tensor among others also ends here. It would leave its outputs as they were."""
        given = _tensors([*self.names[: len(args)], *kwargs], [*args, *kwargs.values()])
        devices = [(name, tensor.device) for name, tensor in given]
        for name, device in devices:
            if (device.type == "meta") != (devices[0][1].type == "meta"):
                raise ValueError(f"{name}.device: got {device}, want {devices[0][1]}, as the tensors before it")


def _known(name: str, arguments: Sequence[Any], written: Sequence[int]) -> Callable[[tuple[Any, ...]], bool]:
    """Runs the plan of an earlier call with such arguments, if there is one."""
    if C_PLANS is None:
        return lambda _: False
    kinds = [_KINDS.get(str(argument.type), "n") for argument in arguments]
    for at in written:
        kinds[at] = "p" if arguments[at].name == "schedule" else {"T": "W", "t": "w"}.get(kinds[at], "n")
    defaults = tuple(argument.default_value for argument in arguments if argument.has_default_value())
    return C_PLANS.Known(torch.ops.fovea.known_plans(name), "".join(kinds), defaults).run


def refuse_tangents(names: Sequence[str], args: Sequence[Any]) -> None:
    """Raises where a result would count as a constant in forward-mode differentiation."""
    if forward_ad._current_level < 0:
        return
    for name, tensor in _tensors(names, args):
        if forward_ad.unpack_dual(tensor).tangent is not None:
            raise NotImplementedError(f"{name}.tangent: got a tensor, want none (no forward-mode derivative)")


def _tensors(names: Sequence[str], args: Sequence[Any]) -> Iterator[tuple[str, Tensor]]:
    for name, argument in zip(names, args, strict=False):
        for item in argument if isinstance(argument, list | tuple) else (argument,):
            if isinstance(item, Tensor):
                yield name, item


def _resolved(argument: Any) -> Any:
    if isinstance(argument, list | tuple):
        return [_resolved(item) for item in argument]
    return argument.resolve_conj().resolve_neg() if isinstance(argument, Tensor) else argument


OPERATORS: dict[str, _Operator] = {
    name: _Operator(name)
    for name in (
        "attention",
        "attention_backward",
        "paged_attention",
        "paged_cache_append",
        "merge_states",
        "latent_attention",
        "sparse_latent_attention",
        "quantize_latent_cache",
        "dequantize_latent_cache",
        "index_logits",
        "topk_rows",
        "quantize_qk_int8",
        "quantize_v",
        "quantized_attention",
        "quantize_and_attend",
    )
}
