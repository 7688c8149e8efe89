# SPDX-License-Identifier: Apache-2.0
"""fovea.jax, against the formula in jax.numpy and against fovea's functions for PyTorch."""

import numpy as np
import pytest
import torch

jax = pytest.importorskip("jax")
jax.config.update("jax_num_cpu_devices", 2)
jnp = jax.numpy
fovea_jax = pytest.importorskip("fovea.jax", reason="built without jaxlib", exc_type=ImportError)
import fovea  # noqa: E402

GPUS = [device for device in jax.devices() if device.platform == "gpu"]
CPUS = jax.devices("cpu")
jax.config.update("jax_default_device", CPUS[0])
RNG = np.random.default_rng(7)
TOLERANCE = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 1.6e-2}


def normal(*shape, dtype="float32"):
    return jnp.asarray(RNG.standard_normal(shape), dtype=dtype)


def inputs(*, seq_q=33, seq_k=50, dims=(64, 32), dtype="float32"):
    batch, heads, kv_heads = 2, 8, 2
    shapes = (batch, seq_q, heads, dims[0]), (batch, seq_k, kv_heads, dims[0]), (batch, seq_k, kv_heads, dims[1])
    return tuple(normal(*shape, dtype=dtype) for shape in shapes)


def formula(q, k, v, *, left=None, right=None, softcap=0.0, sink=None):
    """(out, lse) in float32; positions are counted from the last query and the last key."""
    group = q.shape[2] // k.shape[2]
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    k, v = jnp.repeat(k, group, axis=2), jnp.repeat(v, group, axis=2)
    scores = jnp.einsum("bihd,bjhd->bhij", q, k, precision="highest") * q.shape[-1] ** -0.5
    if softcap:
        scores = softcap * jnp.tanh(scores / softcap)
    distance = jnp.arange(k.shape[1])[None] - jnp.arange(q.shape[1])[:, None] - (k.shape[1] - q.shape[1])
    seen = jnp.ones_like(distance, bool) if left is None else distance >= -left
    seen = seen if right is None else seen & (distance <= right)
    scores = jnp.where(seen, scores, -jnp.inf)
    lse = jax.nn.logsumexp(scores, axis=-1)
    whole = lse if sink is None else jnp.logaddexp(lse, sink[None, :, None])
    weights = jnp.where(seen, jnp.exp(scores - whole[..., None]), 0)
    return jnp.einsum("bhij,bjhd->bihd", weights, v, precision="highest"), lse


