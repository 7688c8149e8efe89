# SPDX-License-Identifier: Apache-2.0
"""Masks of a model that torch.compile or torch.export traces: their values are unknown, so they become lengths of a ragged batch,
computed on the device.

transformers makes a mask from a function of indices. Which function it is, decides what is done:

* Causal, sliding-window, chunked, packed or full attention over as many keys as queries: a sequence begins at every token that
  does not see the one before.
* Causal attention over a longer cache: each row of the batch has one run of keys, which ends at its last query.

The lengths are an int32 tensor ``[1, 1, 2, sequences + 1]`` in the mask's place: cu_seqlens of queries, then of keys.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fovea.integrations._row_bands import MaskRefused, RowBand, times_in_batch
from fovea.integrations._segments import repeat_lengths


@dataclass
class TracedMask:
    """Arguments that transformers gives a mask interface. Query i has position ``q_offset + i``, key j has ``kv_offset + j``."""

    batch: int
    seq_q: int
    seq_k: int
    q_offset: Tensor | int
    kv_offset: int
    function: Callable[..., Tensor]
    padding: Tensor | None
    device: torch.device | str

    def sees(self, query: Tensor, key: Tensor) -> Tensor:
        """Whether queries see keys, both by their indices: ``[batch, n]``."""
        rows = torch.arange(self.batch, device=self.device)[:, None]
        seen = self.function(rows, torch.zeros_like(rows), query + self.q_offset, key + self.kv_offset)
        if self.padding is not None:
            seen = seen & self._tokens()[rows, key]
        return seen.expand(self.batch, max(query.shape[-1], key.shape[-1]))

    def _tokens(self) -> Tensor:
        """Which keys are tokens, bool ``[batch, seq_k]``."""
        assert self.padding is not None
        padding = self.padding[:, self.kv_offset : self.kv_offset + self.seq_k]
        return torch.nn.functional.pad(padding, (0, self.seq_k - padding.shape[1]))

    def own_sequences(self) -> Tensor:
        """Lengths where keys are as many as queries. A token that sees not even itself is a query without keys, and a key that
        nobody sees."""
        place = torch.arange(self.seq_q, device=self.device)[None]
        begins = ~self.sees(place, (place - 1).clamp(min=0)) | (place == 0)
        total = self.batch * self.seq_q
        token = torch.arange(total, device=self.device)
        if self.padding is None:
            cu_seqlens = _sorted(torch.where(begins.flatten(), token, total), total)
            return self._in_place_of_mask(torch.stack([cu_seqlens, cu_seqlens]))
        self._assert_one_run(self._tokens())
        blind = ~self.sees(place, place).flatten()
        begin = torch.where(begins.flatten() | blind, token, total)
        of_queries, of_keys = (torch.where(blind, end, total) for end in (token + 1, token))
        return self._in_place_of_mask(torch.stack([_sorted(torch.cat([begin, middle]), total) for middle in (of_queries, of_keys)]))

    def runs_of_cache(self) -> Tensor:
        """Lengths where a cache holds more keys. Each row of the batch is five sequences: queries that see nothing, keys before the
        run, the run, keys after it, and queries that see nothing."""
        place = torch.arange(self.seq_q, device=self.device)[None]
        key = torch.arange(self.seq_k, device=self.device)[None]
        own = place + self.q_offset - self.kv_offset
        live = self.sees(place, own.clamp(0, self.seq_k - 1))
        count = live.sum(1)
        skipped = live.to(torch.int32).argmax(1)
        end = torch.where(count > 0, own[0, 0] + skipped + count, 0)
        seen = self.sees(skipped[:, None], key)
        begin = torch.minimum(seen.to(torch.int32).argmax(1), end)
        if self.padding is not None:
            inside = (key >= begin[:, None]) & (key < end[:, None])
            self._assert_one_run(self._tokens() & inside)
            self._assert_one_run(live)
        none = torch.zeros_like(count)
        queries = [skipped, none, count, none, self.seq_q - skipped - count]
        keys = [none, begin, end - begin, self.seq_k - end, none]
        lengths = torch.stack([torch.stack(each, dim=1).flatten() for each in (queries, keys)])
        return self._in_place_of_mask(torch.nn.functional.pad(lengths.cumsum(1), (1, 0)).to(torch.int32))

    def _in_place_of_mask(self, cu_seqlens: Tensor) -> Tensor:
        return in_place_of_mask(cu_seqlens, (self.batch, self.seq_q, self.seq_k))

    def _assert_one_run(self, tokens: Tensor) -> None:
        begins = tokens & ~torch.nn.functional.pad(tokens, (1, 0))[:, :-1]
        torch._assert_async(
            (begins.sum(1) <= 1).all(),
            "attention_mask: got tokens with padding between them, want one run of tokens a row in a compiled model",
        )


def traced_mask(mask: TracedMask, local_size: int | None, use_vmap: bool, options: dict[str, Any]) -> Tensor | None:
    """The lengths that a mask comes to; None where the attention itself knows it: causal, sliding-window or full, without padding.

    Raises:
        MaskRefused: The mask is none of those above.
    """
    if use_vmap or mask.function.__name__ == "or_mask":
        raise MaskRefused("attention_mask: got a mask of the model's own, want one that is traced (do not compile the model)")
    full = "allow_is_bidirectional_skip" in options
    chunk = getattr(options.get("config"), "attention_chunk_size", None) == local_size and local_size is not None
    plain = mask.padding is None and options.get("allow_is_bidirectional_skip" if full else "allow_is_causal_skip", False)
    if mask.seq_q == mask.seq_k:
        return None if plain and not chunk else mask.own_sequences()
    if full and plain:
        return None
    if full or (chunk and mask.seq_q > 1):
        raise MaskRefused(
            f"attention_mask: got {mask.seq_q} queries over {mask.seq_k} keys, want as many keys of a padded or chunked mask in a "
            "compiled model"
        )
    return mask.runs_of_cache()


def in_place_of_mask(cu_seqlens: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """cu_seqlens of queries and of keys, ``[2, sequences + 1]``, as a tensor in the place of a mask ``[batch, seq_q, seq_k]``."""
    mask = cu_seqlens[None, None]
    mask._fovea_shape = shape  # type: ignore[attr-defined]
    return mask


def lengths_in_mask(mask: Tensor | None, shape: tuple[int, int, int]) -> tuple[Tensor, Tensor] | None:
    """cu_seqlens of queries and of keys, for a call of this shape; None where another mask is given.

    Raises:
        ValueError: They are those of a mask of another shape.
    """
    made_for = getattr(mask, "_fovea_shape", None)
    if mask is None or made_for is None:
        return None
    times = times_in_batch(made_for, shape)
    of_queries, of_keys = mask[0, 0].unbind()
    return (of_queries, of_keys) if times == 1 else (repeat_lengths(of_queries, times), repeat_lengths(of_keys, times))


def lengths_of_single_queries(bands: tuple[RowBand, ...], seq_k: int) -> Tensor | None:
    """cu_seqlens of one query in each row: keys before those it sees, the query with its keys, keys after them.

    None where the keys have gaps.
    """
    queries, keys = [0], [0]
    for band in bands:
        if isinstance(band.keys, tuple):
            return None
        queries += [0, 1, 0]
        keys += [band.keys.start, band.keys.stop - band.keys.start, seq_k - band.keys.stop]
    return torch.tensor([queries, keys]).cumsum(1).to(torch.int32)


def _sorted(boundaries: Tensor, total: int) -> Tensor:
    return torch.nn.functional.pad(boundaries.sort().values, (0, 1), value=total).to(torch.int32)
