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
    """What the CPU makes of it."""
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
