# SPDX-License-Identifier: Apache-2.0
"""The classes of the real SGLang package that an attention backend meets, on a machine without SGLang's kernels.

The modules in ``REAL`` are SGLang's own files. An object that is false, callable and without effect stands for all that is in its
other modules, and in packages that they import and that are not installed: kernels, servers and models need hundreds of them.
"""

import importlib
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType, SimpleNamespace

REAL = (
    "layers.attention.attention_registry",
    "layers.attention.base_attn_backend",
    "layers.radix_attention",
    "mem_cache.base_swa_memory_pool",
    "mem_cache.memory_pool",
    "mem_cache.swa_memory_pool",
    "model_executor.forward_batch_info",
    "plugins",
    "plugins.hook_registry",
)
_MODULES = {f"sglang.srt.{name}" for name in REAL}
_PACKAGES = {"sglang", "sglang.srt", *(name.rpartition(".")[0] for name in _MODULES)} - _MODULES


class _Nothing:
    """Stands for what an absent module holds. As a decorator it changes nothing."""

    def __init__(self, *_, **__):
        pass

    def __call__(self, *args, **kwargs):
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __getitem__(self, key):
        return self

    def __or__(self, other):
        return self

    def __bool__(self):
        return False

    def __iter__(self):
        return iter(())

    def __mro_entries__(self, bases):
        return ()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    __ror__ = __or__


_ANSWERS = {
    "ceil_align": lambda number, unit: -(-number // unit) * unit,
    "resolved_view": lambda arguments: arguments,
    "maybe_init_custom_mem_pool": lambda **_: (False, None, None),
    "UnquantizedKVCacheMethod": _Nothing,  # what makes a cache's method makes none here
}
"""Names outside of SGLang's own files that count."""


class _Stub(ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _ANSWERS.get(name) or _Nothing()


class _Finder:
    """Finds packages without running their ``__init__``, and stubs for modules."""

    def __init__(self, root):
        self.root, self.others = root, False

    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top == "sglang":
            return None if name in _MODULES else ModuleSpec(name, self, is_package=True)
        missing = self.others and top in ("msgspec", "psutil", "tqdm", "triton", "zmq") and PathFinder.find_spec(top) is None
        return ModuleSpec(name, self, is_package=True) if missing else None

    def create_module(self, spec):
        return ModuleType(spec.name) if spec.name in _PACKAGES else _Stub(spec.name)

    def exec_module(self, module):
        module.__path__ = [str(self.root / module.__name__.replace(".", "/"))] if module.__name__ in _PACKAGES else []


def installed():
    """Whether SGLang's files are there, which this does not import."""
    return PathFinder.find_spec("sglang") is not None


def load():
    """The names of all real modules."""
    finder = _Finder(Path(PathFinder.find_spec("sglang").submodule_search_locations[0]).parent)
    sys.meta_path.insert(0, finder)
    before, finder.others = set(sys.modules), True
    names = {}
    for name in sorted(_MODULES):
        names |= vars(importlib.import_module(name))
    finder.others = False  # other tests, and torch, find none of them
    for name in set(sys.modules) - before:
        if isinstance(sys.modules[name], _Stub) and not name.startswith("sglang"):
            del sys.modules[name]
    return SimpleNamespace(**names)
