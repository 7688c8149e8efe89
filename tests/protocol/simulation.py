# SPDX-License-Identifier: Apache-2.0
"""Runs a model of the barriers between the warps of a thread block, and finds accesses that they leave unordered.

Each warp is a generator of operations (the classes below). Warps, and the units that work for them (MMAs, copies), take turns at
random. Vector clocks order accesses of shared memory by the rules of PTX: the program of a warp; a named barrier or an mbarrier,
from those that arrive to those that wait; the end of an MMA or a copy, for those that wait for it. MMAs and bulk copies access
memory by another proxy than threads, and see their stores only after a fence. Tensor memory has an order of its own, which
barriers hand on from a fence before them to a fence after them. A fault is

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
    """A write of a value to a place in shared or tensor memory, or a read that must find it."""

    place: tuple
    value: object
    writes: bool = False
    tensor: bool = False


@dataclass(frozen=True)
class Fence:
    """fence.proxy.async: MMAs and bulk copies see the stores that are known to this warp.

    kind "before", "after": tcgen05.fence::before_thread_sync and after_thread_sync.
    """

    name: str
    kind: str = "proxy"


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
class Commit:
    """tcgen05.commit: arrives once all that the unit was given so far has ended."""

    name: str
    slot: int
    unit: str


@dataclass(frozen=True)
class AwaitGroups:
    """wgmma.wait_group, tcgen05.wait: until at most `pending` groups are in flight."""

    name: str
    unit: str
    pending: int


class Clock(list):
    def join(self, other):
        for i, at in enumerate(other):
            if at > self[i]:
                self[i] = at


class Knowledge:
    """Knowledge that barriers hand on: accesses that are known, those of them that are fenced, and accesses of tensor memory."""

    def __init__(self, actors):
        self.known, self.fenced, self.tensor = (Clock([0] * actors) for _ in range(3))

    def join(self, other):
        self.known.join(other.known)
        self.fenced.join(other.fenced)
        self.tensor.join(other.tensor)


class Barrier:
    """Passes knowledge from those that arrive to those that wait."""

    def __init__(self, count, actors):
        self.count, self.actors = count, actors
        self.generation, self.complete = 0, {}
        self.clear()

    def clear(self):
        self.pending, self.bytes = self.count, 0
        self.knowledge = Knowledge(self.actors)

    def arrive(self, threads, bytes_, knowledge):
        self.pending -= threads
        self.bytes += bytes_
        if self.pending < 0:
            raise Wrong("more arrive at a barrier than it counts")
        self.knowledge.join(knowledge)
        if self.pending == 0 and self.bytes == 0:
            self.complete[self.generation] = self.knowledge
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


class Group:
    """A group in flight, with what its warp knew."""

    def __init__(self, start, knowledge):
        self.start, self.accesses, self.knowledge = start, list(start.accesses), knowledge


class Simulation:
    """Runs `programs`, and the units that work for them.

    programs: name -> generator. units: names. tensor_core: the unit that commits, whose groups are in order. mbarriers:
    name -> (slots, threads). left_out: what warps do not do: a name of operations, or (role, type, name), where a role is
    the first word of a program's name.
    """

    def __init__(self, random, programs, units, mbarriers, left_out=None, tensor_core=None):
        self.random, self.programs, self.left_out, self.tensor_core = random, dict(programs), left_out, tensor_core
        self.ids = {name: i for i, name in enumerate([*programs, *units])}
        self.actors = len(self.ids)
        self.at = [Knowledge(self.actors) for _ in self.ids]
        self.tensor = [Clock([0] * self.actors) for _ in self.ids]  # ordered before the next access of tensor memory
        for i in range(self.actors):
            self.at[i].known[i] = 1
        self.memory = Memory()
        self.mbarriers = {
            (name, slot): Barrier(threads, self.actors) for name, (slots, threads) in mbarriers.items() for slot in range(slots)
        }
        self.named, self.met = {}, defaultdict(int)
        self.waiting = {}  # actor -> (whether it may continue, what it learns then)
        self.groups = {unit: [] for unit in units}  # in flight
        self.ends = {unit: [Knowledge(self.actors)] for unit in units}  # what is known after the i-th has ended
        self.started = defaultdict(int)
        self.commits = []  # on their way to barriers, in no order
        self.did = set()  # (role, type, name) of every operation

    def tick(self, actor):
        self.at[actor].known[actor] += 1

    # ---- operations of a warp: each returns its wait, if it waits ----------------------------------------------------------------

    def do_access(self, actor, access):
        at = self.at[actor]
        if access.tensor:
            self.memory.access(access, (actor, at.known[actor], True), self.tensor[actor], self.tensor[actor])
        else:
            self.memory.access(access, (actor, at.known[actor], False), at.known, at.fenced)

    def do_fence(self, actor, fence):
        at = self.at[actor]
        if fence.kind == "before":
            at.tensor.join(self.tensor[actor])
        elif fence.kind == "after":
            self.tensor[actor].join(at.tensor)
        else:
            at.fenced.join(at.known)

    def do_meet(self, actor, meet):
        barrier = self.named.setdefault((meet.name, meet.slot), Barrier(meet.count, self.actors))
        generation = self.met[actor, meet.name, meet.slot]
        if barrier.generation != generation:
            raise Wrong(f"generation: {meet}, at {barrier.generation} where {generation} is meant")
        self.met[actor, meet.name, meet.slot] += 1
        barrier.arrive(32, 0, self.at[actor])
        self.tick(actor)
        if not meet.waits:
            return None
        return (lambda: barrier.generation > generation), (lambda: self.at[actor].join(barrier.complete[generation]))

    def do_arrive(self, actor, arrive):
        self.mbarriers[arrive.name, arrive.slot].arrive(arrive.threads, arrive.bytes, self.at[actor])
        self.tick(actor)

    def do_await(self, actor, await_):
        barrier = self.mbarriers[await_.name, await_.slot]

        def proceed():
            if barrier.generation != await_.phase + 1:
                raise Wrong(f"generation: {await_}, but {barrier.generation} are complete")
            if await_.phase >= 0:
                self.at[actor].join(barrier.complete[await_.phase])

        return (lambda: barrier.generation % 2 != await_.phase % 2), proceed

    def do_start(self, actor, start):
        """A group knows what its warp does. The tensor core does not: of warps, it knows what is fenced."""
        at, knowledge = self.at[actor], Knowledge(self.actors)
        knowledge.known.join(at.known)
        knowledge.fenced.join(at.fenced)
        knowledge.tensor.join(self.tensor[actor])
        if start.unit == self.tensor_core:
            for name, warp in self.ids.items():
                if name not in self.groups:
                    knowledge.known[warp] = at.fenced[warp]
        self.groups[start.unit].append(Group(start, knowledge))
        self.started[start.unit] += 1
        self.tick(actor)

    def do_commit(self, actor, commit):
        self.do_start(actor, Start(commit.unit, (), Arrive(commit.name, commit.slot, 1)))

    def do_await_groups(self, actor, await_):
        unit, pending = await_.unit, await_.pending
        ended = self.started[unit] - pending

        def proceed():
            end = self.ends[unit][max(ended, 0)]
            self.at[actor].known.join(end.known)
            self.tensor[actor].join(end.known)

        return (lambda: len(self.groups[unit]) <= pending), proceed

    OPERATIONS: ClassVar = {
        Access: do_access,
        Fence: do_fence,
        Meet: do_meet,
        Arrive: do_arrive,
        Await: do_await,
        Start: do_start,
        Commit: do_commit,
        AwaitGroups: do_await_groups,
    }

    # ---- turns -------------------------------------------------------------------------------------------------------------------

    def can_continue(self, name):
        if name in self.groups:
            return bool(self.groups[name])
        if name == "commits":
            return bool(self.commits)
        return name in self.programs and (name not in self.waiting or self.waiting[name][0]())

    def step(self, name):
        if name in self.groups:
            return self.step_unit(name)
        if name == "commits":
            return self.land(*self.commits.pop(self.random.randrange(len(self.commits))))
        actor = self.ids[name]
        if name in self.waiting:
            self.waiting.pop(name)[1]()
        operation = next(self.programs[name], None)
        if operation is None:
            del self.programs[name]
            return None
        if named := getattr(operation, "name", None):
            what = (name.split()[0], type(operation).__name__, named)
            self.did.add(what)
            if self.left_out in (named, what):
                return None
        waits = self.OPERATIONS[type(operation)](self, actor, operation)
        if waits:
            self.waiting[name] = waits
        return None

    def step_unit(self, name):
        """One access of the first group, or its end."""
        unit = self.ids[name]
        group, in_order = self.groups[name][0], name == self.tensor_core
        time = self.at[unit].known[unit]
        if in_order:
            group.knowledge.known[unit] = group.knowledge.tensor[unit] = time - 1
        if group.accesses:
            access = group.accesses.pop(self.random.randrange(len(group.accesses)))
            knowledge, bulk = group.knowledge, group.start.bulk
            if access.tensor:
                self.memory.access(access, (unit, time, True), knowledge.tensor, knowledge.tensor)
            else:
                self.memory.access(access, (unit, time, bulk), knowledge.known, knowledge.fenced)
            return
        self.groups[name].pop(0)
        self.end_group(name, unit, group, time)
        self.tick(unit)

    def end_group(self, name, unit, group, time):
        """The end of a group knows the unit's groups so far. On the tensor core it also knows what they have seen."""
        end, bulk, arrives = Knowledge(self.actors), group.start.bulk, group.start.arrives
        end.join(self.ends[name][-1])
        end.known[unit] = time
        if bulk:
            end.fenced.join(end.known)
        if name == self.tensor_core:
            end.join(group.knowledge)
            end.known[unit] = end.tensor[unit] = time
        self.ends[name].append(end)
        if arrives and name == self.tensor_core:
            self.commits.append((arrives, end))
        elif arrives:
            self.land(arrives, end)

    def land(self, arrives, end):
        self.mbarriers[arrives.name, arrives.slot].arrive(arrives.threads, -arrives.bytes, end)

    def choose(self):
        """The next to continue: any, or some much more often than others, or the first in an order that changes now and then."""
        names = [*self.ids, "commits"]
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
        if self.commits:
            raise Wrong("left: a commit is on its way")
