# SPDX-License-Identifier: Apache-2.0
"""The definitions of the indexer's operations for a call, as in definitions.py."""

from types import SimpleNamespace

import torch
from torch import Tensor

from definitions import Want

MOST = 2**31 - 1


def columns_of(a: SimpleNamespace, row: int, columns: int) -> tuple[int, int]:
    first = 0 if a.first is None else max(int(a.first[row]), 0)
    return first, max(first, columns if a.last is None else min(int(a.last[row]), columns))


def index_logits(a: SimpleNamespace) -> dict[str, Want]:
    rows, columns = len(a.q), a.block_table.shape[1] * a.k.shape[1] if a.block_table is not None else len(a.k)
    columns = columns if a.out is None else a.out.shape[1]
    assert a.k_scale.shape == a.k.shape[:-1] and a.weights.shape == a.q.shape[:2]
    value = torch.full((rows, columns), -torch.inf) if a.out is None or not a.keep_outside else a.out.clone()
    value, bound = value.double(), torch.zeros(rows, columns, dtype=torch.float64)
    if a.out is None and a.keep_outside:
        bound.fill_(torch.inf)
    for row in range(rows):
        if a.block_table is None:
            first, last = columns_of(a, row, columns)
            k, scale = a.k, a.k_scale
        else:
            queries = rows // len(a.block_table)
            first, last = 0, min(int(a.kv_len[row // queries]) - queries + row % queries + 1, columns)
            last = max(min(last, a.block_table.shape[1] * a.k.shape[1]), 0)
            table = a.block_table[row // queries, : -(-last // a.k.shape[1])].long()  # others hold anything
            exists = ((table >= 0) & (table < len(a.k)))[:, None]
            block = torch.where(exists[:, 0], table, 0)
            k, scale = a.k[block].flatten(0, 1), torch.where(exists, a.k_scale[block], torch.nan).flatten()
        products = a.q[row].double() @ k[first:last].double().T
        parts = torch.where(products < 0, 0.0, products) * a.weights[row].double()[:, None]
        value[row, first:last] = parts.sum(dim=0) * scale[first:last].double()
        error = (parts.abs().sum(dim=0) * scale[first:last].double().abs()).nan_to_num(0.0) * 2**-16 + 2**-20
        if a.from_gpu:  # matrix units of e4m3 keep some 14 bits of a sum of products
            sizes = a.q[row].double().abs() @ k[first:last].double().abs().T
            heads = sizes.nan_to_num(0.0) * a.weights[row].double().abs()[:, None]
            error += heads.norm(dim=0) * scale[first:last].double().abs() * 2**-11
        bound[row, first:last] = error
    dtype = a.dtype if a.out is None else a.out.dtype
    return {"out": Want(value, bound if dtype == torch.float32 else bound + value.nan_to_num(0.0, 0.0, 0.0).abs() / 128)}


def place_of(a: SimpleNamespace, row: int, rows: int, column: int) -> int:
    token = column + (0 if a.offset is None else int(a.offset[row]))
    if a.block_table is not None and token >= 0:
        block, slot = divmod(token, a.page)
        if block >= a.block_table.shape[1]:
            return -1
        number = int(a.block_table[row // (rows // len(a.block_table)), block])
        token = -1 if number < 0 else number * a.page + slot
    return token if 0 <= token <= MOST else -1


def ranked(values: Tensor) -> list[int]:
    row = values.double().tolist()
    return sorted(range(len(row)), key=lambda at: (row[at] != row[at], 0 if row[at] != row[at] else -row[at], at))


def topk_rows(a: SimpleNamespace) -> dict[str, Want]:
    rows, columns = a.logits.shape
    out = torch.full((rows, a.k), -1, dtype=torch.int32)
    for row in range(rows):
        first, last = columns_of(a, row, columns)
        best = ranked(a.logits[row, first:last])[: a.k]
        for at, column in enumerate(best if a.sorted else sorted(best)):
            out[row, at] = place_of(a, row, rows, column)
    return {"out": Want(out)}
