# SPDX-License-Identifier: Apache-2.0
"""Key tiles that take turns: the barriers order all accesses of shared memory, and each of them is needed."""

import random

import pytest
from one_wave import OneWave, Shape
from simulation import Wrong


def shapes(seed):
    """Random tiles of the CTA, of which one warpgroup or the other sees each."""
    rng = random.Random(seed)
    tiles = rng.choice([0, 1, 2, 3, 4, 7, 8, 13, 20])
    first, last = sorted(rng.randint(0, tiles) for _ in range(2))
    every = (0, tiles)
    seen = rng.choice([((0, last), (first, tiles)), (every, every), (every, (0, 0)), ((-2, tiles + 5), (first, last))])
    return Shape(tiles, seen, places=rng.choice([3, 3, 4, 8]))


def run(shape, seed, left_out=None):
    OneWave(shape, random.Random(seed)).simulation(left_out).run()


def finds(shape, left_out=None, tries=40):
    """The fault of the first run that has one, or None."""
    for seed in range(tries):
        try:
            run(shape, seed, left_out)
        except Wrong as wrong:
            return str(wrong)
    return None


@pytest.mark.parametrize("seed", range(80))
def test_every_access_is_ordered(seed):
    run(shapes(seed), seed)


APART = Shape(12, ((0, 8), (4, 12)))


@pytest.mark.parametrize("left_out", ["k_full", "v_full", "empty", "of keys", "of values", "MMAs", "warpgroup"])
def test_each_is_needed(left_out):
    assert finds(APART, left_out)


def test_a_warpgroup_without_keys_waits_for_queries():
    assert "race" in finds(Shape(2, ((0, 2), (0, 0))), "q_full")


def test_two_places_are_too_few():
    """Scores of the next tile are awaited before this tile is released, and its release is what loads the one after."""
    assert "deadlock" in finds(Shape(4, ((0, 4), (0, 4)), places=2))
    assert finds(Shape(4, ((0, 4), (0, 4)), places=3), tries=10) is None


def test_a_warpgroup_sees_each_tile():
    """A tile that neither sees would be overwritten while its copies are in flight. The rows together see a range."""
    assert finds(Shape(12, ((0, 3), (5, 12)))) is not None
    assert finds(Shape(12, ((0, 5), (5, 12))), tries=10) is None
