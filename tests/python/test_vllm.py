# SPDX-License-Identifier: Apache-2.0
"""Fovea as vLLM's attention backend: vLLM's own classes drive it, step by step, and formulas judge it."""

import os
import subprocess
import sys
from itertools import product
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("vllm", reason="needs vLLM's Python files: ./dev vllm")

from torch.multiprocessing.reductions import StorageWeakRef
from vllm.platforms.interface import DeviceCapability
from vllm.v1.attention.backend import AttentionCGSupport, AttentionType, MultipleOf

from conftest import available
from fovea.integrations import vllm as integration
from fovea.integrations.vllm.attention import FoveaBackend, FoveaImpl, FoveaMetadataBuilder, _flash_attn
from vllm_steps import PAGE, Engine

HOPPER = DeviceCapability(9, 0)


def check(got, want, dtype=torch.bfloat16):
    error = (got.double() - want).abs().max()
    assert error <= (1e-2 if dtype == torch.bfloat16 else 2e-3), float(error)


STEPS = {
    "prefill": [[37, 5, 16]],
    "decode": [[37, 5, 16], [1, 1, 1], [1, 1, 1]],
    "mixed": [[37, 5, 16], [1, 12, 1], [40, 1, 1]],
    "chunked": [[16, 16, 16], [16, 3, 1], [16, 1, 1]],
    "speculative": [[9, 30, 17], [4, 4, 4], [4, 4, 4]],
    "idle": [[37, 5, 16], [1, 0, 1], [0, 3, 0]],
}
LAYERS = {
    "plain": {},
    "window": {"sliding_window": 9},
    "softcap": {"logits_soft_cap": 3.0},
    "sinks": {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])},
    "all": {"sliding_window": 20, "logits_soft_cap": 5.0, "sinks": torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=torch.bfloat16)},
}


DEVICES = ["cpu", *(["cuda"] if available("paged_attention", "cuda") else [])]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("steps", STEPS)
def test_steps(steps, layer, device):
    options = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in LAYERS[layer].items()}
    engine = Engine(options=options, device=device)
    engine.add(3)
    for new in STEPS[steps]:
        check(*engine.step(new))


@pytest.mark.parametrize(("dtype", "cache", "packed"), [*product([torch.float16, torch.bfloat16], ["auto", "fp8"], [True, False])])
def test_dtypes_and_layouts(dtype, cache, packed):
    engine = Engine(dtype=dtype, cache_dtype=cache, packed=packed, k_scale=torch.tensor(0.5), v_scale=torch.tensor(0.25))
    engine.add(2)
    for new in STEPS["mixed"]:
        check(*engine.step(new[:2]), dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("cache", ["int8_per_token_head", "fp8_per_token_head"])
def test_scales_of_each_row(cache, dtype, device):
    assert cache in FoveaBackend.supported_kv_cache_dtypes
    if hasattr(_flash_attn(), "get_kv_cache_shape") and Engine().packed:
        assert tuple(FoveaBackend.get_kv_cache_shape(5, PAGE, 2, 32, cache)) == (5, 2, PAGE, 2 * 36)
    engine = Engine(dtype=dtype, cache_dtype=cache, device=device)
    engine.add(3)
    for new in STEPS["mixed"]:
        check(*engine.step(new), dtype)


def test_scales_of_each_head():
    engine = Engine(cache_dtype="fp8_e4m3", k_scale=torch.tensor([0.5, 0.03125]), v_scale=torch.tensor([1.0, 0.25]))
    engine.add(2)
    for new in ([20, 3], [1, 1]):
        check(*engine.step(new))


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (8, 1), (6, 3), (4, 4)])
def test_groups_of_heads(heads, kv_heads):
    engine = Engine(heads=heads, kv_heads=kv_heads)
    engine.add(2)
    for new in ([20, 3], [1, 1]):
        check(*engine.step(new))


@pytest.mark.parametrize("head_size", [8, 64, 80, 128, 256, 512])
def test_head_sizes(head_size):
    engine = Engine(head_size=head_size)
    engine.add(2)
    for new in ([20, 3], [1, 1]):
        check(*engine.step(new))


def test_padding_of_a_captured_batch():
    """Sequences without tokens, and rows that no sequence has: vLLM rounds batches up to captured sizes."""
    engine = Engine()
    engine.add(3)
    engine.step([37, 5, 16])
    check(*engine.step([1, 1, 1], padded=5, padding=5))


def test_a_cached_prefix():
    engine = Engine()
    engine.add()
    engine.step([40])
    engine.fork(0, 32)
    check(*engine.step([1, 20]))
    assert engine.tables[0][:2] == engine.tables[1][:2]


@pytest.mark.parametrize("window", [None, 6])
def test_queries_that_see_all(window):
    """Not causal: cross attention, and drafts of blocks."""
    engine = Engine(options={} if window is None else {"sliding_window": window})
    engine.add(2)
    engine.step([20, 9])
    check(*engine.step([4, 4], causal=False))


