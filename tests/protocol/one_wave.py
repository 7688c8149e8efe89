# SPDX-License-Identifier: Apache-2.0
"""The barriers of Hopper's dense attention in calls of one wave, where key tiles take turns in shared memory.

A model of Math::in_turns and TurnsOf in src/gpu/cuda/sm90/attention/one_wave/math.cuh, with load.cuh and kernel.cuh. It has the
barriers of storage.cuh by their names. A warpgroup has two warps here, which show all that four do. In place of data, shared memory
holds the number of the key tile.
"""

from dataclasses import dataclass

from simulation import Access, Arrive, Await, AwaitGroups, Fence, Meet, Simulation, Start

GROUPS = range(2)
WARPS = range(2)  # of a warpgroup
LOADERS = [(group, warp) for group in GROUPS for warp in WARPS]  # each copies a part of every tile


@dataclass(frozen=True)
class Shape:
    """`tiles`: key tiles of the CTA. `seen`: those of each warpgroup, as [begin, end). `places`: Config::kKeyTiles."""

    tiles: int
    seen: tuple
    places: int = 3


def parts(*place):
    return [(*place, *loader) for loader in LOADERS]


class OneWave:
    def __init__(self, shape, random):
        self.shape, self.random = shape, random

    def simulation(self, left_out=None):
        programs = {f"warp {group} {warp}": self.warp(group, warp) for group, warp in LOADERS}
        units = [f"MMAs {name}" for name in programs]
        # Copies of a thread are in no order, so two that follow each other in a place are of different units.
        units += [f"{kind} {turn} {name}" for kind in ("k", "v") for turn in range(2) for name in programs]
        threads = 32 * len(programs)
        barriers = {name: (self.shape.places, threads) for name in ("k_full", "v_full")}
        barriers |= {"q_full": (1, threads), "empty": (self.shape.places, len(programs))}
        return Simulation(self.random, programs, units, barriers, left_out)

    def warp(self, group, warp):
        own = f"warp {group} {warp}"
        queries = [Access(("q", rows, of, group, warp), "queries", writes=True) for rows in GROUPS for of in WARPS]
        yield Start(f"k 0 {own}", tuple(queries), Arrive("q_full", 0, 32), bulk=False)
        for tile in range(min(self.shape.tiles, self.shape.places)):
            yield from self.load(own, group, warp, tile)
        yield from self.in_turns(own, group, warp)
        yield Await("q_full", 0, 0)
        yield Meet("warpgroup", group, 32 * len(WARPS))
        for place in parts("q", group, warp):
            yield Access(place, "results", writes=True)

    def load(self, own, group, warp, tile):
        place, turn = tile % self.shape.places, tile // self.shape.places % 2
        for kind in ("k", "v"):
            part = Access((kind, place, group, warp), tile, writes=True)
            yield Start(f"{kind} {turn} {own}", (part,), Arrive(f"{kind}_full", place, 32), bulk=False)

    def in_turns(self, own, group, warp):
        begin, end = self.shape.seen[group]
        end = min(end, self.shape.tiles)
        tile = 0
        while tile < min(begin, self.shape.tiles):
            yield from self.release(own, group, warp, tile)
            tile += 1
        if tile < end:
            yield from self.issue_scores(own, group, tile)
            yield AwaitGroups("scores", f"MMAs {own}", 0)
            while tile + 1 < end:
                yield from self.issue_scores(own, group, tile + 1)
                yield from self.issue_values(own, tile)
                yield AwaitGroups("scores", f"MMAs {own}", 1)
                yield AwaitGroups("MMAs", f"MMAs {own}", 0)
                yield from self.release(own, group, warp, tile)
                tile += 1
            yield from self.issue_values(own, tile)
            yield AwaitGroups("MMAs", f"MMAs {own}", 0)
            yield from self.release(own, group, warp, tile)
            tile += 1
        while tile < self.shape.tiles:
            yield from self.release(own, group, warp, tile)
            tile += 1

    def release(self, own, group, warp, tile):
        """TurnsOf::pass."""
        places = self.shape.places
        yield Arrive("empty", tile % places, 1)
        before, following = tile - 1, tile + places - 1
        if before >= 0 and following < self.shape.tiles:
            yield Await("empty", before % places, before // places)
            yield from self.load(own, group, warp, following)

    def issue_scores(self, own, group, tile):
        place = tile % self.shape.places
        yield Await("k_full", place, tile // self.shape.places)
        yield Fence("of keys")
        queries = [Access(part, "queries") for warp in WARPS for part in parts("q", group, warp)]
        yield Start(f"MMAs {own}", (*queries, *(Access(part, tile) for part in parts("k", place))))

    def issue_values(self, own, tile):
        place = tile % self.shape.places
        yield Await("v_full", place, tile // self.shape.places)
        yield Fence("of values")
        yield Start(f"MMAs {own}", tuple(Access(part, tile) for part in parts("v", place)))
