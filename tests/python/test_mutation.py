# SPDX-License-Identifier: Apache-2.0
"""Writes of an operator count as changes: autograd, functionalisation and torch.compile see them as they see torch's own."""

import pytest
import torch

import fovea
from conftest import available
from public_calls import DEVICES, NO_FLOAT32, moved
from test_operators import OPERATORS


def arguments_on(device, name):
    if not available(name, device):
        pytest.skip(f"no implementation of {name} on {device}")
    arguments = OPERATORS[name]()
    return arguments if device == "cpu" else moved(list(arguments), device, name in NO_FLOAT32)


def split(name, arguments):
    """The tensors that an operator writes and those that it reads, by name."""
    written, read = {}, {}
    schema = getattr(torch.ops.fovea, name).default._schema.arguments
    for argument, value in zip(schema, arguments, strict=True):
        into = written if argument.alias_info is not None and argument.alias_info.is_write else read
        for index, item in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(item, torch.Tensor):
                into[f"{argument.name} {index}"] = item
    return written, read


def versions(tensors):
    return {name: tensor._version for name, tensor in tensors.items()}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_versions(name, mode, device):
    """Versions of all that is written change, and of nothing else, also where inference mode writes to tensors from outside."""
    arguments = arguments_on(device, name)
    written, read = split(name, arguments)
    assert written
    before, unchanged = versions(written), versions(read)
    with mode():
        getattr(torch.ops.fovea, name)(*arguments)
    assert all(tensor._version > before[name] for name, tensor in written.items()), versions(written)
    assert versions(read) == unchanged


@pytest.mark.parametrize("name", OPERATORS)
def test_a_refused_call_changes_nothing(name):
    arguments = OPERATORS[name]()
    schema = getattr(torch.ops.fovea, name).default._schema.arguments
    arguments = [
        "nonsense" if argument.name == "implementation" else value for argument, value in zip(schema, arguments, strict=True)
    ]
    written, _ = split(name, arguments)
    before = versions(written)
    with pytest.raises(ValueError, match=r"options\.implementation"):
        getattr(torch.ops.fovea, name)(*arguments)
    assert versions(written) == before


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", OPERATORS)
def test_backward_through_what_was_overwritten_raises(name, device):
    arguments = arguments_on(device, name)
    floats = [tensor for tensor in split(name, arguments)[0].values() if tensor.is_floating_point()]
    losses = []
    for tensor in floats:
        tensor.zero_()
        losses.append((torch.ones_like(tensor, requires_grad=True) * tensor).sum())
    getattr(torch.ops.fovea, name)(*arguments)
    for loss in losses:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def dense():
    return torch.randn(2, 5, 4, 16), torch.randn(2, 7, 2, 16), torch.randn(2, 7, 2, 16)


PARTS = {
    "rows": lambda out: out[1:3],
    "every other row": lambda out: out[::2],
    "detached": lambda out: out.detach()[2:],
    "a view of a view": lambda out: out.view(2, 2, 5, 64)[:, 1].unflatten(-1, (4, 16)),
}


@pytest.mark.parametrize("part", PARTS)
def test_backward_through_what_a_function_overwrote_raises(part):
    """Views share their base's memory and its count of changes."""
    out, weight = torch.full((4, 5, 4, 16), 2.0), torch.ones(4, 5, 4, 16, requires_grad=True)
    loss = (weight * out).sum()
    fovea.attention(*dense(), out=PARTS[part](out))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("name", OPERATORS)
def test_gradients_are_refused(name):
    """Gradients of tensors that are read or written are refused by name. Without grad mode an output may want one, as in torch."""
    operator = getattr(torch.ops.fovea, name).default
    arguments = OPERATORS[name]()
    written, read = split(name, arguments)
    for label, tensor in (written | read).items():
        if not tensor.is_floating_point():
            continue
        before, version = tensor.clone(), tensor._version
        tensor.requires_grad_()
        with pytest.raises(NotImplementedError, match=rf"^{label.split()[0]}\.requires_grad: got True, want False \(no backward"):
            operator(*arguments)
        now, then = (each.detach().float().nan_to_num() for each in (tensor, before))  # torch has no nan_to_num of e4m3
        assert torch.equal(now, then) and tensor._version == version
        with torch.no_grad():
            operator(*arguments)
        tensor.requires_grad_(False)


def test_functions_refuse_outputs_that_require_a_gradient():
    q, k, v = dense()
    out, lse, cache = torch.empty_like(q), torch.empty(2, 4, 5), torch.zeros(2, 3, 8, 2, 16)
    with pytest.raises(NotImplementedError, match=r"out\.requires_grad: got True"):
        fovea.attention(q, k, v, out=out.requires_grad_())
    with pytest.raises(NotImplementedError, match=r"lse\.requires_grad: got True"):
        fovea.attention(q, k, v, lse=lse.requires_grad_())
    with pytest.raises(NotImplementedError, match=r"k_cache\.requires_grad: got True"):
        fovea.paged_cache_append(k[0], v[0], *cache.requires_grad_(), torch.arange(7))
    assert not cache.any()


