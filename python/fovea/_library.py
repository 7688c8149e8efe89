# SPDX-License-Identifier: Apache-2.0
"""Loads the operators, and what the Python functions over them share."""

from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

EXTENSION = Path(__file__).parent / "_fovea.so"
if not EXTENSION.is_file():
    raise ImportError(f"fovea is not built: {EXTENSION} is missing (pip install ., or a build folder's python/ in PYTHONPATH)")
torch.ops.load_library(str(EXTENSION))

# How the message of an operator's error begins, and its type. torch's stable ABI passes on only the message of an exception.
_KINDS = {"invalid: ": ValueError, "unsupported: ": NotImplementedError}
_SMALLEST, _LARGEST = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max
INTEGERS = (int, torch.SymInt, Integral)
WINDOW = "(left, right), 0 or more keys before and after a query's own position, or None for no bound"


def typed(error: Exception) -> Exception:
    """The exception that says what happened."""
    text = str(error)
    return next((kind(text.removeprefix(prefix)) for prefix, kind in _KINDS.items() if text.startswith(prefix)), error)


def wants_gradients(*inputs: Tensor | None) -> bool:
    """Whether autograd would expect a backward pass."""
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in inputs)


def deterministic_order(asked: bool) -> bool:
    """Whether gradients must have the same bits from run to run: the call asks for it, or torch does."""
    return asked or torch.are_deterministic_algorithms_enabled()


