# SPDX-License-Identifier: Apache-2.0
"""The Python code in the documents runs, page by page, each with names of its own."""

import importlib.util
import os
import sys
from pathlib import Path
from unittest import SkipTest

import pytest
import torch

from fovea.compat import _MODULES

sybil = pytest.importorskip("sybil")
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser  # noqa: E402

DOCS = Path(__file__).parents[2] / "docs"
INSTALLED = {name for modules in _MODULES.values() for name in modules}
PARSERS = [PythonCodeBlockParser(), SkipParser()]
PAGES = [page for page in sorted(DOCS.glob("*.md")) if "```python\n" in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page(page):
    before = dict(sys.modules)
    try:
        run_page(page)
    finally:  # pages install drop-ins under the names of other packages
        for name in sys.modules.keys() & INSTALLED:
            del sys.modules[name]
        sys.modules.update({name: before[name] for name in before.keys() & INSTALLED})


def run_page(page):
    document = sybil.Sybil(PARSERS, path=str(DOCS)).parse(page)
    document.namespace |= {
        "cuda": torch.cuda.is_available(),
        "transformers": importlib.util.find_spec("transformers") is not None,
    }
    ran = 0
    for example in document.examples():
        try:
            example.evaluate()
            ran += 1
        except SkipTest:
            pass
    assert ran > 0


def test_notebook():
    """The notebook runs, and prints what it shows."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    shown = nbformat.read(DOCS / "tour.ipynb", as_version=4)
    run = nbformat.read(DOCS / "tour.ipynb", as_version=4)
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    nbclient.NotebookClient(run, timeout=120, kernel_name="python3").execute()
    for before, after in zip(shown.cells, run.cells, strict=True):
        assert text_of(before) == text_of(after)


def text_of(cell) -> str:
    return "".join(output.get("text", "") for output in cell.get("outputs", []))
