# SPDX-License-Identifier: Apache-2.0
"""Messages between ranks, counted in bytes, with errors that name the call."""

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


def count(step: str, tensors: Sequence[Tensor], times: int = 1) -> None:
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
    if is_staged(tensor, group):
        return torch.empty_like(tensor, device="cpu", memory_format=torch.contiguous_format)
    return tensor if tensor.is_contiguous() else torch.empty_like(tensor, memory_format=torch.contiguous_format)


class Exchange:
    """Point-to-point messages in flight: what this rank sends and what it receives."""

    def __init__(self, step: str, group: ProcessGroup | None):
        self.step, self.group = step, group
        self._operations: list[dist.P2POp] = []
        self._requests: list[dist.Work] = []
        self._arrivals: list[tuple[Tensor, Tensor]] = []

    def send(self, tensors: Sequence[Tensor], rank: int) -> None:
        count(self.step, tensors)
        self._add(dist.isend, [_to_send(tensor, self.group) for tensor in tensors], rank)

    def receive(self, tensors: Sequence[Tensor], rank: int) -> None:
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


Pieces = Sequence[Sequence[Tensor]]
Shapes = Sequence[Sequence[Sequence[int]]]


def to_all(step: str, parts: Pieces, shapes: Shapes, group: ProcessGroup | None) -> list[list[Tensor]]:
    """Sends the tensors ``parts[r]`` to rank r, and returns what each rank sent here, of these shapes. All of one dtype."""
    rank = dist.get_rank(group)
    count(step, [part for other, some in enumerate(parts) if other != rank for part in some])
    sizes = [[_numel(shape) for shape in some] for some in shapes]
    like = next(part for some in parts for part in some)
    sent = like.new_empty(sum(part.numel() for some in parts for part in some))
    received = like.new_empty(sum(map(sum, sizes)))
    all_parts = [part for some in parts for part in some]
    for flat, part in zip(sent.split([part.numel() for part in all_parts]), all_parts, strict=True):
        flat.view(part.shape).copy_(part)
    room = _room_for(received, group)
    of_ranks = [sum(part.numel() for part in some) for some in parts]
    with named(step, group):
        dist.all_to_all_single(room, _to_send(sent, group), list(map(sum, sizes)), of_ranks, group=group)
    if room is not received:
        received.copy_(room)
    pieces = iter(received.split([size for some in sizes for size in some]))
    return [[next(pieces).view(*shape) for shape in some] for some in shapes]


def gather(step: str, tensor: Tensor, group: ProcessGroup | None) -> Tensor:
    """``[ranks, ...]`` of a tensor that has one shape on all ranks. torch.compile traces through it."""
    ranks = dist.get_world_size(group)
    count(step, [tensor], ranks - 1)
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
