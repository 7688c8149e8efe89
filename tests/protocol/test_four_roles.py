# SPDX-License-Identifier: Apache-2.0
"""The barriers of four roles order all that shared memory holds, and each of them is needed."""

import random

import pytest
from four_roles import MBARRIERS, FourRoles, Job, Shape
from simulation import Wrong


def shapes(seed):
    """Random jobs, where there are any."""
    rng = random.Random(seed)
    jobs = [Job(rng.choice([1, 1, 2, 3, 5]), partial=rng.random() < 0.3) for _ in range(rng.choice([0, *range(1, 7)]))]
    if rng.random() < 0.2:
        jobs += [Job(rng.choice([1, 20]))] * 4  # rings go round more often
    if jobs and rng.random() < 0.5:
        jobs[-1] = Job(jobs[-1].tiles, collects=True)
    if jobs and not jobs[0].collects and rng.random() < 0.5:
        jobs[0] = Job(jobs[0].tiles, partial=True, collected=True)
    flags = [rng.random() < 0.5 for _ in range(3)]
    return Shape(tuple(jobs), *flags, collected_parts=rng.choice([1, 2]))


def run(shape, seed, left_out=None):
    FourRoles(shape, random.Random(seed)).simulation(left_out).run()


def finds(shape, left_out, tries=20):
    """What is wrong in one of some runs, or None."""
    for seed in range(tries):
        try:
            run(shape, seed, left_out)
        except Wrong as wrong:
            return str(wrong)
    return None


@pytest.mark.parametrize("seed", range(60))
def test_all_is_ordered(seed):
    run(shapes(seed), seed)


EVERYTHING = Shape(
    (Job(1, partial=True, collected=True), Job(3), Job(1), Job(2), Job(5), Job(1, collects=True)),
    rope_becomes_p=True,
    two_kinds=True,
    copied_queries=False,
    collected_parts=2,
)


NAMED = ["kFull", "kDecoded", "kScorers", "kWarpgroup, left", "kWarpgroup, right"]
FENCES = ["of what is decoded", "of P", "of what the tiles were", "of what is added"]


@pytest.mark.parametrize("left_out", [*NAMED, *FENCES, "left products", "products", "scores", "job_full", "job_empty", *MBARRIERS])
def test_each_is_needed(left_out):
    assert finds(EVERYTHING, left_out)


def test_who_scores_has_fenced_the_queries():
    """The fence of gathered queries is one more: the score warps fence what is decoded after they have waited for these."""
    assert finds(EVERYTHING, "of queries") is None


def test_a_job_may_wait_while_two_follow_it():
    short = (Job(5), *[Job(1)] * 6)
    assert "deadlock" in finds(Shape(short, job_slots=2), None)
    assert finds(Shape(short, job_slots=3), None) is None
