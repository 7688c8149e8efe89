# SPDX-License-Identifier: Apache-2.0
"""Latent attention for vLLM: its own builder and layers drive Fovea's, and formulas judge them."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("vllm", "0.26", reason="needs the Python files of vLLM 0.26 or later: ./dev vllm")
from vllm.model_executor.layers.attention import mla_attention
from vllm.platforms.interface import DeviceCapability
from vllm.v1.attention.backend import AttentionType, CommonAttentionMetadata
from vllm.v1.attention.backends.mla.prefill.base import MLADimensions

from fovea.integrations.vllm.latent import FoveaLatentBackend, FoveaLatentBuilder, FoveaLatentImpl, FoveaPrefillBackend

LATENT, ROTARY, NOPE, VALUE, PAGE = 512, 64, 128, 128, 64
HEADS = 4
SCALE = (NOPE + ROTARY) ** -0.5


@pytest.fixture
def config(monkeypatch):
    """The parts of vLLM's configuration that its latent attention reads."""
    model = SimpleNamespace(
        dtype=torch.bfloat16,
        max_model_len=1024,
        get_num_attention_heads=lambda _: HEADS,
        get_head_size=lambda: LATENT + ROTARY,
        hf_text_config=SimpleNamespace(
            q_lora_rank=None, kv_lora_rank=LATENT, qk_nope_head_dim=NOPE, qk_rope_head_dim=ROTARY, v_head_dim=VALUE
        ),
    )
    parallel = SimpleNamespace(
        prefill_context_parallel_size=1, decode_context_parallel_size=1, cp_kv_cache_interleave_size=1, tensor_parallel_size=1
    )
    config = SimpleNamespace(
        model_config=model,
        parallel_config=parallel,
        cache_config=SimpleNamespace(cache_dtype="auto", block_size=PAGE),
        scheduler_config=SimpleNamespace(max_num_seqs=8),
        attention_config=SimpleNamespace(use_prefill_query_quantization=False),
        speculative_config=None,
    )
    prefill = FoveaPrefillBackend(HEADS, SCALE, LATENT, NOPE, ROTARY, VALUE, config)
    layer = SimpleNamespace(
        prefill_backend=prefill,
        num_heads=HEADS,
        q_lora_rank=None,
        kv_lora_rank=LATENT,
        qk_nope_head_dim=NOPE,
        qk_rope_head_dim=ROTARY,
        v_head_dim=VALUE,
        kv_cache_dtype="auto",
    )
    config.compilation_config = SimpleNamespace(static_forward_context={"layer": layer})
    monkeypatch.setattr(mla_attention, "get_current_vllm_config", lambda: config)
    monkeypatch.setattr(mla_attention, "PIN_MEMORY", False, raising=False)
    return config


def impl_of(cache_dtype="auto", **changes):
    sizes = {"q_lora_rank": None, "kv_lora_rank": LATENT, "qk_nope_head_dim": NOPE, "qk_rope_head_dim": ROTARY, "v_head_dim": VALUE}
    named = {
        "num_heads": HEADS,
        "head_size": LATENT + ROTARY,
        "scale": SCALE,
        "num_kv_heads": 1,
        "alibi_slopes": None,
        "sliding_window": None,
        "kv_cache_dtype": cache_dtype,
        "logits_soft_cap": None,
        "attn_type": AttentionType.DECODER,
        "kv_sharing_target_layer_name": None,
    }
    return FoveaLatentImpl(**(named | changes), **sizes, qk_head_dim=NOPE + ROTARY, kv_b_proj=None)


def common_of(new, lengths, table):
    starts = torch.tensor([0, *new]).cumsum(0).int()
    return CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
        seq_lens_cpu_upper_bound=torch.tensor(lengths, dtype=torch.int32),
        num_reqs=len(new),
        num_actual_tokens=sum(new),
        max_query_len=max(new),
        max_seq_len=max(lengths),
        block_table_tensor=table,
        slot_mapping=torch.zeros(sum(new), dtype=torch.int64),
    )


def formula(q, k, v, causal=True):
    """Attention in float64 over [token, head, size], the queries being the last tokens; and its lse."""
    scores = torch.einsum("qhd,khd->hqk", q.double(), k.double()) * SCALE
    if causal:
        position = torch.arange(len(q))[:, None] + len(k) - len(q)
        scores = scores.masked_fill(torch.arange(len(k)) > position, -torch.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v.double()), scores.logsumexp(-1)


