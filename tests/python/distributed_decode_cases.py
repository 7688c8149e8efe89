# SPDX-License-Identifier: Apache-2.0
"""Cases of decoding over caches whose pages lie on several ranks, against float64 attention of whole sequences."""

from functools import partial

import torch
import torch.distributed as dist

import fovea
import plain
from distributed_cases import Case, _message
from fovea import distributed
from fovea.distributed import PageDeal, cost

LENGTHS = (0, 1, 7, 8, 9, 40, 61, 33)
PAGE = 8


def cases(ranks: int) -> dict[str, Case]:
    table: dict[str, Case] = {"lengths": _lengths, "merge-bytes": _merge_bytes, "disagreements": _disagreements}
    for merge in ("gather", "scatter", "auto"):
        table |= {
            f"paged-{merge}": partial(_paged, {}, 1, merge),
            f"paged-rows-{merge}": partial(_paged, {"softcap": 4.0}, 3, merge),
            f"latent-{merge}": partial(_latent, {"scale": 0.05}, 1, merge),
            f"sparse-{merge}": partial(_sparse, None, merge),
        }
    table |= {
        "paged-ragged": partial(_paged, {}, (1, 1, 3, 8, 2, 5, 1, 4), "gather"),
        "paged-without-mask": partial(_paged, {"causal": False}, 3, "gather"),
        "paged-sink": partial(_paged, {"sink": [0.5, float("-inf"), float("inf"), -1.0]}, 1, "gather"),
        "paged-e4m3": partial(_paged, {"cache": torch.float8_e4m3fn, "k_scale": 0.5, "v_scale": 2.0}, 1, "gather"),
        "paged-bf16": partial(_paged, {"dtype": torch.bfloat16}, 1, "scatter"),
        "latent-rows": partial(_latent, {}, 3, "gather"),
        "latent-packed": partial(_latent, {"format": "v32_fp8"}, 1, "gather"),
        "sparse-sink": partial(_sparse, torch.tensor([0.5, -1.0, 3.0, float("-inf")]), "gather"),
        "step": _step,
        "append": _append,
    }
    if ranks == 2:
        table["compiled"] = _compiled
    return table


