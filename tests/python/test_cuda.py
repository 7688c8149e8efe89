# SPDX-License-Identifier: Apache-2.0
"""CUDA tensors: torch's stream, torch's graphs, and the words for what no kernel takes."""

import pytest
import torch

import fovea

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or not any(row.name.startswith("cuda.") for row in fovea.implementations()),
    reason="needs a CUDA device and a build with CUDA kernels",
)


def parts(count=3, dtype=torch.bfloat16, device="cuda"):
    generator = torch.Generator("cpu").manual_seed(7)
    outs = [torch.randn(70, 5, 128, generator=generator).to(device, dtype) for _ in range(count)]
    return outs, [torch.randn(70, 5, generator=generator).to(device) for _ in range(count)]


def merged(outs, lses):
    """The result of the CPU."""
    return fovea.merge_states([out.cpu() for out in outs], [lse.cpu() for lse in lses])


def check(got, want):
    torch.testing.assert_close(got[0].cpu(), want[0], rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(got[1].cpu(), want[1], rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("count", [1, 3, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_merge_states(count, dtype):
    outs, lses = parts(count, dtype)
    check(fovea.merge_states(outs, lses), merged(outs, lses))


def test_runs_on_the_current_stream():
    outs, lses = parts()
    want = merged(outs, lses)
    late = [torch.empty_like(out) for out in outs]
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)  # what runs on another stream would be too early
        for to, out in zip(late, outs, strict=True):
            to.copy_(out)
        got = fovea.merge_states(late, lses)
    stream.synchronize()
    check(got, want)


@pytest.mark.parametrize("count", [3, 100])  # 100 need a workspace
def test_graph_replays_over_other_values(count):
    outs, lses = parts(count)
    out, lse = torch.empty_like(outs[0]), torch.empty_like(lses[0])
    fovea.merge_states(outs, lses, out=out, lse=lse)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fovea.merge_states(outs, lses, out=out, lse=lse)
    for number in outs + lses:
        number.copy_(number.roll(1, 0) * 1.5)
    graph.replay()
    check((out, lse), merged(outs, lses))


def test_devices_must_agree():
    outs, lses = parts()
    with pytest.raises(ValueError, match=r"device: got cpu, want cuda:0, as the tensors before it"):
        fovea.merge_states(outs, [lse.cpu() for lse in lses])


def test_cpu_rows_decline_cuda_tensors():
    outs, lses = parts()
    with pytest.raises(NotImplementedError, match=r"device\.backend: got cuda, want cpu"):
        fovea.merge_states(outs, lses, implementation="reference.merge_states")


@pytest.mark.parametrize("format", ["rows", "v32_fp8"])
def test_sparse_latent_attention(format):
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs compute capability 9.0")
    q, rows = torch.randn(2, 3, 24, 576).bfloat16(), torch.randn(64, 576).bfloat16()
    cache = rows.unflatten(0, (4, 16)).unsqueeze(2)
    if format != "rows":
        cache = fovea.cache_formats()[format].empty(4, 16)
        fovea.quantize_latent_cache(rows, cache, torch.arange(64), format=format)
    indices = torch.randint(-3, 70, (2, 3, 90), dtype=torch.int32)
    want = fovea.sparse_latent_attention(q, cache, indices, format=format)
    got = fovea.sparse_latent_attention(q.cuda(), cache.cuda(), indices.cuda(), format=format)
    torch.testing.assert_close(got.cpu(), want, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("page", [1, 7])
@pytest.mark.parametrize("format", ["v32_fp8", "v4_fp8"])
def test_any_page_of_a_packed_cache(format, page):
    """Tokens of 584 bytes are no multiple of 16: `empty` keeps their blocks apart."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs compute capability 9.0")
    form, blocks = fovea.cache_formats()[format], 70 // page
    q, rows = torch.randn(2, 3, 24, form.row).bfloat16(), torch.randn(70, form.row).bfloat16()
    indices = torch.randint(-3, 70, (2, 3, 90), dtype=torch.int32)
    here, there = form.empty(blocks, page), form.empty(blocks, page, device="cuda")
    fovea.quantize_latent_cache(rows, here, torch.arange(70), format=format)
    fovea.quantize_latent_cache(rows.cuda(), there, torch.arange(70).cuda(), format=format)
    want = fovea.sparse_latent_attention(q, here, indices, format=format)
    got = fovea.sparse_latent_attention(q.cuda(), there, indices.cuda(), format=format)
    torch.testing.assert_close(got.cpu(), want, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("heads", [24, 128])
@pytest.mark.parametrize("format", ["rows", "v32_fp8", "v4_fp8"])
def test_tokens_beyond_four_gigabytes(format, heads):
    """The same tokens at the begin of a small cache and at the end of one that 32 bits do not span."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs compute capability 9.0")
    if torch.cuda.mem_get_info()[0] < 8 << 30:
        pytest.skip("needs 8 GiB of memory")
    dim = 512 if format == "v4_fp8" else 576
    q, rows = torch.randn(2, 3, heads, dim).bfloat16().cuda(), torch.randn(64, dim).bfloat16().cuda()
    small = rows.unflatten(0, (4, 16)).unsqueeze(2)
    if format != "rows":
        small = fovea.cache_formats()[format].empty(4, 16, device="cuda")
        fovea.quantize_latent_cache(rows, small, torch.arange(64).cuda(), format=format)
    first = (5 << 30) // (small[0].numel() * small.element_size())
    large = torch.empty(first + 4, *small.shape[1:], dtype=small.dtype, device="cuda")
    large[first:] = small
    indices = torch.randint(0, 64, (2, 3, 90), dtype=torch.int32).cuda()
    want = fovea.sparse_latent_attention(q, small, indices, format=format)
    assert torch.equal(fovea.sparse_latent_attention(q, large, indices + first * 16, format=format), want)
    table, kv_len = torch.arange(4, dtype=torch.int32).cuda().repeat(2, 1), torch.tensor([64, 37], dtype=torch.int32).cuda()
    want = fovea.latent_attention(q, small, table, kv_len, format=format)
    assert torch.equal(fovea.latent_attention(q, large, table + first, kv_len, format=format), want)


@pytest.mark.parametrize("format", ["rows", "v32_fp8", "v4_fp8", "v41_fp8"])
def test_pool_of_many_layers(format):
    """Blocks of one layer far apart, the last of them beyond what 32 bits count in 16 bytes."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs compute capability 9.0")
    if torch.cuda.mem_get_info()[0] < 80 << 30:
        pytest.skip("needs 80 GiB of memory")
    dim = 576 if format in ("rows", "v32_fp8") else 512
    q, rows = torch.randn(2, 3, 24, dim).bfloat16().cuda(), torch.randn(256, dim).bfloat16().cuda()
    small = rows.view(4, 64, 1, dim)
    if format != "rows":
        small = fovea.cache_formats()[format].empty(4, 64, device="cuda")
        fovea.quantize_latent_cache(rows, small, torch.arange(256).cuda(), format=format)
    layers = (18 << 30) // (small.stride(0) * small.element_size())
    strides = (layers * small.stride(0), *small.stride()[1:])
    large = torch.empty(4 * strides[0], dtype=small.dtype, device="cuda").as_strided(small.shape, strides)
    large.copy_(small)
    indices = torch.randint(0, 256, (2, 3, 90), dtype=torch.int32).cuda()
    here, there = (fovea.sparse_latent_attention(q, cache, indices, format=format) for cache in (small, large))
    assert torch.equal(here, there)
    table, kv_len = torch.tensor([[3, 0], [1, 3]], dtype=torch.int32).cuda(), torch.tensor([70, 128], dtype=torch.int32).cuda()
    here, there = (fovea.latent_attention(q, cache, table, kv_len, format=format) for cache in (small, large))
    assert torch.equal(here, there)


def latent_step(lengths):
    """A dense and a sparse operation as functions of a schedule, the tensor of lengths that both read, and one of outputs."""
    q, cache = torch.randn(4, 2, 16, 576).bfloat16().cuda(), torch.randn(130, 64, 1, 576).bfloat16().cuda()
    table = torch.randperm(128).int().view(4, 32).cuda()
    indices = torch.randint(0, 64 * 128, (4, 2, 2048), dtype=torch.int32).cuda()
    kv_len = torch.tensor(lengths, dtype=torch.int32).cuda()

    def dense(schedule=None):
        return fovea.latent_attention(q, cache, table, kv_len, schedule=schedule)

    def sparse(schedule=None):
        return fovea.sparse_latent_attention(q, cache, indices, kv_len, schedule=schedule)

    return {"dense": dense, "sparse": sparse}, kv_len


@pytest.fixture(params=["dense", "sparse"])
def step(request):
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs compute capability 9.0")
    operations, kv_len = latent_step([2048, 3, 0, 700])
    return operations[request.param], kv_len


OTHER_LENGTHS = [[1, 2047, 900, 2], [2048] * 4, [0, 0, 0, 2000]]


def test_layers_share_a_schedule(step):
    run, kv_len = step
    schedule = fovea.LatentSchedule()
    for lengths in OTHER_LENGTHS:
        kv_len.copy_(torch.tensor(lengths))
        schedule.reset()
        want = run()
        for _ in range(3):
            assert torch.equal(run(schedule), want)
            run()  # with a workspace of its own


def test_a_graph_computes_its_schedule_from_the_lengths_of_its_time(step):
    """Whatever the object held before the capture, and whatever becomes of it."""
    run, kv_len = step
    schedule = fovea.LatentSchedule()
    run(schedule)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layers = [run(schedule) for _ in range(3)]
    want = run()
    assert torch.equal(run(schedule), want)  # the graph has not run yet
    schedule.reset()
    for lengths in OTHER_LENGTHS:
        kv_len.copy_(torch.tensor(lengths))
        others = [torch.full((1 << 22,), -1, dtype=torch.int32, device="cuda") for _ in range(8)]  # in memory that is free
        graph.replay()
        want = run()
        assert all(torch.equal(layer, want) for layer in layers)
        del others


def test_graphs_of_one_layer_each_share_a_schedule(step):
    run, kv_len = step
    run()
    schedule, graphs, layers = fovea.LatentSchedule(), [], []
    for _ in range(3):
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1]):
            layers.append(run(schedule))
    for lengths in OTHER_LENGTHS:
        kv_len.copy_(torch.tensor(lengths))
        for graph in graphs:
            graph.replay()
        want = run()
        assert all(torch.equal(layer, want) for layer in layers)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_compiled_step_shares_a_schedule(step, mode):
    run, kv_len = step

    def layers():
        schedule = fovea.LatentSchedule()
        return sum(run(schedule) for _ in range(3))

    torch._dynamo.reset()
    compiled = torch.compile(layers, fullgraph=True, dynamic=False, mode=mode)
    for lengths in OTHER_LENGTHS:
        kv_len.copy_(torch.tensor(lengths))
        torch.testing.assert_close(compiled(), layers(), rtol=1e-2, atol=1e-2)


def test_memory_that_is_no_schedule():
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs compute capability 9.0")
    q, cache = torch.randn(1, 1, 16, 576).bfloat16().cuda(), torch.randn(2, 64, 1, 576).bfloat16().cuda()
    table, kv_len = (torch.tensor(numbers, dtype=torch.int32, device="cuda") for numbers in ([[0, 1]], [70]))
    call = (q, cache, "rows", table, None, kv_len, q.new_empty(1, 1, 16, 512), None, 0, 0, None, 0, 0.0, None, "", False)
    memory = torch.ops.fovea.prepare_latent_attention(*call, None)
    assert memory.dtype == torch.uint8 and memory.dim() == 1 and memory.device == q.device
    torch.ops.fovea.latent_attention(*call, memory)
    with pytest.raises(ValueError, match=r"schedule\.dtype: got Int, want uint8"):
        torch.ops.fovea.latent_attention(*call, memory.int())
    with pytest.raises(ValueError, match=r"schedule\.device: got cpu, want cuda:0"):
        torch.ops.fovea.latent_attention(*call, memory.cpu())
    with pytest.raises(ValueError, match=r"schedule\.strides"):
        torch.ops.fovea.latent_attention(*call, memory[::2])
    with pytest.raises(RuntimeError, match=r"workspace\.bytes"):
        torch.ops.fovea.latent_attention(*call, memory[:-1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("format", list(fovea.cache_formats()))
def test_cache_conversion(format, exact, dtype):
    """Bytes and rows as the CPU writes them, NaN and infinity included. Slots outside the cache are skipped, as -1 is."""
    form = fovea.cache_formats()[format]
    rows = (torch.randn(40, form.row) * torch.logspace(-6, 4, 40)[:, None]).to(dtype)
    rows[3, 5], rows[4, 300], rows[5, 100], rows[6, :200] = torch.nan, -torch.nan, torch.inf, 0
    slots = torch.randperm(48)[:40]
    known = slots.clone()
    slots[::7], known[::7] = torch.tensor([-1, 48, 2**40, -(2**63), 2**63 - 1, -2]), -1
    here = torch.full((6, 8, form.bytes), 255, dtype=torch.uint8)
    there = here.cuda()
    fovea.quantize_latent_cache(rows, here, known, format=format, exact_scale=exact)
    fovea.quantize_latent_cache(rows.cuda(), there, slots.cuda(), format=format, exact_scale=exact)
    assert torch.equal(there.cpu(), here)
    want, got = torch.zeros_like(rows), torch.zeros_like(rows).cuda()
    fovea.dequantize_latent_cache(here, known, format=format, rows=want)
    fovea.dequantize_latent_cache(there, slots.cuda(), format=format, rows=got)
    torch.testing.assert_close(got.cpu(), want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("width", [580, 592])  # rows that are not, and that are aligned to 16 bytes
def test_cache_append_from_wider_rows_in_a_graph(width):
    rows, cache = torch.randn(9, width).bfloat16(), fovea.cache_formats()["v32_fp8"].empty(3, 5)
    cache.zero_()
    wide, there, slots = rows.cuda(), cache.cuda(), torch.arange(9, device="cuda")
    fovea.quantize_latent_cache(wide[:, :576], there, slots, format="v32_fp8")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fovea.quantize_latent_cache(wide[:, :576], there, slots, format="v32_fp8")
    slots.copy_(torch.tensor([14, -1, 2, 3, 9, 7, -1, 0, 1]))
    there.zero_()
    graph.replay()
    fovea.quantize_latent_cache(rows[:, :576], cache, slots.cpu(), format="v32_fp8")
    assert torch.equal(there.cpu(), cache)


def test_a_cache_scale_of_zero_averages():
    """A masked key stays masked: minus infinity times zero would be NaN."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs compute capability 9.0")
    rows = torch.randn(2, 64, 1, 576, device="cuda").to(torch.float8_e4m3fn)
    q = torch.randn(1, 1, 64, 576, dtype=torch.bfloat16, device="cuda")
    table, length = (torch.tensor(numbers, dtype=torch.int32, device="cuda") for numbers in ([[0, 1]], [70]))
    out, lse = fovea.latent_attention(q, rows, table, length, cache_scale=0.0, return_lse=True)
    assert torch.equal(out, torch.zeros_like(out))
    torch.testing.assert_close(lse, torch.full_like(lse, 70.0).log(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale", [None, 0.03, "per head"])
@pytest.mark.parametrize("to", ["same", torch.float8_e4m3fn])
@pytest.mark.parametrize("dims", [(128, 128), (192, 128), (40, 24), (7, 1), (64, 0)])
def test_append(dims, to, scale, dtype):
    """Bytes as the CPU writes them, but for the signs of NaN. Slots outside the cache are skipped, as -1 is, and nothing else is
    written: not between the rows of a cache, nor around it."""
    if to == "same" and scale is not None:
        return
    to = dtype if to == "same" else to
    kv = [(torch.randn(40, 3, dim + 16) * torch.logspace(-6, 4, 40)[:, None, None]).to(dtype)[..., 8:-8] for dim in dims]
    for x in kv:
        x[3, :, :1], x[4, :, :1], x[5, :, :1] = torch.nan, torch.inf, -0.0
    slots = torch.randperm(48)[:40]
    known = slots.clone()
    slots[::7], known[::7] = torch.tensor([-1, 48, 2**40, -(2**63), 2**63 - 1, -2]), -1
    factor = scale if scale is None else torch.tensor([0.03, -2.0, 1e-30] if scale == "per head" else [scale])
    scales = [None if factor is None else {"k_scale": factor.to(place), "v_scale": factor.to(place)} for place in ("cpu", "cuda")]
    pools = [torch.full((8, 9, 5, dim + 16), 3.0).to(to) for dim in dims]
    there = [pool.cuda() for pool in pools]

    def views(of):
        return [pool[1:7, :8, 1:4, : pool.shape[-1] - 16] for pool in of]

    fovea.paged_cache_append(*kv, *views(pools), known, **(scales[0] or {}))
    fovea.paged_cache_append(*(x.cuda() for x in kv), *views(there), slots.cuda(), **(scales[1] or {}))
    for here, device in zip(pools, there, strict=True):
        got = device.cpu()
        torch.testing.assert_close(got.float(), here.float(), rtol=0, atol=0, equal_nan=True)
        if to == torch.float8_e4m3fn:  # signs of zeros
            assert torch.equal(got.view(torch.uint8)[got.float() == 0], here.view(torch.uint8)[here.float() == 0])


def test_append_to_slots_of_its_time():
    """In a graph: interleaved k and v, rows of a fused projection, and slots that change."""
    qkv = torch.randn(9, 4 * 128 + 2 * 2 * 128).bfloat16().cuda()
    k, v = (x.unflatten(1, (2, 128)) for x in qkv[:, 512:].split(256, 1))
    pool = torch.zeros(3, 5, 2, 256, dtype=torch.bfloat16, device="cuda")
    slots = torch.arange(9, device="cuda")
    fovea.paged_cache_append(k, v, pool[..., :128], pool[..., 128:], slots)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fovea.paged_cache_append(k, v, pool[..., :128], pool[..., 128:], slots)
    where = torch.tensor([14, -1, 2, 3, 9, 7, -1, 0, 1])
    slots.copy_(where)
    pool.zero_()
    graph.replay()
    want = torch.zeros(15, 2, 256, dtype=torch.bfloat16)
    want[where[where >= 0]] = torch.cat([k, v], 2).cpu()[where >= 0]
    assert torch.equal(pool.cpu().flatten(0, 1), want)


def test_append_beyond_four_gigabytes():
    if torch.cuda.mem_get_info()[0] < 12 << 30:
        pytest.skip("needs 12 GiB of memory")
    rows = torch.randn(3, 2, 128, device="cuda").half()
    cache = torch.empty((5 << 30) // (2 * 2 * 128 * 16), 16, 2, 128, dtype=torch.half, device="cuda")
    slots = cache.shape[0] * 16 - torch.tensor([1, 40, 7], device="cuda")
    fovea.paged_cache_append(rows, rows, cache, torch.empty_like(cache), slots)
    assert torch.equal(cache.flatten(0, 1)[slots], rows)
