# SPDX-License-Identifier: Apache-2.0
"""What the four roles of Hopper's latent attention tell each other.

A model of src/gpu/cuda/sm90/latent_attention/four_roles (values.cuh, scores.cuh, load_staged.cuh) and ../collect.cuh, with the
barriers of storage.cuh by their names and the counts of kernel.cuh: who changes one changes the other. What lies in shared memory
is the number of the tile or of the job that it is of.
"""

from dataclasses import dataclass

from simulation import Access, Arrive, Await, AwaitGroups, Fence, Meet, Simulation, Start

PLANS = 8
VALUES, SCORES = 256, 128
MBARRIERS = {  # slots and threads
    "plan_full": (PLANS, 32),
    "plan_empty": (PLANS, 64 + 4),
    "staged": (2, 2 * 64),
    "staged_free": (2, VALUES),
    "empty": (2, 8),
    "tiles_done": (1, VALUES + SCORES),
    "collected": (2, 32),
    "added": (1, VALUES),
    "q_full": (1, 32),
    "q_empty": (1, SCORES),
}
WARPS = range(4)
HALVES = range(2)


@dataclass(frozen=True)
class Job:
    tiles: int
    partial: bool = False  # its result is left for others
    collected: bool = False  # of which the first job's is told
    collects: bool = False  # others' results: only the last job does


@dataclass(frozen=True)
class Shape:
    """What differs between kernels and calls.

    rope_becomes_p: the ninth slice of a tile is the rotary part, then P; else it is only P's.
    """

    jobs: tuple
    rope_becomes_p: bool = True
    two_kinds: bool = False
    copied_queries: bool = True
    collected_parts: int = 1
    job_slots: int = 4


def read(place, value):
    return Access(place, value)


def write(place, value):
    return Access(place, value, writes=True)


def meet(name, slot, waits):
    return Meet(name, slot, VALUES + SCORES, waits)


