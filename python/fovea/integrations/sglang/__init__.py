# SPDX-License-Identifier: Apache-2.0
"""Fovea as an attention backend of SGLang (0.5.13 to 0.5.23).

$ pip install dist/fovea_attention-*.whl
$ python -m sglang.launch_server --model-path MODEL --attention-backend fovea

SGLang calls :func:`register` through the entry point group ``sglang.srt.plugins``. It names the backend and does nothing else: no
function of SGLang is replaced, and servers with another ``--attention-backend`` run as before.
"""

import logging
import re
from importlib.metadata import PackageNotFoundError, version

OLDEST, NEWEST = (0, 5, 13), (0, 5, 23)
"""The releases of SGLang whose interface the backend knows."""
_logger = logging.getLogger(__name__)


def register(name: str = "fovea") -> None:
    """Makes ``--attention-backend NAME`` available. A release of SGLang outside of the known ones gets a warning instead.

    Args:
        name: The name of the backend.
    """
    found = _version()
    if found is None or not OLDEST <= _numbers(found) <= NEWEST:
        _logger.warning(
            "fovea: got SGLang %s, want %s to %s; SGLang continues without --attention-backend %s",
            found,
            *(".".join(map(str, release)) for release in (OLDEST, NEWEST)),
            name,
        )
        return
    from sglang.srt import server_args
    from sglang.srt.layers.attention.attention_registry import register_attention_backend

    register_attention_backend(name)(_create)
    server_args.add_attention_backend_choices([name])
    server_args.add_deterministic_attention_backend_choices([name])
    server_args.add_radix_supported_deterministic_attention_backend_choices([name])


def _create(runner):
    from fovea.integrations.sglang._backend import Backend

    return Backend(runner)


def _version() -> str | None:
    try:
        return version("sglang")
    except PackageNotFoundError:
        return None


def _numbers(text: str) -> tuple[int, ...]:
    """(0, 5, 12) of 0.5.12.post1."""
    return tuple(map(int, re.findall(r"\d+", text)[:3]))
