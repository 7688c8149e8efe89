# SPDX-License-Identifier: Apache-2.0
"""The barriers of the roles of Blackwell's dense attention: softmax, correction, MMAs and loads.

A model of src/gpu/cuda/sm100/attention. It has the barriers of storage.cuh by their names. A role of four warps has two here,
which show all that four do. In place of data, memory holds the number of the key tile.
"""

from dataclasses import dataclass

from simulation import Access, Arrive, Await, AwaitGroups, Commit, Fence, Meet, Simulation, Start

QUERY_TILES = range(2)
WARPS = range(2)  # of softmax of a query tile, and of correction: each has its lanes of tensor memory
ROWS = 32 * len(WARPS)  # of a query tile
ROLES = {"load": 1, "mma": 1, "softmax": len(QUERY_TILES) * len(WARPS), "correction": len(WARPS)}  # and their warps
TENSOR_CORE = "tensor core"
COPIES = "copies"


@dataclass(frozen=True)
class Shape:
    """`tiles`: key tiles. `stages`: Config::kStages."""

    tiles: int
    stages: int

    def mbarriers(self):
        """Slots and arrivals."""
        return {
            "q_full": (2, 1),
            "kv_full": (self.stages, 1),
            "kv_empty": (self.stages, 1),
            "scores_full": (2, 1),
            "weights_full": (2, 2 * ROWS),
            "statistics_full": (2, ROWS),
            "statistics_empty": (2, ROWS),
            "sums_full": (2, 1),
        }


def scores(query_tile, warp):
    """Quarters of a query tile's columns. Weights take the first two."""
    return [("scores", query_tile, warp, quarter) for quarter in range(4)]


def weights(query_tile, warp):
    return scores(query_tile, warp)[:2]


def sums(query_tile, warp):
    return [("sums", query_tile, warp)]


def of_all_warps(places, query_tile):
    return [place for warp in WARPS for place in places(query_tile, warp)]


def tensor(places, value, writes=False):
    return tuple(Access(place, value, writes, tensor=True) for place in places)


