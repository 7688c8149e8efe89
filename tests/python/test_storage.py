# SPDX-License-Identifier: Apache-2.0
"""A tensor whose storage was resized says more elements than there are. No call reads or writes past the end of a storage."""

import re
from functools import partial

import pytest
import torch

import fovea
from small_calls import append, dense, latent, packed_latent, paged, quantize, ragged, sparse
from test_operators import OPERATORS

FUNCTIONS = {
    "attention": (fovea.attention, dense),
    "ragged attention": (fovea.attention, ragged),
    "paged_attention": (fovea.paged_attention, paged),
    "paged_cache_append": (fovea.paged_cache_append, append),
    "latent_attention": (fovea.latent_attention, latent),
    "latent_attention, packed": (fovea.latent_attention, packed_latent),
    "sparse_latent_attention": (fovea.sparse_latent_attention, sparse),
    "quantize_latent_cache": (fovea.quantize_latent_cache, quantize),
}
CALLS = [
    pytest.param(*FUNCTIONS[name], argument, id=f"{name}, {argument}")
    for name, (_, make) in FUNCTIONS.items()
    for argument, value in make().items()
    if isinstance(value, torch.Tensor)
]


def shortened(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor over a storage of its own that lacks the last byte."""
    whole = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    bytes_of(whole).copy_(bytes_of(torch.empty_like(whole).copy_(tensor)))
    whole.untyped_storage().resize_(whole.untyped_storage().nbytes() - 1)
    return whole


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return torch.tensor([], dtype=torch.uint8).set_(tensor.untyped_storage())


def refusal(name: str, tensor: torch.Tensor) -> str:
    has = tensor.untyped_storage().nbytes()
    return re.escape(f"{name}.storage: got {has} bytes, want at least {has + 1}")


@pytest.mark.parametrize("name", OPERATORS)
def test_every_tensor_of_an_operator_is_within_its_storage(name):
    operator, arguments = getattr(torch.ops.fovea, name).default, OPERATORS[name]()
    operator(*arguments)  # a plan is kept
    tensors = [at for at, argument in enumerate(arguments) if isinstance(argument, torch.Tensor)]
    lists = [at for at, argument in enumerate(arguments) if isinstance(argument, list)]
    assert tensors
    for at in tensors:
        wrong = [*arguments]
        wrong[at] = shortened(arguments[at])
        with pytest.raises(ValueError, match=r"storage: got \d+ bytes, want at least \d+"):
            operator(*wrong)
    for at in lists:
        wrong = [*arguments]
        wrong[at] = [*arguments[at][:-1], shortened(arguments[at][-1])]
        with pytest.raises(ValueError, match=r"storage: got \d+ bytes, want at least \d+"):
            operator(*wrong)
    operator(*arguments)


@pytest.mark.parametrize("known", [False, True], ids=["first", "known"])
@pytest.mark.parametrize(("function", "make", "name"), CALLS)
def test_a_storage_without_its_last_byte(function, make, name, known):
    """Also after calls with the same key, whose plan is kept."""
    call = make()
    for _ in range(4 if known else 0):
        function(**call)
    call[name] = shortened(call[name])
    with pytest.raises(ValueError, match=refusal(name, call[name])):
        function(**call)


@pytest.mark.parametrize("planned", [False, True])
def test_a_storage_that_was_resized_and_is_back_at_its_address(planned):
    """The tensor and its address are those of the calls before, and the storage is not."""
    call = ragged(v=torch.zeros(5, 1 << 22)[:, -128:].view(5, 2, 64))  # large, so that its pages come back
    function = fovea.plan_attention(**call).run if planned else partial(fovea.attention, **call)
    v, storage = call["v"], call["v"].untyped_storage()
    size = storage.nbytes()
    for _ in range(8):
        function()
        address = v.data_ptr()
        storage.resize_(size + 1)
        storage.resize_(size - 1)
        if v.data_ptr() == address:
            break
        storage.resize_(size)
    else:
        pytest.skip("the storage did not come back to its address")
    with pytest.raises(ValueError, match=refusal("v", v)):
        function()


def test_a_view_past_the_end_of_its_storage():
    """The storage would hold as many elements as the view has, but the view begins in its middle."""
    q, k = torch.randn(2, 1, 5, 4, 64), torch.randn(1, 9, 4, 64)
    for _ in range(4):
        fovea.attention(q[1], k, k)
    view = q[1]
    q.untyped_storage().resize_(view.nbytes)
    with pytest.raises(ValueError, match=rf"^q\.storage: got {view.nbytes} bytes, want at least {2 * view.nbytes}$"):
        fovea.attention(view, k, k)


def test_freed_query_lengths_are_not_taken_for_none():
    q, cache = torch.randn(2, 4, 64), torch.randn(3, 8, 2, 64)
    table, kv_len = torch.tensor([[0], [1]], dtype=torch.int32), torch.tensor([3, 5], dtype=torch.int32)
    cu = torch.tensor([0, 1, 2], dtype=torch.int32)
    cu.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match=r"^cu_seqlens_q\.storage: got 0 bytes, want at least 12$"):
        fovea.paged_attention(q, cache, cache, block_table=table, kv_len=kv_len, cu_seqlens_q=cu)


def test_parts_of_a_merge():
    outs, lses = list(torch.randn(2, 3, 2, 64).unbind()), list(torch.randn(2, 3, 2).unbind())
    fovea.merge_states(outs, lses)
    lses[1] = shortened(lses[1])
    with pytest.raises(ValueError, match=r"^lses\[1\]\.storage: got 23 bytes, want at least 24$"):
        fovea.merge_states(outs, lses)


def test_an_empty_tensor_needs_no_storage():
    q = torch.randn(2, 5, 4, 64)[:, :0]
    q.untyped_storage().resize_(0)
    assert fovea.attention(q, torch.randn(2, 9, 4, 64), torch.randn(2, 9, 4, 64)).shape == (2, 0, 4, 64)
