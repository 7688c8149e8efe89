# SPDX-License-Identifier: Apache-2.0
"""Other packages' interfaces over Fovea's operations, so that code written for those packages runs unchanged.

>>> import fovea.compat.flash_mla as flash_mla

or, where the import statements are somebody else's:

>>> fovea.compat.install("flash_mla")
>>> from flash_mla import flash_mla_with_kvcache
"""

import importlib
import sys
from types import ModuleType

# What each package calls the modules that users import; all of them are ours then.
_MODULES = {"flash_mla": ("flash_mla", "flash_mla.flash_mla_interface")}


def install(package: str, *, force: bool = False) -> ModuleType:
    """Makes ``import package`` give Fovea's module of that name from now on, in this process.

    Args:
        package: Which interface; "flash_mla" is the only one so far.
        force: Replace the real package where it is already imported. What others took from it before stays what it was.

    Returns:
        The module.

    Raises:
        ValueError: There is no such interface.
        RuntimeError: The real package is already imported, and not ``force``.
    """
    if package not in _MODULES:
        raise ValueError(f"package: got {package!r}, want {' or '.join(map(repr, _MODULES))}")
    module = importlib.import_module(f"fovea.compat.{package}")
    present = sys.modules.get(package, module)
    if present is not module and not force:
        where = getattr(present, "__file__", None) or "no file"
        raise RuntimeError(f"package: got {package!r}, already imported from {where}, want one not yet imported, or force=True")
    for name in [name for name in sys.modules if name.startswith(f"{package}.")]:
        del sys.modules[name]
    sys.modules.update(dict.fromkeys(_MODULES[package], module))
    return module
