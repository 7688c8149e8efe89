# SPDX-License-Identifier: Apache-2.0
"""The window of the Python functions: what counts as one, and what other packages mean by numbers that do not."""

import pytest
import torch

import fovea
from small_calls import backward, codes, dense, latent, paged
from test_operators import arguments

CALLS = {
    fovea.attention: dense,
    fovea.attention_backward: backward,
    fovea.paged_attention: paged,
    fovea.latent_attention: latent,
    fovea.quantized_attention: codes,
    fovea.quantize_and_attend: dense,
}


@pytest.mark.parametrize("function", CALLS, ids=lambda function: function.__name__)
@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (0, -1), (None, -3), (1,), (1, 2, 3), (1.5, 0), (None, "0"), (2**63, 0)])
def test_what_is_no_window_is_refused(function, window):
    """(-1, -1) is no window to flash-attn; here it would be a band without the diagonal, and zeros."""
    call = CALLS[function]()
    before = call["out"].clone()
    with pytest.raises(ValueError) as caught:
        function(**call, window=window)
    assert str(caught.value).startswith(f"window: got {window}, want (left, right), 0 or more keys before and after")
    assert str(caught.value).endswith("window=None is no window")
    assert torch.equal(call["out"].nan_to_num(1.0), before.nan_to_num(1.0))


@pytest.mark.parametrize("window", [None, (None, None), (2**63 - 1, 2**63 - 1), (7, 7), [7, 7]])
def test_no_window(window):
    call = dense(out=None, lse=None)
    assert torch.equal(fovea.attention(**call, window=window), fovea.attention(**call))


def test_the_operator_takes_negative_bounds():
    """The library's own band, as docs/numerics.md has it: without the diagonal."""
    q, k = torch.randn(1, 6, 2, 64), torch.randn(1, 6, 2, 64)
    out = torch.empty_like(q)
    torch.ops.fovea.attention(*arguments("attention", q=q, k=k, v=k, out=out, window_left=3, window_right=-1))
    expected = torch.zeros_like(q)
    for row in range(1, 6):  # sees the three keys before its own
        keys = k[:, max(0, row - 3) : row]
        expected[:, row : row + 1] = fovea.attention(q[:, row : row + 1], keys, keys)
    torch.testing.assert_close(out, expected)
