# SPDX-License-Identifier: Apache-2.0
"""Fovea as an attention backend of vLLM (0.20 to 0.33).

vLLM finds :func:`register` through the entry point group ``vllm.general_plugins``; an installed Fovea needs no other step:

>>> llm = LLM(model, attention_config={"backend": "CUSTOM"})  # vllm serve MODEL --attention-backend CUSTOM

vLLM 0.33 takes new names: ``FOVEA`` and, for latent attention, ``FOVEA_MLA`` and ``FOVEA_MLA_SPARSE``. Earlier ones have the one
name ``CUSTOM``; ``FOVEA_VLLM_CUSTOM=mla``, or ``sparse_mla``, in the environment says that it is latent attention.

Nothing of vLLM is imported before vLLM itself calls :func:`register`, and nothing of it is changed outside of its registry. With
``FOVEA_VLLM_CUSTOM=sparse_mla``, ``import deep_gemm`` finds Fovea's indexer on GPUs that DeepGEMM has no kernels for.
"""

import logging
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import fovea
from fovea import compat

OLDEST, NEWEST = (0, 20), (0, 33)
"""The versions of vLLM whose interface this package knows."""
_LATENT = (0, 26)
"""The oldest version with the classes that latent attention builds on."""
BACKENDS = {
    "FOVEA": f"{__name__}.attention.FoveaBackend",
    "FOVEA_MLA": f"{__name__}.latent.FoveaLatentBackend",
    "FOVEA_MLA_SPARSE": f"{__name__}.sparse_latent.FoveaSparseLatentBackend",
}
_CUSTOM = {"": "FOVEA", "mla": "FOVEA_MLA", "sparse_mla": "FOVEA_MLA_SPARSE"}
"""The backend that ``CUSTOM`` is, by ``FOVEA_VLLM_CUSTOM`` of the environment."""
_E4M3_OF_TRITON = 89
"""The least compute capability on which the Triton kernels of vLLM's indexer write e4m3."""
_logger = logging.getLogger("vllm.plugins.fovea")
"""vLLM shows what is below its own name."""
PREFILL = f"{__name__}.latent.FoveaPrefillBackend"


def register() -> None:
    """Enters the backend into vLLM's registry. Another version of vLLM gets a warning, and its own backends stay.

    vLLM calls it in each of its processes. Without vLLM, ImportError.
    """
    import vllm

    version = vllm.__version__
    release = _release(version)
    if not OLDEST <= release <= NEWEST:
        known = " to ".join(".".join(map(str, release)) for release in (OLDEST, NEWEST))
        warnings.warn(f"fovea {fovea.__version__}: got vLLM {version}, want {known}; its own backends stay", stacklevel=2)
        return
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    choice = os.environ.get("FOVEA_VLLM_CUSTOM", "")
    if choice not in _CUSTOM:
        raise ValueError(f"FOVEA_VLLM_CUSTOM: got {choice}, want mla, sparse_mla or nothing")
    if choice and release < _LATENT:
        raise ValueError(f"FOVEA_VLLM_CUSTOM: got {choice} with vLLM {version}, want nothing before 0.26")
    named = BACKENDS if release >= _LATENT else {"FOVEA": BACKENDS["FOVEA"]}
    entered = _enter(AttentionBackendEnum, register_backend, named, BACKENDS[_CUSTOM[choice]])
    _logger.info("fovea %s: %s", fovea.__version__, ", ".join(f"{name} is {path}" for name, path in entered.items()))
    if release >= _LATENT:
        from vllm.v1.attention.backends.mla.prefill import registry

        _enter(registry.MLAPrefillBackendEnum, registry.register_mla_prefill_backend, {"FOVEA": PREFILL}, PREFILL)
    if choice == "sparse_mla":
        _offer_indexer()


def _offer_indexer() -> None:
    """vLLM asks for ``deep_gemm`` where it builds its indexer, before it asks for a backend."""
    from vllm.platforms import current_platform

    lacks_kernels = current_platform.is_cuda() and not current_platform.support_deep_gemm()
    if lacks_kernels and current_platform.has_device_capability(_E4M3_OF_TRITON) and "deep_gemm" not in sys.modules:
        compat.install("deep_gemm")
        _logger.info("fovea %s: deep_gemm is fovea.compat.deep_gemm", fovea.__version__)


def _enter(members: Any, enter: Callable[..., Any], named: dict[str, str], custom: str) -> dict[str, str]:
    """Enters classes by new names, where this vLLM takes any, and one as CUSTOM, unless another plug-in has it. Returns them."""
    entered = {name: path for name, path in named.items() if hasattr(members, "register") and name not in members.__members__}
    for name, path in entered.items():
        enter(name, path)
    if "CUSTOM" in members.__members__ and not members.CUSTOM.is_overridden():
        enter(members.CUSTOM, custom)
        entered["CUSTOM"] = custom
    return entered


def _release(version: str) -> tuple[int, ...]:
    """``0.26`` of 0.26.0; a text that is no version, such as that of a build from sources, is older than any."""
    try:
        return tuple(int(part) for part in version.split(".")[:2])
    except ValueError:
        return (0,)
