# SPDX-License-Identifier: Apache-2.0
"""Other packages' interfaces over Fovea's operations, so that code written for those packages runs unchanged.

>>> from fovea.compat.flash_attn import flash_attn_func

or, where the import statements are somebody else's:

>>> fovea.compat.install("flash_attn")
>>> from flash_attn import flash_attn_func
"""

import importlib
import sys
from types import ModuleType

from fovea._calls import checked

# The modules that users of each package import, and which of fovea.compat stands for each.
_MODULES = {
    "deep_gemm": {"deep_gemm": "deep_gemm"},
    "flash_attn": {
        "flash_attn": "flash_attn",
        "flash_attn.bert_padding": "flash_attn.bert_padding",
        "flash_attn.flash_attn_interface": "flash_attn.flash_attn_interface",
        "flash_attn_interface": "flash_attn_interface",
    },
    "flashinfer": {
        "flashinfer": "flashinfer",
        "flashinfer.cascade": "flashinfer.cascade",
        "flashinfer.decode": "flashinfer.decode",
        "flashinfer.fp4_quantization": "flashinfer.fp4_quantization",
        "flashinfer.page": "flashinfer.page",
        "flashinfer.sparse": "flashinfer.sparse",
        "flashinfer.prefill": "flashinfer.prefill",
    },
    "flash_mla": {"flash_mla": "flash_mla", "flash_mla.flash_mla_interface": "flash_mla"},
    "sageattention": {"sageattention": "sageattention", "sageattention.core": "sageattention"},
}


@checked
def install(package: str, *, force: bool = False) -> ModuleType:
    """Makes ``import package`` give Fovea's module of that name from now on, in this process.

    Args:
        package: Which interface: "deep_gemm" (its indexer alone), "flash_attn" (2.8, and FlashAttention-3's
            ``flash_attn_interface`` with it), "flashinfer" (0.6 and 0.7, attention alone), "flash_mla" or "sageattention" (2.2).
        force: Replace the real package where it is already imported. Objects that others took from it before stay what they were.

    Returns:
        The module.

    Raises:
        ValueError: There is no such interface.
        RuntimeError: The real package is already imported, and not ``force``.
    """
    if package not in _MODULES:
        raise ValueError(f"package: got {package!r}, want {' or '.join(map(repr, _MODULES))}")
    modules = {name: importlib.import_module(f"fovea.compat.{ours}") for name, ours in _MODULES[package].items()}
    for name, module in modules.items():
        present = sys.modules.get(name, module)
        if present is not module and not force and "." not in name:
            where = getattr(present, "__file__", None) or "no file"
            raise RuntimeError(f"package: got {name!r}, already imported from {where}, want one not yet imported, or force=True")
    for name in [name for name in sys.modules if name.startswith(f"{package}.")]:
        del sys.modules[name]
    sys.modules.update(modules)
    return modules[package]
