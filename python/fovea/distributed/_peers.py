# SPDX-License-Identifier: Apache-2.0
"""Memory that the GPUs of one host read from each other: copies need no kernel, so none takes multiprocessors from attention.

It is torch's symmetric memory. A group whose ranks are on several hosts, or not on GPUs over NCCL, has none.
"""

from __future__ import annotations

import math
import socket
import weakref
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

try:
    import torch.distributed._symmetric_memory as _symmetric
except ImportError:  # a build without it
    _symmetric = None  # type: ignore[assignment]

_ALIGNMENT, _UNIT = 256, 2 << 20
_TIMEOUT_MS = 600_000


class PeerMemory:
    """A buffer of each rank, mapped into the others. Tensors that a rank puts there stay until its next ``put``."""

    def __init__(self, group: ProcessGroup, size: int, device: torch.device):
        """All ranks together, with one size."""
        self._buffer = _symmetric.empty(size, dtype=torch.uint8, device=device)
        self._handle = _symmetric.rendezvous(self._buffer, group)
        self._last: torch.cuda.Event | None = None
        self.size, self.recorded = size, False

    def put(self, tensors: Sequence[Tensor], offsets: Sequence[int]) -> None:
        """Once no rank reads what was there before. Afterwards all ranks may read what all have put."""
        self.recorded |= torch.cuda.is_current_stream_capturing()
        if self._last is not None and not torch.cuda.is_current_stream_capturing():
            torch.cuda.current_stream(self._buffer.device).wait_event(self._last)  # calls on other streams
        self.barrier()
        for tensor, offset in zip(tensors, offsets, strict=True):
            self.view(self._handle.rank, offset, tensor.shape, tensor.dtype).copy_(tensor)
        self.barrier()

    def barrier(self) -> None:
        self._handle.barrier(0, _TIMEOUT_MS)

    def view(self, rank: int, offset: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A contiguous tensor in a rank's buffer, so many bytes from its begin."""
        return self._handle.get_buffer(rank, list(shape), dtype, offset // dtype.itemsize)

    def used(self) -> None:
        """Notes that copies from it are issued on this stream."""
        if not torch.cuda.is_current_stream_capturing():
            self._last = torch.cuda.current_stream(self._buffer.device).record_event()


_memories: weakref.WeakKeyDictionary[ProcessGroup, PeerMemory | None] = weakref.WeakKeyDictionary()
_recorded: list[PeerMemory] = []  # graphs read them


def peer_memory(group: ProcessGroup | None, size: int, device: torch.device) -> PeerMemory | None:
    """The memory of a group, with room for so many bytes: the same number on every rank. None where its GPUs cannot have it.

    The first call of a group, and one that needs more room than those before, meets all ranks: it cannot be recorded.
    """
    if device.type != "cuda" or _symmetric is None or dist.get_backend(group) != "nccl":
        return None
    group = dist.group.WORLD if group is None else group
    assert group is not None
    known = _memories.get(group)
    if group in _memories and (known is None or known.size >= size):
        return known
    if torch.cuda.is_current_stream_capturing():
        return None
    torch.cuda.synchronize(device)  # no rank reads the smaller one any more, once all have come here
    one_host = _is_one_host(group)
    if known is not None and known.recorded:
        _recorded.append(known)
    _memories[group] = _opened(group, math.ceil(size / _UNIT) * _UNIT, device) if one_host else None
    return _memories[group]


def _opened(group: ProcessGroup, size: int, device: torch.device) -> PeerMemory | None:
    """On all ranks or on none."""
    memory, fault = None, None
    try:
        memory = PeerMemory(group, size, device)
    except RuntimeError as error:  # no access between the GPUs, or no memory
        fault = str(error)
    faults: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(faults, fault, group=group)
    return memory if not any(faults) else None


def _is_one_host(group: ProcessGroup) -> bool:
    hosts: list[Any] = [None] * dist.get_world_size(group)
    boot = Path("/proc/sys/kernel/random/boot_id")
    dist.all_gather_object(hosts, (socket.gethostname(), boot.read_text() if boot.exists() else ""), group=group)
    return all(host == hosts[0] for host in hosts)


def aligned(size: int) -> int:
    """Bytes of a tensor's place in a buffer."""
    return math.ceil(size / _ALIGNMENT) * _ALIGNMENT


class Pull:
    """Copies from other ranks' buffers, on a stream of their own, beside the calls between its making and ``wait``."""

    def __init__(self, copies: Sequence[tuple[Tensor, Tensor]], memory: PeerMemory, device: torch.device):
        """Pairs of a tensor and what it gets."""
        self._copies, self._memory, self._device = copies, memory, device
        self._before = torch.cuda.current_stream(device).record_event()

    def wait(self) -> None:
        """Only here are the copies issued, so that the host has launched what runs beside them."""
        stream = _stream(self._device)
        stream.wait_event(self._before)
        with torch.cuda.stream(stream):
            for into, source in self._copies:
                _copy(into, source)
            self._memory.used()
        torch.cuda.current_stream(self._device).wait_stream(stream)
        self._copies = []


@lru_cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def _copy(into: Tensor, source: Tensor) -> None:
    """By the copy engines, which take what is contiguous."""
    if into.is_contiguous() and source.is_contiguous():
        into.copy_(source)
        return
    for each, of_source in zip(into, source, strict=True):
        _copy(each, of_source)