@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("kind", [AttentionType.ENCODER_ONLY, AttentionType.ENCODER])
def test_encoders(kind, window):
    engine = Engine(options={"attn_type": kind} | ({} if window is None else {"sliding_window": window}))
    engine.add(3)
    before = engine.cache.clone()
    check(*engine.step([12, 1, 30], padding=4, causal=False))
    assert torch.equal(engine.cache.view(torch.uint8), before.view(torch.uint8))


def test_batch_invariance(monkeypatch):
    monkeypatch.setattr("vllm.envs.VLLM_BATCH_INVARIANT", True, raising=False)
    assert FoveaImpl(4, 32, 1.0)._options[True]["batch_invariant"]


def test_reloaded_sinks_stay_where_they_are():
    """A captured graph reads them at their place."""
    sinks = torch.zeros(4, dtype=torch.bfloat16)
    engine = Engine(options={"sinks": sinks})
    engine.add()
    engine.step([20])
    place = engine.impl._sink.data_ptr()
    sinks.copy_(torch.tensor([5.0, 1.0, -2.0, 3.0]))
    engine.impl.process_weights_after_loading(engine.dtype)
    assert engine.impl._sink.data_ptr() == place
    check(*engine.step([1]))


def test_another_cache_is_seen():
    """vLLM binds its caches after it has measured memory, and again after it slept."""
    engine = Engine()
    engine.add()
    engine.step([20])
    engine.cache = engine.cache.clone()
    check(*engine.step([1]))


def test_no_cache_outlives_the_one_that_vllm_holds():
    """vLLM measures graphs with a small cache, and frees it before it allocates the real one."""
    engine = Engine()
    engine.add()
    engine.step([20])
    storage = StorageWeakRef(engine.cache.untyped_storage())
    assert not storage.expired()
    engine.cache = torch.tensor([])
    assert storage.expired()


def test_the_run_that_measures_memory():
    output = torch.full((3, 4, 32), torch.nan)
    assert (FoveaImpl(4, 32, 1.0).forward(None, output, output, output, output, None, output) == 0).all()


# ---- the builder -----------------------------------------------------------------------------------------------------------------


def test_bounds_serve_many_steps():
    engine = Engine()
    engine.add()
    bounds = {engine.builder.build(0, engine.metadata([tokens])).max_kv_len for tokens in (1, 200, 256)}
    assert bounds == {256}
    assert engine.builder.build(0, engine.metadata([257])).max_kv_len == 512


def test_another_block_table():
    engine = Engine()
    engine.add()
    metadata = engine.builder.build(0, engine.metadata([20]))
    table, slots = torch.zeros(1, 4, dtype=torch.int32), torch.zeros(20, dtype=torch.int64)
    new = engine.builder.update_block_table(metadata, table, slots)
    assert new.block_table is table and new.slot_mapping is slots and metadata.block_table is not table
    assert new.seq_lens is metadata.seq_lens


def test_graphs_of_every_batch():
    assert FoveaMetadataBuilder.get_cudagraph_support(None, None) == AttentionCGSupport.ALWAYS


def test_reference_windows_are_refused():
    """vLLM 0.33 asks before it builds anything; earlier ones do not."""
    config = SimpleNamespace(model_config=SimpleNamespace(rswa_window=128))
    with pytest.raises(NotImplementedError, match="rswa_window: got 128, want None; choose another attention backend"):
        FoveaMetadataBuilder(SimpleNamespace(), ["layer"], config, torch.device("cpu"))


def test_causality_of_each_sequence_is_refused():
    engine = Engine()
    engine.add()
    common = engine.metadata([3], causal=torch.tensor([True]))
    with pytest.raises(NotImplementedError, match="causal: got a tensor"):
        engine.builder.build(0, common)


# ---- selection -------------------------------------------------------------------------------------------------------------------


def reasons(**changes):
    call = {
        "head_size": 128,
        "dtype": torch.bfloat16,
        "kv_cache_dtype": "auto",
        "block_size": 16,
        "use_mla": False,
        "has_sink": True,
        "use_sparse": False,
        "use_mm_prefix": False,
        "use_per_head_quant_scales": True,
        "device_capability": HOPPER,
        "attn_type": AttentionType.DECODER,
    }
    return FoveaBackend.validate_configuration(**(call | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"head_size": 64, "dtype": torch.float16},
        {"head_size": 512},
        {"kv_cache_dtype": "fp8", "block_size": 64},
        {"kv_cache_dtype": "fp8_e4m3"},
        {"kv_cache_dtype": "bfloat16"},
        {"attn_type": AttentionType.ENCODER_ONLY},
        {"attn_type": AttentionType.ENCODER_DECODER},
        {"device_capability": DeviceCapability(8, 0)},
        {"device_capability": DeviceCapability(7, 5), "dtype": torch.float16},
    ],
)
def test_what_it_takes(changes):
    assert reasons(**changes) == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"head_size": 100}, "head_size"),
        ({"dtype": torch.float32}, "dtype"),
        ({"kv_cache_dtype": "fp8_e5m2"}, "kv_cache_dtype"),
        ({"kv_cache_dtype": "nvfp4"}, "kv_cache_dtype"),
        ({"kv_cache_dtype": "float16"}, "kv_cache_dtype: got float16, want auto, fp8 or the dtype of the model"),
        ({"block_size": 8}, "block_size"),
        ({"use_mla": True}, "MLA"),
        ({"use_sparse": True}, "sparse"),
        ({"use_mm_prefix": True}, "multimodal"),
        ({"device_capability": DeviceCapability(7, 0)}, "capability"),
        ({"device_capability": DeviceCapability(7, 5)}, "dtype: got torch.bfloat16, want torch.float16"),
        ({"device_capability": DeviceCapability(7, 5), "dtype": torch.float16, "head_size": 256}, "head_size: got 256"),
        ({"head_size": 520}, "head_size"),
        ({"head_size": 512, "kv_cache_dtype": "fp8"}, "head_size: got 512, want at most 256 with kv_cache_dtype fp8"),
    ],
)
def test_what_it_declines(changes, reason):
    assert any(reason in each for each in reasons(**changes))


