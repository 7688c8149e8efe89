# SPDX-License-Identifier: Apache-2.0
"""Repeated calls run plans of earlier ones: only calls that say the same may share one, whatever was called in between."""

import resource
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import fovea
from small_calls import paged

MOST = 512  # plans that a thread keeps of an operation
REFERENCE = "reference.paged_attention"


def reference(**call) -> torch.Tensor:
    """A result that no plan of the implementation under test can have made."""
    call = call | {"out": torch.full_like(call["out"], torch.nan), "implementation": REFERENCE}
    return first(fovea.paged_attention(**call))


def first(result):
    return result[0] if isinstance(result, tuple) else result


def check(**call) -> torch.Tensor:
    out = first(fovea.paged_attention(**call))
    torch.testing.assert_close(out, reference(**call), rtol=2e-5, atol=2e-5)
    return out.clone()


ONE_FIELD = {
    "causal": {"causal": False},
    "left": {"window": (2, None)},
    "another left": {"window": (3, None)},
    "right": {"window": (None, 1), "causal": False},
    "scale": {"scale": 0.3},
    "another scale": {"scale": 0.30000001},
    "softcap": {"softcap": 1.5},
    "sink": {"sink": torch.linspace(-1, 1, 4)},
    "bound of keys": {"max_kv_len": 12},
    "bound of queries": {"max_seqlen_q": 2},
    "batch_invariant": {"batch_invariant": True},
    "implementation": {"implementation": REFERENCE},
    "lse": {"return_lse": True},
}


@pytest.mark.parametrize("name", ONE_FIELD)
def test_options_that_differ_in_one_field(name):
    plain, other = paged(), paged(**ONE_FIELD[name])
    other |= {of: plain[of] for of in ("q", "k_cache", "v_cache")}
    before = check(**plain)
    with_option = check(**other)
    assert torch.equal(check(**plain), before) and torch.equal(check(**other), with_option)
    changes_nothing = name.startswith(("bound", "batch", "implementation", "lse", "another scale"))
    assert changes_nothing or not torch.allclose(before, with_option, rtol=1e-3, atol=1e-3)


def test_an_option_and_its_absence_share_no_plan():
    call = paged()
    with_lse = fovea.paged_attention(**call, return_lse=True)
    assert torch.is_tensor(fovea.paged_attention(**call))
    again = fovea.paged_attention(**call, return_lse=True)
    assert torch.equal(with_lse[1], again[1]) and with_lse[1].shape == (3, 4)


@pytest.mark.parametrize("name", ["q", "out", "k_cache"])
def test_other_strides_and_alignments(name):
    """Tensors of one shape: side by side, with gaps, transposed, and from an odd address on."""
    call = paged()
    rows, heads, dim = call[name].shape[-3:]
    leading = call[name].shape[:-3]

    def gaps():
        return torch.full((*leading, rows, 2 * heads, dim + 3), torch.nan)[..., :heads, :dim]

    def swapped():
        return torch.full((*leading, heads, rows, dim), torch.nan).transpose(-2, -3)

    def shifted():
        return torch.full((call[name].numel() + 1,), torch.nan)[1:].view(call[name].shape)

    want = reference(**call)
    for layout in (gaps, swapped, shifted, gaps, swapped, shifted):
        tensor = layout()
        assert tensor.shape == call[name].shape
        if name != "out":
            tensor.copy_(call[name])
        out = fovea.paged_attention(**call | {name: tensor})
        torch.testing.assert_close(out, want, rtol=2e-5, atol=2e-5)


def test_the_gaps_of_an_output_stay_as_they_were():
    call, memory = paged(), torch.full((3, 4, 96), 7.0)
    for _ in range(2):
        check(**call)
        check(**call | {"out": memory[..., :64]})
        assert (memory[..., 64:] == 7).all()


def test_lengths_are_read_again():
    call = paged()
    check(**call)
    call["kv_len"].copy_(torch.tensor([5, 16], dtype=torch.int32))
    check(**call)


def message(**call) -> str:
    with pytest.raises(ValueError) as raised:
        fovea.paged_attention(**call)
    return str(raised.value)


def test_a_call_that_fails_when_planned_fails_again_in_the_same_words():
    wrong = {"out": torch.empty(3, 4, 63)}
    said = message(**paged(**wrong))
    assert said.startswith("out.shape")
    check(**paged())
    assert message(**paged(**wrong)) == said


def test_a_call_that_fails_when_run_leaves_its_plan():
    """Block numbers are data: the plan is good."""
    good, wild = paged(), paged(block_table=torch.tensor([[0, 99], [2, 3]], dtype=torch.int32))
    check(**good)
    said = message(**wild)
    assert "block_table" in said and torch.isnan(wild["out"]).all()
    check(**good)
    assert message(**wild) == said


def rows(count: int, seed: int) -> dict:
    """A call of so many sequences of one row each: another shape, so another plan."""
    torch.manual_seed(seed)
    call = paged(q=torch.randn(count, 4, 64), cu_seqlens_q=None, out=torch.full((count, 4, 64), torch.nan))
    return call | {"block_table": torch.zeros(count, 2, dtype=torch.int32), "kv_len": torch.full((count,), 3, dtype=torch.int32)}


def test_more_shapes_than_are_kept():
    check(**rows(1, 1))
    for count in range(2, MOST + 20):
        fovea.paged_attention(**rows(count, count))
    for count in (1, 2, MOST - 1, MOST + 10, 1):
        check(**rows(count, count))


def test_the_cache_is_bounded():
    """Ten times as many plans as are kept, of other tables, take no more memory than the first: each takes some 2 KiB."""
    table = torch.zeros(2, 12 * MOST, dtype=torch.int32)
    table[:, :2] = torch.tensor([[0, 1], [2, 3]])
    call = paged()

    def plan(begin: int, end: int) -> int:
        for width in range(begin, end, -1):  # the widest first, as their plans want the most workspace
            fovea.paged_attention(**call | {"block_table": table[:, :width]})
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    before = plan(12 * MOST, 10 * MOST)
    grown = plan(10 * MOST, 2) - before
    assert grown < 4 << 10, f"{grown} KiB"


def test_threads_have_plans_of_their_own():
    calls = [paged(), rows(5, 1), paged(softcap=2.0), paged(causal=False)]
    want = [reference(**call) for call in calls]
    barrier = threading.Barrier(4)

    def work(offset: int) -> None:
        own = [call | {"out": torch.full_like(call["out"], torch.nan)} for call in calls]
        barrier.wait()
        for turn in range(200):
            at = (turn + offset) % len(own)
            out = fovea.paged_attention(**own[at])
            torch.testing.assert_close(out, want[at], rtol=2e-5, atol=2e-5)

    for _ in range(2):  # threads that end leave nothing that those after them trip over
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))


def test_another_number_of_threads_is_another_plan():
    call, threads = rows(200, 3), torch.get_num_threads()
    try:
        for count in (1, 2, 1):
            torch.set_num_threads(count)
            check(**call)
    finally:
        torch.set_num_threads(threads)
