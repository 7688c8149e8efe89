# SPDX-License-Identifier: Apache-2.0
"""Additions of the site to docs/: the front page is the README, links that leave docs/ lead to the repository, and the C++ and C
reference, which Doxygen has made before, is part of the site, so that links into it are checked. MkDocs follows the links of its
pages; paths in code, in trees and in the repository's other documents are looked up here."""

import logging
import posixpath
import re
import sys
from pathlib import Path

import tomllib
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import repository  # noqa: E402

LOG = logging.getLogger("mkdocs.hooks.paths")
CPP = ROOT / "build" / "docs" / "doxygen"
# Documents that lie elsewhere, and their pages.
OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}
SOURCES = {page: source for source, page in OUTSIDE.items()}

FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
TREE = re.compile(r"^```tree\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PAGE_LINK = re.compile(r'href="([\w-]+)\.md(?=["#])')
PATH = re.compile(r"`(?:\./)?(\w[\w./-]*/[\w./-]*)`")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The repository's address has one place, pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    config.repo_url = project.get("urls", {}).get("Repository")
    config.repo_name = "Repository" if config.repo_url else None
    return config


def on_pre_build(config: MkDocsConfig) -> None:
    for document in repository.files(ROOT):
        if document.suffix == ".md":
            for name in missing_paths(ROOT, document, (ROOT / document).read_text(encoding="utf-8")):
                LOG.warning("%s names %s, which is not there", document.as_posix(), name)


def missing_paths(root: Path, document: Path, text: str) -> list[str]:
    """Paths of the repository that a document names in vain. OPERATION and its like stand for any name."""
    plain = FENCE.sub("", text)
    names = [name for name in PATH.findall(plain) if (root / name.split("/")[0]).is_dir()]
    names += [name for tree in TREE.findall(text) for name in tree_paths(tree)]
    missing = [name for name in names if not re.search(r"[A-Z]{5,}", name) and not (root / name).exists()]
    if document.parts[0] == "docs":
        return missing
    links = [target.split("#")[0] for _, _, target in LINK.findall(plain) if not re.match(r"\w+:", target)]
    return missing + [name for name in links if not (root / document).parent.joinpath(name).exists()]


def tree_paths(tree: str) -> list[str]:
    """`  name/  what it holds`, deeper lines inside the last folder above them."""
    paths, parents = [], []
    for line in tree.splitlines():
        indent, names = len(line) - len(line.lstrip()), re.split(r"\s{2,}", line.strip())[0].split()
        while parents and parents[-1][0] >= indent:
            parents.pop()
        paths += [(parents[-1][1] if parents else "") + name for name in names]
        if names and names[0].endswith("/"):
            parents.append((indent, paths[-len(names)]))
    return paths


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    for path in sorted(CPP.rglob("*.*")):
        name = f"cpp/{path.relative_to(CPP).as_posix()}"
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links of notebooks, which MkDocs does not follow, lead to pages."""
    if not page.file.src_uri.endswith(".ipynb"):
        return html
    for name in set(PAGE_LINK.findall(html)):
        if files.get_file_from_path(f"{name}.md") is None:
            LOG.warning("%s links to %s.md, which is not there", page.file.src_uri, name)
    return PAGE_LINK.sub(r'href="\1.html', html)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    parts = FENCE.split(markdown)  # text and fences by turns
    return "".join(
        part if number % 2 else LINK.sub(lambda link: _moved(link, page, config), part) for number, part in enumerate(parts)
    )


def _moved(link: re.Match, page: Page, config: MkDocsConfig) -> str:
    """The link as the site has it. Files outside of docs/ have a place only in the repository."""
    image, text, target = link.groups()
    name, mark, anchor = target.partition("#")
    if not name or re.match(r"\w+:", name):
        return link.group(0)
    folder = "" if page.file.src_uri in SOURCES else "docs"
    name = posixpath.normpath(posixpath.join(folder, name))
    if name in OUTSIDE or name.startswith("docs/"):
        return f"{image}[{text}]({OUTSIDE.get(name) or name.removeprefix('docs/')}{mark}{anchor})"
    if not (ROOT / name).exists():
        return link.group(0)  # MkDocs says so
    return f"[{text}]({config.repo_url}/blob/main/{name}{mark}{anchor})" if config.repo_url else text
