# SPDX-License-Identifier: Apache-2.0
"""The barriers of Blackwell's roles order all accesses of shared and tensor memory, and each of them is needed."""

import random
import re
from pathlib import Path

import pytest
from blackwell import ROWS, Blackwell, Shape
from simulation import Wrong


def run(shape, seed, left_out=None):
    simulation = Blackwell(shape, random.Random(seed)).simulation(left_out)
    simulation.run()
    return simulation.did


def finds(shape, left_out, tries=20):
    """The fault of the first run that has one, or None."""
    for seed in range(tries):
        try:
            run(shape, seed, left_out)
        except Wrong as wrong:
            return str(wrong)
    return None


@pytest.mark.parametrize("stages", range(2, 7))
@pytest.mark.parametrize("tiles", [0, 1, 2, 3, 4, 5, 12])
def test_every_access_is_ordered(tiles, stages):
    for seed in range(20):
        run(Shape(tiles, stages), seed)


MANY = Shape(tiles=5, stages=3)
OPERATIONS = sorted(run(MANY, 0))
NOT_NEEDED = ("softmax", "Fence", "statistics")


@pytest.mark.parametrize("left_out", [what for what in OPERATIONS if what != NOT_NEEDED], ids=" ".join)
def test_each_is_needed(left_out):
    assert finds(MANY, left_out)


def test_softmax_hands_on_that_mmas_are_complete():
    """The commit has fenced them. The fence before statistics would order accesses of softmax itself: it has none to order."""
    assert NOT_NEEDED in OPERATIONS
    assert finds(MANY, NOT_NEEDED) is None


def test_one_stage_is_too_few():
    """MMAs read the values of a key tile and the keys of the next in turns."""
    assert "deadlock" in finds(Shape(tiles=2, stages=1), None)
    assert finds(Shape(tiles=2, stages=2), None) is None


def test_loads_outlast_commits():
    """The first tiles in shared memory wait for nothing. The last waits are for commits, which no CTA may end before."""
    first = Shape(tiles=1, stages=6)
    assert "left: a commit" in finds(first, ("load", "Await", "kv_empty"), tries=200)
    assert finds(first, None, tries=200) is None


# ---- the kernel ------------------------------------------------------------------------------------------------------------------

KERNEL = Path(__file__).parents[2] / "src/gpu/cuda/sm100/attention"
FILES = {"load": "load.cuh", "mma": "mma_warp.cuh", "softmax": "softmax.cuh", "correction": "correction.cuh"}
CALLS = {"barrier_wait": "Await", "mma_commit": "Commit"}  # others arrive


def text_of(name):
    """Without comments."""
    return re.sub(r"//.*", "", (KERNEL / name).read_text())


def test_storage_has_these_barriers():
    storage = text_of("storage.cuh")
    declared = dict(re.findall(r"(\w+)\[([\w:]+)\]", "".join(re.findall(r"std::uint64_t (.*?);", storage))))
    arrivals = dict(re.findall(r"barrier_init\((\w+)\[\w+\], (.*?)\);", storage))
    slots = {2: "kTiles", MANY.stages: "Config::kStages"}
    counts = {1: "1", ROWS: "kTileRows", 2 * ROWS: "2 * kTileRows"}
    assert {name: (declared[name], arrivals[name]) for name in declared} == {
        name: (slots[slot], counts[count]) for name, (slot, count) in MANY.mbarriers().items()
    }


@pytest.mark.parametrize("role", FILES)
def test_each_role_waits_and_arrives_as_here(role):
    barriers, text = MANY.mbarriers(), text_of(FILES[role])
    calls = re.findall(rf"(\w+)>?\([^();]*\bstorage\.({'|'.join(barriers)})\[", text)
    in_code = {(CALLS.get(call, "Arrive"), name) for call, name in calls}
    assert in_code == {(operation, name) for of, operation, name in OPERATIONS if of == role and name in barriers}


@pytest.mark.parametrize("role", ["softmax", "correction"])
def test_each_role_orders_tensor_memory_as_here(role):
    text = text_of(FILES[role])
    for calls, operation in ((r"tmem_fence_\w+_sync\(\)", "Fence"), (r"tmem_\w+_wait\(", "AwaitGroups")):
        assert len(re.findall(calls, text)) == sum((of, done) == (role, operation) for of, done, _ in OPERATIONS)
