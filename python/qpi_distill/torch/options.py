"""The options of a loss as text: what a custom operator can take, in any process."""

from __future__ import annotations

import functools
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import torch

from .._options import Options

if TYPE_CHECKING:
    from typing import Any

__all__ = ["options_of", "options_text"]


@torch.compiler.assume_constant_result
def options_text(reduction: str, /, **choices: Any) -> str:
    """Return the options of a call as JSON, checked by the library. The compiler sees a constant.

    Raises
    ------
    ValueError, TypeError
        As for `qpi_distill.Distiller`.
    """
    options = Options.of(reduction, choices)
    options.check()
    return _text(options)


@functools.cache
def _text(options: Options) -> str:
    return json.dumps(asdict(options))


@functools.cache
def options_of(text: str) -> Options:
    """Return the options that `options_text` wrote."""
    values = json.loads(text)
    return Options.of(values.pop("reduction"), values)
