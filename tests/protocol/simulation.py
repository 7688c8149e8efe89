# SPDX-License-Identifier: Apache-2.0
"""Runs a model of the barriers between the warps of a thread block, and finds accesses that they leave unordered.

Each warp is a generator of operations (the classes below). Warps, and the units that work for them (MMAs, copies), take turns at
random. Vector clocks order accesses of shared memory by the rules of PTX: the program of a warp; a named barrier or an mbarrier,
from those that arrive to those that wait; the end of an MMA or a copy, for those that wait for it. MMAs and bulk copies access
memory by another proxy than threads, and see their stores only after a fence. A fault is

* a race: two accesses, one of them a write, without an order between them, or without a fence;
* a wrong value: of another key tile or work tile;
* a barrier that is met in another generation than is meant, by more threads than it counts, or left half complete;
* a deadlock.

https://docs.nvidia.com/cuda/parallel-thread-execution: parallel synchronization instructions, asynchronous operations.
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import ClassVar


class Wrong(Exception):
    pass


@dataclass(frozen=True)
class Access:
    """A write of a value to a place in shared memory, or a read that must find it."""

    place: tuple
    value: object
    writes: bool = False


@dataclass(frozen=True)
class Fence:
    """fence.proxy.async: MMAs and bulk copies see the stores that are known to this warp."""

    name: str


@dataclass(frozen=True)
class Meet:
    """bar.sync, or bar.arrive at a barrier where others wait. 32 threads; `count` of them complete it."""

    name: str
    slot: int
    count: int
    waits: bool = True


@dataclass(frozen=True)
class Arrive:
    """mbarrier.arrive by some threads, which may expect bytes of copies."""

    name: str
    slot: int
    threads: int
    bytes: int = 0


@dataclass(frozen=True)
class Await:
    """mbarrier.try_wait by a phase's parity until it is complete. Phases count from 0; the one before the first is complete."""

    name: str
    slot: int
    phase: int


@dataclass(frozen=True)
class Start:
    """A group of asynchronous accesses, in any order; then it arrives. `bulk`: by the other proxy, as MMAs are."""

    unit: str
    accesses: tuple
    arrives: Arrive | None = None
    bulk: bool = True


@dataclass(frozen=True)
class AwaitGroups:
    """wgmma.wait_group: until at most `pending` groups are in flight."""

    name: str
    unit: str
    pending: int


class Clock(list):
    def join(self, other):
        for i, at in enumerate(other):
            if at > self[i]:
                self[i] = at


class Barrier:
    """Passes what is known, and what of it is fenced, from those that arrive to those that wait."""

    def __init__(self, count, actors):
        self.count, self.actors = count, actors
        self.generation, self.complete = 0, {}
        self.clear()

    def clear(self):
        self.pending, self.bytes = self.count, 0
        self.known, self.fenced = Clock([0] * self.actors), Clock([0] * self.actors)

    def arrive(self, threads, bytes_, known, fenced):
        self.pending -= threads
        self.bytes += bytes_
        if self.pending < 0:
            raise Wrong("more arrive at a barrier than it counts")
        self.known.join(known)
        self.fenced.join(fenced)
        if self.pending == 0 and self.bytes == 0:
            self.complete[self.generation] = (self.known, self.fenced)
            self.generation += 1
            self.clear()


class Memory:
    """The last write of each place and the reads since, each as (actor, its time, whether by the other proxy)."""

    def __init__(self):
        self.value, self.write, self.reads = {}, {}, defaultdict(dict)

    def access(self, access, epoch, known, fenced):
        place = access.place
        before = list(self.reads[place].values()) if access.writes else []
        if place in self.write:
            before.append(self.write[place])
        for actor, time, bulk in before:
            if actor == epoch[0] and not bulk and not epoch[2]:
                continue
            if known[actor] < time:
                raise Wrong(f"race: {access}, where {self.value[place]} is")
            if epoch[2] and not bulk and fenced[actor] < time:
                raise Wrong(f"race: {access} without a fence")
        if access.writes:
            self.value[place], self.write[place], self.reads[place] = access.value, epoch, {}
            return
        if self.value.get(place) != access.value:
            raise Wrong(f"value: {access}, where {self.value.get(place)} is")
        self.reads[place][epoch[0]] = epoch