# ---- torch.compile -----------------------------------------------------------------------------------------------------------


def writes_out(out, q, k, v):
    fovea.attention(q, k, v, causal=True, out=out)
    return out * 2


def writes_a_view(out, q, k, v):
    both = out.unflatten(0, (1, 2))
    before = both.sum()
    fovea.attention(q[:1] + 1, k[:1], v[:1], out=both[:, 1])
    return before, out + both[0]


def writes_out_and_lse(out, q, k, v):
    """Into tensors of the function's own, parts of larger ones."""
    room, lse = torch.zeros(3, *q.shape), torch.zeros(2, 4, 6)
    fovea.attention(q, k, v, out=room[1], lse=lse[..., 1:])
    out.copy_(room[1])
    return room.sum(0), lse


def writes_a_cache(out, q, k, v):
    """Through views of one tensor, in turns with torch's own writing and with reading."""
    caches = torch.zeros(2, 6, 8, 2, 16)
    k_cache, v_cache = caches
    table, kv_len = torch.arange(4, dtype=torch.int32).view(2, 2), torch.tensor([9, 9], dtype=torch.int32)
    fovea.paged_cache_append(k.flatten(0, 1), v.flatten(0, 1), k_cache, v_cache, torch.arange(14) + 3)
    first = fovea.paged_attention(q[:, 0], k_cache, v_cache, table, kv_len)
    caches[1].mul_(2)
    second = fovea.paged_attention(q[:, 0], k_cache, v_cache, table, kv_len, out=out[:, 1])
    return first, second - 2 * first, caches


def merges_in_place(out, q, k, v):
    one, lse_one = fovea.attention(q, k[:, :3], v[:, :3], return_lse=True)
    two, lse_two = fovea.attention(q, k[:, 3:], v[:, 3:], return_lse=True)
    parts, lses = [one.flatten(0, 1), two.flatten(0, 1)], [lse.transpose(1, 2).flatten(0, 1) for lse in (lse_one, lse_two)]
    fovea.merge_states(parts, lses, out=parts[0], lse=lses[1])
    out.copy_(one)
    return parts[0], lses[1]


STEPS = [writes_out, writes_a_view, writes_out_and_lse, writes_a_cache, merges_in_place]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_writes(step, backend):
    """Results, what is left in the arguments, and their versions: as without compiling."""
    torch._dynamo.reset()
    rows, out = dense(), torch.full((2, 5, 4, 16), 3.0)
    other = out.clone()
    want = step(out, *rows)
    version = other._version
    got = torch.compile(step, backend=backend, fullgraph=True)(other, *rows)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(other, out, rtol=1e-5, atol=1e-6)
    assert other._version > version and not torch.equal(other, torch.full_like(other, 3.0))


def test_backward_through_what_a_compiled_function_overwrote_raises():
    torch._dynamo.reset()
    out, weight = torch.full((2, 5, 4, 16), 2.0), torch.ones(2, 5, 4, 16, requires_grad=True)
    loss = (weight * out).sum()
    torch.compile(writes_out, backend="aot_eager", fullgraph=True)(out, *dense())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_compiled_calls_refuse_gradients():
    torch._dynamo.reset()
    q, k, v = dense()
    compiled = torch.compile(lambda q: fovea.quantize_and_attend(q, k, v), backend="aot_eager", fullgraph=True)
    with pytest.raises(Exception, match=r"q\.requires_grad: got True, want False"):
        compiled(q.requires_grad_())


# ---- views whose values are not those of their memory ------------------------------------------------------------------------


def negative(*shape):
    return torch.randn(shape, dtype=torch.complex64).conj().imag


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
def test_negative_views(mode):
    """Inputs are read as what they are; an output is refused by name."""
    q, k, v = dense()
    with mode():
        rows, out = negative(2, 5, 4, 16), negative(2, 5, 4, 16)
        assert rows.is_neg() and out.is_neg()
        assert torch.equal(fovea.attention(rows, k, v), fovea.attention(rows.resolve_neg(), k, v))
        outs, lses = [negative(3, 2, 8), torch.randn(3, 2, 8)], [torch.randn(3, 2) for _ in range(2)]
        assert torch.equal(fovea.merge_states(outs, lses)[0], fovea.merge_states([outs[0].resolve_neg(), outs[1]], lses)[0])
        before = out.clone()
        with pytest.raises(ValueError, match=r"^out: got a view of the negative or conjugate of its memory, want memory of"):
            fovea.attention(q, k, v, out=out)
        assert torch.equal(out, before)


def test_conjugate_views():
    q, k, v = dense()
    with pytest.raises(ValueError, match=r"^out: got a view of the negative or conjugate"):
        fovea.attention(q, k, v, out=torch.zeros(2, 5, 4, 16, dtype=torch.complex64).conj())
    with pytest.raises(ValueError, match=r"^q\.dtype: got .*omplex"):
        fovea.attention(q.cfloat().conj(), k, v)
