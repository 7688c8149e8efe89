# SPDX-License-Identifier: Apache-2.0
"""What ranks send each other, counted in bytes, with errors that name the call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from fovea._calls import adapted

all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name before torch 2.13


@adapted()
@dataclass
class Traffic:
    """Bytes that this rank sent to others, by the name of the step."""

    sent: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(self.sent.values())


_counting: list[Traffic] = []


@contextmanager
def count_traffic() -> Iterator[Traffic]:
    """Counts what this rank sends inside the block: payload of tensors, without what a transport adds."""
    traffic = Traffic()
    _counting.append(traffic)
    try:
        yield traffic
    finally:
        _counting[:] = [other for other in _counting if other is not traffic]  # one inside may be equal to it


def _count(step: str, tensors: Sequence[Tensor], times: int = 1) -> None:
    for traffic in _counting:
        traffic.sent[step] = traffic.sent.get(step, 0) + times * sum(tensor.nbytes for tensor in tensors)


@contextmanager
def named(step: str, group: ProcessGroup | None) -> Iterator[None]:
    """A rank that dies ends the others by torch's timeout or by a lost connection: which call, and on which rank."""
    try:
        yield
    except RuntimeError as error:
        raise RuntimeError(f"{step}, rank {dist.get_rank(group)} of {dist.get_world_size(group)}: {error}") from error


def is_staged(tensor: Tensor, group: ProcessGroup | None) -> bool:
    """Whether the tensor travels through the host's memory: gloo sends nothing from a GPU."""
    return tensor.is_cuda and dist.get_backend(group) == "gloo"


def _to_send(tensor: Tensor, group: ProcessGroup | None) -> Tensor:
    return tensor.cpu() if is_staged(tensor, group) else tensor.contiguous()


def _room_for(tensor: Tensor, group: ProcessGroup | None) -> Tensor:
    """Where a tensor arrives."""
    return torch.empty_like(tensor, device="cpu") if is_staged(tensor, group) else tensor


class Exchange:
    """Point-to-point messages in flight: what this rank sends and what it receives."""

    def __init__(self, step: str, group: ProcessGroup | None):
        self.step, self.group = step, group
        self._operations: list[dist.P2POp] = []
        self._requests: list[dist.Work] = []
        self._arrivals: list[tuple[Tensor, Tensor]] = []

    def send(self, tensors: Sequence[Tensor], rank: int) -> None:
        _count(self.step, tensors)
        self._add(dist.isend, [_to_send(tensor, self.group) for tensor in tensors], rank)

    def receive(self, tensors: Sequence[Tensor], rank: int) -> None:
        """Into tensors that are contiguous."""
        rooms = [_room_for(tensor, self.group) for tensor in tensors]
        self._arrivals += zip(tensors, rooms, strict=True)
        self._add(dist.irecv, rooms, rank)

    def _add(self, operation: Callable[..., dist.Work | None], tensors: Sequence[Tensor], rank: int) -> None:
        """A tensor without elements needs no message. The operations keep their tensors alive until wait()."""
        some = [tensor for tensor in tensors if tensor.numel()]
        self._operations += [dist.P2POp(operation, tensor, group=self.group, group_peer=rank) for tensor in some]

    def start(self) -> Exchange:
        with named(self.step, self.group):
            self._requests = dist.batch_isend_irecv(self._operations) if self._operations else []
        return self

    def wait(self) -> None:
        with named(self.step, self.group):
            for request in self._requests:
                request.wait()
        for tensor, room in self._arrivals:
            if room is not tensor:
                tensor.copy_(room)
        self._operations, self._requests, self._arrivals = [], [], []


def to_all(step: str, parts: Sequence[Tensor], shapes: Sequence[Sequence[int]], group: ProcessGroup | None) -> list[Tensor]:
    """Sends ``parts[r]`` to rank r, and returns what each rank sent here, of these shapes. All of one dtype."""
    rank = dist.get_rank(group)
    _count(step, [part for other, part in enumerate(parts) if other != rank])
    sent = torch.cat([part.reshape(-1) for part in parts])
    sizes = [_numel(shape) for shape in shapes]
    received = sent.new_empty(sum(sizes))
    room = _room_for(received, group)
    with named(step, group):
        dist.all_to_all_single(room, _to_send(sent, group), sizes, [part.numel() for part in parts], group=group)
    if room is not received:
        received.copy_(room)
    return [flat.view(*shape) for flat, shape in zip(received.split(sizes), shapes, strict=True)]


class Gather:
    """An all-gather in flight, of a tensor that has one shape on all ranks."""

    def __init__(self, step: str, tensor: Tensor, group: ProcessGroup | None):
        ranks = dist.get_world_size(group)
        _count(step, [tensor], ranks - 1)
        self.step, self.group, self._sent = step, group, _to_send(tensor, group)
        self._gathered = tensor.new_empty((ranks * tensor.shape[0], *tensor.shape[1:]))
        self._room = _room_for(self._gathered, group)
        self._shape = (ranks, *tensor.shape)
        with named(step, group):
            self._work = all_gather(self._room, self._sent, group=group, async_op=True)

    def wait(self) -> Tensor:
        """``[ranks, ...]``."""
        with named(self.step, self.group):
            self._work.wait()
        if self._room is not self._gathered:
            self._gathered.copy_(self._room)
        return self._gathered.view(self._shape)


def gather(step: str, tensor: Tensor, group: ProcessGroup | None) -> Tensor:
    """``[ranks, ...]`` of a tensor that has one shape on all ranks. torch.compile traces through it."""
    ranks = dist.get_world_size(group)
    _count(step, [tensor], ranks - 1)
    gathered = tensor.new_empty((ranks * tensor.shape[0], *tensor.shape[1:]))
    room = _room_for(gathered, group)
    with named(step, group):
        all_gather(room, _to_send(tensor, group), group=group)
    if room is not gathered:
        gathered.copy_(room)
    return gathered.view(ranks, *tensor.shape)


def _numel(shape: Sequence[int]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count