class Simulation:
    """`programs`: name -> generator. `units`: names. `mbarriers`: name -> (slots, threads). `left_out`: a name of operations."""

    def __init__(self, random, programs, units, mbarriers, left_out=None):
        self.random, self.programs, self.left_out = random, dict(programs), left_out
        self.ids = {name: i for i, name in enumerate([*programs, *units])}
        actors = len(self.ids)
        self.known = [Clock([0] * actors) for _ in self.ids]
        self.fenced = [Clock([0] * actors) for _ in self.ids]
        for i in range(actors):
            self.known[i][i] = 1
        self.memory = Memory()
        self.mbarriers = {
            (name, slot): Barrier(threads, actors) for name, (slots, threads) in mbarriers.items() for slot in range(slots)
        }
        self.named, self.met = {}, defaultdict(int)
        self.waiting = {}  # actor -> (whether it may continue, what it learns then)
        self.groups = {unit: [] for unit in units}  # in flight
        self.ends = {unit: [Clock([0] * actors)] for unit in units}  # what is known after the i-th has ended
        self.started = defaultdict(int)

    def tick(self, actor):
        self.known[actor][actor] += 1

    def take(self, actor, known, fenced=None):
        self.known[actor].join(known)
        if fenced:
            self.fenced[actor].join(fenced)

    # ---- operations of a warp: each returns its wait, if it waits ----------------------------------------------------------------

    def do_access(self, actor, access):
        self.memory.access(access, (actor, self.known[actor][actor], False), self.known[actor], self.fenced[actor])

    def do_fence(self, actor, _):
        self.fenced[actor].join(self.known[actor])

    def do_meet(self, actor, meet):
        barrier = self.named.setdefault((meet.name, meet.slot), Barrier(meet.count, len(self.ids)))
        generation = self.met[actor, meet.name, meet.slot]
        if barrier.generation != generation:
            raise Wrong(f"generation: {meet}, at {barrier.generation} where {generation} is meant")
        self.met[actor, meet.name, meet.slot] += 1
        barrier.arrive(32, 0, self.known[actor], self.fenced[actor])
        self.tick(actor)
        if not meet.waits:
            return None
        return (lambda: barrier.generation > generation), (lambda: self.take(actor, *barrier.complete[generation]))

    def do_arrive(self, actor, arrive):
        barrier = self.mbarriers[arrive.name, arrive.slot]
        barrier.arrive(arrive.threads, arrive.bytes, self.known[actor], self.fenced[actor])
        self.tick(actor)

    def do_await(self, actor, await_):
        barrier = self.mbarriers[await_.name, await_.slot]

        def proceed():
            if barrier.generation != await_.phase + 1:
                raise Wrong(f"generation: {await_}, but {barrier.generation} are complete")
            if await_.phase >= 0:
                self.take(actor, *barrier.complete[await_.phase])

        return (lambda: barrier.generation % 2 != await_.phase % 2), proceed

    def do_start(self, actor, start):
        self.groups[start.unit].append((start, list(start.accesses), Clock(self.known[actor]), Clock(self.fenced[actor])))
        self.started[start.unit] += 1
        self.tick(actor)

    def do_await_groups(self, actor, await_):
        unit, pending = await_.unit, await_.pending
        ended = self.started[unit] - pending
        return (lambda: len(self.groups[unit]) <= pending), (lambda: self.take(actor, self.ends[unit][max(ended, 0)]))

    OPERATIONS: ClassVar = {
        Access: do_access,
        Fence: do_fence,
        Meet: do_meet,
        Arrive: do_arrive,
        Await: do_await,
        Start: do_start,
        AwaitGroups: do_await_groups,
    }

    # ---- turns -------------------------------------------------------------------------------------------------------------------

    def can_continue(self, name):
        if name in self.groups:
            return bool(self.groups[name])
        return name in self.programs and (name not in self.waiting or self.waiting[name][0]())

    def step(self, name):
        if name in self.groups:
            return self.step_unit(name)
        actor = self.ids[name]
        if name in self.waiting:
            self.waiting.pop(name)[1]()
        operation = next(self.programs[name], None)
        if operation is None:
            del self.programs[name]
            return None
        if self.left_out is not None and getattr(operation, "name", None) == self.left_out:
            return None
        waits = self.OPERATIONS[type(operation)](self, actor, operation)
        if waits:
            self.waiting[name] = waits
        return None

    def step_unit(self, name):
        """One access of the first group, or its end."""
        unit = self.ids[name]
        start, accesses, known, fenced = self.groups[name][0]
        if accesses:
            access = accesses.pop(self.random.randrange(len(accesses)))
            self.memory.access(access, (unit, self.known[unit][unit], start.bulk), known, fenced)
            return
        self.groups[name].pop(0)
        end = Clock(self.ends[name][-1])
        end[unit] = self.known[unit][unit]
        self.ends[name].append(end)
        if start.arrives:
            arrives = start.arrives
            barrier = self.mbarriers[arrives.name, arrives.slot]
            barrier.arrive(arrives.threads, -arrives.bytes, end, end if start.bulk else Clock([0] * len(end)))
        self.tick(unit)

    def choose(self):
        """The next to continue: any, or some much more often than others, or the first in an order that changes now and then."""
        names = list(self.ids)
        self.random.shuffle(names)
        kind = self.random.randrange(3)
        weights = {name: self.random.choice([1, 1, 1, 5, 30, 200]) if kind == 1 else 1 for name in names}
        while self.programs:
            able = [name for name in names if self.can_continue(name)]
            if not able:
                raise Wrong(f"deadlock: {sorted(self.waiting)} wait")
            if kind == 2:
                if self.random.random() < 0.01:
                    names.append(names.pop(self.random.randrange(len(names))))
                yield able[0]
            else:
                yield self.random.choices(able, [weights[name] for name in able])[0]

    def run(self):
        for name in self.choose():
            self.step(name)
        for (name, slot), barrier in self.named.items():
            if barrier.pending != barrier.count:
                raise Wrong(f"left: named barrier {name} {slot} is half complete")
        if any(self.groups.values()):
            raise Wrong("left: a group is in flight")
