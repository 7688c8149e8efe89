# SPDX-License-Identifier: Apache-2.0
"""Latent attention over listed tokens for vLLM: its own builder and layers drive Fovea's, and formulas judge them."""

import inspect
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("vllm", reason="needs vLLM's Python files: ./dev vllm")
pytest.importorskip("vllm.model_executor.layers.attention.sparse_mla_attention", reason="needs a vLLM with sparse latent attention")

from vllm import platforms
from vllm.model_executor.layers.attention import sparse_mla_attention
from vllm.platforms.interface import DeviceCapability
from vllm.utils import deep_gemm, import_utils
from vllm.v1.attention.backend import AttentionType, CommonAttentionMetadata
from vllm.v1.attention.backends.mla import sparse_utils

import fovea
from fovea.integrations import vllm as integration
from fovea.integrations.vllm.sparse_latent import FoveaSparseLatentBackend, FoveaSparseLatentBuilder, FoveaSparseLatentImpl

LATENT, ROW, PAGE, HEADS, LISTED = 512, 576, 64, 4, 128
SCALE = 192**-0.5


def numbered(req_id, block_table, token_indices, BLOCK_SIZE=64, BLOCK_STRIDE_ROWS=None, return_valid_counts=False, **_):
    """The result of vLLM's kernel: the row of each listed token, -1 where there is none."""
    block = block_table[req_id.long()].gather(1, token_indices.clamp(min=0).long() // BLOCK_SIZE)
    rows = block * (BLOCK_STRIDE_ROWS or BLOCK_SIZE) + token_indices % BLOCK_SIZE
    rows = torch.where(token_indices < 0, -1, rows).int()
    return (rows, (rows >= 0).sum(1).int()) if return_valid_counts else rows


@pytest.fixture
def config(monkeypatch):
    """The parts of vLLM's configuration that it reads, and its Triton kernels as formulas."""
    for module in (sparse_utils, sparse_mla_attention):
        monkeypatch.setattr(module, "triton_convert_req_index_to_global_index", numbered, raising=False)
    monkeypatch.setattr(sparse_mla_attention, "np_to_pinned_tensor", torch.from_numpy)
    monkeypatch.setattr(sparse_mla_attention, "PIN_MEMORY", False, raising=False)
    sizes = {"q_lora_rank": None, "kv_lora_rank": LATENT, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    text = SimpleNamespace(**sizes, index_topk=LISTED)
    arch = SimpleNamespace(total_num_attention_heads=HEADS)
    config = SimpleNamespace(
        model_config=SimpleNamespace(
            dtype=torch.bfloat16, max_model_len=1024, hf_config=text, hf_text_config=text, model_arch_config=arch
        ),
        parallel_config=SimpleNamespace(
            prefill_context_parallel_size=1, decode_context_parallel_size=1, cp_kv_cache_interleave_size=1, tensor_parallel_size=1
        ),
        cache_config=SimpleNamespace(cache_dtype="auto", block_size=PAGE),
        scheduler_config=SimpleNamespace(max_num_seqs=8, max_num_batched_tokens=64),
        attention_config=SimpleNamespace(hisparse_config=None, sparse_mla_force_mqa=False),
        speculative_config=None,
        compilation_config=SimpleNamespace(static_forward_context={"layer": SimpleNamespace(prefill_backend=None)}),
    )
    monkeypatch.setattr(sparse_mla_attention, "get_current_vllm_config", lambda: config, raising=False)
    monkeypatch.setattr(sparse_mla_attention, "get_tensor_model_parallel_world_size", lambda: 1, raising=False)
    return config


def impl_of(listed, cache_dtype="auto", **changes):
    sizes = {"q_lora_rank": None, "kv_lora_rank": LATENT, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    options = {"alibi_slopes": None, "sliding_window": None, "kv_cache_dtype": cache_dtype, "logits_soft_cap": None} | changes
    return FoveaSparseLatentImpl(
        HEADS,
        ROW,
        SCALE,
        1,
        *options.values(),
        AttentionType.DECODER,
        None,
        **sizes,
        qk_head_dim=192,
        kv_b_proj=None,
        indexer=SimpleNamespace(topk_indices_buffer=listed),
    )


@pytest.mark.parametrize("cache_dtype", ["auto", "fp8_ds_mla"])
@pytest.mark.parametrize("new", [[1, 1, 1], [2, 9, 1]])
def test_listed_tokens(new, cache_dtype, config, monkeypatch):
    lengths, tokens = [150, 70, 180], sum(new)
    table = torch.randperm(9).int().view(3, 3)
    held = torch.randn(9, PAGE, ROW).bfloat16()
    cache = held
    if cache_dtype == "fp8_ds_mla":
        cache = torch.zeros(9, PAGE, 656, dtype=torch.uint8)
        slots = torch.arange(9 * PAGE)
        fovea.quantize_latent_cache(held.flatten(0, 1), cache, slots, format="v32_fp8")
        held = fovea.dequantize_latent_cache(cache, slots, format="v32_fp8").view(9, PAGE, ROW)
    starts = torch.tensor([0, *new]).cumsum(0).int()
    common = CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
        num_reqs=3,
        num_actual_tokens=tokens,
        max_query_len=max(new),
        max_seq_len=max(lengths),
        block_table_tensor=table,
        slot_mapping=torch.zeros(tokens, dtype=torch.int64),
    )
    owner = torch.arange(3).repeat_interleave(torch.tensor(new)).int()
    monkeypatch.setattr(FoveaSparseLatentBuilder, "_build_req_id_per_token", lambda *_: owner)
    builder = FoveaSparseLatentBuilder(SimpleNamespace(block_size=PAGE), ["layer"], config, torch.device("cpu"))
    metadata = builder.build(0, common)
    assert metadata.num_decode_tokens == tokens
    listed = torch.full((64, LISTED), -1, dtype=torch.int32)
    counts = [min(LISTED, lengths[each], 40 + 50 * at) for at, each in enumerate(owner.tolist())]
    for at, count in enumerate(counts):
        listed[at, :count] = torch.randperm(lengths[owner[at]])[:count]
    q = torch.randn(tokens, HEADS, ROW).bfloat16()
    got, none = impl_of(listed, cache_dtype).forward_mqa((q[..., :LATENT], q[..., LATENT:]), cache, metadata, None)
    assert none is None
    for at, count in enumerate(counts):
        k = held[table[owner[at]].long()].flatten(0, 1)[listed[at, :count].long()].double()
        want = (q[at].double() @ k.t() * SCALE).softmax(-1) @ k[:, :LATENT]
        assert (got[at].double() - want).abs().max() <= 2e-2


def reasons(**changes):
    call = {
        "head_size": 576,
        "dtype": torch.bfloat16,
        "kv_cache_dtype": "auto",
        "block_size": 64,
        "use_mla": True,
        "has_sink": False,
        "use_sparse": True,
        "use_mm_prefix": False,
        "use_per_head_quant_scales": False,
        "device_capability": DeviceCapability(9, 0),
        "attn_type": AttentionType.DECODER,
    }
    return FoveaSparseLatentBackend.validate_configuration(**(call | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"kv_cache_dtype": "fp8_ds_mla"},
        {"kv_cache_dtype": "fp8_ds_mla", "device_capability": DeviceCapability(8, 0)},
        {"dtype": torch.float16},
        {"device_capability": DeviceCapability(10, 0)},
    ],
)
def test_what_it_takes(changes):
    assert reasons(**changes) == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"use_sparse": False}, "sparse"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype"),
        ({"kv_cache_dtype": "fp8_ds_mla", "dtype": torch.float16}, "dtype: got torch.float16, want torch.bfloat16"),
        ({"head_size": 512}, "head_size"),
        ({"block_size": 16}, "block_size"),
        ({"device_capability": DeviceCapability(7, 0)}, "capability"),
        ({"device_capability": DeviceCapability(7, 5)}, "dtype: got torch.bfloat16, want torch.float16"),
    ],
)
def test_what_it_declines(changes, reason):
    assert any(reason in each for each in reasons(**changes))


