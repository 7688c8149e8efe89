# SPDX-License-Identifier: Apache-2.0
"""Judges the results of fovea's functions by the definitions of the operations."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

import definitions
import definitions_8bit
import definitions_indexer
import fovea
from definitions import E4M3, Want

FORMULAS = {
    function.__name__: function
    for function in (
        definitions.attention,
        definitions.attention_backward,
        definitions.dequantize_latent_cache,
        definitions.latent_attention,
        definitions.merge_states,
        definitions.paged_attention,
        definitions.paged_cache_append,
        definitions.quantize_latent_cache,
        definitions.scaled_dot_product_attention,
        definitions.sparse_latent_attention,
        definitions_indexer.index_logits,
        definitions_indexer.topk_rows,
        definitions_8bit.quantize_and_attend,
        definitions_8bit.quantize_qk_int8,
        definitions_8bit.quantize_v,
        definitions_8bit.quantized_attention,
    )
}
CACHES = {"paged_cache_append": ("k_cache", "v_cache"), "quantize_latent_cache": ("cache",)}
"""Arguments that are results."""


def check(name: str, call: dict[str, Any], result: Any, before: dict[str, Any]) -> None:
    """Asserts every result of a call. `before` has the arguments as they were before it."""
    got = results(name, call, result)
    wants = FORMULAS[name](arguments(name, before))
    assert got.keys() <= wants.keys(), f"{name} gave {got.keys() - wants.keys()} more than it should"
    for label, tensor in got.items():
        if name == "quantize_latent_cache":
            tensor = definitions.packed.decode(tensor, call["format"])
        if name == "paged_cache_append":
            tensor = definitions.stored(arguments(name, call), label[0])
        compare(f"{name}: {label}", tensor, wants[label])


def arguments(name: str, call: dict[str, Any]) -> SimpleNamespace:
    """All arguments of a call, on the CPU, and whether they came from a GPU."""
    on_cpu = definitions.with_defaults(getattr(fovea, name), to_cpu(call))
    on_cpu.from_gpu = is_on_gpu(call)
    return on_cpu


def is_on_gpu(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(is_on_gpu, value.values()))
    return any(map(is_on_gpu, value)) if isinstance(value, list | tuple) else isinstance(value, Tensor) and value.is_cuda


def to_cpu(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.cpu().resolve_neg()
    if isinstance(value, dict):
        return {name: to_cpu(item) for name, item in value.items()}
    if hasattr(value, "_fields"):
        return type(value)(*map(to_cpu, value))
    if isinstance(value, fovea.BlockMask):
        return fovea.BlockMask(**to_cpu(vars(value)))
    return [to_cpu(item) for item in value] if isinstance(value, list) else value


def results(name: str, call: dict[str, Any], result: Any) -> dict[str, Tensor]:
    """The results of a call, by the names of the formulas. An output that the caller gave is returned itself."""
    if name in CACHES:
        assert result is None
        return {label: to_cpu(call[label]) for label in CACHES[name]}
    given = result._asdict() if hasattr(result, "_asdict") else dict(zip(_names(name, call), _tuple(result), strict=True))
    got = {label: tensor for label, tensor in given.items() if isinstance(tensor, Tensor)}
    if name in ("quantize_qk_int8", "quantize_v"):
        asked = call["out"]._asdict() if call.get("out") is not None else {}
    else:
        asked = {} if name == "attention_backward" else call
    for label, tensor in got.items():
        assert asked.get(label) is None or asked[label] is tensor, f"{label} is not the tensor that was given"
    return {label: to_cpu(tensor) for label, tensor in got.items()}


def _tuple(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def _names(name: str, call: dict[str, Any]) -> list[str]:
    if name == "attention_backward":
        more = {"dsink": call.get("sink") is not None, "dbias": bool(call.get("bias_gradient"))}
        return ["dq", "dk", "dv", *(label for label, wanted in more.items() if wanted)]
    if name == "dequantize_latent_cache":
        return ["rows"]
    a = arguments(name, call)
    asked = {label: getattr(a, f"return_{label}", False) or getattr(a, label, None) is not None for label in ("lse", "max_logits")}
    return ["out", *(label for label, wanted in asked.items() if wanted)]


def compare(label: str, got: Tensor, want: Want) -> None:
    """NaN and infinities sit where they should, and everything else is within the bound."""
    value, bound = want.value.double(), torch.as_tensor(want.bound, dtype=torch.float64)
    assert tuple(got.shape) == tuple(value.shape), f"{label}.shape: got {list(got.shape)}, want {list(value.shape)}"
    if got.is_floating_point():  # what the dtype does not hold is infinite
        beyond = value.abs() > torch.finfo(got.dtype).max
        value = torch.where(
            beyond & (got.dtype != E4M3), torch.copysign(torch.tensor(torch.inf, dtype=torch.float64), value), value
        )
    got = got.double()
    special = ~value.isfinite()
    alike = torch.where(value.isnan(), got.isnan(), got == value)
    right = torch.where(special, alike, (got - value).abs() <= bound) | bound.isposinf()
    if not bool(right.all()):
        at = tuple((~right).nonzero()[0].tolist())
        raise AssertionError(
            f"{label}{list(at)}: got {got[at]}, want {value[at]}; {int((~right).sum())} of {right.numel()} are off"
        )
