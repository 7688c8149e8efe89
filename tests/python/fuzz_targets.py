# SPDX-License-Identifier: Apache-2.0
"""The functions that the fuzzer calls: how good calls are made, what results are judged by, and what each may write and raise."""

import inspect
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, NamedTuple

from torch import Tensor

import fovea
import fuzz_core
import fuzz_distributed
import fuzz_flash
import fuzz_flash_attn
import fuzz_flashinfer
import judge
from fovea._dispatch import OPERATORS
from fuzz_draw import Draw


class Target(NamedTuple):
    name: str
    function: Callable[..., Any]
    make: Callable[[Draw], dict[str, Any]]
    check: Callable[[dict[str, Any], Any, Any], None]
    """Asserts on a call, its result, and a copy of its arguments from before it."""
    writes: frozenset[str]
    raises: tuple[type[Exception], ...]
    names: frozenset[str]
    """Its arguments."""
    without: tuple[str, ...] = ()
    """Changes that are not made."""


SHRUNK = ("storage shrunk",)
"""Not where torch's own functions get tensors first: they read past the end of such a storage, or say so in their words."""
OUTPUTS = ("out", "lse", "max_logits")
_WRITES = judge.CACHES | {"paged_cache_append": [f"{name}{scale}_cache" for name in "kv" for scale in ("", "_scale")]}
_WRITES |= {"dequantize_latent_cache": ("rows",), "attention_backward": ()}


def core(name: str) -> Target:
    function = getattr(fovea, name)
    return Target(
        f"fovea.{name}",
        function,
        fuzz_core.MAKERS[name],
        partial(judge.check, name),
        frozenset(_WRITES.get(name, OUTPUTS)),
        (ValueError, TypeError, NotImplementedError),
        frozenset(inspect.signature(function).parameters),
        ("qk[4]", "qk[5]"),  # not looked at, or only where lse is wanted
    )


def planned(target: Target) -> Target:
    """A plan of the call, run twice: over the tensors of the planning, and over the same given again."""
    plan = getattr(fovea, f"plan_{target.function.__name__}")

    @wraps(target.function)
    def plan_and_run(*args: Any, **kwargs: Any) -> Any:
        made = plan(*args, **kwargs)
        made.run()
        return made.run(
            **{name: value for name, value in kwargs.items() if isinstance(value, Tensor) and name in made._description}
        )

    def make(draw: Draw) -> dict[str, Any]:
        return {name: value for name, value in target.make(draw).items() if name != "schedule"}

    names = target.names | set(OPERATORS[target.function.__name__].names)  # those of run()
    return target._replace(name=f"fovea.{plan.__name__}", function=plan_and_run, make=make, names=names)


def drop_in(function: Any, make: Any, check: Any, writes: tuple[str, ...], raises: tuple[type[Exception], ...]) -> Target:
    name = f"{function.__module__.removeprefix('fovea.')}.{function.__qualname__}"
    names = frozenset(inspect.signature(function).parameters)
    return Target(name, function, make, check, frozenset(writes), raises, names, SHRUNK)


CORE = [core(name) for name in fuzz_core.MAKERS]
PLANS = [planned(target) for target in CORE if hasattr(fovea, f"plan_{target.function.__name__}")]
DROP_INS = [
    drop_in(*each)
    for each in fuzz_flash_attn.FUNCTIONS + fuzz_flash.FUNCTIONS + fuzz_flashinfer.FUNCTIONS + fuzz_distributed.FUNCTIONS
]
TARGETS = CORE + PLANS + DROP_INS
