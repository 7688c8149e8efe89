# SPDX-License-Identifier: Apache-2.0
"""flash_attn.bert_padding over Fovea: padded batches as ragged ones, and back."""

import pytest
import torch

import fovea.compat.flash_attn as flash_attn
from fovea.compat.flash_attn import bert_padding


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


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        ("index_first_axis", (torch.ones(3, 2), torch.tensor([0, 3])), "^indices: got 0 to 3, want 0 to 2$"),
        ("index_first_axis", (torch.ones(3, 2), torch.tensor([0.5])), r"^indices\.dtype: got torch\.float32, want torch\.int64$"),
        ("index_put_first_axis", (torch.ones(1, 2), torch.tensor([-1]), 5), "^indices: got -1 to -1, want 0 to 4$"),
        (
            "pad_input",
            (torch.ones(2, 4), torch.tensor([1]), 2, 3),
            r"^indices\.shape: got \[1\], want \[2\], the rows of hidden_states$",
        ),
        ("pad_input", (torch.ones(1, 4), torch.tensor([6]), 2, 3), "^indices: got 6 to 6, want 0 to 5$"),
        (
            "unpad_input",
            (torch.ones(2, 3, 4), torch.ones(2, 4)),
            r"^attention_mask\.shape: got \[2, 4\], want \[2, 3\] \(batch, seq\)$",
        ),
    ],
)
def test_indices_of_no_row(function, arguments, message):
    with pytest.raises(RuntimeError, match=message):
        getattr(bert_padding, function)(*arguments)


def test_indices_where_they_cannot_be_read(monkeypatch):
    """As on a GPU: no index leaves its tensor."""
    monkeypatch.setattr(bert_padding, "readable", lambda tensor: False)
    rows, indices = torch.randn(3, 2, requires_grad=True), torch.tensor([2, 3, -1, 0])
    found = bert_padding.index_first_axis(rows, indices)
    assert torch.equal(found, torch.stack([rows[2], torch.zeros(2), torch.zeros(2), rows[0]]))
    put = bert_padding.index_put_first_axis(found + 1, indices, 3)
    assert torch.equal(put, torch.stack([rows[0] + 1, torch.zeros(2), rows[2] + 1]))
    put.sum().backward()
    assert torch.equal(rows.grad, torch.tensor([1.0, 0.0, 1.0])[:, None].expand(3, 2))


def test_an_empty_batch():
    flat, indices, cu, longest, used = bert_padding.unpad_input(torch.ones(0, 5, 4), torch.ones(0, 5))
    assert flat.shape == (0, 4) and indices.numel() == 0 and cu.tolist() == [0] and longest == 0 and used.numel() == 0
    assert bert_padding.pad_input(flat, indices, 0, 5).shape == (0, 5, 4)
