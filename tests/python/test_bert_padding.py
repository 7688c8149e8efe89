# SPDX-License-Identifier: Apache-2.0
"""flash_attn.bert_padding over Fovea: padded batches as ragged ones, and back."""

import torch

import fovea.compat.flash_attn as flash_attn


def test_padding_and_back():
    states = torch.randn(3, 5, 4, requires_grad=True)
    mask = torch.tensor([[1, 1, 1, 0, 0], [0, 0, 1, 1, 0], [1, 1, 1, 1, 1]])
    flat, indices, cu, longest, used = flash_attn.bert_padding.unpad_input(states, mask)
    assert torch.equal(flat, states[mask.bool()]) and cu.tolist() == [0, 3, 5, 10] and cu.dtype == torch.int32
    assert (
        longest == 5
        and used.tolist() == [3, 2, 5]
        and torch.equal(flash_attn.bert_padding.index_first_axis(states.flatten(0, 1), indices), flat)
    )
    back = flash_attn.bert_padding.pad_input(flat, indices, 3, 5)
    assert torch.equal(back, torch.where(mask.bool()[..., None], states, 0.0))
    back.sum().backward()
    assert torch.equal(states.grad, mask[..., None].expand(3, 5, 4).float())
    kept = flash_attn.bert_padding.unpad_input(states, mask, torch.tensor([[0, 0, 0, 1, 0], [0] * 5, [0] * 5]))
    assert kept[2].tolist() == [0, 4, 6, 11] and kept[4].tolist() == [3, 2, 5]
