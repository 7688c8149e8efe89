# SPDX-License-Identifier: Apache-2.0
"""Fovea as an attention backend of vLLM (0.20 to 0.33).

vLLM finds :func:`register` through the entry point group ``vllm.general_plugins``; an installed Fovea needs no other step:

>>> llm = LLM(model, attention_config={"backend": "CUSTOM"})  # vllm serve MODEL --attention-backend CUSTOM

vLLM 0.33 takes new names: ``FOVEA`` and, for latent attention, ``FOVEA_MLA``. Nothing of vLLM is imported before vLLM itself calls
:func:`register`, and nothing of it is changed outside of its registry.
"""

import warnings

import fovea

OLDEST, NEWEST = (0, 20), (0, 33)
"""The versions of vLLM whose interface this package knows."""
BACKEND = f"{__name__}.attention.FoveaBackend"
_NAME = "FOVEA"


def register() -> None:
    """Enters the backend into vLLM's registry. Another version of vLLM gets a warning, and its own backends stay.

    vLLM calls it in each of its processes. Without vLLM, ImportError.
    """
    import vllm

    version = vllm.__version__
    if not OLDEST <= _release(version) <= NEWEST:
        known = " to ".join(".".join(map(str, release)) for release in (OLDEST, NEWEST))
        warnings.warn(f"fovea {fovea.__version__}: got vLLM {version}, want {known}; its own backends stay", stacklevel=2)
        return
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    if hasattr(AttentionBackendEnum, "register") and _NAME not in AttentionBackendEnum.__members__:
        register_backend(_NAME, BACKEND)
    if not AttentionBackendEnum.CUSTOM.is_overridden():  # another plugin may have it
        register_backend(AttentionBackendEnum.CUSTOM, BACKEND)


def _release(version: str) -> tuple[int, ...]:
    """``0.26`` of 0.26.0; a text that is no version, such as that of a build from sources, is older than any."""
    try:
        return tuple(int(part) for part in version.split(".")[:2])
    except ValueError:
        return (0,)