@pytest.mark.parametrize("cache_dtype", ["auto", "fp8"])
@pytest.mark.parametrize("new", [[1, 1, 1], [4, 4, 4], [1, 20, 3]])
def test_decode(new, cache_dtype, config):
    lengths = [70, 130, 3 if max(new) < 4 else 5]
    table = torch.randperm(9).int().view(3, 3)
    rows = torch.randn(9, PAGE, LATENT + ROTARY).bfloat16()
    scale = torch.tensor(0.5)
    cache = rows if cache_dtype == "auto" else (rows.float() / scale).to(torch.float8_e4m3fn).view(torch.uint8)
    held = rows.double() if cache_dtype == "auto" else cache.view(torch.float8_e4m3fn).double() * scale
    builder = FoveaLatentBuilder(SimpleNamespace(block_size=PAGE), ["layer"], config, torch.device("cpu"))
    metadata = builder.build(0, common_of(new, lengths, table))
    assert metadata.num_decode_tokens == sum(new)
    q = torch.randn(sum(new), HEADS, LATENT + ROTARY).bfloat16()
    parts = q[..., :LATENT].transpose(0, 1).contiguous().transpose(0, 1), q[..., LATENT:]
    impl = impl_of(cache_dtype)
    assert not impl.supports_quant_query_input
    impl.need_to_return_lse_for_decode = True
    got, lse = impl.forward_mqa(parts, cache, metadata, SimpleNamespace(_k_scale=scale))
    again, _ = impl.forward_mqa(q, cache, metadata, SimpleNamespace(_k_scale=scale))
    assert len(metadata.decode.schedules) == 1  # which both calls shared
    metadata.decode.schedules.clear()
    assert impl_of(cache_dtype).forward_mqa(q, cache, metadata, SimpleNamespace(_k_scale=scale))[1] is None
    at = 0
    for sequence, count in enumerate(new):
        k = held[table[sequence].long()].flatten(0, 1)[: lengths[sequence], None].expand(-1, HEADS, -1)
        want, want_lse = formula(q[at : at + count], k, k[..., :LATENT])
        assert (got[at : at + count].double() - want).abs().max() <= 2e-2
        assert (lse[at : at + count].double() - want_lse.t()).abs().max() <= 1e-2
        at += count
    assert torch.equal(got, again)


def test_longer_queries_are_expanded(config):
    builder = FoveaLatentBuilder(SimpleNamespace(block_size=PAGE), ["layer"], config, torch.device("cpu"))
    new = [1, 129, 140]
    metadata = builder.build(0, common_of(new, [30, 129, 140], torch.zeros(3, 3, dtype=torch.int32)))
    assert metadata.num_decode_tokens == 1 and metadata.prefill.max_query_len == 140
    q, k = torch.randn(2, 269, HEADS, NOPE + ROTARY).bfloat16()
    v = torch.randn(269, HEADS, VALUE).bfloat16()
    prefill = metadata.prefill.prefill_backend
    got, lse = prefill.run_prefill_new_tokens(q, k, v, True)
    assert lse.is_contiguous() and lse.shape == (HEADS, 269)
    for rows in (slice(129), slice(129, 269)):
        want, want_lse = formula(q[rows], k[rows], v[rows])
        assert (got[rows].double() - want).abs().max() <= 2e-2
        assert (lse[:, rows].double() - want_lse).abs().max() <= 1e-2
    assert torch.equal(prefill.run_prefill_new_tokens(q, k, v, False), got)


@pytest.mark.parametrize("as_object", [False, True])
def test_context_before_a_prompt(as_object, config):
    """Until vLLM 0.26 a chunk is a number; later it is an object."""
    prefill = config.compilation_config.static_forward_context["layer"].prefill_backend
    starts, keys = torch.tensor([0, 5, 12], dtype=torch.int32), torch.tensor([0, 9, 9], dtype=torch.int32)
    context = SimpleNamespace(cu_seq_lens=keys[None], max_seq_lens=[9])
    prefill.prepare_metadata(SimpleNamespace(query_start_loc=starts, max_query_len=7, chunked_context=context))
    q, k, v = (torch.randn(rows, HEADS, size).bfloat16() for rows, size in ((12, 192), (9, 192), (9, VALUE)))
    if as_object:
        chunk = SimpleNamespace(query_start_loc=starts, max_query_len=7, cu_seq_lens=keys, max_seq_len=9)
        got, lse = prefill.run_prefill_context_chunk(chunk=chunk, q=q, k=k, v=v)
    else:
        got, lse = prefill.run_prefill_context_chunk(chunk_idx=0, q=q, k=k, v=v)
    want, want_lse = formula(q[:5], k, v, causal=False)
    assert (got[:5].double() - want).abs().max() <= 2e-2 and (lse[:, :5].double() - want_lse).abs().max() <= 1e-2
    assert (got[5:] == 0).all() and (lse[:, 5:] == -torch.inf).all()  # without context


