# SPDX-License-Identifier: Apache-2.0
"""Calls that say what an earlier one said run its plan at once. They must compute with their own tensors.

Whatever wants to see a call must see it, also after calls like it have been learnt."""

import subprocess
import sys

import pytest
import torch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

import fovea
from calls import Calls
from fovea import _repeat
from small_calls import append, dense, latent, packed_latent, paged, quantize, ragged, sparse

pytestmark = pytest.mark.skipif(not _repeat.READY, reason="this build or this torch has no short path")


def schedule(**changes):
    return latent(schedule=fovea.LatentSchedule()) | changes


def without_out(make):
    return lambda: {name: value for name, value in make().items() if name not in ("out", "lse")}


CALLS = {
    "attention": (fovea.attention, dense),
    "attention, new outputs": (fovea.attention, without_out(dense)),
    "attention, new lse": (fovea.attention, lambda: without_out(dense)() | {"return_lse": True}),
    "attention of e4m3": (
        fovea.attention,
        lambda: {name: torch.randn(1, 4, 2, 64).to(torch.float8_e4m3fn) for name in "qkv"} | {"q_scale": 0.5, "k_scale": 0.25},
    ),
    "ragged attention": (fovea.attention, ragged),
    "paged_attention": (fovea.paged_attention, paged),
    "paged_attention, new outputs": (fovea.paged_attention, lambda: without_out(paged)() | {"return_lse": True}),
    "paged_attention of rows": (
        fovea.paged_attention,
        lambda: paged(q=torch.randn(2, 4, 64), cu_seqlens_q=None, out=torch.empty(2, 4, 64), window=(3, None), sink=torch.randn(4)),
    ),
    "paged_cache_append": (fovea.paged_cache_append, append),
    "latent_attention": (fovea.latent_attention, latent),
    "latent_attention, packed": (fovea.latent_attention, packed_latent),
    "latent_attention, shared schedule": (fovea.latent_attention, schedule),
    "sparse_latent_attention": (fovea.sparse_latent_attention, lambda: sparse(return_lse=True, return_max_logits=True)),
    "quantize_latent_cache": (fovea.quantize_latent_cache, quantize),
    "quantize_and_attend": (fovea.quantize_and_attend, lambda: {name: torch.randn(1, 7, 2, 64).bfloat16() for name in "qkv"}),
}


def repeats(function) -> _repeat.Repeats:
    return function.__closure__[function.__code__.co_freevars.index("second")].cell_contents.__self__


def run(function, call):
    return repeats(function).run((), call)


def is_known(function, call) -> bool:
    """Whether the call took the short path. It is made, if it did."""
    result = run(function, call)
    return result is not NotImplemented and result is not Ellipsis


def tensors_of(result) -> list[torch.Tensor]:
    return [] if result is None else list(result) if isinstance(result, tuple) else [result]


def outputs(call, result) -> list[torch.Tensor]:
    """All that a call has written."""
    written = [call[name] for name in ("out", "lse", "k_cache", "v_cache", "cache") if isinstance(call.get(name), torch.Tensor)]
    return [tensor.clone() for tensor in (*tensors_of(result), *written)]


@pytest.mark.parametrize("name", CALLS)
def test_a_call_like_another_is_that_call_over_other_tensors(name):
    function, make = CALLS[name]
    torch.manual_seed(1)
    function(**make())
    function(**make())
    call = make()
    copy = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in call.items()}
    for _ in range(3 * ("schedule" in call)):
        function(**call)  # the first call of a schedule computes it
    known = run(function, call)
    assert known is not NotImplemented and known is not Ellipsis
    got, want = outputs(call, known), outputs(copy, function.__wrapped__(**copy))
    assert len(got) == len(want)
    for one, other in zip(got, want, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape and one.stride() == other.stride()
        assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))


@pytest.mark.parametrize("name", ["attention", "paged_attention", "paged_cache_append", "latent_attention, shared schedule"])
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_what_is_written_counts_as_changed(name, mode):
    function, make = CALLS[name]
    call = make()
    function(**call), function(**call), function(**call)
    tensors = {name: value for name, value in call.items() if isinstance(value, torch.Tensor)}
    before = {name: tensor._version for name, tensor in tensors.items()}
    with mode():
        assert is_known(function, call)
    changed = {name for name, tensor in tensors.items() if tensor._version != before[name]}
    assert changed == {"k_cache", "v_cache"} if name == "paged_cache_append" else changed <= {"out", "lse"} and "out" in changed


