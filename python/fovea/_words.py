# SPDX-License-Identifier: Apache-2.0
"""The library's messages in the words of Python: the names of arguments, torch's dtypes, and the order of dimensions."""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

# Patterns are strings: only a call that fails compiles them, and re keeps the result.
_NAMES = (
    (r"\b(?:options|groups|args|main)\.(?=[a-z])", ""),
    (r"\bextra\.(?=[a-z])", "extra_"),
    (r"cache\.rows\b", "cache"),
    (r"cache\.format\b", "format"),
    (r"\bhas_scale\b", "cache_scale"),
    (r"\b(?:ragged\.)?max_seq_(?=[qk]\b)", "max_seqlen_"),
    (r"\bparts\[(\d+)\]\.(out|lse)\b", r"\2s[\1]"),
    (r"\b(full|partial)_block_(counts|indices|bits)\b", r"block_mask.\1_\2"),
    (r"\bblock_q(?=: got)", "block_mask.block_size[0]"),
    (r"\bblock_k(?=: got)", "block_mask.block_size[1]"),
    (r"^ragged(?=: got bounds)", "cu_seqlens_q"),
)
_K_OR_V = r"\b([kv])(?=\.(?:shape|strides|dtype|rank)\b)"

# Where named tuples hold the library's tensors: by argument.
_HELD = {
    "qk": {name: f"qk.{name}" for name in ("q", "k", "q_scale", "k_scale", "lse_shift", "granularity", "warp_rows")},
    "v": {"v": "v.v", "v_scale": "v.scale", "v_mean": "v.mean"},
    "out": {"q_int8": "out.q", "k_int8": "out.k", "v_out": "out.v", "v_scale": "out.scale", "v_mean": "out.mean"}
    | {name: f"out.{name}" for name in ("q_scale", "k_scale", "k_mean", "lse_shift")},
}

# Gradients that a function makes like its arguments.
_LIKE = {"dq": "q", "dk": "k", "dv": "v", "dsink": "sink"}

# The library's names, and torch's where they lack their module.
_DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "e4m3": torch.float8_e4m3fn,
    "i8": torch.int8,
    "i32": torch.int32,
    "i64": torch.int64,
    "u8": torch.uint8,
}
_DTYPES |= {str(dtype).removeprefix("torch."): dtype for dtype in _DTYPES.values()}
_DTYPE = rf"(?<![\w.'\"])(?:{'|'.join(_DTYPES)})(?!\w)"
# C++ names of dtypes in torch's errors: "Half" is torch.half and "Long" torch.long. _CPP_DTYPES has the exceptions.
_CPP_DTYPE = r"(?<=dtype: got )[A-Z]\w*"
_CPP_DTYPES = {"Byte": "uint8", "Char": "int8", "ComplexHalf": "chalf", "ComplexFloat": "cfloat", "ComplexDouble": "cdouble"}

# An extent with its place and its axis, what _order() appends, and what the axes of different tensors have beside their kind.
_EXTENT = r"\b(\w+)\.(shape|strides)\[\d+\] \((\w+)\)"
_ORDER = r"; (\w+) is \[([^]]*)\].*"
_KIND_OF_AXIS = r"^kv_|_(?:q|k|qk|v)$"


def renamed(text: str, names: Mapping[str, str]) -> str:
    """An error in the words of the caller of the function that raised it: its arguments by the caller's names."""
    if not names:
        return text
    name = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    return re.sub(rf"(?<![\w.'])(?<!\ba )(?<!\bno )({name})(?![\w'])", lambda match: names[match.group()], text)


def placed(text: str, axes: Mapping[str, list[str]]) -> str:
    """An error with extents at their places in tensors that have these axes, by name. The function inside may have others."""
    order = re.search(_ORDER, text)
    if order is not None and axes.get(order[1], order[2].split(", ")) != order[2].split(", "):
        text = text[: order.start()]
    return re.sub(_EXTENT, lambda match: _place(match, axes.get(match[1], [])), text)


def _place(extent: re.Match[str], axes: list[str]) -> str:
    """An extent at the place that its axis has among these."""
    kinds = [re.sub(_KIND_OF_AXIS, "", axis) for axis in axes]
    kind = re.sub(_KIND_OF_AXIS, "", extent[3])
    return f"{extent[1]}.{extent[2]}[{kinds.index(kind)}] ({extent[3]})" if kinds.count(kind) == 1 else extent.group()


def in_python(text: str, arguments: dict[str, Any]) -> str:
    """The library's error in the words of a function with these arguments."""
    for pattern, name in _NAMES:
        text = re.sub(pattern, name, text)
    if "k_cache" in arguments and "k" not in arguments:
        text = re.sub(_K_OR_V, r"\1_cache", text)
    elif "cache" in arguments:
        text = re.sub(_K_OR_V, "cache", text)
    held = (_HELD[name] for name in _HELD.keys() & arguments.keys() if hasattr(arguments[name], "_fields"))
    text = renamed(text, {name: place for names in held for name, place in names.items()})
    if "dout" in arguments:
        text = renamed(text, _LIKE)
    text = re.sub(
        _CPP_DTYPE, lambda match: str(getattr(torch, _CPP_DTYPES.get(match.group(), match.group().lower()), match.group())), text
    )
    text = re.sub(_DTYPE, lambda match: str(_DTYPES[match.group()]), text)
    return text + _order(arguments) if "(kv_head): got" in text and "a divisor of" in text else text


def _order(arguments: dict[str, Any]) -> str:
    """The order of dimensions, for callers whose heads lie where torch or another package has them."""
    name = next((name for name in ("k", "k_cache", "cache") if name in arguments), "")
    q, k = arguments.get("q"), arguments.get(name)
    if not isinstance(q, Tensor) or not isinstance(k, Tensor) or k.dim() != 4:
        return ""
    if name == "k":
        heads, ours, others = q.size(1), "[batch, seq, head, head_dim]", "[batch, head, seq, head_dim]"
    else:
        heads, ours, others = q.size(-2), "[blocks, page, kv_head, head_dim]", "[blocks, kv_head, page, head_dim]"
    text = f"; {name} is {ours}"
    if k.size(1) > 0 and heads % k.size(1) == 0:
        text += f", and {list(k.shape)} looks like {others}: transpose(1, 2)"
    return text