def ring(name, slots, count):
    """Waits until the count-th thing of a ring is there."""
    return Await(name, count % slots, count // slots)


def room(name, slots, count):
    """Waits until there is room for it: until the one that had its slot is gone."""
    return Await(name, count % slots, count // slots - 1)


def columns(tile, half, part):
    """The keys of a part of a half of the columns, by the warp that has decoded them."""
    return [("k", tile % 2, half, part, warp) for warp in WARPS]


def ninth_slice(tile):
    return [("ninth", tile % 2, rows) for rows in range(8)]


END = Meet("end", 0, 512)  # __syncthreads()


class FourRoles:
    def __init__(self, shape, random):
        self.shape, self.random = shape, random
        self.grown = {}  # what the score warps have written where the value warps branch on it
        self.tiles = None  # how many there are, once planned

    def simulation(self, left_out=None):
        programs = {f"score {warp}": self.scorer(warp) for warp in WARPS}
        programs |= {f"value {half} {warp}": self.values(half, warp) for half in HALVES for warp in WARPS}
        programs |= {"planner": self.planner(), "companion": self.companion()}
        programs |= {f"bringer {warp}": self.bringer(warp) for warp in range(2)}
        units = [f"products of {name}" for name in programs if name.split()[0] in ("score", "value")]
        units += [f"copies of {name}" for name in programs if name.split()[0] in ("bringer", "companion")]
        slots = self.shape.job_slots
        jobs = {"job_full": (slots, 1), "job_empty": (slots, VALUES + SCORES + 32)}
        return Simulation(self.random, programs, units, MBARRIERS | jobs, left_out)

    # ---- jobs --------------------------------------------------------------------------------------------------------------------

    def job_place(self, index):
        return ("job", index % self.shape.job_slots)

    def job_at(self, index):
        """Waits for it, and reads it: of the one after the last, that there is none."""
        yield ring("job_full", self.shape.job_slots, index)
        yield read(self.job_place(index), index)

    def give_job_back(self, index):
        yield Arrive("job_empty", index % self.shape.job_slots, 32)

    def of_job(self, name, index, warp):
        return (name, index % self.shape.job_slots, warp)

    # ---- scores ------------------------------------------------------------------------------------------------------------------

    def scorer(self, warp):
        jobs = self.shape.jobs
        yield from self.job_at(0)
        tile = 0
        for index, job in enumerate(jobs):
            yield read(self.job_place(index), index)
            yield write(self.of_job("largest", index, warp), index)
            yield Await("q_full", 0, index)
            for i in range(job.tiles):
                yield from self.score_tile(warp, tile, index, first=i == 0, last=i + 1 == job.tiles)
                tile += 1
            yield read(self.job_place(index), index)
            if job.collects:
                yield Arrive("tiles_done", 0, 32)
            yield from self.give_job_back(index)
        for behind in range(2 if jobs else 0):
            yield meet("kDecoded", (tile + behind) % 2, waits=True)
        yield END

    def score_tile(self, warp, tile, index, first, last):
        products = f"products of score {warp}"
        buffer = tile % 2
        yield meet("kDecoded", buffer, waits=True)
        yield Fence("of what is decoded")
        keys = [read(place, tile) for half in HALVES for part in range(2) for place in columns(tile, half, part)]
        if self.shape.rope_becomes_p:
            keys += [read(place, ("rope", tile)) for place in ninth_slice(tile)]
        yield Start(products, (*keys, read(("q",), index)))
        yield ring("plan_full", PLANS, tile)
        yield read(("plan", tile % PLANS), tile)
        yield Arrive("plan_empty", tile % PLANS, 1)
        yield AwaitGroups("scores", products, 0)
        if last:
            yield Arrive("q_empty", 0, 32)
            yield from self.job_at(index + 1)
        grown = self.random.random() < 0.5
        if grown:
            yield write(("rescale", buffer, warp), tile)
            yield write(self.of_job("largest", index, warp), index)
        self.grown[buffer, warp] = grown and not first
        yield write(("grown", buffer, warp), tile)
        if self.shape.rope_becomes_p:
            yield Meet("kScorers", 0, SCORES)
        for rows in (2 * warp, 2 * warp + 1):
            yield write(("ninth", buffer, rows), ("P", tile))
        if last:
            yield write(self.of_job("sum", index, warp), index)
            yield write(self.of_job("maximum", index, warp), index)
        yield Fence("of P")
        yield meet("kFull", buffer, waits=False)

    # ---- values ------------------------------------------------------------------------------------------------------------------

    def values(self, half, warp):
        jobs = self.shape.jobs
        yield from self.job_at(0)
        step, done = 0, not jobs
        while not done and step < 2:
            yield from self.decode_tile(half, warp, step)
            step += 1
        for index, job in enumerate(jobs):
            yield read(self.job_place(index), index)
            for i in range(job.tiles):
                if i == max(job.tiles - 2, 0):  # the tiles decoded beside the last two are the next job's
                    yield from self.job_at(index + 1)
                    done = index + 1 == len(jobs)
                yield from (self.multiply_tile if done else self.multiply_and_decode)(half, warp, step)
                step += 1
            yield from self.finish(half, warp, index)
            yield from self.give_job_back(index)
        yield END

    def begin_products(self, warp, tile):
        buffer = tile % 2
        yield meet("kFull", buffer, waits=True)
        yield read(("grown", buffer, warp), tile)
        if self.grown.get((buffer, warp)):
            yield read(("rescale", buffer, warp), tile)

    def products(self, half, warp, tile, part):
        operands = [read(place, ("P", tile)) for place in ninth_slice(tile)]
        operands += [read(place, tile) for place in columns(tile, half, part)]
        return Start(f"products of value {half} {warp}", tuple(operands))

    def await_products(self, half, warp, pending=0, name="products"):
        return AwaitGroups(name, f"products of value {half} {warp}", pending)

    def decode_tile(self, half, warp, tile):
        for part in range(2):
            yield from self.read_part(part, warp, tile)
            yield from self.decode_part(part, half, warp, tile)
        yield meet("kDecoded", tile % 2, waits=False)

    def multiply_tile(self, half, warp, step):
        yield self.await_products(half, warp)
        yield from self.begin_products(warp, step - 2)
        for part in range(2):
            yield self.products(half, warp, step - 2, part)
        yield meet("kDecoded", step % 2, waits=False)

    def multiply_and_decode(self, half, warp, step):
        tile = step - 2
        yield from self.begin_products(warp, tile)
        yield self.products(half, warp, tile, 0)
        yield from self.read_part(0, warp, step)
        yield self.await_products(half, warp, name="left products")
        yield Meet("kWarpgroup, left", half, 128)
        yield from self.decode_part(0, half, warp, step, before_last=[self.products(half, warp, tile, 1)])
        yield from self.read_part(1, warp, step)
        yield self.await_products(half, warp)
        if self.shape.rope_becomes_p:
            yield Arrive("empty", step % 2, 1)
        yield Meet("kWarpgroup, right", half, 128)
        yield from self.decode_part(1, half, warp, step, first=False)
        yield meet("kDecoded", step % 2, waits=False)

    def read_part(self, part, warp, tile):
        yield Await("staged", part, tile)
        if self.shape.two_kinds:
            yield read(("fp4", part), tile)
        yield read(("staging", part, warp), tile)
        yield read(("scales", part, warp), tile)

    def decode_part(self, part, half, warp, tile, first=True, before_last=()):
        place = ("k", tile % 2, half, part, warp)
        yield write(place, tile)
        yield from before_last
        if part == 0:
            yield Arrive("staged_free", 0, 32)
        yield write(place, tile)
        if part == 0:
            return
        if self.shape.rope_becomes_p:
            if not first:
                yield Await("empty", tile % 2, (tile - 2) // 2)
            yield read(("staging", 1, warp), tile)
            yield write(("ninth", tile % 2, 2 * warp + half), ("rope", tile))
        yield Arrive("staged_free", 1, 32)

    def finish(self, half, warp, index):
        job = self.shape.jobs[index]
        yield read(self.of_job("sum", index, warp), index)
        yield read(self.of_job("maximum", index, warp), index)
        yield read(self.job_place(index), index)
        if job.partial:
            yield self.await_products(half, warp, pending=1)
        yield self.await_products(half, warp)
        if job.collects:
            yield Fence("of what the tiles were")
            yield Arrive("tiles_done", 0, 32)
            yield from self.add_collected(half, warp)
        if not job.partial and half == 1:
            yield read(self.of_job("largest", index, warp), index)

    def add_collected(self, half, warp):
        parts = self.shape.collected_parts
        for part in range(parts):
            for buffer in range(2):
                yield Await("collected", buffer, part)
            for place in room_of_results(half, warp):
                yield read(place, ("result", part))
            if part + 1 < parts:
                yield Fence("of what is added")
                yield Arrive("added", 0, 32)

    # ---- loads -------------------------------------------------------------------------------------------------------------------

    def planner(self):
        jobs = self.shape.jobs
        plans = 0
        for index, job in enumerate(jobs):
            yield from self.tell(index)
            for _ in range(job.tiles):
                yield from self.post(plans)
                plans += 1
        yield from self.tell(len(jobs))
        if jobs and jobs[-1].tiles == 1:  # a blank tile
            yield from self.post(plans)
            plans += 1
        self.tiles = plans
        yield from self.post(plans)
        yield END

    def tell(self, index):
        if index == 0:
            return
        yield room("job_empty", self.shape.job_slots, index)
        yield write(self.job_place(index), index)
        yield Arrive("job_full", index % self.shape.job_slots, 1)

    def post(self, tile):
        yield room("plan_empty", PLANS, tile)
        yield write(("plan", tile % PLANS), tile)
        yield Arrive("plan_full", tile % PLANS, 32)

    def bringer(self, warp):
        tile = 0
        while True:
            yield ring("plan_full", PLANS, tile)
            yield read(("plan", tile % PLANS), tile)
            if tile == self.tiles:
                break
            for part in range(2):
                yield read(("plan", tile % PLANS), tile)
                yield Await("staged_free", part, tile - 1)
                if self.shape.two_kinds and warp == 0:
                    yield write(("fp4", part), tile)
                rows = [write((name, part, row), tile) for row in (2 * warp, 2 * warp + 1) for name in ("staging", "scales")]
                yield Start(f"copies of bringer {warp}", tuple(rows), Arrive("staged", part, 32), bulk=False)
                yield Arrive("staged", part, 32)
            yield Arrive("plan_empty", tile % PLANS, 32)
            tile += 1
        yield END

    def companion(self):
        jobs = self.shape.jobs
        yield write(self.job_place(0), 0)
        yield Arrive("job_full", 0, 1)
        for index in range(len(jobs) + 1):
            yield from self.job_at(index)
            if index < len(jobs):
                yield from self.bring_queries(index)
                yield from self.give_job_back(index)
            if index == 1 and jobs[0].collected:
                yield Await("job_empty", 0, 0)
        if jobs and jobs[-1].collects:
            yield read(self.job_place(len(jobs) - 1), len(jobs) - 1)
            yield from self.collect()
        yield END

    def bring_queries(self, index):
        yield Await("q_empty", 0, index - 1)
        if self.shape.copied_queries:
            yield Arrive("q_full", 0, 32, bytes=1)
            yield Start("copies of companion", (write(("q",), index),), Arrive("q_full", 0, 0, bytes=1))
        else:
            yield write(("q",), index)
            yield Fence("of queries")
            yield Arrive("q_full", 0, 32)

    def collect(self):
        for part in range(self.shape.collected_parts):
            if part > 0:
                yield Await("added", 0, part - 1)
            else:
                yield Await("tiles_done", 0, 0)
            for buffer in range(2):
                places = [place for half in HALVES for warp in WARPS for place in room_of_results(half, warp) if place[1] == buffer]
                results = tuple(write(place, ("result", part)) for place in places)
                yield Start("copies of companion", results, Arrive("collected", buffer, 0, bytes=1))
                yield Arrive("collected", buffer, 32, bytes=1)


def room_of_results(half, warp):
    """Some of every tile, for each warp that adds."""
    return [("k", buffer, half, part, warp) for buffer in range(2) for part in range(2)] + [
        ("ninth", buffer, 2 * warp + half) for buffer in range(2)
    ]
