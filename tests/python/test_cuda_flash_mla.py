# SPDX-License-Identifier: Apache-2.0
"""FlashMLA's functions once more, with all tensors on a CUDA device, by each family of kernels that has latent attention there."""

import functools

import pytest
import torch

import fovea
import fovea._latent
import fovea.compat.flash_mla as flash_mla
from test_flash_mla import (  # noqa: F401
    test_call_forms,
    test_dense,
    test_dense_from_a_packed_cache,
    test_sparse_decode,
    test_sparse_prefill,
)

FAMILIES = [
    row.name.split(".")[1]
    for row in fovea.implementations()
    if row.operation == "latent_attention" and row.backend == "cuda" and row.available
]


def to_device(x):
    """The same strides, over a copy of all memory around the tensor."""
    if not isinstance(x, torch.Tensor):
        return x
    memory = torch.empty(0, dtype=torch.uint8).set_(x.untyped_storage()).cuda()
    return torch.empty(0, dtype=x.dtype, device="cuda").set_(memory.untyped_storage(), x.storage_offset(), x.shape, x.stride())


def on_device(function):
    @functools.wraps(function)
    def called(*arguments, **named):
        results = function(*map(to_device, arguments), **{name: to_device(value) for name, value in named.items()})
        return tuple(result.cpu() for result in results)

    return called


@pytest.fixture(params=FAMILIES, autouse=True)
def family(request, monkeypatch):
    if request.node.callspec.params.get("dtype") is torch.float32:
        pytest.skip("GPUs compute in 16 bits")
    run, name, forced = fovea._latent.run, request.param, []

    def run_forced(operation, schedule, *arguments, fills=()):
        forced.append(operation)
        run(operation, schedule, *arguments[:-2], f"cuda.{name}.{operation}", arguments[-1], fills=fills)

    monkeypatch.setattr(fovea._latent, "run", run_forced)
    for function in ("flash_mla_with_kvcache", "flash_mla_sparse_fwd"):
        monkeypatch.setattr(flash_mla, function, on_device(getattr(flash_mla, function)))
    yield name
    assert forced
