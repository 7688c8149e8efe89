# SPDX-License-Identifier: Apache-2.0
"""The handlers in Fovea's extension, and how a function calls one."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import jax
import numpy as np

from fovea._library import EXTENSION, band

if TYPE_CHECKING:
    from collections.abc import Mapping


def _register() -> None:
    library = ctypes.CDLL(str(EXTENSION))
    for platform in ("cpu", "CUDA"):
        try:
            handler = getattr(library, f"fovea_jax_{platform.lower()}")
        except AttributeError:
            raise ImportError("fovea is built without JAX's handlers: build it where jaxlib is installed") from None
        jax.ffi.register_ffi_target("fovea", jax.ffi.pycapsule(handler), platform=platform)


_register()


def call(
    operation: str,
    inputs: Mapping[str, jax.Array | None],
    outputs: Mapping[str, jax.ShapeDtypeStruct],
    *,
    aliases: dict[str, str] | None = None,
    **attributes: bool | float | str | None,
) -> list[jax.Array]:
    """Runs an operation. The names are those of its fields, ``fovea.attention`` has them as arguments; None is absent.

    Args:
        operation: ``attention``, for example.
        inputs: Tensors that it reads.
        outputs: Shapes and dtypes of its results.
        aliases: From the name of a result to that of an input whose memory it takes.
        attributes: Numbers, flags and words.

    Returns:
        The results, in the order of ``outputs``.
    """
    given = {name: value for name, value in inputs.items() if value is not None}
    aliases = aliases or {}
    positions = {name: at for at, name in enumerate(given)}
    hidden = set(aliases.values())
    function = jax.ffi.ffi_call(
        "fovea",
        tuple(outputs.values()),
        vmap_method="sequential",
        input_output_aliases={positions[source]: at for at, name in enumerate(outputs) if (source := aliases.get(name))},
    )
    return function(
        *given.values(),
        operation=operation,
        inputs=",".join("_" if name in hidden else name for name in given),
        outputs=",".join(outputs),
        **{name: _attribute(value) for name, value in attributes.items() if value is not None},
    )


def _attribute(value: bool | float | str) -> np.generic | str:
    if isinstance(value, str):
        return value
    return np.float64(value) if isinstance(value, float) else np.int64(value)


def mask(causal: bool, window: tuple[int | None, int | None] | None) -> dict[str, int | None]:
    """The attributes of a band of keys."""
    left, right = band(causal, window)
    return {"window_left": left, "window_right": right}
