# SPDX-License-Identifier: Apache-2.0
"""Parts that the checks in this folder share: the repository's own files, what its build makes, and how findings are reported.

As a program it prints the files whose names end in one of its arguments: `tools/repository.py .cpp .hpp`.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
IGNORED_FOLDERS = {".git", ".venv", ".cache", "__pycache__", "dist", ".pytest_cache", ".ruff_cache"}


def files(root: Path) -> list[Path]:
    """Every file of the repository, tracked or new, relative to `root` and sorted; what git ignores is left out."""
    command = ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    if listed.returncode == 0:
        names = [Path(name) for name in listed.stdout.split("\0") if name]
    else:  # an unpacked archive
        names = [path.relative_to(root) for path in root.rglob("*") if path.is_file()]
    kept = [name for name in names if not is_ignored(name) and (root / name).is_file()]
    return sorted(set(kept))


def is_ignored(name: Path) -> bool:
    return any(part in IGNORED_FOLDERS or part.endswith(".egg-info") for part in name.parts) or name.parts[0].startswith("build")


def built(build: Path, folder: str, suffix: str) -> list[Path]:
    """Files that Ninja makes in a folder of the build and has made, sorted. An object whose source is gone is left out."""
    command = ["ninja", "-C", str(build), "-t", "targets", "all"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    paths = {(build / line.rpartition(":")[0]).resolve() for line in listed}
    within = (build / folder).resolve()
    return sorted(path for path in paths if path.name.endswith(suffix) and within in path.parents and path.is_file())


def report(tool: str, findings: list[str], checked: str) -> int:
    """Prints the findings, one a line, or one line that says what was checked. Returns the exit status."""
    if findings:
        print("\n".join(findings))
        print(f"{tool}: {len(findings)} to repair", file=sys.stderr)
        return 1
    print(f"{tool}: {checked}, nothing to repair")
    return 0


if __name__ == "__main__":
    for file in files(ROOT):
        if file.name.endswith(tuple(sys.argv[1:])):
            print(file.as_posix())
