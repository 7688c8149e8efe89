# SPDX-License-Identifier: Apache-2.0
"""Instructions of one turn of an attention kernel's loop over key tiles, counted in its machine code.

A loop has branches that a usual turn does not take: masks, maxima that grow, NaN codes, the last tile. The turn that is counted
is the one whose vector instructions take least time among those that compute a whole tile and load the next one: as many MFMAs, and
as many bytes.
"""

import heapq
import re
from collections import Counter
from dataclasses import dataclass, field

LABEL = re.compile(r"^([0-9a-f]+) <(\w+)>:$", re.MULTILINE)
INSTRUCTION = re.compile(r"^\t(\w+)\b.*// ([0-9A-F]+):.*?(?:<\w+\+0x([0-9a-f]+)>)?\s*$")
# Conversions and powers take four times as long as others, as LLVM's scheduling model of both targets has it. For products of
# 32-bit integers it says otherwise; these are counted so to be safe.
SLOW = re.compile(r"v_(cvt|exp|log|rcp|rsq|sqrt|sin|cos|mul_lo|mul_hi|mad_u64|mad_i64)_")
LOAD_BYTES = {"dword": 4, "dwordx2": 8, "dwordx3": 12, "dwordx4": 16, "ushort": 2, "ubyte": 1, "short_d16": 2}


@dataclass
class Block:
    """Instructions without a branch between them."""

    counts: Counter[str] = field(default_factory=Counter)
    mfma: int = 0
    bytes: int = 0  # of a lane, from global memory
    next: list[int] = field(default_factory=list)

    @property
    def cost(self) -> int:
        """Time of the vector instructions, in instructions of the usual time."""
        return self.counts["vector"] + 4 * self.counts["slow"]


def kind_of(name: str) -> str:
    """Which unit of a compute unit an instruction occupies."""
    if name.startswith("v_mfma"):
        return "mfma"
    if name.startswith("v_"):
        return "slow" if SLOW.match(name) else "vector"
    if name.startswith("ds_"):
        return "lds"
    return "memory" if name.startswith(("global_", "flat_", "buffer_")) else "scalar"


def loaded_bytes(name: str) -> int:
    head, _, width = name.partition("_load_")
    return LOAD_BYTES[width] if width and head in ("global", "flat") else 0


def blocks_of(code: str) -> list[Block]:
    """The control flow of one function, whose disassembly this is."""
    start = int(LABEL.search(code)[1], 16)
    rows = [(found[1], int(found[2], 16), found[3]) for line in code.splitlines() if (found := INSTRUCTION.match(line))]
    targets = {start + int(offset, 16) for name, _, offset in rows if offset and "branch" in name}
    blocks, at, ends = [Block()], {start: 0}, []
    for index, (name, address, offset) in enumerate(rows):
        if address in targets and address not in at:
            blocks.append(Block())
            at[address] = len(blocks) - 1
        block = blocks[-1]
        block.counts[kind_of(name)] += 1
        block.mfma += name.startswith("v_mfma")
        block.bytes += loaded_bytes(name)
        ends_here = "branch" in name or name == "s_endpgm"
        after = rows[index + 1][1] if index + 1 < len(rows) else None
        if ends_here or after in targets:
            goes_on = name not in ("s_branch", "s_endpgm")
            ends.append((len(blocks) - 1, start + int(offset, 16) if ends_here and offset else None, after if goes_on else None))
        if ends_here and after is not None and after not in targets:
            blocks.append(Block())
            at[after] = len(blocks) - 1
    for block, *follow in ends:
        blocks[block].next = [at[address] for address in follow if address in at]
    return blocks


def usual_turn(blocks: list[Block], mfma: int, least_bytes: int) -> dict[str, int] | None:
    """Instructions of the turn, by kind, or nothing where no loop does that much."""
    most = max(block.mfma for block in blocks)
    best = None
    for start in (number for number, block in enumerate(blocks) if block.mfma == most):
        found = shortest_cycle(blocks, start, mfma, least_bytes)
        if found is not None and (best is None or found[0] < best[0]):
            best = found
    return None if best is None else best[1]


def shortest_cycle(blocks: list[Block], start: int, mfma: int, least_bytes: int) -> tuple[int, dict[str, int]] | None:
    """By Dijkstra's algorithm over (block, MFMAs, bytes) so far."""
    first = (start, 0, 0)
    queue, came_from, done = [(0, first)], {first: None}, set()
    distance = {first: 0}
    while queue:
        so_far, state = heapq.heappop(queue)
        if state in done:
            continue
        done.add(state)
        number, had_mfma, had_bytes = state
        block = blocks[number]
        now = (had_mfma + block.mfma, min(had_bytes + block.bytes, least_bytes))
        if now[0] > mfma:
            continue
        for follower in block.next:
            after, cost = (follower, *now), so_far + block.cost
            if cost < distance.get(after, cost + 1):
                distance[after], came_from[after] = cost, state
                heapq.heappush(queue, (cost, after))
            if follower == start and now == (mfma, least_bytes) and after not in done:
                return cost, added(blocks, state, came_from)
    return None


def added(blocks: list[Block], state: tuple | None, came_from: dict) -> dict[str, int]:
    total: Counter[str] = Counter()
    while state is not None:
        total += blocks[state[0]].counts
        state = came_from[state]
    return {kind: total[kind] for kind in ("vector", "slow", "mfma", "lds", "memory", "scalar")}
