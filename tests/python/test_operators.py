# SPDX-License-Identifier: Apache-2.0
"""Requirements of torch on operators: true schemas, fake kernels, torch.compile; and what the library says of itself."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fovea

NO_MASK = (None, None)
UNASKED = {"str": "", "float": 0.0, "bool": False, "int": 0}


def arguments(name, **given):
    """All that an operator takes, in order: what is not given is absent, or as functions pass what nobody asks for."""
    taken = getattr(torch.ops.fovea, name).default._schema.arguments
    assert given.keys() <= {argument.name for argument in taken}
    unasked = {argument.name: UNASKED.get(str(argument.type)) for argument in taken}
    unasked |= {name: "rows" for name in ("k_format", "v_format") if name in unasked}
    return tuple((unasked | given).values())


def attention_arguments():
    q, k, v = torch.randn(2, 5, 4, 64), torch.randn(2, 9, 2, 64), torch.randn(2, 9, 2, 64)
    return arguments("attention", q=q, k=k, v=v, out=torch.empty_like(q), lse=torch.empty(2, 4, 5), sink=torch.randn(4))


def paged_arguments():
    q, cache = torch.randn(3, 4, 64), torch.randn(2, 6, 8, 2, 64)
    table, kv_len = torch.arange(4, dtype=torch.int32).view(2, 2), torch.tensor([12, 9], dtype=torch.int32)
    call = {"q": q, "k_cache": cache[0], "v_cache": cache[1], "block_table": table, "kv_len": kv_len, "window_right": 0}
    cu = torch.tensor([0, 2, 3], dtype=torch.int32)
    return arguments("paged_attention", **call, cu_seqlens_q=cu, out=torch.empty_like(q))


def append_arguments():
    k, cache = torch.randn(2, 3, 2, 64), torch.zeros(2, 2, 8, 2, 64)
    caches = {"k_cache": cache[0].clone(), "v_cache": cache[1].clone()}
    return arguments("paged_cache_append", k=k[0], v=k[1], **caches, slot_mapping=torch.tensor([5, -1, 9]))


def merge_arguments():
    outs, lses = list(torch.randn(2, 3, 2, 64)), list(torch.randn(2, 3, 2))
    return arguments("merge_states", outs=outs, lses=lses, out=torch.empty(3, 2, 64), lse=torch.empty(3, 2))


def topk_arguments():
    call = {"first": torch.tensor([0, 3], dtype=torch.int32), "page": 0, "sorted": True}
    return arguments("topk_rows", logits=torch.randn(2, 9), out=torch.empty(2, 5, dtype=torch.int32), **call)


def backward_arguments():
    q, k, v = torch.randn(2, 5, 4, 64), torch.randn(2, 9, 2, 64), torch.randn(2, 9, 2, 64)
    out, lse = fovea.attention(q, k, v, return_lse=True)
    call = {"q": q, "k": k, "v": v, "out": out, "lse": lse, "sink": torch.randn(4), "dout": torch.randn_like(out)}
    new = {"d" + name: torch.empty_like(call[name]) for name in ("q", "k", "v", "sink")}
    return arguments("attention_backward", **call, **new)


def latent_arguments():
    q, cache = torch.randn(2, 3, 4, 576), torch.randn(6, 8, 1, 576)
    table, kv_len = torch.arange(4, dtype=torch.int32).view(2, 2), torch.tensor([12, 9], dtype=torch.int32)
    call = {"q": q, "cache": cache, "format": "rows", "block_table": table, "kv_len": kv_len, "window_right": 0}
    return arguments("latent_attention", **call, out=torch.empty(2, 3, 4, 512), lse=torch.empty(2, 4, 3))


def packed_rows(tokens):
    cache = fovea.cache_formats()["v41_fp8"].empty(2, 8)
    fovea.quantize_latent_cache(torch.randn(16, 512), cache, torch.arange(16), format="v41_fp8")
    return torch.randn(tokens, 512), cache, torch.tensor([5, -1, 9])


def sparse_arguments():
    q, indices = torch.randn(2, 3, 4, 512).bfloat16(), torch.randint(-1, 16, (2, 3, 5), dtype=torch.int32)
    extra = (torch.randn(3, 4, 1, 512).bfloat16(), "rows", torch.randint(0, 12, (2, 3, 2), dtype=torch.int32), None)
    outputs = (torch.empty_like(q), torch.empty(2, 4, 3), torch.empty(2, 4, 3))
    return (q, packed_rows(1)[1], "v41_fp8", indices, None, *extra, *outputs, 0.0, torch.randn(4), "", False, None)


def quantized_arguments():
    q, k, v = (torch.randn(2, seq, head, 64).bfloat16() for seq, head in ((5, 4), (9, 2), (9, 2)))
    qk, codes = fovea.quantize_qk_int8(q, k), fovea.quantize_v(v, smooth_v=True)  # opcheck cannot compare e4m3
    lengths, groups = (None, None, None, None), ("thread", 32)
    outputs = torch.empty_like(q), torch.empty(2, 4, 5)
    mask = (*NO_MASK, False, 0.0)
    return {
        "quantize_qk_int8": (q, k, *qk[:6], *lengths, *groups, ""),
        "quantize_v": (v, *codes, None, None, ""),
        "quantized_attention": (
            *(qk.q, qk.k, codes.v, qk.q_scale, qk.k_scale, codes.scale, codes.mean, qk.lse_shift),
            *(*outputs, *lengths, *mask, *groups, "", False, False, False),
        ),
        "quantize_and_attend": (q, k, v, *outputs, *lengths, *mask, torch.float16, True, False, *groups, "", False, False, False),
    }


# Without index_logits: torch computes nothing of e4m3.
OPERATORS = {
    "attention": attention_arguments,
    "attention_backward": backward_arguments,
    "latent_attention": latent_arguments,
    "sparse_latent_attention": sparse_arguments,
    "quantize_latent_cache": lambda: (*packed_rows(3), "v41_fp8", False, ""),
    "dequantize_latent_cache": lambda: (*packed_rows(3), "v41_fp8", ""),
    "paged_attention": paged_arguments,
    "paged_cache_append": append_arguments,
    "merge_states": merge_arguments,
    "topk_rows": topk_arguments,
    "quantize_qk_int8": lambda: quantized_arguments()["quantize_qk_int8"],
    "quantize_v": lambda: quantized_arguments()["quantize_v"],
    "quantized_attention": lambda: quantized_arguments()["quantized_attention"],
    "quantize_and_attend": lambda: quantized_arguments()["quantize_and_attend"],
}


@pytest.mark.parametrize("name", OPERATORS)
def test_opcheck(name):
    torch.library.opcheck(getattr(torch.ops.fovea, name).default, OPERATORS[name]())


@pytest.mark.parametrize("name", ["latent_attention", "sparse_latent_attention"])
def test_opcheck_of_schedules(name):
    arguments = OPERATORS[name]()
    torch.library.opcheck(getattr(torch.ops.fovea, f"prepare_{name}").default, arguments)
    schedule = getattr(torch.ops.fovea, f"prepare_{name}")(*arguments)
    operator = getattr(torch.ops.fovea, name).default
    at = [argument.name for argument in operator._schema.arguments].index("schedule")
    torch.library.opcheck(operator, (*arguments[:at], schedule, *arguments[at + 1 :]))


def transformer_step(q, k, v, caches, places):
    k_cache, v_cache = caches
    slots, table, kv_len = places
    fovea.paged_cache_append(k * 2, v, k_cache, v_cache, slots)
    out, lse = fovea.paged_attention(q + 1, k_cache, v_cache, table, kv_len, return_lse=True, window=(20, None))
    dense = fovea.attention(q[:, None], k[:, None], v[:, None], causal=True, sink=torch.zeros(q.shape[1]))[:, 0]
    merged, _ = fovea.merge_states([out, dense], [lse, torch.zeros_like(lse)])
    return merged.tanh()


def test_compile_fullgraph():
    torch._dynamo.reset()
    compiled = torch.compile(transformer_step, fullgraph=True, dynamic=False)
    caches = [[torch.zeros(6, 8, 2, 64) for _ in "kv"] for _ in range(2)]
    results = []
    for step, cache in zip((transformer_step, compiled), caches, strict=True):
        torch.manual_seed(1)
        q, k, v = torch.randn(2, 4, 64), torch.randn(2, 2, 64), torch.randn(2, 2, 64)
        table, kv_len = torch.arange(4, dtype=torch.int32).view(2, 2), torch.tensor([3, 9], dtype=torch.int32)
        results.append(step(q, k, v, cache, (torch.tensor([2, 24]), table, kv_len)))
    torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-5)
    for got, want in zip(caches[1], caches[0], strict=True):
        assert torch.equal(got, want) and got.any()


def latent_step(rows, q, caches, places):
    plain_cache, packed_cache = caches
    slots, table, kv_len, indices = places
    plain_cache.view(-1, 576)[slots] = rows.bfloat16()
    fovea.quantize_latent_cache(rows, packed_cache, slots, format="v32_fp8")
    dense, lse = fovea.latent_attention(q, plain_cache, table, kv_len, return_lse=True, scale=0.1)
    packed = fovea.latent_attention(q, packed_cache, table, kv_len, format="v32_fp8", scale=0.1)
    sparse = fovea.sparse_latent_attention(q, packed_cache, indices, format="v32_fp8", return_lse=True, return_max_logits=True)
    back = fovea.dequantize_latent_cache(packed_cache, slots, format="v32_fp8")
    return dense + packed, lse.exp(), *sparse, back * 2


def test_compile_latent_operations():
    torch._dynamo.reset()
    compiled = torch.compile(latent_step, fullgraph=True, dynamic=False)
    rows, q = torch.randn(20, 576), torch.randn(2, 3, 4, 576).bfloat16()
    table, kv_len = torch.arange(4, dtype=torch.int32).view(2, 2), torch.tensor([9, 14], dtype=torch.int32)
    slots, indices = torch.randperm(32)[:20], torch.randint(-1, 20, (2, 3, 7), dtype=torch.int32)
    results = []
    for step in (latent_step, compiled):
        caches = torch.zeros(4, 8, 1, 576, dtype=torch.bfloat16), torch.zeros(4, 8, 656, dtype=torch.uint8)
        results.append((*step(rows, q, caches, (slots, table, kv_len, indices)), *caches))
    for got, want in zip(*reversed(results), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-2, atol=1e-2)
    assert torch.equal(results[0][-1], results[1][-1]) and results[0][-1].any()


def test_compile_with_changing_lengths():
    torch._dynamo.reset()
    compiled = torch.compile(lambda q, k: fovea.attention(q, k, k, causal=True, return_lse=True), fullgraph=True, dynamic=True)
    for seq in (4, 7, 11):
        q, k = torch.randn(1, seq, 4, 32), torch.randn(1, seq + 3, 2, 32)
        for got, want in zip(compiled(q, k), fovea.attention(q, k, k, causal=True, return_lse=True), strict=True):
            torch.testing.assert_close(got, want)


def test_explain_names_the_implementation_and_computes_nothing():
    q = torch.randn(1, 8, 2, 64)
    out = torch.full_like(q, torch.nan)
    text = fovea.explain(fovea.attention, q, q, q, causal=True, out=out)
    names = [row.name for row in fovea.implementations() if row.operation == "attention" and row.available]
    assert text.split(":")[0] in names
    assert text.splitlines()[-1] == "problem: attention on cpu: " + ", ".join(
        f"{name} float32 [batch 1, seq 8, {head} 2, head_dim 64]"
        for name, head in zip("qkv", ("head", "kv_head", "kv_head"), strict=True)
    )
    assert out.isnan().all()
    forced = fovea.explain(fovea.attention, q, q, q, implementation="reference.attention")
    assert forced.startswith("reference.attention:")
    with pytest.raises(ValueError, match=r"^implementation: got nonsense"):
        fovea.explain(fovea.attention, q, q, q, implementation="nonsense")


def test_every_operation_has_implementations():
    rows = fovea.implementations()
    assert {row.operation for row in rows} == {*OPERATORS, "index_logits"}
    for operation in OPERATORS:
        last = [row for row in rows if row.operation == operation][-1]
        assert last.name == f"reference.{operation}" and last.available and last.accepts
    assert all(row.available == (row.unavailable_because == "") for row in rows)


def test_devices_and_version():
    assert fovea.devices()[0].backend == "cpu" and fovea.devices()[0].cores >= 1
    assert fovea.__version__.count(".") == 2


def test_threads_follow_torch_until_told():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert fovea.get_num_threads() == 1
        fovea.set_num_threads(3)
        assert fovea.get_num_threads() == 3
        q = torch.randn(1, 70, 2, 32)
        three = fovea.attention(q, q, q)
        fovea.set_num_threads(0)
        assert fovea.get_num_threads() == 1
        torch.testing.assert_close(fovea.attention(q, q, q), three)
    finally:
        fovea.set_num_threads(0)
        torch.set_num_threads(before)


def test_needs_no_python_symbols():
    """One binary for every Python: the extension must not refer to libpython, nor to torch beyond its stable C functions."""
    path = Path(fovea.__file__).parent / "_fovea.so"
    names = subprocess.run(["nm", "-D", "--undefined-only", path], capture_output=True, text=True)
    if names.returncode != 0:
        pytest.skip("nm is not installed")
    symbols = [line.split()[-1] for line in names.stdout.splitlines()]
    assert not [name for name in symbols if name.startswith(("Py", "_Py"))]
    assert not [name for name in symbols if "c10" in name or "at6Tensor" in name]
    assert any(name.startswith("aoti_torch") for name in symbols)


def test_imports_without_side_effects_on_torch():
    """A fresh process: importing fovea must not change how many threads torch uses."""
    code = "import torch; n = torch.get_num_threads(); import fovea; assert torch.get_num_threads() == n == fovea.get_num_threads()"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