def test_outputs_that_are_given_are_returned():
    for _ in range(3):
        call = dense()
        out, lse = fovea.attention(**call)
        assert out is call["out"] and lse is call["lse"]
        call = paged()
        assert fovea.paged_attention(**call) is call["out"]
    assert fovea.paged_cache_append(**append()) is None and fovea.paged_cache_append(**append()) is None


def test_tensors_that_are_the_same_in_the_first_call():
    """The second call is alike in all that the first one said, but has three tensors."""
    x, y, z = torch.randn(3, 1, 5, 2, 48)
    fovea.attention(x, x, x), fovea.attention(x, x, x)
    torch.testing.assert_close(
        fovea.attention(x, y, z), fovea.attention(x, y, z, implementation="reference.attention"), rtol=2e-5, atol=2e-5
    )


def test_arguments_by_place_and_by_name():
    q, k, v = torch.randn(3, 1, 5, 2, 40)
    want = fovea.attention(q, k, v)
    for _ in range(3):
        assert torch.equal(fovea.attention(q, k, v), want)
        assert torch.equal(fovea.attention(v=v, q=q, k=k), want)
        assert torch.equal(fovea.attention(q, v=v, k=k), want)
        assert not torch.equal(fovea.attention(q, v=k, k=v), want)


def test_names_that_are_made_while_the_program_runs():
    q = torch.randn(1, 5, 2, 40)
    want = {name: fovea.attention.__wrapped__(q, q, q, **{name: 0.75}) for name in ("scale", "softcap")}
    for _ in range(4):
        for name, result in want.items():
            assert torch.equal(fovea.attention(q, q, q, **{name[:2] + name[2:]: 0.75}), result)


def test_numbers_of_other_types_are_other_calls():
    q = torch.randn(1, 5, 2, 40)
    for causal in (True, False, 1, 0) * 3:
        assert torch.equal(fovea.attention(q, q, q, causal=causal), fovea.attention.__wrapped__(q, q, q, causal=bool(causal)))


def test_scales_that_are_numbers():
    call = {name: torch.randn(1, 4, 2, 64).to(torch.float8_e4m3fn) for name in "qkv"}
    for v_scale in (0.5, 2.0) * 3:
        got = fovea.attention(**call, v_scale=v_scale)
        assert torch.equal(got, fovea.attention(**call, v_scale=torch.tensor(v_scale)))


def known_dense(**changes):
    """A call without outputs of which one like it has been learnt."""
    call = without_out(dense)()
    fovea.attention(**call), fovea.attention(**call)
    assert is_known(fovea.attention, call)
    return call | changes


def test_dispatch_modes_see_the_operator():
    call = known_dense()
    with Calls() as calls:
        fovea.attention(**call)
    assert calls.names == ["attention"]


