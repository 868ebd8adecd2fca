"""The device code as shipped: which GPUs it is for, and that no kernel holds an atomic."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
from pathlib import Path

import pytest

import qpi_distill as qpi
from toolchain import ROOT, run

pytestmark = pytest.mark.usefixtures("with_cuda")

ARCHITECTURES = {"75", "80", "86", "89", "90", "100", "110", "120"}
PTX = "100"  # of the newest family: for every GPU that comes after
# ATOMS.ARRIVE is the arrival at a barrier in shared memory: it orders, and adds nothing up.
ATOMIC = re.compile(r"(?<![\w.])(?:ATOM|ATOMG|ATOMS|RED|REDG|REDAS)\b(?:\.\w+)*")
ALLOWED = re.compile(r"ATOMS\.ARRIVE\b")


def tool(name):
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations if spec else ():
        path = Path(folder, "cu13/bin", name)
        if path.exists():
            return path
    pytest.skip(f"{name} is not installed (pip install nvidia-cuda-{name})")


def cuobjdump(*arguments):
    env = {**os.environ, "NVDISASM_PATH": str(tool("nvdisasm").parent)}
    env["PATH"] = f"{env['NVDISASM_PATH']}{os.pathsep}{env['PATH']}"
    return run([tool("cuobjdump"), *arguments], env=env)


@functools.cache
def cubins(path):
    """The architectures that a file holds SASS for, once per object file."""
    return re.findall(r"\.sm_(\d+\w?)\.cubin", cuobjdump("--list-elf", path))


def need(path, architectures):
    """Skip where a developer has built for fewer; a wheel has no excuse."""
    missing = set(architectures) - set(cubins(path))
    if missing and "QPI_WHEEL" not in os.environ:
        pytest.skip(f"built without sm_{', sm_'.join(sorted(missing, key=int))}")


def files():
    return [Path(qpi.get_library()), Path(qpi.get_library_dir(), "qpi_seed_kernels.fatbin")]


@pytest.mark.parametrize("index", [0, 1], ids=["library", "fatbin"])
def test_one_cubin_for_every_generation_and_ptx_for_what_comes_after(index):
    path = files()[index]
    need(path, ARCHITECTURES)
    assert set(cubins(path)) == ARCHITECTURES
    assert len({cubins(path).count(arch) for arch in ARCHITECTURES}) == 1, cubins(path)
    assert set(re.findall(r"\.sm_(\d+\w?)\.ptx", cuobjdump("--list-ptx", path))) == {PTX}


def test_the_fatbin_holds_the_seed_kernels_under_their_own_names():
    symbols = cuobjdump("--dump-elf-symbols", files()[1])
    for kernel in ("rl_q_pi_distill_grad", "rl_q_distill_lambda_controller"):
        found = re.findall(rf"\bENTRY\s+{kernel}$", symbols, re.MULTILINE)
        assert len(found) == len(cubins(files()[1])) > 0, kernel


def test_the_library_has_no_host_stub_of_a_seed_kernel():
    library = files()[0].read_bytes()
    assert b"rl_q_pi_distill_grad\0" not in library
    assert b"rl_q_distill_lambda_controller\0" not in library


@pytest.mark.parametrize("arch", sorted(ARCHITECTURES, key=int))
@pytest.mark.parametrize("index", [0, 1], ids=["library", "fatbin"])
def test_no_kernel_holds_an_atomic(index, arch):
    need(files()[index], [arch])
    sass = cuobjdump("--dump-sass", f"--gpu-architecture=sm_{arch}", files()[index])
    functions = re.findall(r"Function : (\S+)", sass)
    assert functions
    assert "EXIT" in sass
    found = [match for match in ATOMIC.findall(sass) if not ALLOWED.match(match)]
    assert not found, sorted(set(found))


def test_the_pattern_knows_an_atomic_when_it_sees_one():
    for line in (
        "RED.E.ADD.F32.FTZ.RN.STRONG.GPU [R2.64], R5",
        "ATOMG.E.ADD.STRONG.GPU PT, R3, [R2]",
        "ATOMS.ADD R0, [R1], R2",
    ):
        assert any(not ALLOWED.match(match) for match in ATOMIC.findall(line)), line
    for line in (
        "SYNCS.ARRIVE.TRANS64 RZ, [UR4], RZ",
        "ATOMS.ARRIVE.64 RZ, [R2]",
        "REDUX.SUM UR4, R2",
        "BAR.RED.OR.DEFER_BLOCKING 0x0, P0",
        "FADD R2, R3, R4",
    ):
        assert all(ALLOWED.match(match) for match in ATOMIC.findall(line)), line


def test_these_are_the_architectures_of_the_build():
    text = (ROOT / "cmake/QpiEnableCuda.cmake").read_text(encoding="utf-8")
    assert set(re.findall(r"\bsm_(\d+)\b", text)) == ARCHITECTURES
