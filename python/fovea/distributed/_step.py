# SPDX-License-Identifier: Apache-2.0
"""The state that the layers of a decode step share."""

from __future__ import annotations

import torch
from torch import Tensor

import fovea
from fovea._calls import adapted
from fovea._library import is_captured
from fovea.distributed._pages import PageDeal
from fovea.distributed._rows import Batch, own_rows

_Rows = tuple[Tensor | None, Tensor, int, list[Tensor]]


class Step:
    """Which tokens of each query a rank has, and the schedule of latent attention: computed once for all layers of a decode step.

    >>> step = fovea.distributed.Step()
    >>> for layer in layers:
    ...     out = fovea.distributed.latent_attention(q, layer.cache, block_table, kv_len, step=step)

    Later calls must have the numbers of the first one in ``kv_len`` and ``cu_seqlens_q``, and in each ``block_table`` what it had
    before. Latent attention takes it as a :class:`fovea.LatentSchedule`, whose rules hold. A new one, or ``reset()``, for each
    step costs nothing.
    """

    @adapted()
    def __init__(self) -> None:
        self.reset()

    @adapted()
    def reset(self) -> None:
        """Starts over, as a new object."""
        self._schedule = fovea.LatentSchedule()
        self._known: dict[tuple[object, ...], _Rows] = {}


def rows_of_step(step: Step | None, batch: Batch, deal: PageDeal, rank: int) -> tuple[Tensor, Tensor, int]:
    """As ``own_rows``. The rows are recomputed where a call's tensors are not those of an earlier call."""
    if step is None or torch.compiler.is_compiling():
        return own_rows(batch, deal, rank)
    tensors = [tensor for tensor in (batch.block_table, batch.kv_len, batch.cu_seqlens_q) if tensor is not None]
    places = [(tensor.data_ptr(), tensor.shape, tensor.dtype) for tensor in tensors]
    key = (*places, batch.total_q, batch.max_kv_len, batch.causal, deal, rank, is_captured(batch.q))
    if key not in step._known:
        table, lengths, bound = own_rows(batch, deal, rank)
        step._known[key] = None if table is batch.block_table else table, lengths, bound, tensors  # none lies where these are
    kept, lengths, bound, _ = step._known[key]
    return batch.block_table if kept is None else kept, lengths, bound


def schedule_of(step: Step | None) -> fovea.LatentSchedule | None:
    return None if step is None else step._schedule
