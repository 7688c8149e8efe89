# SPDX-License-Identifier: Apache-2.0
"""Loads a program of tools/ as a module, and makes small repositories for it to look at."""

import importlib.util
import sys
import tempfile
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]


def load(name: str) -> ModuleType:
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(ROOT / "tools"))
    loader = SourceFileLoader(name, str(ROOT / "tools" / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    sys.modules[name] = module
    loader.exec_module(module)
    return module


class Repository:
    """A throw-away tree: `with Repository({"src/a.cpp": "..."}) as root`."""

    def __init__(self, files: dict[str, str]):
        self.files = files

    def __enter__(self) -> Path:
        self.folder = tempfile.TemporaryDirectory()
        root = Path(self.folder.name)
        for name, text in self.files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        return root

    def __exit__(self, *exception: object) -> None:
        self.folder.cleanup()