def test_of_amd_it_takes_what_has_kernels(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.3")
    for capability in (DeviceCapability(9, 0), DeviceCapability(9, 4)):  # gfx90a, gfx942
        assert reasons(device_capability=capability, kv_cache_dtype="fp8", head_size=256) == []
        (declined,) = reasons(device_capability=capability, head_size=512)
        assert declined == "head_size: got 512, want at most 256 on GPUs of AMD"
    for capability in (DeviceCapability(9, 5), DeviceCapability(11, 0), DeviceCapability(12, 0)):
        assert reasons(device_capability=capability) == ["compute capability not supported"]


def test_slopes_are_refused():
    with pytest.raises(NotImplementedError, match="alibi_slopes: got slopes, want None"):
        FoveaImpl(4, 32, 1.0, alibi_slopes=[1.0] * 4)


def test_sinks_of_other_heads_are_refused():
    with pytest.raises(ValueError, match=r"sinks.shape: got \[3\], want \[4\]"):
        FoveaImpl(4, 32, 1.0, sinks=torch.zeros(3))


def test_quantized_outputs_are_refused():
    rows = torch.zeros(1, 4, 32)
    with pytest.raises(NotImplementedError, match="output_scale"):
        FoveaImpl(4, 32, 1.0).forward(None, rows, rows, rows, rows, None, rows, output_scale=torch.ones(1))


def test_pages():
    (size,) = FoveaBackend.get_supported_kernel_block_sizes()
    assert isinstance(size, MultipleOf) and size.base == PAGE


# ---- registration ----------------------------------------------------------------------------------------------------------------


def test_registration():
    """In a process of its own: an override stays."""
    code = (
        "from fovea.integrations import vllm as integration; integration.register(); integration.register();"
        "from vllm.v1.attention.backends.registry import AttentionBackendEnum as backends; custom = backends.CUSTOM.get_class();"
        "assert custom.__name__ == 'FoveaBackend' and backends[custom.get_name()].get_class() is custom"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_registration_leaves_another_plugin_alone():
    code = (
        "from vllm.v1.attention.backends.registry import AttentionBackendEnum as backends, register_backend;"
        "register_backend(backends.CUSTOM, 'a.B'); from fovea.integrations import vllm as integration; integration.register();"
        "assert backends.CUSTOM.get_path() == 'a.B'"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("choice", ["mla", "sparse_mla"])
def test_latent_attention_in_an_older_version_is_refused(choice, monkeypatch):
    monkeypatch.setenv("FOVEA_VLLM_CUSTOM", choice)
    monkeypatch.setattr("vllm.__version__", "0.25.1")
    with pytest.raises(ValueError, match=f"FOVEA_VLLM_CUSTOM: got {choice} with vLLM 0.25.1, want nothing before 0.26"):
        integration.register()


def test_the_log_says_what_is_registered():
    code = (
        "import logging; logging.basicConfig(level=logging.INFO);"
        "from fovea.integrations import vllm as integration; integration.register()"
    )
    env = os.environ | {"VLLM_LOGGING_LEVEL": "INFO"}
    log = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert "CUSTOM is fovea.integrations.vllm.attention.FoveaBackend" in log.stdout + log.stderr


def test_models_with_latent_attention_are_told_the_name():
    found = reasons(use_mla=True, head_size=576)
    assert any("before vLLM 0.33, CUSTOM with FOVEA_VLLM_CUSTOM=mla" in reason for reason in found)


@pytest.mark.parametrize("version", ["0.19.1", "0.34.0", "1.0.0", "dev"])
def test_other_versions_get_a_warning(version, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__=version))
    with pytest.warns(UserWarning, match=f"got vLLM {version}, want 0.20 to 0.33") as caught:
        integration.register()
    assert len(caught) == 1


def test_importing_fovea_imports_nothing_of_vllm():
    code = "import sys, fovea.integrations.vllm; assert not any(name.split('.')[0] == 'vllm' for name in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
