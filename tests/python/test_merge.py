# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

import fovea
import plain


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("parts", [1, 2, 5])
def test_parts_give_the_whole(dtype, parts, merge_states_implementation):
    q, k, v = torch.randn(7, 4, 64), torch.randn(50, 2, 64), torch.randn(50, 2, 64)
    pieces = [plain.attention(q, *piece) for piece in zip(k.chunk(parts), v.chunk(parts), strict=True)]
    outs, lses = [piece.out.to(dtype) for piece in pieces], [piece.lse.float() for piece in pieces]
    out, lse = fovea.merge_states(outs, lses, implementation=merge_states_implementation)
    plain.check(out, lse, plain.attention(q, k, v))


@pytest.mark.parametrize("mark", [torch.inf, -torch.inf, torch.nan])
def test_empty_parts(mark, merge_states_implementation):
    outs = [torch.randn(3, 2, 32), torch.full((3, 2, 32), torch.nan)]
    lses = [torch.randn(3, 2), torch.full((3, 2), mark)]
    out, lse = fovea.merge_states(outs, lses, implementation=merge_states_implementation)
    torch.testing.assert_close(out, outs[0], rtol=0, atol=0)
    torch.testing.assert_close(lse, lses[0], rtol=0, atol=0)
    out, lse = fovea.merge_states(outs[1:], lses[1:], implementation=merge_states_implementation)
    assert torch.equal(out, torch.zeros_like(out)) and bool((lse == -torch.inf).all())


def test_in_place_and_transposed_lse(merge_states_implementation):
    outs = [torch.randn(6, 3, 40) for _ in range(2)]
    lses = [torch.randn(3, 6).transpose(0, 1) for _ in range(2)]  # [head, total_q] by its strides
    want, want_lse = fovea.merge_states([out.clone() for out in outs], [lse.clone() for lse in lses])
    out, lse = fovea.merge_states(outs, lses, out=outs[0], lse=lses[0], implementation=merge_states_implementation)
    assert out.data_ptr() == outs[0].data_ptr() and lse.data_ptr() == lses[0].data_ptr()
    torch.testing.assert_close(out, want, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(lse, want_lse, rtol=1e-6, atol=1e-6)


def test_without_lse():
    outs, lses = [torch.randn(2, 1, 8)] * 2, [torch.zeros(2, 1)] * 2
    assert torch.equal(fovea.merge_states(outs, lses, return_lse=False), outs[0])