class Dealt:
    """Whole sequences of K and V rows, and this rank's cache of them: blocks in random order, NaN in all unused memory."""

    def __init__(self, deal: PageDeal, rank: int, rows: list[list[torch.Tensor]]):
        """rows: for each of one or two caches the sequences, ``[tokens, kv_head, dim]``."""
        self.deal, self.rank, self.lengths = deal, rank, [len(sequence) for sequence in rows[0]]
        pages = [list(range(rank, -(-length // deal.page), deal.ranks)) for length in self.lengths]
        blocks = torch.randperm(sum(map(len, pages)) + 2).tolist()
        self.table = torch.full((len(rows[0]), max(map(len, pages)) + 1), 2147480000, dtype=torch.int32)
        first = rows[0][0]
        self.caches = [torch.full((len(blocks), deal.page, *each[0].shape[1:]), torch.nan, dtype=first.dtype) for each in rows]
        for sequence, own in enumerate(pages):
            for local, page in enumerate(own):
                block = blocks.pop()
                self.table[sequence, local] = block
                for cache, each in zip(self.caches, rows, strict=True):
                    tokens = each[sequence][page * deal.page : (page + 1) * deal.page]
                    cache[block, : len(tokens)] = tokens

    @property
    def kv_len(self) -> torch.Tensor:
        return torch.tensor(self.lengths, dtype=torch.int32)


def _counts(rows) -> list[int]:
    return list(rows) if isinstance(rows, tuple) else [rows] * len(LENGTHS)


def _expect(parts, keys, values, options) -> plain.Expected:
    """The results of each sequence, joined; a row before the first token sees nothing."""
    options = dict(options)
    right = 0 if options.pop("causal", True) else None
    return plain.join([plain.attention(q, k, v, right=right, **options) for q, k, v in zip(parts, keys, values, strict=True)])


def _paged(options, rows, merge, rank: int, ranks: int) -> None:
    options = dict(options)
    dtype = options.pop("dtype", torch.float32)
    counts = _counts(rows)
    keys, values = ([torch.randn(length, 2, dim).to(dtype) for length in LENGTHS] for dim in (16, 24))
    parts = [torch.randn(count, 4, 16).to(dtype) for count in counts]
    if "cache" in options:
        cache = options.pop("cache")
        keys, values = ([each.to(cache) for each in of] for of in (keys, values))
    if "sink" in options:
        options["sink"] = torch.tensor(options["sink"])
    scales = {name: options[name] for name in ("k_scale", "v_scale") if name in options}
    read = ([each.double() * scales.get(name, 1.0) for each in of] for of, name in ((keys, "k_scale"), (values, "v_scale")))
    expected = _expect(parts, *read, {name: value for name, value in options.items() if name not in scales})
    dealt = Dealt(PageDeal(PAGE, ranks), rank, [keys, values])
    cu = torch.tensor([0, *counts]).cumsum(0).int() if isinstance(rows, tuple) else None
    out, lse = distributed.paged_attention(
        torch.cat(parts), *dealt.caches, dealt.table, dealt.kv_len, cu, merge=merge, return_lse=True, **options
    )
    plain.check(out, lse, expected)
    _same_everywhere(out)


def _latent(options, rows, merge, rank: int, ranks: int) -> None:
    options = dict(options)
    packed = options.get("format", "rows")
    tokens = [torch.randn(length, 1, 576) for length in LENGTHS]
    q = torch.randn(len(LENGTHS), rows, 4, 576)
    if packed != "rows":
        q = q.bfloat16()
    dealt = Dealt(PageDeal(PAGE, ranks), rank, [tokens])
    cache = dealt.caches[0]
    if packed != "rows":
        layout = fovea.cache_formats()[packed]
        plain_cache, cache = cache, layout.empty(cache.shape[0], PAGE)
        slots = torch.arange(cache.shape[0] * PAGE)
        fovea.quantize_latent_cache(plain_cache.flatten(0, 1)[:, 0], cache, slots, format=packed)
        tokens = _packed_rows(tokens, packed)
    scale = options.get("scale")
    results = [plain.latent(each, keys[:, 0], scale=scale, right=0) for each, keys in zip(q, tokens, strict=True)]
    out, lse = distributed.latent_attention(q, cache, dealt.table, dealt.kv_len, merge=merge, page=PAGE, return_lse=True, **options)
    plain.check(out.flatten(0, 1), lse.transpose(1, 2).flatten(0, 1), plain.join(results))
    _same_everywhere(out)


def _step(rank: int, ranks: int) -> None:
    """Layers that share a step have the bits of layers that do not. After a reset it follows new lengths."""
    step = distributed.Step()
    for lengths in (LENGTHS, (9, 0, 3)):
        for rows in (1, 3):
            step.reset()
            q = torch.randn(len(lengths), rows, 4, 576)
            for _ in range(2):
                dealt = Dealt(PageDeal(PAGE, ranks), rank, [[torch.randn(length, 1, 576) for length in lengths]])
                call = q, dealt.caches[0], dealt.table, dealt.kv_len
                outs = [distributed.latent_attention(*call, step=of) for of in (None, step)]
                assert torch.equal(*outs)
                call = q.flatten(0, 1)[..., :16], *[dealt.caches[0][..., :16].clone()] * 2, dealt.table, dealt.kv_len
                outs = [distributed.paged_attention(*call, step=of) for of in (None, step)]
                assert torch.equal(*outs)


def _packed_rows(tokens: list[torch.Tensor], format: str) -> list[torch.Tensor]:
    """The tokens as a packed cache gives them back."""
    layout = fovea.cache_formats()[format]
    joined = torch.cat(tokens)[:, 0]
    cache, slots = layout.empty(len(joined), 1), torch.arange(len(joined))
    fovea.quantize_latent_cache(joined, cache, slots, format=format)
    return list(fovea.dequantize_latent_cache(cache, slots, format=format)[:, None].split(LENGTHS))


def _sparse(sink, merge, rank: int, ranks: int) -> None:
    tokens = [torch.randn(length, 1, 576) for length in LENGTHS]
    q = torch.randn(len(LENGTHS), 1, 4, 576)
    listed = torch.stack([torch.randint(-1, max(length, 1), (1, 64)) if length else torch.full((1, 64), -1) for length in LENGTHS])
    dealt = Dealt(PageDeal(PAGE, ranks), rank, [tokens])
    own = dealt.deal.local_slots(listed, dealt.table, rank).int()
    out, lse = distributed.sparse_latent_attention(q, dealt.caches[0], own, sink=sink, merge=merge, return_lse=True)
    filled = [keys if len(keys) else torch.zeros(1, 1, 576) for keys in tokens]
    expected = [
        plain.sparse(each, [(keys[:, 0].double(), indices, None)], sink=sink)[0]
        for each, keys, indices in zip(q, filled, listed, strict=True)
    ]
    plain.check(out.flatten(0, 1), lse.transpose(1, 2).flatten(0, 1), plain.join(expected))


def _same_everywhere(out: torch.Tensor) -> None:
    """The same bits on every rank."""
    first = out.clone()
    dist.broadcast(first, src=0)
    assert torch.equal(first, out)


def _lengths(rank: int, ranks: int) -> None:
    """Against a count of tokens one by one."""
    deal = PageDeal(3, ranks)
    for tokens in range(40):
        own = [token for token in range(tokens) if token // 3 % ranks == rank]
        assert deal.local_length(torch.tensor([tokens], dtype=torch.int32), rank).item() == len(own)
        assert len(own) <= deal.local_bound(tokens)
    table = torch.arange(20, dtype=torch.int32)[None] * 2
    slots = deal.local_slots(torch.arange(-1, 39)[None], table, rank)[0].tolist()
    for token, slot in zip(range(-1, 39), slots, strict=True):
        page, own = token // 3, token >= 0 and token // 3 % ranks == rank
        assert slot == (2 * (page // ranks) * 3 + token % 3 if own else -1)


def _append(rank: int, ranks: int) -> None:
    """A cache that is filled token by token through local_slots holds what is decoded from."""
    deal, table = PageDeal(4, ranks), torch.tensor([[3, 0, 5, 2]], dtype=torch.int32)
    k_cache, v_cache = torch.full((6, 4, 2, 16), torch.nan), torch.full((6, 4, 2, 16), torch.nan)
    k, v, q = torch.randn(13, 2, 16), torch.randn(13, 2, 16), torch.randn(1, 4, 16)
    for token in range(13):
        slot = deal.local_slots(torch.tensor([[token]]), table, rank)[0]
        fovea.paged_cache_append(k[token : token + 1], v[token : token + 1], k_cache, v_cache, slot)
    out, lse = distributed.paged_attention(q, k_cache, v_cache, table, torch.tensor([13], dtype=torch.int32), return_lse=True)
    plain.check(out, lse, plain.attention(q, k, v))


def _merge_bytes(rank: int, ranks: int) -> None:
    out, lse = torch.randn(6, 12, 64).bfloat16(), torch.randn(6, 12)
    size = 6 * 12 * (64 * 2 + 4)
    expected = {"gather": (ranks - 1) * size, "scatter": 2 * (ranks - 1) * size // ranks}
    for merge, want in expected.items():
        with distributed.count_traffic() as traffic:
            distributed.merge_over_ranks(out, lse, merge=merge)
        assert abs(traffic.total - want) <= 16 * 2 * ranks, (merge, traffic.sent)
    assert cost.decode_seconds(1e9, size, ranks, cost.HOPPER_NVLINK) <= cost.decode_seconds(1e9, size, 1, cost.HOPPER_NVLINK)


def _disagreements(rank: int, ranks: int) -> None:
    dealt = Dealt(PageDeal(PAGE, ranks), rank, [[torch.randn(20, 2, 16)], [torch.randn(20, 2, 16)]])
    q, last = torch.randn(1, 4, 16), rank == ranks - 1
    got = _message(lambda: distributed.paged_attention(q, *dealt.caches, dealt.table, dealt.kv_len, causal=last))
    assert (
        ranks == 1 or got == f"fovea.distributed.paged_attention: causal: got True on rank {ranks - 1}, want False, as on rank 0"
    ), got
    got = _message(lambda: distributed.paged_attention(q, *dealt.caches, dealt.table, dealt.kv_len, merge="best"))
    assert got == "fovea.distributed.paged_attention: rank 0: merge: got 'best', want 'auto', 'gather' or 'scatter'", got


def _compiled(rank: int, ranks: int) -> None:
    """One graph, collectives included."""
    keys, values = ([torch.randn(length, 2, 16) for length in LENGTHS] for _ in range(2))
    dealt = Dealt(PageDeal(PAGE, ranks), rank, [keys, values])
    q, kv_len = torch.randn(len(LENGTHS), 4, 16), dealt.kv_len

    def step(q):
        return distributed.paged_attention(2 * q, *dealt.caches, dealt.table, kv_len, merge="gather", check=False) + 1

    got = torch.compile(step, fullgraph=True, backend="aot_eager")(q)
    torch.testing.assert_close(got, step(q), rtol=1e-6, atol=1e-6)