# ---- selection -------------------------------------------------------------------------------------------------------------------


def reasons(**changes):
    call = {
        "head_size": 576,
        "dtype": torch.bfloat16,
        "kv_cache_dtype": "auto",
        "block_size": 64,
        "use_mla": True,
        "has_sink": False,
        "use_sparse": False,
        "use_mm_prefix": False,
        "use_per_head_quant_scales": False,
        "device_capability": DeviceCapability(9, 0),
        "attn_type": AttentionType.DECODER,
    }
    return FoveaLatentBackend.validate_configuration(**(call | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"dtype": torch.float16},
        {"kv_cache_dtype": "fp8"},
        {"block_size": 16},
        {"device_capability": DeviceCapability(8, 0)},
        {"device_capability": DeviceCapability(8, 9), "kv_cache_dtype": "fp8"},
        {"device_capability": DeviceCapability(7, 5), "dtype": torch.float16},
    ],
)
def test_what_it_takes(changes):
    assert reasons(**changes) == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"head_size": 320}, "head_size"),
        ({"kv_cache_dtype": "fp8_ds_mla"}, "kv_cache_dtype"),
        ({"kv_cache_dtype": "float16"}, "kv_cache_dtype: got float16"),
        ({"use_mla": False}, "MLA"),
        ({"use_sparse": True}, "sparse"),
        ({"device_capability": DeviceCapability(7, 0)}, "capability"),
        ({"device_capability": DeviceCapability(7, 5)}, "dtype: got torch.bfloat16, want torch.float16"),
        ({"attn_type": AttentionType.ENCODER_ONLY}, "attention type"),
    ],
)
def test_what_it_declines(changes, reason):
    assert any(reason in each for each in reasons(**changes))


def test_of_amd_it_takes_plain_rows(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.3")
    for capability in (DeviceCapability(9, 0), DeviceCapability(9, 4)):  # gfx90a, gfx942
        assert reasons(device_capability=capability) == []
        declined = reasons(device_capability=capability, kv_cache_dtype="fp8")
        assert any("kv_cache_dtype: got fp8, want auto" in each for each in declined)
    assert reasons(device_capability=DeviceCapability(11, 0)) == ["compute capability not supported"]
    prefill = FoveaPrefillBackend.supports_compute_capability
    assert prefill(DeviceCapability(9, 4)) and not prefill(DeviceCapability(11, 0))


@pytest.mark.parametrize(("name", "value"), [("sliding_window", 8), ("logits_soft_cap", 3.0), ("alibi_slopes", [1.0])])
def test_other_layers_are_refused(name, value, config):
    with pytest.raises(NotImplementedError, match=f"{name}: got"):
        impl_of(**{name: value})


def test_sizes_of_prefill():
    takes = FoveaPrefillBackend.supports_mla_dimensions
    assert takes(MLADimensions(qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128))
    assert takes(MLADimensions(qk_nope_head_dim=192, qk_rope_head_dim=64, v_head_dim=256))
    assert not takes(MLADimensions(qk_nope_head_dim=256, qk_rope_head_dim=64, v_head_dim=256))


def test_registration_as_latent_attention():
    code = (
        "from fovea.integrations import vllm as integration; integration.register();"
        "from vllm.v1.attention.backends.registry import AttentionBackendEnum as backends; custom = backends.CUSTOM.get_class();"
        "assert custom.is_mla() and backends[custom.get_name()].get_class() is custom;"
        "from vllm.v1.attention.backends.mla.prefill.registry import MLAPrefillBackendEnum as prefills;"
        "prefill = prefills.CUSTOM.get_class(); assert prefills[prefill.get_name()].get_class() is prefill"
    )
    assert subprocess.run([sys.executable, "-c", code], env=os.environ | {"FOVEA_VLLM_CUSTOM": "mla"}).returncode == 0
