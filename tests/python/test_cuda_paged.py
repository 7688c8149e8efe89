# SPDX-License-Identifier: Apache-2.0
"""Paged attention over CUDA tensors: the CPU beside it, graphs over other lengths, vast caches, wild block numbers."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import fovea

NAMES = [
    row.name
    for row in fovea.implementations()
    if row.operation == "paged_attention" and row.name.startswith("cuda.") and row.available
]
pytestmark = pytest.mark.skipif(not NAMES, reason="needs a CUDA device")
every_name = pytest.mark.parametrize("name", NAMES)
GARBAGE = 2147480000
E4M3 = torch.float8_e4m3fn


def skip_what_is_declined(name: str, *, page: int = 16, cache: torch.dtype | None = None) -> None:
    if name.startswith("cuda.sm90.") and (cache is not None or page % 8 != 0):
        pytest.skip("declines e4m3 caches, and pages that are no multiples of 8")


@dataclass
class Batch:
    """Sequences of (query rows, keys) over blocks in random order. Unused slots hold NaN, the rest of the block table garbage."""

    q: Tensor
    k: Tensor
    v: Tensor
    table: Tensor
    kv_len: Tensor
    cu_seqlens_q: Tensor
    page: int

    def tensors(self, device="cuda"):
        return [x.to(device) for x in (self.q, self.k, self.v, self.table, self.kv_len, self.cu_seqlens_q)]


def batch(sequences, *, heads=(8, 2), head_dim=128, page=16, dtype=torch.bfloat16, cache=None, most_blocks=0) -> Batch:
    generator = torch.Generator().manual_seed(11)
    counts = [-(-kv // page) for _, kv in sequences]
    blocks = sum(counts) + 3
    order = torch.randperm(blocks, generator=generator).int()
    table = torch.full((len(sequences), max(*counts, most_blocks) + 2), GARBAGE, dtype=torch.int32)
    k, v = (torch.full((blocks, page, heads[1], head_dim), torch.nan) for _ in range(2))
    for row, ((_, kv), count) in enumerate(zip(sequences, counts, strict=True)):
        own, order = order[:count], order[count:]
        table[row, :count] = own
        token = torch.arange(kv)
        for x in (k, v):
            x[own[token // page].long(), token % page] = torch.randn(kv, heads[1], head_dim, generator=generator)
    lengths = torch.tensor(sequences, dtype=torch.int32).view(-1, 2)
    cu = torch.cat([torch.zeros(1, dtype=torch.int32), lengths[:, 0].cumsum(0).int()])
    q = torch.randn(int(cu[-1]), heads[0], head_dim, generator=generator).to(dtype)
    return Batch(q, k.to(cache or dtype), v.to(cache or dtype), table, lengths[:, 1].contiguous(), cu, page)


def expected(of: Batch, **options):
    """By the CPU, which computes in f32."""
    q, k, v, *rest = of.tensors("cpu")
    scales = {name: options.pop(name).cpu() for name in ("k_scale", "v_scale", "sink") if name in options}
    wide = (x.float() if x.dtype != E4M3 else x for x in (k, v))
    return fovea.paged_attention(q.float(), *wide, *rest, return_lse=True, **scales, **options)


def check(got, want):
    torch.testing.assert_close(got[0].cpu().float(), want[0], rtol=2e-2, atol=1e-2)
    torch.testing.assert_close(got[1].cpu(), want[1], rtol=1e-4, atol=1e-4)


MIXED = [(1, 1), (1, 700), (40, 300), (0, 5), (3, 3), (1, 0), (200, 200), (1, 63)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("cache", [None, E4M3])
@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
@pytest.mark.parametrize("sequences", [MIXED, [(1, kv) for kv in (5000, 1, 64, 65)], [(5, 900), (2, 31)]])
@every_name
def test_matches_the_cpu(name, sequences, head_dim, cache, dtype):
    skip_what_is_declined(name, cache=cache)
    of = batch(sequences, head_dim=head_dim, dtype=dtype, cache=cache)
    options = {"window": (300, None), "softcap": 20.0} if head_dim == 96 else {}
    if cache is not None:
        options["k_scale"], options["v_scale"] = torch.tensor([0.5, 1.25]).cuda(), torch.tensor([2.0, 0.75]).cuda()
    got = fovea.paged_attention(
        *of.tensors(), return_lse=True, implementation=name, max_seqlen_q=max(q for q, _ in sequences), **options
    )
    check(got, expected(of, **options))


@pytest.mark.parametrize("page", [1, 7, 48, 256])
@pytest.mark.parametrize("heads", [(32, 8), (7, 1), (128, 8), (3, 3)])
@every_name
def test_pages_and_groups(name, heads, page):
    skip_what_is_declined(name, page=page)
    of = batch([(1, 777), (2, 400), (1, 2)], heads=heads, page=page)
    sink = torch.linspace(-2, 4, heads[0], device="cuda")
    got = fovea.paged_attention(*of.tensors(), return_lse=True, sink=sink, max_seqlen_q=2, implementation=name)
    check(got, expected(of, sink=sink))


@pytest.mark.parametrize("cache", [None, E4M3])
@pytest.mark.parametrize(("heads", "head_dim"), [((8, 1), 128), ((32, 8), 128), ((16, 1), 256), ((8, 2), 64), ((128, 1), 128)])
@pytest.mark.parametrize("sequences", [[(1, 40000)], [(1, 3), (1, 20011), (1, 0)], [(4, 9001), (0, 500), (3, 130)]])
@every_name
def test_keys_in_many_parts(name, sequences, heads, head_dim, cache):
    """Few long sequences: each is shared by up to all CTAs of the device, and its parts are merged."""
    skip_what_is_declined(name, cache=cache)
    of = batch(sequences, heads=heads, head_dim=head_dim, cache=cache)
    options = {"sink": torch.linspace(-2, 4, heads[0], device="cuda")}
    if heads[1] == 1:
        options |= {"window": (30000, None)}
    got = fovea.paged_attention(
        *of.tensors(), return_lse=True, implementation=name, max_seqlen_q=max(q for q, _ in sequences), **options
    )
    check(got, expected(of, **options))


@pytest.mark.parametrize("seq_q", [1, 70])
@every_name
def test_more_sequences_than_lanes(name, seq_q):
    of = batch([(row % 3 and min(seq_q, 1 + row), 1 + 37 * row % 900) for row in range(130)])
    got = fovea.paged_attention(*of.tensors(), return_lse=True, implementation=name, max_seqlen_q=seq_q)
    check(got, expected(of))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_devices_have_plans_of_their_own():
    of = batch([(1, 500), (1, 40)])
    for device in ("cuda:0", "cuda:1", "cuda:0", "cuda:1"):
        got = fovea.paged_attention(*of.tensors(device), return_lse=True, max_seqlen_q=1)
        assert got[0].device == torch.device(device)
        check(got, expected(of))


@every_name
def test_keys_and_values_may_interleave(name):
    of = batch([(1, 200), (30, 77)])
    both = torch.stack([of.k, of.v], dim=2).cuda()  # [block, page, 2, kv_head, head_dim]
    q, _, _, *rest = of.tensors()
    check(fovea.paged_attention(q, both[:, :, 0], both[:, :, 1], *rest, return_lse=True, implementation=name), expected(of))


@every_name
def test_graph_replays_over_other_lengths(name):
    long, short = (batch([(1, kv) for kv in lengths], most_blocks=600) for lengths in ([9000, 20, 3000], [1, 7000, 5000]))
    blocks = max(len(long.k), len(short.k))
    k, v = (torch.full((blocks, *long.k.shape[1:]), torch.nan, dtype=long.k.dtype, device="cuda") for _ in range(2))
    q, _, _, table, kv_len, cu = long.tensors()
    out, lse = torch.empty_like(q), torch.empty(q.shape[:2], device="cuda")

    def run():
        fovea.paged_attention(q, k, v, table, kv_len, cu, max_seqlen_q=1, out=out, lse=lse, implementation=name)

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for of in (long, short, long):
        q.copy_(of.q)
        k[: len(of.k)].copy_(of.k)
        v[: len(of.v)].copy_(of.v)
        table.fill_(GARBAGE)
        table[:, : of.table.shape[1]].copy_(of.table)
        kv_len.copy_(of.kv_len)
        out.fill_(torch.nan)
        graph.replay()
        check((out, lse), expected(of))


@every_name
def test_a_wild_block_number_makes_nan_of_the_rows_that_see_it(name):
    of = batch([(1, 500), (1, 300), (40, 200), (1, 500)])
    want = expected(of)
    for sequence, block, wild in ((1, 7, GARBAGE), (2, 11, -1), (2, 12, len(of.k))):
        of.table[sequence, block] = wild
    out, lse = fovea.paged_attention(*of.tensors(), return_lse=True, implementation=name)
    lost = torch.zeros(len(of.q), dtype=torch.bool)
    lost[1] = True
    lost[2 + 11 * 16 - 160 : 2 + 40] = True  # rows of sequence 2 from position 176 on
    assert out.cpu()[lost].isnan().all() and lse.cpu()[lost].isnan().all()
    check((out.cpu()[~lost], lse.cpu()[~lost]), [x[~lost] for x in want])


@every_name
def test_beyond_2_to_the_31_elements(name):
    if torch.cuda.mem_get_info()[0] < 12 << 30:
        pytest.skip("needs 12 GiB of device memory")
    of = batch([(1, 100), (20, 64)])
    q, k, v, table, *rest = of.tensors()
    far = (1 << 31) // k[0].numel() + 5  # blocks
    big = [torch.empty(far + len(k), *k.shape[1:], dtype=k.dtype, device="cuda") for _ in range(2)]
    for to, x in zip(big, (k, v), strict=True):
        to[far:].copy_(x)
    table = torch.where(table == GARBAGE, table, table + far)
    check(fovea.paged_attention(q, *big, table, *rest, return_lse=True, implementation=name), expected(of))


@every_name
def test_the_same_bits_again(name):
    of = batch([(1, 5000), (1, 40), (1, 3000)], heads=(32, 8))
    arguments = of.tensors()
    first = fovea.paged_attention(*arguments, max_seqlen_q=1, implementation=name)
    for _ in range(5):
        assert torch.equal(first, fovea.paged_attention(*arguments, max_seqlen_q=1, implementation=name))


def test_decode_needs_no_query_lengths():
    """In a graph first: what a capture makes must not be kept for calls outside."""
    rows = batch([(1, 70), (1, 0), (1, 33)])
    q, k, v, table, kv_len, cu = rows.tensors()
    want = fovea.paged_attention(q, k, v, table, kv_len, cu)
    fovea._library._counts.clear()
    fovea._library._constants.clear()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = fovea.paged_attention(q, k, v, table, kv_len)
    assert not fovea._library._counts and not fovea._library._constants
    eager = fovea.paged_attention(q, k, v, table, kv_len)
    graph.replay()
    assert torch.equal(captured, want) and torch.equal(eager, want)
