# SPDX-License-Identifier: Apache-2.0
"""Fovea for JAX: the operations as XLA's custom calls, on CPUs and NVIDIA GPUs.

>>> import fovea.jax
>>> out = fovea.jax.attention(q, k, v, causal=True)  # q [batch, seq_q, head, head_dim], k and v [batch, seq_k, kv_head, head_dim]

The functions work within ``jax.jit``, and :func:`attention` has a gradient. ``jax.vmap`` runs them in a loop. ``jax.shard_map``
divides them among devices.
The package fovea loads PyTorch, so torch must be installed; its build for CPUs will do.

A call that contradicts itself, or that no kernel accepts, raises ``jax.errors.JaxRuntimeError`` when it runs. The message names the
tensor, the field, the value and what was wanted.
"""

from fovea.jax._attention import attention
from fovea.jax._paged import paged_attention, paged_cache_append

__all__ = ["attention", "paged_attention", "paged_cache_append"]