def empty_out(q: Tensor, v: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A new tensor of q's shape, but for the head dim, which is v's."""
    if q.shape[-1:] == v.shape[-1:]:
        return torch.empty_like(q, dtype=dtype, memory_format=torch.contiguous_format)  # twice as fast as new_empty
    return q.new_empty((*q.shape[:-1], *v.shape[-1:]), dtype=dtype)


def empty_lse(q: Tensor) -> Tensor:
    """A new tensor of one number for each row and head: ``[batch, head, seq_q]``, or without a batch ``[total_q, head]``."""
    shape = (q.size(0), q.size(2), q.size(1)) if q.dim() == 4 else q.shape[:-1]
    return q.new_empty(shape, dtype=torch.float32)


def fills(cu_seqlens_q: Tensor | None, out: Tensor | None, lse: Tensor | None) -> tuple[bool, bool]:
    """``fill_out`` and ``fill_lse`` of an operator, from the outputs that the caller gave: in new ones, rows of no sequence hold
    0 and -inf. Without lengths from the caller every row has a sequence."""
    return (False, False) if cu_seqlens_q is None else (out is None, lse is None)


_counts: dict[tuple[torch.device, int], Tensor] = {}
"""0, n, 2n, .. on each device."""
_constants: dict[Any, Tensor] = {}
"""Small tensors that calls need again and again, by what they hold: to make one takes microseconds of each call."""
_MOST_CONSTANTS = 4096


def _keep(key: Any, tensor: Tensor) -> Tensor:
    """The tensor, which equal calls get again. One made in a graph's capture belongs to the graph, and holds nothing yet."""
    if len(_constants) < _MOST_CONSTANTS and not is_captured(tensor):
        _constants[key] = tensor
    return tensor


def is_captured(tensor: Tensor) -> bool:
    """Whether a call with this tensor is recorded into a graph just now."""
    return tensor.is_cuda and not torch.compiler.is_compiling() and torch.cuda.is_current_stream_capturing()


def one_row_each(q: Tensor) -> Tensor | None:
    """cu_seqlens_q of one row a sequence. None on the CPU, where operators need no tensor for it."""
    return rows_each(q, q.shape[0], 1) if q.is_cuda else None


def rows_each(q: Tensor, batch: int, each: int) -> Tensor:
    """cu_seqlens_q of so many rows a sequence."""
    device, needed = q.device, batch + 1
    # A tensor of a tracer is of no use later.
    if torch.compiler.is_compiling() or type(q) is not Tensor or type(needed) is not int or type(each) is not int:
        return torch.arange(needed, dtype=torch.int32, device=device) * each
    first = _constants.get((device, needed, each))
    return _new_counts(device, needed, each) if first is None else first


def _new_counts(device: torch.device, needed: int, each: int) -> Tensor:
    known = _counts.get((device, each))
    if known is None or known.numel() < needed:
        known = torch.arange(max(1 << (needed - 1).bit_length(), 1024), dtype=torch.int32, device=device) * each
        if type(known) is not Tensor or is_captured(known):
            return known[:needed]
        if known.is_cuda:
            torch.cuda.current_stream(device).synchronize()  # other streams read it too
        _counts[device, each] = known
    return _keep((device, needed, each), known[:needed])


def band(causal: bool, window: tuple[int | None, int | None] | None) -> tuple[int | None, int | None]:
    """The bounds of the mask, None where there is none; causal is a right bound of 0."""
    left, right = (None, None) if window is None else _bounds(window)
    if causal:
        right = 0 if right is None else min(right, 0)
    return left, right


def _bounds(window: tuple[int | None, int | None]) -> tuple[int | None, int | None]:
    """The window, checked. The library takes negative bounds, too; callers from other packages mean no bound by them."""
    if len(window) != 2 or not _is_bound(window[0]) or not _is_bound(window[1]):
        # A tensor is not printed: its values may lie past the end of its storage.
        got = "a pair with a tensor" if any(isinstance(bound, Tensor) for bound in window) else window
        raise ValueError(f"window: got {got}, want {WINDOW}; window=None is no window")
    return window


def _is_bound(bound: int | None) -> bool:
    return bound is None or (isinstance(bound, INTEGERS) and 0 <= bound < 1 << 63)


def top_left(anchor: str) -> bool:
    """Whether positions are counted from the first query and key."""
    if anchor not in ("bottom_right", "top_left"):
        raise ValueError(f"anchor: got {anchor!r}, want 'bottom_right' or 'top_left'")
    return anchor == "top_left"


def score_scale(scale: float | None) -> float:
    """The factor of the scores, as the operators take it: 0 stands for the default."""
    if scale is None:
        return 0.0
    if scale == 0:
        raise ValueError("scale: got 0, want another number, or None for the default")
    return scale


NO_TERMS = (None, None, 0.0, None, None, None, None)
"""``alibi_slopes``, ``bias``, ``dropout_p``, ``dropout_state`` and a packed mask's three arguments of a call without them."""

NO_SCALES = (None, None, None)
"""``q_scale``, ``k_scale`` and ``v_scale``, likewise."""


def new_dropout_state(q: Tensor) -> Tensor:
    """A seed and an offset from torch's generator of the device. Each replay of a captured graph draws them too."""
    return torch.empty(2, dtype=torch.int64, device=q.device).random_()


def scale_tensor(name: str, scale: Tensor | float | None, like: Tensor) -> Tensor | None:
    """A dequantisation scale as the operators want it: a float32 tensor, on the device of another."""
    if scale is None or isinstance(scale, Tensor):
        return scale
    if scale != 0 and not _SMALLEST <= abs(scale) <= _LARGEST:
        raise ValueError(f"{name}: got {scale}, want {_SMALLEST:.2g} to {_LARGEST:.2g} in magnitude (a normal float)")
    if torch.compiler.is_compiling() or type(like) is not Tensor:
        return torch.tensor(scale, dtype=torch.float32, device=like.device)
    known = _constants.get((like.device, "scale", scale))
    return _new_scale(scale, like.device) if known is None else known


def _new_scale(scale: float, device: torch.device) -> Tensor:
    made = torch.tensor(scale, dtype=torch.float32, device=device)  # waits for the copy, so that other streams may read it too
    return _keep((device, "scale", scale), made) if type(made) is Tensor else made


def version() -> str:
    """The library's version, which is the package's."""
    return torch.ops.fovea.version()
