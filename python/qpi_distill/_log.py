"""The logger. Quiet unless the application asks for DEBUG, and never on the path of a step."""

from __future__ import annotations

import logging
from pathlib import Path

__all__ = ["log_library", "logger"]

logger = logging.getLogger("qpi_distill")
logger.addHandler(logging.NullHandler())


def log_library(version: str) -> None:
    """Say which library this process has loaded: what the environment names may have come before our own."""
    if not logger.isEnabledFor(logging.DEBUG):
        return
    with Path("/proc/self/maps").open(encoding="utf-8", errors="replace") as maps:
        loaded = {line[line.index("/") :].rstrip() for line in maps if "libqpi_distill" in line}
    logger.debug("version %s, library %s", version, ", ".join(sorted(loaded)) or "not found")
