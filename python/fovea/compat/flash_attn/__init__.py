# SPDX-License-Identifier: Apache-2.0
"""flash-attn 2.8's Python interface over Fovea's dense and paged attention.

Argument names, order, defaults, layouts and results are flash-attn's; ``fovea.compat.flash_attn_interface`` has those of
FlashAttention-3. Differences (whole table: docs/flash_attn.md):

* Tensors may be on the CPU, and float32 or float64 too; pages may have any size; v may have another head dim than q and k.
* ALiBi and dropout over pages and caches, and dropout with ``return_attn_probs`` raise NotImplementedError.
* A query that sees no key gives 0, and -inf as its lse; flash-attn 2 has +inf there, FlashAttention-3 -inf.
* lse has a gradient too.
* In the place of probabilities (``return_attn_probs``) there is an empty tensor, as flash-attn has without dropout.
* ``flash_attn_with_kvcache`` and a block table refuse gradients (NotImplementedError) where flash-attn gives results that autograd
  knows nothing of.
* Layers, losses and Triton kernels of the package are not here, nor functions whose names begin with an underscore.
"""

from fovea.compat.flash_attn import bert_padding, flash_attn_interface
from fovea.compat.flash_attn.flash_attn_interface import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)

__version__ = "2.8.3"  # whose interface this is; programs ask for it

__all__ = [
    "bert_padding",
    "flash_attn_func",
    "flash_attn_interface",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]
