# SPDX-License-Identifier: Apache-2.0
"""Other libraries that are timed beside Fovea, by turns in one process, wherever they can be imported."""

import importlib.metadata
import importlib.util

import torch

# By the module that is imported: what the results call it, and the distributions that may hold it.
PACKAGES = {
    "flash_attn": ("flash-attn", ("flash-attn",)),
    "flash_attn_interface": ("FlashAttention-3", ("flash-attn-3", "flash_attn_3")),
    "fa3_fwd_interface": ("FlashAttention-3 (fa3-fwd)", ("fa3-fwd",)),
    "flash_attn.cute": ("FlashAttention-4", ("flash-attn-4",)),
    "flash_mla": ("FlashMLA", ("flash-mla",)),
    "flashinfer": ("FlashInfer", ("flashinfer-python",)),
    "sageattention": ("SageAttention", ("sageattention",)),
    "deep_gemm": ("DeepGEMM", ("deep-gemm", "deep_gemm")),
}


def importable(module: str) -> bool:
    """Whether there is such a library; Fovea's own stand-in for it is none."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):  # of a package that holds it: absent, or without a specification
        return False
    return spec is not None and not spec.name.startswith("fovea.")


def version_of(module: str) -> str:
    for distribution in PACKAGES[module][1]:
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return str(getattr(importlib.import_module(module), "__version__", "unknown"))


def versions() -> dict[str, str]:
    """Versions of everything here that may be timed beside Fovea."""
    found = {name: version_of(module) for module, (name, _) in PACKAGES.items() if importable(module)}
    if torch.cuda.is_available() and torch.backends.cudnn.is_available():
        found["cuDNN"] = str(torch.backends.cudnn.version())
    return found
