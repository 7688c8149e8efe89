# SPDX-License-Identifier: Apache-2.0
"""SGLang's interface of attention backends, over Fovea's paged, latent and dense attention."""

from __future__ import annotations

from typing import Any

from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from torch import Tensor

from fovea.integrations.sglang._layer import Layer
from fovea.integrations.sglang._limits import check_captured, check_extras, check_pass, check_server, resolved_arguments
from fovea.integrations.sglang._step import Shape, Source, Step, Tables


class Backend(AttentionBackend):
    """``--attention-backend fovea``.

    ``init_forward_metadata*`` fills the block tables of a pass on the device, once for all layers, which then run plans that they
    share. Lengths stay there. The host knows bounds, and a captured graph is right for every later length.
    """

    needs_cpu_seq_lens = False

    def __init__(self, runner: Any) -> None:
        super().__init__()
        check_server(runner)
        self._pool = runner.token_to_kv_pool
        self._batch_invariant = bool(getattr(resolved_arguments(runner), "enable_deterministic_inference", False))
        rows = runner.req_to_token_pool.req_to_token
        self._to_window = self._pool.translate_loc_from_full_to_swa if getattr(self._pool, "swa_layer_nums", 0) else None
        self._source = Source(rows, runner.page_size, self._to_window)
        self._static: Tables | None = None
        self._captured: dict[Any, Step] = {}
        self._eager: Step | None = None
        self._layers: dict[Any, Layer] = {}
        self.forward_metadata: Step | None = None

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """A pass outside of graphs."""
        if forward_batch.forward_mode.is_idle():
            return
        width = self._source.width
        longest = _longest(forward_batch)
        reach = width if longest is None else min(-(-longest // self._source.page), width)
        shape = self._shape(forward_batch, min(1 << (reach - 1).bit_length(), width) if reach else 1)
        if self._eager is None or self._eager.shape != shape:
            self._eager = Step(shape, self._tables(shape.batch, shape.width, shape.rows), self._source)
        self.forward_metadata = self._eager
        self._eager.fill(forward_batch, reach)

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Memory that all graphs share: each replay fills it first."""
        self._static = self._tables(max_bs, self._source.width, max_num_tokens)

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:
        """A pass that a graph captures or replays."""
        key = (forward_batch.forward_mode, forward_batch.batch_size)
        if in_capture:
            check_captured(forward_batch.forward_mode)
            shape = self._shape(forward_batch, self._source.width)._replace(dense=False)
            self._captured[key] = Step(shape, self._static.part(shape.batch, shape.rows), self._source, captured=True)
        self.forward_metadata = self._captured[key]
        self.forward_metadata.fill(forward_batch, self._source.width)  # the host's lengths may be those of an earlier pass

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        return 1

    def forward_decode(
        self, q: Tensor, k: Tensor, v: Tensor, layer: Any, forward_batch: Any, save_kv_cache: bool = True, **extras: Any
    ) -> Tensor:
        return self._attend((q, k, v), layer, forward_batch, save_kv_cache, **extras)

    def forward_extend(
        self, q: Tensor, k: Tensor, v: Tensor, layer: Any, forward_batch: Any, save_kv_cache: bool = True, **extras: Any
    ) -> Tensor:
        return self._attend((q, k, v), layer, forward_batch, save_kv_cache, **extras)

    def _attend(
        self, qkv: tuple[Tensor, ...], module: Any, forward_batch: Any, save: bool, *, sinks: Tensor | None = None, **extras: Any
    ) -> Tensor:
        if extras:
            check_extras(extras)
        layer = self._layers.get(module)
        if layer is None:
            layer = self._layers[module] = Layer(module, self._pool, self._source.page, self._batch_invariant)
        step, slots = self.forward_metadata, None
        if save:
            slots = forward_batch.out_cache_loc
            if layer.windowed:
                slots = step.tables.window_slots[: slots.shape[0]]  # SGLang leaves out a graph's padding in between
        return layer.attend(step, qkv, slots, sinks)

    def _shape(self, forward_batch: Any, width: int) -> Shape:
        mode, batch = forward_batch.forward_mode, forward_batch.batch_size
        if mode.is_decode_or_idle():
            return Shape(batch, batch, 1, 1, width, False)
        check_pass(forward_batch)
        if mode.is_target_verify():
            drafts = forward_batch.spec_info.draft_token_num
            return Shape(batch, batch * drafts, drafts, drafts, width, False)
        rows = forward_batch.out_cache_loc.shape[0]
        lengths, before = forward_batch.extend_seq_lens_cpu, forward_batch.extend_prefix_lens_cpu
        dense = before is not None and not any(before) and not self._batch_invariant
        return Shape(batch, rows, 0, rows if lengths is None else max(lengths), width, dense)

    def _tables(self, batch: int, width: int, tokens: int) -> Tables:
        return Tables.empty(batch, width, tokens, self._source.req_to_token.device, self._to_window is not None)


def _longest(forward_batch: Any) -> int | None:
    """The longest sequence, where the host knows it: nothing waits for the device."""
    lengths = forward_batch.seq_lens_cpu
    if lengths is None or lengths.numel() == 0:
        return None
    drafts = forward_batch.spec_info.draft_token_num if forward_batch.forward_mode.is_target_verify() else 0
    return int(lengths.max()) + drafts
