# SPDX-License-Identifier: Apache-2.0
"""The barriers of the four roles of Hopper's latent attention.

A model of src/gpu/cuda/sm90/latent_attention/specialised (values.cuh, scores.cuh, load.cuh) and ../partial.cuh. It has
the barriers of storage.cuh by their names and the counts of kernel.cuh: a change of one is a change of the other. In place of data,
shared memory holds the number of the key tile or work tile to which they belong.
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
    "partial_full": (2, 32),
    "partial_empty": (1, VALUES),
    "q_full": (1, 32),
    "q_empty": (1, SCORES),
}
WARPS = range(4)
HALVES = range(2)


@dataclass(frozen=True)
class WorkTile:
    tiles: int
    partial: bool = False  # it leaves a partial result
    reduced: bool = False  # another CTA waits for it: the first work tile alone
    reduces: bool = False  # it reduces other CTAs' partial results: the last work tile alone


@dataclass(frozen=True)
class Shape:
    """Properties that differ between kernels and calls.

    rope_becomes_p: the ninth slice of a tile is the rotary part, then P; else it is only P's.
    """

    work_tiles: tuple
    rope_becomes_p: bool = True
    two_kinds: bool = False
    copied_queries: bool = True
    reduced_splits: int = 1
    work_stages: int = 4


def read(place, value):
    return Access(place, value)


def write(place, value):
    return Access(place, value, writes=True)


def meet(name, slot, waits):
    return Meet(name, slot, VALUES + SCORES, waits)


def ring(name, slots, count):
    """Waits until the stage of the count-th to enter a ring is full."""
    return Await(name, count % slots, count // slots)


def free(name, slots, count):
    """Waits until the stage of the count-th is empty: until the one before it in the stage has been released."""
    return Await(name, count % slots, count // slots - 1)


def columns(tile, half, side):
    """The keys of one side of a half of the columns, by the warp that decodes them."""
    return [("k", tile % 2, half, side, warp) for warp in WARPS]


def ninth_slice(tile):
    return [("ninth", tile % 2, rows) for rows in range(8)]


END = Meet("end", 0, 512)  # __syncthreads()


class Specialised:
    def __init__(self, shape, random):
        self.shape, self.random = shape, random
        self.grown = {}  # what score warps have written for value warps to branch on
        self.tiles = None  # their number, once planned

    def simulation(self, left_out=None):
        programs = {f"score {warp}": self.scorer(warp) for warp in WARPS}
        programs |= {f"value {half} {warp}": self.values(half, warp) for half in HALVES for warp in WARPS}
        programs |= {"planner": self.planner(), "companion": self.companion()}
        programs |= {f"producer {warp}": self.producer(warp) for warp in range(2)}
        units = [f"MMAs of {name}" for name in programs if name.split()[0] in ("score", "value")]
        units += [f"copies of {name}" for name in programs if name.split()[0] in ("producer", "companion")]
        slots = self.shape.work_stages
        work_tiles = {"work_full": (slots, 1), "work_empty": (slots, VALUES + SCORES + 32)}
        return Simulation(self.random, programs, units, MBARRIERS | work_tiles, left_out)

    # ---- work tiles --------------------------------------------------------------------------------------------------------------

    def work_place(self, index):
        return ("work tile", index % self.shape.work_stages)

    def work_at(self, index):
        """Waits for it, and reads it. The one after the last says that there is none."""
        yield ring("work_full", self.shape.work_stages, index)
        yield read(self.work_place(index), index)

    def release_work(self, index):
        yield Arrive("work_empty", index % self.shape.work_stages, 32)

    def of_work(self, name, index, warp):
        return (name, index % self.shape.work_stages, warp)

    # ---- scores ------------------------------------------------------------------------------------------------------------------

    def scorer(self, warp):
        work_tiles = self.shape.work_tiles
        yield from self.work_at(0)
        tile = 0
        for index, work in enumerate(work_tiles):
            yield read(self.work_place(index), index)
            yield write(self.of_work("largest", index, warp), index)
            yield Await("q_full", 0, index)
            for i in range(work.tiles):
                yield from self.score_tile(warp, tile, index, first=i == 0, last=i + 1 == work.tiles)
                tile += 1
            yield read(self.work_place(index), index)
            if work.reduces:
                yield Arrive("tiles_done", 0, 32)
            yield from self.release_work(index)
        for behind in range(2 if work_tiles else 0):
            yield meet("kDecoded", (tile + behind) % 2, waits=True)
        yield END

    def score_tile(self, warp, tile, index, first, last):
        mmas = f"MMAs of score {warp}"
        buffer = tile % 2
        yield meet("kDecoded", buffer, waits=True)
        yield Fence("of what is decoded")
        keys = [read(place, tile) for half in HALVES for side in range(2) for place in columns(tile, half, side)]
        if self.shape.rope_becomes_p:
            keys += [read(place, ("rope", tile)) for place in ninth_slice(tile)]
        yield Start(mmas, (*keys, read(("q",), index)))
        yield ring("plan_full", PLANS, tile)
        yield read(("plan", tile % PLANS), tile)
        yield Arrive("plan_empty", tile % PLANS, 1)
        yield AwaitGroups("scores", mmas, 0)
        if last:
            yield Arrive("q_empty", 0, 32)
            yield from self.work_at(index + 1)
        grown = self.random.random() < 0.5
        if grown:
            yield write(("rescale", buffer, warp), tile)
            yield write(self.of_work("largest", index, warp), index)
        self.grown[buffer, warp] = grown and not first
        yield write(("grown", buffer, warp), tile)
        if self.shape.rope_becomes_p:
            yield Meet("kScorers", 0, SCORES)
        for rows in (2 * warp, 2 * warp + 1):
            yield write(("ninth", buffer, rows), ("P", tile))
        if last:
            yield write(self.of_work("sum", index, warp), index)
            yield write(self.of_work("maximum", index, warp), index)
        yield Fence("of P")
        yield meet("kFull", buffer, waits=False)

    # ---- values ------------------------------------------------------------------------------------------------------------------

    def values(self, half, warp):
        work_tiles = self.shape.work_tiles
        yield from self.work_at(0)
        step, done = 0, not work_tiles
        while not done and step < 2:
            yield from self.decode_tile(half, warp, step)
            step += 1
        for index, work in enumerate(work_tiles):
            yield read(self.work_place(index), index)
            for i in range(work.tiles):
                if i == max(work.tiles - 2, 0):  # the tiles decoded beside the last two are the next work tile's
                    yield from self.work_at(index + 1)
                    done = index + 1 == len(work_tiles)
                yield from (self.multiply_tile if done else self.multiply_and_decode)(half, warp, step)
                step += 1
            yield from self.finish(half, warp, index)
            yield from self.release_work(index)
        yield END

    def begin_mmas(self, warp, tile):
        buffer = tile % 2
        yield meet("kFull", buffer, waits=True)
        yield read(("grown", buffer, warp), tile)
        if self.grown.get((buffer, warp)):
            yield read(("rescale", buffer, warp), tile)

    def mmas(self, half, warp, tile, side):
        operands = [read(place, ("P", tile)) for place in ninth_slice(tile)]
        operands += [read(place, tile) for place in columns(tile, half, side)]
        return Start(f"MMAs of value {half} {warp}", tuple(operands))

    def await_mmas(self, half, warp, pending=0, name="MMAs"):
        return AwaitGroups(name, f"MMAs of value {half} {warp}", pending)

    def decode_tile(self, half, warp, tile):
        for side in range(2):
            yield from self.read_side(side, warp, tile)
            yield from self.decode_side(side, half, warp, tile)
        yield meet("kDecoded", tile % 2, waits=False)

    def multiply_tile(self, half, warp, step):
        yield self.await_mmas(half, warp)
        yield from self.begin_mmas(warp, step - 2)
        for side in range(2):
            yield self.mmas(half, warp, step - 2, side)
        yield meet("kDecoded", step % 2, waits=False)

    def multiply_and_decode(self, half, warp, step):
        tile = step - 2
        yield from self.begin_mmas(warp, tile)
        yield self.mmas(half, warp, tile, 0)
        yield from self.read_side(0, warp, step)
        yield self.await_mmas(half, warp, name="left MMAs")
        yield Meet("kWarpgroup, left", half, 128)
        yield from self.decode_side(0, half, warp, step, before_last=[self.mmas(half, warp, tile, 1)])
        yield from self.read_side(1, warp, step)
        yield self.await_mmas(half, warp)
        if self.shape.rope_becomes_p:
            yield Arrive("empty", step % 2, 1)
        yield Meet("kWarpgroup, right", half, 128)
        yield from self.decode_side(1, half, warp, step, first=False)
        yield meet("kDecoded", step % 2, waits=False)

    def read_side(self, side, warp, tile):
        yield Await("staged", side, tile)
        if self.shape.two_kinds:
            yield read(("fp4", side), tile)
        yield read(("staging", side, warp), tile)
        yield read(("scales", side, warp), tile)

    def decode_side(self, side, half, warp, tile, first=True, before_last=()):
        place = ("k", tile % 2, half, side, warp)
        yield write(place, tile)
        yield from before_last
        if side == 0:
            yield Arrive("staged_free", 0, 32)
        yield write(place, tile)
        if side == 0:
            return
        if self.shape.rope_becomes_p:
            if not first:
                yield Await("empty", tile % 2, (tile - 2) // 2)
            yield read(("staging", 1, warp), tile)
            yield write(("ninth", tile % 2, 2 * warp + half), ("rope", tile))
        yield Arrive("staged_free", 1, 32)

    def finish(self, half, warp, index):
        work = self.shape.work_tiles[index]
        yield read(self.of_work("sum", index, warp), index)
        yield read(self.of_work("maximum", index, warp), index)
        yield read(self.work_place(index), index)
        if work.partial:
            yield self.await_mmas(half, warp, pending=1)
        yield self.await_mmas(half, warp)
        if work.reduces:
            yield Fence("of what the tiles were")
            yield Arrive("tiles_done", 0, 32)
            yield from self.add_partials(half, warp)
        if not work.partial and half == 1:
            yield read(self.of_work("largest", index, warp), index)

    def add_partials(self, half, warp):
        splits = self.shape.reduced_splits
        for split in range(splits):
            for buffer in range(2):
                yield Await("partial_full", buffer, split)
            for place in partial_places(half, warp):
                yield read(place, ("result", split))
            if split + 1 < splits:
                yield Fence("of what is added")
                yield Arrive("partial_empty", 0, 32)

    # ---- loads -------------------------------------------------------------------------------------------------------------------

    def planner(self):
        work_tiles = self.shape.work_tiles
        plans = 0
        for index, work in enumerate(work_tiles):
            yield from self.announce(index)
            for _ in range(work.tiles):
                yield from self.post(plans)
                plans += 1
        yield from self.announce(len(work_tiles))
        if work_tiles and work_tiles[-1].tiles == 1:  # a blank tile
            yield from self.post(plans)
            plans += 1
        self.tiles = plans
        yield from self.post(plans)
        yield END

    def announce(self, index):
        if index == 0:
            return
        yield free("work_empty", self.shape.work_stages, index)
        yield write(self.work_place(index), index)
        yield Arrive("work_full", index % self.shape.work_stages, 1)

    def post(self, tile):
        yield free("plan_empty", PLANS, tile)
        yield write(("plan", tile % PLANS), tile)
        yield Arrive("plan_full", tile % PLANS, 32)

    def producer(self, warp):
        tile = 0
        while True:
            yield ring("plan_full", PLANS, tile)
            yield read(("plan", tile % PLANS), tile)
            if tile == self.tiles:
                break
            for side in range(2):
                yield read(("plan", tile % PLANS), tile)
                yield Await("staged_free", side, tile - 1)
                if self.shape.two_kinds and warp == 0:
                    yield write(("fp4", side), tile)
                rows = [write((name, side, row), tile) for row in (2 * warp, 2 * warp + 1) for name in ("staging", "scales")]
                yield Start(f"copies of producer {warp}", tuple(rows), Arrive("staged", side, 32), bulk=False)
                yield Arrive("staged", side, 32)
            yield Arrive("plan_empty", tile % PLANS, 32)
            tile += 1
        yield END

    def companion(self):
        work_tiles = self.shape.work_tiles
        yield write(self.work_place(0), 0)
        yield Arrive("work_full", 0, 1)
        for index in range(len(work_tiles) + 1):
            yield from self.work_at(index)
            if index < len(work_tiles):
                yield from self.load_queries(index)
                yield from self.release_work(index)
            if index == 1 and work_tiles[0].reduced:
                yield Await("work_empty", 0, 0)
        if work_tiles and work_tiles[-1].reduces:
            yield read(self.work_place(len(work_tiles) - 1), len(work_tiles) - 1)
            yield from self.load_partials()
        yield END

    def load_queries(self, index):
        yield Await("q_empty", 0, index - 1)
        if self.shape.copied_queries:
            yield Arrive("q_full", 0, 32, bytes=1)
            yield Start("copies of companion", (write(("q",), index),), Arrive("q_full", 0, 0, bytes=1))
        else:
            yield write(("q",), index)
            yield Fence("of queries")
            yield Arrive("q_full", 0, 32)

    def load_partials(self):
        for split in range(self.shape.reduced_splits):
            if split > 0:
                yield Await("partial_empty", 0, split - 1)
            else:
                yield Await("tiles_done", 0, 0)
            for buffer in range(2):
                places = [place for half in HALVES for warp in WARPS for place in partial_places(half, warp) if place[1] == buffer]
                results = tuple(write(place, ("result", split)) for place in places)
                yield Start("copies of companion", results, Arrive("partial_full", buffer, 0, bytes=1))
                yield Arrive("partial_full", buffer, 32, bytes=1)


def partial_places(half, warp):
    """Places of partial results: some of every tile, for each warp that adds them."""
    return [("k", buffer, half, side, warp) for buffer in range(2) for side in range(2)] + [
        ("ninth", buffer, 2 * warp + half) for buffer in range(2)
    ]
