"""Starts a script as the ranks of a job."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NEEDS = {"gloo": "torch", "mpi": "mpi4py"}


def mpiexec() -> str | None:
    """The launcher that belongs to mpi4py's MPI: that of a wheel lies beside the interpreter."""
    return shutil.which("mpiexec", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""))))


def launch(way: str, size: int, script: Path, *arguments: object) -> str:
    """Run a script as so many ranks; they all have to succeed. Returns what they print."""
    if importlib.util.find_spec(NEEDS[way]) is None:
        pytest.skip(f"{NEEDS[way]} is not installed")
    words = [str(argument) for argument in arguments]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    if way == "mpi":
        program = mpiexec()
        if program is None:
            pytest.skip("mpiexec is not installed")
        command = [program, "-n", str(size), sys.executable, str(script), *words]
        # Open MPI refuses root and more ranks than cores unless it is told otherwise; MPICH does not look at these.
        environment |= {
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_rmaps_base_oversubscribe": "1",
            "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        }
        commands = [(command, environment)]
    else:
        commands = [
            ([sys.executable, str(script), *words], {**environment, "RANK": str(rank), "WORLD_SIZE": str(size)})
            for rank in range(size)
        ]
    running = [
        subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for command, env in commands
    ]
    try:
        texts = [process.communicate(timeout=240)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0] * len(running), "\n".join(texts)
    return "".join(texts)