def close(got, want, tolerance):
    np.testing.assert_allclose(np.asarray(got, np.float32), np.asarray(want, np.float32), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(
    ("options", "band"),
    [
        ({}, {}),
        ({"causal": True}, {"right": 0}),
        ({"window": (5, 3)}, {"left": 5, "right": 3}),
        ({"causal": True, "softcap": 1.5}, {"right": 0, "softcap": 1.5}),
        ({"sink": True}, {"sink": True}),
    ],
)
def test_dense_is_the_formula(dtype, options, band):
    q, k, v = inputs(dtype=dtype)
    if "sink" in options:
        options, band = {"sink": (sink := normal(8))}, {"sink": sink}
    out, lse = jax.jit(lambda *x: fovea_jax.attention(*x, **options, return_lse=True))(q, k, v)
    want, want_lse = formula(q, k, v, **band)
    assert out.dtype == q.dtype
    assert lse.dtype == jnp.float32
    close(out, want, TOLERANCE[dtype])
    close(lse, want_lse, TOLERANCE[dtype])


def test_calls_that_differ_in_which_bound_they_have():
    """One bound, of the same number, to the left and to the right: each has a plan of its own."""
    q, k, v = inputs()
    for _ in range(3):
        close(fovea_jax.attention(q, k, v, window=(5, None)), formula(q, k, v, left=5)[0], 2e-6)
        close(fovea_jax.attention(q, k, v, window=(None, 5)), formula(q, k, v, right=5)[0], 2e-6)


def test_gradients_are_those_of_the_formula():
    q, k, v = inputs()
    sink, weight, weight_lse = normal(8), normal(2, 33, 8, 32), normal(2, 8, 33)

    def loss(function):
        def value(q, k, v, sink):
            out, lse = function(q, k, v, sink)
            return (out * weight).sum() + (lse * weight_lse).sum()

        return jax.jit(jax.grad(value, argnums=(0, 1, 2, 3)))

    got = loss(lambda q, k, v, sink: fovea_jax.attention(q, k, v, causal=True, sink=sink, return_lse=True))(q, k, v, sink)
    want = loss(lambda q, k, v, sink: formula(q, k, v, right=0, sink=sink))(q, k, v, sink)
    for mine, theirs in zip(got, want, strict=True):
        close(mine, theirs, 1e-5)


def test_ragged_rows_and_rows_of_no_sequence():
    q, k, v = normal(12, 4, 32), normal(15, 4, 32), normal(15, 4, 32)
    cu_q, cu_k = jnp.array([0, 3, 3, 10], jnp.int32), jnp.array([0, 5, 9, 15], jnp.int32)
    out, lse = fovea_jax.attention(q, k, v, causal=True, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, return_lse=True)
    for first, last, first_k, last_k in ((0, 3, 0, 5), (3, 10, 9, 15)):
        want, want_lse = formula(q[None, first:last], k[None, first_k:last_k], v[None, first_k:last_k], right=0)
        close(out[first:last], want[0], 2e-6)
        close(lse[first:last].T, want_lse[0], 2e-6)
    assert not out[10:].any()
    assert (lse[10:] == -jnp.inf).all()
    cu_k = cu_k.at[-1].set(13)
    for _ in range(4):  # memory that was freed holds NaN
        freed = [jnp.full(q.shape, jnp.nan).block_until_ready() for _ in range(8)]
        del freed
        gradients = jax.grad(lambda *x: fovea_jax.attention(*x, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k).sum(), (0, 1, 2))(q, k, v)
        for gradient, owned in zip(gradients, (10, 13, 13), strict=True):
            assert jnp.isfinite(gradient[:owned]).all()
            assert not gradient[owned:].any()


def test_vmap_maps_over_another_axis():
    q, k, v = (jnp.stack([x, 2 * x]) for x in inputs())
    close(jax.vmap(fovea_jax.attention)(q, k, v), jnp.stack([formula(*x)[0] for x in zip(q, k, v, strict=True)]), 4e-6)


def test_a_sequence_of_length_zero_and_one():
    q, k, v = inputs(seq_k=0)
    out, lse = fovea_jax.attention(q, k, v, return_lse=True)
    assert not out.any()
    assert (lse == -jnp.inf).all()
    assert fovea_jax.attention(*inputs(seq_q=0)).shape == (2, 0, 8, 32)
    q, k, v = inputs(seq_q=1, seq_k=1)
    close(fovea_jax.attention(q, k, v), jnp.repeat(v, 4, axis=2), 1e-6)


PAGE, BLOCKS = 4, 9


def cache_of(kv_heads=2, dim=32, dtype="float32"):
    return jnp.full((BLOCKS, PAGE, kv_heads, dim), jnp.nan, dtype), jnp.full((BLOCKS, PAGE, kv_heads, dim), jnp.nan, dtype)


def test_append_and_attend_through_pages():
    lengths, table = (7, 4), jnp.array([[3, 5, 77], [8, -5, 0]], jnp.int32)
    slots = [int(table[b, t // PAGE]) * PAGE + t % PAGE for b, length in enumerate(lengths) for t in range(length)]
    k, v, q = normal(sum(lengths), 2, 32), normal(sum(lengths), 2, 32), normal(2, 4, 32)
    append = jax.jit(fovea_jax.paged_cache_append, donate_argnums=(2, 3))
    caches = append(k, v, *cache_of(), jnp.array(slots, jnp.int32))
    caches = append(k, v, *caches, jnp.full(len(slots), -1, jnp.int32))
    out, lse = fovea_jax.paged_attention(q, *caches, table, jnp.array(lengths, jnp.int32), return_lse=True)
    for b, (first, length) in enumerate(((0, 7), (7, 4))):
        rows = slice(first, first + length)
        want, want_lse = formula(q[None, b : b + 1], k[None, rows], v[None, rows])
        close(out[b], want[0, 0], 2e-6)
        close(lse[b], want_lse[0, :, 0], 2e-6)


def test_append_leaves_a_cache_alone_that_is_not_donated():
    k_cache, v_cache = cache_of()
    new, _ = fovea_jax.paged_cache_append(normal(1, 2, 32), normal(1, 2, 32), k_cache, v_cache, jnp.array([5], jnp.int32))
    assert jnp.isnan(k_cache).all()
    assert not jnp.isnan(new[1, 1]).any()
    assert jnp.isnan(new).sum() == k_cache.size - 64


def test_codes_of_8_bits_equal_torch():
    k_cache, v_cache = cache_of(dtype="float8_e4m3fn")
    k, v, scale = normal(3, 2, 32), normal(3, 2, 32), jnp.array([0.25, 2.0], jnp.float32)
    slots = jnp.array([0, 13, 30], jnp.int32)
    caches = fovea_jax.paged_cache_append(k, v, k_cache, v_cache, slots, k_scale=scale, v_scale=scale)
    theirs = [torch.full(k_cache.shape, float("nan")).to(torch.float8_e4m3fn) for _ in range(2)]
    k, v, scale = (torch.from_numpy(np.array(x)) for x in (k, v, scale))
    fovea.paged_cache_append(k, v, *theirs, torch.tensor([0, 13, 30]), k_scale=scale, v_scale=scale)
    for mine, cache in zip(caches, theirs, strict=True):
        assert (np.asarray(mine).view(np.uint8) == cache.view(torch.uint8).numpy()).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda q, k, v: fovea_jax.attention(q, k[:, :, :1].repeat(3, 2), v[:, :, :1].repeat(3, 2)), "kv_head.*got 3"),
        (lambda q, k, v: fovea_jax.attention(q, k.astype("float16"), v), "k.dtype"),
        (lambda q, k, v: fovea_jax.attention(q.astype("int32"), k.astype("int32"), v.astype("int32")), "q.dtype"),
        (lambda q, k, v: fovea_jax.attention(q, k, v, sink=jnp.zeros(3)), "sink.size: got 3, want 8"),
        (lambda q, k, v: fovea_jax.attention(q, k, v, sink=jnp.zeros(8, "int32")), "sink.dtype: got i32, want f32"),
        (lambda q, k, v: fovea_jax.attention(q, k, v, implementation="cpu.no_such.attention"), "cpu.no_such.attention"),
    ],
)
def test_bad_calls_say_what_is_wrong(call, message):
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        jax.block_until_ready(call(*inputs()))


def test_bad_words_are_refused_while_tracing():
    q, k, v = inputs()
    with pytest.raises(ValueError, match="anchor: got 'middle'"):
        fovea_jax.attention(q, k, v, anchor="middle")
    with pytest.raises(ValueError, match="window"):
        fovea_jax.attention(q, k, v, window=(-1, 3))


def test_devices_of_a_mesh_take_their_part():
    mesh, parts = jax.make_mesh((2,), ("batch",), devices=CPUS), jax.sharding.PartitionSpec("batch")
    q, k, v = (jax.device_put(x, jax.sharding.NamedSharding(mesh, parts)) for x in inputs())
    mapped = jax.shard_map(fovea_jax.attention, mesh=mesh, in_specs=(parts,) * 3, out_specs=parts, check_vma=False)
    out = jax.jit(mapped)(q, k, v)
    assert len(out.devices()) == 2
    close(out, formula(*(np.asarray(x) for x in (q, k, v)))[0], 2e-6)


@pytest.mark.skipif(not GPUS, reason="JAX sees no GPU")
def test_on_a_gpu():
    q, k, v = (jax.device_put(x, GPUS[0]) for x in inputs(dtype="bfloat16", dims=(128, 128)))
    close(fovea_jax.attention(q, k, v, causal=True), formula(q, k, v, right=0)[0], 1.6e-2)
    got = jax.grad(lambda q: fovea_jax.attention(q, k, v, causal=True).astype("float32").sum())(q)
    close(got, jax.grad(lambda q: formula(q, k, v, right=0)[0].sum())(q), 3e-2)
