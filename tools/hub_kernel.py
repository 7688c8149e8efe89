# SPDX-License-Identifier: Apache-2.0
"""Fovea as Hugging Face `kernels` loads it: flash-attn's functions, and the package as `fovea`.

The package lies beside this file. It keeps its name, and torch holds one set of its operators: a
process has one Fovea.
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent

sys.path.insert(0, str(HERE))
try:
    import fovea
finally:
    sys.path.remove(str(HERE))
if fovea.__file__ != str(HERE / "fovea" / "__init__.py"):
    raise ImportError(
        f"fovea: got {fovea.__file__}, want {HERE / 'fovea' / '__init__.py'}: a process has one Fovea. "
        "Load the kernel before anything else imports fovea, or use fovea.compat.flash_attn of the one that is there"
    )

from fovea.compat.flash_attn import *  # noqa: E402, F403
from fovea.compat.flash_attn import __all__ as _functions  # noqa: E402

__all__ = ["fovea", *_functions]
