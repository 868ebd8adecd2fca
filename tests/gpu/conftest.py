"""Everything in this folder needs a GPU. Nothing here imports CUDA before a test asks for it."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX would take most of the GPU's memory at once


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and not item.get_closest_marker("gpu2"):
            item.add_marker(pytest.mark.gpu)
