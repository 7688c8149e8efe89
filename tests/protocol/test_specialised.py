# SPDX-License-Identifier: Apache-2.0
"""The barriers of four roles order all accesses of shared memory, and each of them is needed."""

import random

import pytest
from simulation import Wrong
from specialised import MBARRIERS, Shape, Specialised, WorkTile


def shapes(seed):
    """Random work tiles, or none."""
    rng = random.Random(seed)
    work_tiles = [WorkTile(rng.choice([1, 1, 2, 3, 5]), partial=rng.random() < 0.3) for _ in range(rng.choice([0, *range(1, 7)]))]
    if rng.random() < 0.2:
        work_tiles += [WorkTile(rng.choice([1, 20]))] * 4  # rings wrap more often
    if work_tiles and rng.random() < 0.5:
        work_tiles[-1] = WorkTile(work_tiles[-1].tiles, reduces=True)
    if work_tiles and not work_tiles[0].reduces and rng.random() < 0.5:
        work_tiles[0] = WorkTile(work_tiles[0].tiles, partial=True, reduced=True)
    flags = [rng.random() < 0.5 for _ in range(3)]
    return Shape(tuple(work_tiles), *flags, reduced_splits=rng.choice([1, 2]))


def run(shape, seed, left_out=None):
    Specialised(shape, random.Random(seed)).simulation(left_out).run()


def finds(shape, left_out, tries=20):
    """The fault of the first run that has one, or None."""
    for seed in range(tries):
        try:
            run(shape, seed, left_out)
        except Wrong as wrong:
            return str(wrong)
    return None


@pytest.mark.parametrize("seed", range(60))
def test_every_access_is_ordered(seed):
    run(shapes(seed), seed)


EVERYTHING = Shape(
    (WorkTile(1, partial=True, reduced=True), WorkTile(3), WorkTile(1), WorkTile(2), WorkTile(5), WorkTile(1, reduces=True)),
    rope_becomes_p=True,
    two_kinds=True,
    copied_queries=False,
    reduced_splits=2,
)


NAMED = ["kFull", "kDecoded", "kScorers", "kWarpgroup, left", "kWarpgroup, right"]
FENCES = ["of what is decoded", "of P", "of what the tiles were", "of what is added"]


@pytest.mark.parametrize("left_out", [*NAMED, *FENCES, "left MMAs", "MMAs", "scores", "work_full", "work_empty", *MBARRIERS])
def test_each_is_needed(left_out):
    assert finds(EVERYTHING, left_out)


def test_score_warps_fence_gathered_queries():
    """The fence of gathered queries is not needed: score warps fence decoded values after they have waited for queries."""
    assert finds(EVERYTHING, "of queries") is None


def test_a_work_tile_may_wait_while_two_follow_it():
    short = (WorkTile(5), *[WorkTile(1)] * 6)
    assert "deadlock" in finds(Shape(short, work_stages=2), None)
    assert finds(Shape(short, work_stages=3), None) is None
