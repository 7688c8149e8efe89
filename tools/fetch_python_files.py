#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Installs only the Python files of a wheel, by reading ranges of it: 7 MiB in the place of vLLM's 300.

fetch_python_files.py vllm==0.26.0 FOLDER
"""

import io
import json
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path

_GAP = 1 << 16  # bytes between two files that are read along with them
_HEADER = 1 << 10  # bytes that a file's header in the archive has at most, beside its name


def main() -> int:
    requirement, folder = sys.argv[1:]
    url = _url(requirement)
    size, tail = _tail(url)
    archive = zipfile.ZipFile(_Parts(size, [(size - len(tail), tail)]))
    members = [each for each in archive.infolist() if each.filename.endswith((".py", "/METADATA"))]
    parts = [(begin, _read(url, begin, end)) for begin, end in _ranges(members, size)]
    archive.fp = _Parts(size, [*parts, (size - len(tail), tail)])
    archive.extractall(Path(folder), members)
    print(f"{len(members)} files of {url.rpartition('/')[2]}, {sum(len(part) for _, part in parts) >> 20} MiB read")
    return 0


def _url(requirement: str) -> str:
    """Where pip would get the wheel from."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--no-deps", "--ignore-installed"]
    report = subprocess.run([*command, "--report", "-", requirement], check=True, capture_output=True, text=True).stdout
    return json.loads(report)["install"][0]["download_info"]["url"]


def _tail(url: str) -> tuple[int, bytes]:
    """The size of the archive and its end, which has the list of its files."""
    with urllib.request.urlopen(urllib.request.Request(url, method="HEAD")) as answer:
        size = int(answer.headers["Content-Length"])
    return size, _read(url, max(size - (1 << 21), 0), size)


def _read(url: str, begin: int, end: int) -> bytes:
    with urllib.request.urlopen(urllib.request.Request(url, headers={"Range": f"bytes={begin}-{end - 1}"})) as answer:
        data = answer.read()
    if len(data) != end - begin:
        raise RuntimeError(f"{url}: got {len(data)} bytes, want {end - begin} from byte {begin} on")
    return data


def _ranges(members: list[zipfile.ZipInfo], size: int) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for each in sorted(members, key=lambda each: each.header_offset):
        begin = each.header_offset
        end = min(begin + _HEADER + len(each.filename) + each.compress_size, size)
        if ranges and begin - ranges[-1][1] <= _GAP:
            ranges[-1] = (ranges[-1][0], max(end, ranges[-1][1]))
        else:
            ranges.append((begin, end))
    return ranges


class _Parts(io.RawIOBase):
    """A file of which only parts are here."""

    def __init__(self, size: int, parts: list[tuple[int, bytes]]) -> None:
        self._size, self._parts, self._at = size, parts, 0

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, count: int = -1) -> bytes:
        end = self._size if count < 0 else min(self._at + count, self._size)
        for begin, data in self._parts:
            if begin <= self._at and end <= begin + len(data):
                piece = data[self._at - begin : end - begin]
                self._at = end
                return piece
        raise RuntimeError(f"bytes {self._at} to {end} of the archive are not here")


if __name__ == "__main__":
    sys.exit(main())
