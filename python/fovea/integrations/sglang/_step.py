# SPDX-License-Identifier: Apache-2.0
"""Shared by the layers of one forward pass: where the tokens lie, and the plans of their calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

import fovea


class Shape(NamedTuple):
    """The numbers of a batch that the host knows. Passes of one shape share their plans."""

    batch: int
    rows: int
    rows_each: int
    """Query rows of every sequence; 0 where sequences differ."""
    most_rows: int
    """A bound of the query rows of a sequence."""
    width: int
    """Entries of a row of the block table."""
    dense: bool
    """Whether the rows of the pass are all that their sequences have."""


class Tables(NamedTuple):
    """Memory for the lengths and block tables of a pass."""

    kv_len: Tensor
    blocks: Tensor
    window_blocks: Tensor | None
    """Those of layers with sliding windows, where these have a pool of their own."""
    window_slots: Tensor | None

    @classmethod
    def empty(cls, batch: int, width: int, tokens: int, device: Any, windows: bool) -> Tables:
        """Zeros, which are valid blocks, for so many sequences and new tokens."""
        blocks = torch.zeros(2 if windows else 1, batch, width, dtype=torch.int32, device=device)
        slots = torch.zeros(tokens, dtype=torch.int64, device=device) if windows else None
        kv_len = torch.zeros(batch, dtype=torch.int32, device=device)
        return cls(kv_len, blocks[0], blocks[1] if windows else None, slots)

    def part(self, batch: int, tokens: int) -> Tables:
        windows = None if self.window_blocks is None else self.window_blocks[:batch]
        slots = None if self.window_slots is None else self.window_slots[:tokens]
        return Tables(self.kv_len[:batch], self.blocks[:batch], windows, slots)


@dataclass(frozen=True)
class Source:
    """Where SGLang keeps which token of a request lies in which slot."""

    req_to_token: Tensor
    page: int
    to_window: Callable[[Tensor], Tensor] | None
    """The slots in the pool of sliding windows, by those in the other pool."""

    @property
    def width(self) -> int:
        """Entries of a block table that holds all that a request can have."""
        return -(-self.req_to_token.shape[1] // self.page)


class Step:
    """The present pass. Its tensors stay where they are, so that a captured graph reads what the last :meth:`fill` left."""

    def __init__(self, shape: Shape, tables: Tables, source: Source, captured: bool = False) -> None:
        self.shape, self.tables, self.captured, self._source = shape, tables, captured, source
        self.cu_seqlens_q: Tensor | None = None
        if shape.rows_each != 1:
            counts = torch.arange(shape.batch + 1, dtype=torch.int32, device=tables.kv_len.device)
            self.cu_seqlens_q = counts * shape.rows_each
        self._plans: dict[tuple[str, ...], list[fovea.Plan]] = {}
        self._prepared: list[fovea.Plan] = []
        self._stale: list[fovea.Plan] = []
        """Prepared plans whose schedule is that of an earlier pass."""

    def fill(self, forward_batch: Any, reach: int) -> None:
        """Reads the lengths and slots of a batch, on the device.

        Args:
            reach: Entries of a block table that the longest sequence needs.
        """
        tables, source, drafts = self.tables, self._source, forward_batch.forward_mode.is_target_verify()
        torch.add(forward_batch.seq_lens, self.shape.rows_each if drafts else 0, out=tables.kv_len)
        if self.shape.rows_each == 0:
            torch.cumsum(forward_batch.extend_seq_lens, 0, out=self.cu_seqlens_q[1:])
        self._fill_blocks(forward_batch.req_pool_indices, reach)
        if tables.window_slots is not None and forward_batch.out_cache_loc is not None:
            slots = source.to_window(forward_batch.out_cache_loc)
            tables.window_slots[: slots.shape[0]].copy_(slots)
            tables.window_slots[slots.shape[0] :].zero_()  # a graph's padding writes into the slot of nobody
        if self.captured:  # a replay has the graph's tensors, which its plans keep
            for plan in self._prepared:
                plan.prepare()
        else:
            self._stale = list(self._prepared)

    def _fill_blocks(self, requests: Tensor, reach: int) -> None:
        source, page = self._source, self._source.page
        blocks = self.tables.blocks[:, :reach]
        torch.index_select(source.req_to_token[:, : reach * page : page], 0, requests, out=blocks)
        if source.to_window is not None:
            windows = source.to_window(blocks)
            torch.div(windows, page, rounding_mode="floor", out=self.tables.window_blocks[:, :reach])
        if page > 1:
            blocks.div_(page, rounding_mode="floor")

    def run(
        self, kind: str, planner: Planner, tensors: tuple[Tensor, ...], named: dict[str, Tensor], prepared: bool = False
    ) -> Any:
        """Runs a plan that all layers of one kind share. The first of them makes it, and the first of those that lie otherwise.

        Args:
            kind: The properties of a layer that its plan depends on.
            planner: Makes a plan from this pass and the tensors.
            tensors: Those that differ from layer to layer, by position.
            named: Likewise, by name. A plan has defaults for those that it was made with, so other names are another kind.
            prepared: Whether the layers share a schedule, too: one that is a kernel of its own.
        """
        plans = self._plans.setdefault((kind, *named), [])
        for plan in plans:
            try:
                if plan in self._stale:
                    plan.prepare(*tensors, **named)
                    self._stale.remove(plan)
                return plan.run(*tensors, prepared=prepared, **named)
            except ValueError:
                pass  # these tensors lie otherwise than the planned ones
        plan = planner(self, tensors, named)
        plans.append(plan)  # a captured graph keeps the earlier ones' schedules
        if prepared:
            self._prepared.append(plan)
            plan.prepare(*tensors, **named)
        return plan.run(*tensors, prepared=prepared, **named)


Planner = Callable[[Step, tuple[Tensor, ...], dict[str, Tensor]], fovea.Plan]