def test_function_modes_see_the_operator():
    seen = []

    class Mode(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    call = known_dense()
    with Mode():
        fovea.attention(**call)
    assert any("fovea.attention" in name for name in seen)


def test_the_profiler_sees_the_operator():
    call = known_dense()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        fovea.attention(**call)
    assert "fovea::attention" in {event.name for event in profile.events()}


@pytest.mark.filterwarnings("ignore")
def test_traces_have_the_operator():
    call = known_dense()
    k, v = call["k"], call["v"]
    traced = torch.jit.trace(lambda q: fovea.attention(q, k, v), (call["q"],))
    assert "fovea::attention" in str(traced.graph)
    q = torch.randn_like(call["q"])
    assert torch.equal(traced(q), fovea.attention(q, k, v))


def test_autocast_casts():
    call = known_dense()
    with torch.autocast("cpu", torch.bfloat16):
        assert fovea.attention(**call).dtype == torch.bfloat16
    assert fovea.attention(**call).dtype == torch.float32


def test_gradients_are_not_cut():
    call = known_dense()
    call["q"].requires_grad_()
    assert fovea.attention(**call).requires_grad
    with torch.no_grad():
        assert not fovea.attention(**call).requires_grad
    fovea.paged_attention(**paged()), fovea.paged_attention(**paged())
    with pytest.raises(NotImplementedError, match="requires_grad"):
        fovea.paged_attention(**paged(q=torch.randn(3, 4, 64, requires_grad=True)))


def test_tangents_are_refused():
    call = known_dense()
    with forward_ad.dual_level():
        call["q"] = forward_ad.make_dual(call["q"], torch.ones_like(call["q"]))
        with pytest.raises(NotImplementedError, match="tangent"):
            fovea.attention(**call)


def test_vmap_maps():
    call = known_dense()
    mapped = torch.vmap(fovea.attention)(*(torch.stack([call[name], call[name]]) for name in "qkv"))
    torch.testing.assert_close(mapped[1], fovea.attention(**call), rtol=2e-5, atol=2e-5)


def test_views_of_negatives_have_the_values_that_they_show():
    call = known_dense()
    q = torch._neg_view(call["q"])
    want = fovea.attention(**call | {"q": -call["q"]})
    for _ in range(3):
        assert torch.equal(fovea.attention(**call | {"q": q}), want)


def test_views_of_negative_integers_too():
    call = sparse(indices=torch.randint(0, 40, (2, 3, 5), dtype=torch.int32))
    fovea.sparse_latent_attention(**call)
    want = fovea.sparse_latent_attention(**call).clone()
    call["indices"] = torch._neg_view(-call["indices"])
    assert torch.equal(fovea.sparse_latent_attention(**call), want)


def test_subclasses_take_the_operator_and_parameters_do_not():
    class Own(torch.Tensor):
        pass

    call = known_dense()
    want, q = fovea.attention(**call), call["q"].as_subclass(Own)
    assert not is_known(fovea.attention, call | {"q": q})
    assert torch.equal(fovea.attention(**call | {"q": q}), want)
    frozen = torch.nn.Parameter(call["q"], requires_grad=False)
    assert is_known(fovea.attention, call | {"q": frozen}) and torch.equal(fovea.attention(**call | {"q": frozen}), want)


def test_a_schedule_fits_the_calls_of_its_first():
    function, call, shared = fovea.latent_attention, latent(), fovea.LatentSchedule()
    for _ in range(3):  # the first one learns
        function(**call, schedule=shared)
    for _ in range(2):
        assert is_known(function, call | {"schedule": shared})
        shared.reset()
        assert not is_known(function, call | {"schedule": shared})
        function(**call, schedule=shared)
    other = latent(block_table=torch.zeros(2, 3, dtype=torch.int32))
    with pytest.raises(ValueError, match=r"block_table\.shape.*as in the first call"):
        function(**other, schedule=shared)
    assert is_known(function, call | {"schedule": shared})


def test_more_calls_than_are_kept():
    q = torch.randn(1, 2, 1, 16)
    for seq in (*range(1, 600), 3, 599):
        k = torch.full((1, seq, 1, 16), float(seq))
        torch.testing.assert_close(fovea.attention(q, k, k, scale=0.01), k[:, :1].expand(1, 2, 1, 16), rtol=1e-5, atol=1e-5)


def test_wrong_arguments_are_refused_after_good_ones():
    call = known_dense()
    with pytest.raises(ValueError, match=r"^v\.shape"):
        fovea.attention(**call | {"k": torch.randn(2, 7, 3, 64)})
    with pytest.raises(TypeError, match=r"^scale: got 'x'"):
        fovea.attention(**call, scale="x")
    with pytest.raises(TypeError, match="positional"):
        fovea.attention(*(call[name] for name in "qkv"), "return_lse", True)
    with pytest.raises(TypeError, match="unexpected"):
        fovea.attention(**call, scales=1)
    with pytest.raises(ValueError, match=r"^scale: got 0"):
        fovea.attention(**call, scale=0)


def test_the_package_works_without_the_module():
    code = (
        "import sys; sys.modules['fovea._short_path'] = None; import torch, fovea; assert not fovea._repeat.READY;"
        "q = torch.ones(1, 4, 1, 16); assert torch.equal(fovea.attention(q, q, q), q)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