class Blackwell:
    def __init__(self, shape, random):
        self.shape, self.random = shape, random
        self.grown = {}  # what softmax has written for correction to branch on

    def simulation(self, left_out=None):
        programs = {"mma": self.mma(), "load": self.load()}
        programs |= {f"softmax {i} {warp}": self.softmax(i, warp) for i in QUERY_TILES for warp in WARPS}
        programs |= {f"correction {warp}": self.correction(warp) for warp in WARPS}
        units = [TENSOR_CORE, *(f"{COPIES} {turn}" for turn in range(3))]
        units += [f"{kind} of {name}" for name in programs if " " in name for kind in ("loads", "stores")]
        return Simulation(self.random, programs, units, self.shape.mbarriers(), left_out, TENSOR_CORE)

    def begin(self):
        yield Meet("begin", 0, 32 * sum(ROLES.values()))

    def end(self):
        yield Meet("end", 0, 32 * sum(ROLES.values()))

    # ---- loads -------------------------------------------------------------------------------------------------------------------

    def load(self):
        yield from self.begin()
        for tile in range(self.shape.tiles):
            for i, of in enumerate("KV"):
                if tile == 0:
                    yield from self.copy("q_full", i, f"{COPIES} 2", ("q", i), "queries")
                entry = 2 * tile + i
                stage = entry % self.shape.stages
                yield self.empty(entry)
                yield from self.copy("kv_full", stage, f"{COPIES} {entry % 2}", ("kv", stage), (of, tile))
        for stage in range(self.shape.stages):  # so that no commit arrives later
            yield self.empty(2 * self.shape.tiles + stage)
        yield from self.end()

    def empty(self, entry):
        return Await("kv_empty", entry % self.shape.stages, entry // self.shape.stages - 1)

    def copy(self, full, slot, unit, place, value):
        yield Arrive(full, slot, 1, bytes=1)
        yield Start(unit, (Access(place, value, writes=True),), Arrive(full, slot, 0, bytes=1))

    # ---- MMAs --------------------------------------------------------------------------------------------------------------------

    def mma(self):
        yield from self.begin()
        tiles = self.shape.tiles
        if tiles > 0:
            yield self.full(0)
            for i in QUERY_TILES:
                yield Await("q_full", i, 0)
                yield from self.multiply_keys(i, 0)
            yield self.release(0)
        for tile in range(tiles):
            yield from self.turn(tile, last=tile + 1 == tiles)
        yield from self.end()
        yield Fence("freed", "after")
        for i in QUERY_TILES:
            yield from tensor((*of_all_warps(scores, i), *of_all_warps(sums, i)), "free", writes=True)

    def full(self, entry):
        return Await("kv_full", entry % self.shape.stages, entry // self.shape.stages)

    def release(self, entry):
        return Commit("kv_empty", entry % self.shape.stages, TENSOR_CORE)

    def turn(self, tile, last):
        values, keys = 2 * tile + 1, 2 * tile + 2
        yield self.full(values)
        for i in QUERY_TILES:
            yield Await("weights_full", i, tile)
            yield Fence("weights", "after")
            yield from self.multiply_values(i, tile)
            if i == 1:
                yield self.release(values)
            if last:
                yield Commit("sums_full", i, TENSOR_CORE)
                continue
            if i == 0:
                yield self.full(keys)
            yield from self.multiply_keys(i, tile + 1)
        if not last:
            yield self.release(keys)

    def multiply_keys(self, i, tile):
        reads = (Access(("q", i), "queries"), Access(("kv", 2 * tile % self.shape.stages), ("K", tile)))
        yield Start(TENSOR_CORE, (*reads, *tensor(of_all_warps(scores, i), ("S", tile), writes=True)))
        yield Commit("scores_full", i, TENSOR_CORE)

    def multiply_values(self, i, tile):
        values = Access(("kv", (2 * tile + 1) % self.shape.stages), ("V", tile))
        yield Start(TENSOR_CORE, (values, *tensor(of_all_warps(weights, i), ("P", tile))))
        if tile > 0:
            yield Start(TENSOR_CORE, tuple(tensor(sums(i, warp), self.sum_before(i, warp, tile))[0] for warp in WARPS))
        yield Start(TENSOR_CORE, tensor(of_all_warps(sums, i), tile, writes=True))

    def sum_before(self, i, warp, tile):
        """Sums of earlier key tiles, which are rescaled if the maximum of a row of the warp has grown."""
        return ("rescaled", tile - 1) if self.grown.get((i, warp, tile)) else tile - 1

    # ---- softmax -----------------------------------------------------------------------------------------------------------------

    def softmax(self, i, warp):
        own = f"softmax {i} {warp}"
        yield from self.begin()
        for tile in range(self.shape.tiles):
            yield Await("scores_full", i, tile)
            yield Fence("scores", "after")
            yield Start(f"loads of {own}", tensor(scores(i, warp), ("S", tile)))
            yield AwaitGroups("scores", f"loads of {own}", 0)
            self.grown[i, warp, tile] = self.random.random() < 0.5
            if tile > 0:
                yield from self.publish(i, warp, tile - 1)
            for place in weights(i, warp):
                yield Start(f"stores of {own}", tensor([place], ("P", tile), writes=True))
            yield AwaitGroups("weights", f"stores of {own}", 0)
            yield Fence("weights", "before")
            yield Arrive("weights_full", i, 32)
        if self.shape.tiles > 0:
            yield Access(("maximum", i, warp), "at the end", writes=True)
            yield from self.publish(i, warp, self.shape.tiles - 1)
        yield from self.end()

    def publish(self, i, warp, number):
        if number > 0:
            yield Await("statistics_empty", i, number - 1)
        yield Access(("statistic", i, warp), number, writes=True)
        yield Fence("statistics", "before")
        yield Arrive("statistics_full", i, 32)

    # ---- correction --------------------------------------------------------------------------------------------------------------

    def correction(self, warp):
        own = f"correction {warp}"
        yield from self.begin()
        for i in QUERY_TILES if self.shape.tiles > 0 else ():
            yield Arrive("weights_full", i, 32)
        for tile in range(1, self.shape.tiles):
            for i in QUERY_TILES:
                yield from self.correct(own, i, warp, tile)
        for i in QUERY_TILES if self.shape.tiles > 0 else ():
            yield from self.store(own, i, warp)
        yield from self.end()

    def correct(self, own, i, warp, tile):
        yield Await("statistics_full", i, tile - 1)
        yield Fence("statistics", "after")
        yield Access(("statistic", i, warp), tile - 1)
        yield Arrive("statistics_empty", i, 32)
        if self.grown.get((i, warp, tile)):
            yield Start(f"loads of {own}", tensor(sums(i, warp), tile - 1))
            yield AwaitGroups("sums to rescale", f"loads of {own}", 0)
            yield Start(f"stores of {own}", tensor(sums(i, warp), ("rescaled", tile - 1), writes=True))
            yield AwaitGroups("rescaled sums", f"stores of {own}", 0)
            yield Fence("rescaled sums", "before")
        yield Arrive("weights_full", i, 32)

    def store(self, own, i, warp):
        last = self.shape.tiles - 1
        yield Await("statistics_full", i, last)
        yield Await("sums_full", i, 0)
        yield Fence("sums", "after")
        yield Access(("statistic", i, warp), last)
        yield Access(("maximum", i, warp), "at the end")
        yield Start(f"loads of {own}", tensor(sums(i, warp), last))
        yield AwaitGroups("sums", f"loads of {own}", 0)
        yield Fence("stored sums", "before")
