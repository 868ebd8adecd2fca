"""What several processes find when they run `rank.py` together, once for each way to connect them."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent
sys.path.append(str(HERE))

from launching import launch  # noqa: E402

WAYS = [("gloo", 2), ("gloo", 3), ("mpi", 2), ("mpi", 4)]


@pytest.fixture(scope="session", params=WAYS, ids=lambda way: f"{way[0]}-{way[1]}")
def job(request, tmp_path_factory):
    """For each rank, its arrays by "case/name"."""
    way, size = request.param
    folder = tmp_path_factory.mktemp(f"{way}-{size}")
    launch(way, size, HERE / "rank.py", way, folder)
    return [dict(np.load(folder / f"{rank}.npz")) for rank in range(size)]
