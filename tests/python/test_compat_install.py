# SPDX-License-Identifier: Apache-2.0
"""fovea.compat.install: standing in for another package."""

import importlib
import importlib.util
import sys
from types import ModuleType

import pytest

import fovea.compat.flash_attn
import fovea.compat.flash_mla
import fovea.compat.flashinfer
import fovea.compat.sageattention

MODULES = {
    "flash_mla": ("flash_mla", "flash_mla.flash_mla_interface"),
    "flash_attn": ("flash_attn", "flash_attn.flash_attn_interface", "flash_attn.bert_padding", "flash_attn_interface"),
    "flashinfer": ("flashinfer", "flashinfer.decode", "flashinfer.prefill", "flashinfer.page", "flashinfer.cascade"),
    "sageattention": ("sageattention", "sageattention.core"),
}


def is_theirs(name):
    return name.partition(".")[0] in ("flash_mla", "flash_attn", "flash_attn_interface", "flashinfer", "sageattention")


@pytest.fixture(autouse=True)
def nobody_imported_them(monkeypatch):
    """As if nobody had imported the packages, whatever the test leaves behind."""
    for name in [name for name in sys.modules if is_theirs(name)]:
        monkeypatch.delitem(sys.modules, name)
    yield
    for name in [name for name in sys.modules if is_theirs(name)]:
        del sys.modules[name]


@pytest.mark.parametrize("package", MODULES)
def test_install(package):
    ours = importlib.import_module(f"fovea.compat.{package}")
    assert fovea.compat.install(package) is ours
    for name in MODULES[package]:
        assert importlib.import_module(name).__name__.startswith("fovea.compat.")
        assert importlib.util.find_spec(name) is not None
    assert fovea.compat.install(package) is ours  # twice does no harm
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(f"{package}.cuda")


def test_the_imports_of_flash_mla():
    fovea.compat.install("flash_mla")
    from flash_mla import flash_mla_with_kvcache
    from flash_mla.flash_mla_interface import flash_attn_varlen_func

    assert flash_mla_with_kvcache is fovea.compat.flash_mla.flash_mla_with_kvcache
    assert flash_attn_varlen_func is fovea.compat.flash_mla.flash_attn_varlen_func


def test_the_imports_of_flash_attn():
    """As transformers and the code of models on the hub write them."""
    fovea.compat.install("flash_attn")
    import flash_attn
    from flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache  # noqa: F401
    from flash_attn.bert_padding import index_first_axis, pad_input, unpad_input  # noqa: F401
    from flash_attn.flash_attn_interface import flash_attn_varlen_qkvpacked_func  # noqa: F401
    from flash_attn_interface import flash_attn_func as third

    assert flash_attn_func is fovea.compat.flash_attn.flash_attn_func and third is not flash_attn_func
    assert flash_attn.__version__.startswith("2.8.")


def test_the_imports_of_flashinfer():
    """As engines write them."""
    fovea.compat.install("flashinfer")
    import flashinfer
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper, append_paged_kv_cache  # noqa: F401
    from flashinfer.cascade import merge_state
    from flashinfer.decode import CUDAGraphBatchDecodeWithPagedKVCacheWrapper  # noqa: F401
    from flashinfer.prefill import BatchPrefillWithPagedKVCacheWrapper

    assert flashinfer.merge_state is merge_state is fovea.compat.flashinfer.merge_state
    assert BatchPrefillWithPagedKVCacheWrapper is fovea.compat.flashinfer.BatchPrefillWithPagedKVCacheWrapper


def test_the_imports_of_sageattention():
    """As diffusers writes them."""
    fovea.compat.install("sageattention")
    from sageattention import (
        sageattn,
        sageattn_qk_int8_pv_fp8_cuda,  # noqa: F401
        sageattn_qk_int8_pv_fp8_cuda_sm90,  # noqa: F401
        sageattn_qk_int8_pv_fp16_cuda,  # noqa: F401
        sageattn_qk_int8_pv_fp16_triton,  # noqa: F401
        sageattn_varlen,  # noqa: F401
    )

    assert sageattn is fovea.compat.sageattention.sageattn


@pytest.mark.parametrize(("package", "imported"), [("flash_mla", "flash_mla"), ("flash_attn", "flash_attn_interface")])
def test_install_does_not_push_the_real_one_out_unasked(package, imported):
    real, part = ModuleType(imported), ModuleType(f"{package}.cuda")
    real.__file__ = f"/site-packages/{imported}/__init__.py"
    sys.modules.update({imported: real, f"{package}.cuda": part})
    with pytest.raises(RuntimeError, match=f"package: got '{imported}', already imported from /site-packages/{imported}"):
        fovea.compat.install(package)
    assert sys.modules[imported] is real and sys.modules[f"{package}.cuda"] is part
    ours = fovea.compat.install(package, force=True)
    assert sys.modules[package] is ours and sys.modules[imported] is not real and f"{package}.cuda" not in sys.modules


def test_install_of_what_is_not_there():
    with pytest.raises(
        ValueError,
        match="package: got 'xformers', want 'deep_gemm' or 'flash_attn' or 'flashinfer' or 'flash_mla' or 'sageattention'",
    ):
        fovea.compat.install("xformers")
