# SPDX-License-Identifier: Apache-2.0
"""Rows of q that no sequence has, in what FlashInfer's wrappers over Fovea return: 0, and -inf in the lse."""

import itertools

import pytest
import torch

import plain
from flashinfer_pages import DIM, HEADS, LOG2E, SHAPE, WORKSPACE, Pages, Prefill, Ragged

ENDS = [[0, 2, 4], [2, 3, 6], [3, 3, 3]]


@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("kind", [Prefill, Ragged])
@pytest.mark.parametrize("options", [{}, {"v_scale": 0.5}, {"lse_layout": "HN", "lse_base": "ln"}])
@pytest.mark.parametrize("dtypes", [("float32", "float32"), ("bfloat16", "float8_e5m2"), ("float8_e4m3fn", "float8_e4m3fn")])
def test_rows_of_no_sequence(kind, ends, options, dtypes):
    q_dtype, kv_dtype = (getattr(torch, name) for name in dtypes)
    pages, q = Pages([5, 9], dtype=kv_dtype), torch.randn(8, HEADS, DIM).to(q_dtype)
    wrapper, keys = kind(WORKSPACE), [torch.cat(pages.k), torch.cat(pages.v)] if kind is Ragged else [pages.cache]
    tables = [torch.tensor([0, 5, 14])] if kind is Ragged else [*pages.table()]
    page = [] if kind is Ragged else [4]
    wrapper.plan(torch.tensor(ends), *tables, *SHAPE.values(), *page, q_data_type=q_dtype, kv_data_type=kv_dtype)
    torch.full((20, 8, HEADS, DIM), torch.nan)  # which an allocation may find
    given = torch.full((8, HEADS) if options.get("lse_layout") is None else (HEADS, 8), torch.nan)
    for more in ({}, {"lse": given}):
        out, lse = wrapper.run(q, *keys, return_lse=True, **options, **more)
        lse = lse if options.get("lse_layout") is None else lse.t() * LOG2E
        outside = torch.ones(8, dtype=torch.bool)
        outside[ends[0] : ends[-1]] = False
        assert not out[outside].any() and lse[outside].isneginf().all()
        assert lse[~outside].isfinite().all() and out[~outside].any(-1).all()
        queries = q.float()[ends[0] : ends[-1]].split([end - begin for begin, end in itertools.pairwise(ends)])
        plain.check(out[~outside] / options.get("v_scale", 1.0), lse[~outside] / LOG2E, pages.expect(queries))