def test_it_declines_amd(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.3")
    assert any("has no kernel for AMD" in each for each in reasons())


def test_other_layers_are_refused(config):
    with pytest.raises(NotImplementedError, match="sliding_window: got 8"):
        impl_of(None, sliding_window=8)


CLEANS = "clean_logits" in inspect.signature(deep_gemm.fp8_fp4_mqa_logits).parameters
"""Whether vLLM's functions say what becomes of other logits, as before 0.33. Later ones want compressed logits."""


class TestIndexer:
    """vLLM's own functions, which ask for ``deep_gemm`` before they ask for a backend."""

    @pytest.fixture(autouse=True)
    def fresh(self, monkeypatch):
        def forget():
            deep_gemm._import_deep_gemm.cache_clear()
            import_utils._has_module.cache_clear()

        for name in [name for name in vars(deep_gemm) if name.endswith("_impl")]:
            monkeypatch.setattr(deep_gemm, name, None)
        monkeypatch.setitem(sys.modules, "deep_gemm", torch)  # what comes in its place goes after the test
        monkeypatch.delitem(sys.modules, "deep_gemm")
        forget()
        yield
        forget()

    @staticmethod
    def offer(monkeypatch, *, supported=False, capability=89):
        platform = {"is_cuda": lambda: True, "support_deep_gemm": lambda: supported}
        platform["has_device_capability"] = lambda least: capability >= least
        monkeypatch.setattr(platforms, "current_platform", SimpleNamespace(**platform))
        integration._offer_indexer()

    @pytest.mark.parametrize("installed", [False, True])
    def test_other_gpus_get_it(self, monkeypatch, tmp_path, installed):
        if installed:  # for GPUs that this one is not
            (tmp_path / "deep_gemm.py").write_text("def get_num_sms(): return 1\n")
            monkeypatch.syspath_prepend(tmp_path)
        self.offer(monkeypatch)
        assert import_utils.has_deep_gemm()
        q, cache = torch.randn(2, 1, 8, 128).to(torch.float8_e4m3fn), torch.randint(0, 48, (6, PAGE, 1, 132), dtype=torch.uint8)
        lengths, table = torch.tensor([[5], [70]], dtype=torch.int32), torch.arange(6, dtype=torch.int32).view(2, 3)
        weights, kept = torch.rand(2, 8), {"clean_logits": False} if CLEANS else {}
        schedule = deep_gemm.get_paged_mqa_logits_metadata(lengths, PAGE, 4)
        assert schedule.shape == (5, 2)
        got = deep_gemm.fp8_fp4_paged_mqa_logits((q, None), cache, weights, lengths, table, schedule, 150, **kept)
        flat = cache.view(6, -1)
        k, k_scale = (
            flat[:, : PAGE * 128].view(torch.float8_e4m3fn).unflatten(1, (PAGE, 128)),
            flat[:, PAGE * 128 :].view(torch.float32),
        )
        want = fovea.index_logits(q[:, 0], k, k_scale, weights, block_table=table, kv_len=lengths[:, 0])[:, :150]
        assert got.shape == (2, 150) and torch.equal(got[0, :5], want[0, :5]) and torch.equal(got[1, :70], want[1, :70])
        keys, scales, ends = k.flatten(0, 1)[:90], k_scale.flatten()[:90], torch.tensor([90, 40], dtype=torch.int32)
        begins = torch.tensor([0, 10], dtype=torch.int32)
        compressed = [] if CLEANS else [90]
        got = deep_gemm.fp8_fp4_mqa_logits((q[:, 0], None), (keys, scales), weights, begins, ends, *compressed, **kept)
        want = fovea.index_logits(q[:, 0], keys, scales, weights, first=begins, last=ends)
        at = 10 if CLEANS else 0
        assert got.shape == (2, 90) and torch.equal(got[0], want[0]) and torch.equal(got[1, at : at + 30], want[1, 10:40])
        deep_gemm.set_num_sms(7)
        assert deep_gemm.get_num_sms() == 7

    @pytest.mark.parametrize("gpu", [{"supported": True}, {"capability": 80}])
    def test_these_gpus_do_not(self, monkeypatch, gpu):
        self.offer(monkeypatch, **gpu)
        assert not import_utils.has_deep_gemm()

    def test_an_imported_one_stays(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "deep_gemm", torch)
        self.offer(monkeypatch)
        assert sys.modules["deep_gemm"] is torch


def test_registration_as_sparse_latent_attention():
    program = (
        "from fovea.integrations import vllm as integration; integration.register();"
        "from vllm.v1.attention.backends.registry import AttentionBackendEnum as backends;"
        "custom = backends.CUSTOM.get_class(); assert custom.is_sparse() and backends[custom.get_name()].get_class() is custom"
    )
    assert subprocess.run([sys.executable, "-c", program], env=os.environ | {"FOVEA_VLLM_CUSTOM": "sparse_mla"}).returncode == 0


def test_another_choice_is_refused(monkeypatch):
    monkeypatch.setenv("FOVEA_VLLM_CUSTOM", "other")
    with pytest.raises(ValueError, match="FOVEA_VLLM_CUSTOM: got other, want mla, sparse_mla or nothing"):
        integration.register()
