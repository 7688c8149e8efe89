# SPDX-License-Identifier: Apache-2.0
"""Runs a model of what the warps of a thread block tell each other, and finds what barriers leave unordered.

Each warp is a generator of operations (the classes below). Warps, and the units that work for them (products, copies), take turns
at random. Accesses of shared memory are held against vector clocks. What orders them, as PTX has it: a warp's program; a named
barrier, of all that arrived for who waits; an mbarrier, likewise; the end of a product or a copy, for who waits for it. Products
and bulk copies see by another proxy what threads have stored: only past a fence. Wrong is

* a race: accesses, one of them a write, that nothing orders, or no fence;
* a value that is not the one meant: of another tile, of another job;
* a barrier that is met in another generation than is meant, by more than it counts, or left half full;
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
    """Of a piece of shared memory. Who writes says what it is then, who reads what it must be."""

    place: tuple
    value: object
    writes: bool = False


@dataclass(frozen=True)
class Fence:
    """fence.proxy.async: what is known to have been stored may be seen by products and bulk copies."""

    name: str


@dataclass(frozen=True)
class Meet:
    """bar.sync, or bar.arrive of a barrier that others wait at. 32 threads; `count` of them complete it."""

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
    """A group of asynchronous accesses, in any order; then it arrives. `bulk`: by the other proxy, products too."""

    unit: str
    accesses: tuple
    arrives: Arrive | None = None
    bulk: bool = True


@dataclass(frozen=True)
class AwaitGroups:
    """wgmma.wait_group: until no more than so many are under way."""

    name: str
    unit: str
    pending: int


class Clock(list):
    def join(self, other):
        for i, at in enumerate(other):
            if at > self[i]:
                self[i] = at


class Barrier:
    """Who arrives brings what it knows, and what of that is fenced; who waits takes it along."""

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
    """`programs`: name -> generator. `units`: names. `mbarriers`: name -> (slots, threads). `left_out`: what no program does."""

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
        self.waiting = {}  # actor -> (whether it may go on, what it takes along then)
        self.groups = {unit: [] for unit in units}  # that are under way
        self.ends = {unit: [Clock([0] * actors)] for unit in units}  # what is known once the i-th has ended
        self.started = defaultdict(int)

    def tick(self, actor):
        self.known[actor][actor] += 1

    def take(self, actor, known, fenced=None):
        self.known[actor].join(known)
        if fenced:
            self.fenced[actor].join(fenced)

    # ---- operations of a warp: each returns what it waits for, if it does --------------------------------------------------------

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

        def go_on():
            if barrier.generation != await_.phase + 1:
                raise Wrong(f"generation: {await_}, but {barrier.generation} are complete")
            if await_.phase >= 0:
                self.take(actor, *barrier.complete[await_.phase])

        return (lambda: barrier.generation % 2 != await_.phase % 2), go_on

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

    def can_go_on(self, name):
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
        """Who goes on: anybody, or some much oftener than others, or always the first of an order that changes now and then."""
        names = list(self.ids)
        self.random.shuffle(names)
        kind = self.random.randrange(3)
        weights = {name: self.random.choice([1, 1, 1, 5, 30, 200]) if kind == 1 else 1 for name in names}
        while self.programs:
            able = [name for name in names if self.can_go_on(name)]
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
                raise Wrong(f"left: named barrier {name} {slot} is half full")
        if any(self.groups.values()):
            raise Wrong("left: something is under way")
