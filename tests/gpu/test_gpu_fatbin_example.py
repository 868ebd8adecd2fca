"""The example that loads the shipped fatbin by name through the driver, built and run as its reader would."""

import math
import re

import pytest

import qpi_distill as qpi
from cuda_headers import cuda_include
from toolchain import ROOT, compiler, run


def test_it_runs_and_its_first_step_is_the_formulas(tmp_path):
    program = tmp_path / "seed_kernels"
    source = ROOT / "examples/fatbin/seed_kernels.c"
    run([compiler("c"), "-std=c99", "-isystem", cuda_include(), source, "-o", program, "-l:libcuda.so.1"])
    output = run([program, qpi.get_seed_fatbin()])
    assert "agree on 64 of 64 states" in output

    first = re.search(r"first gradient (\S+), kl (\S+), lam (\S+)", output)
    gradient, kl, lam = (float(number) for number in first.groups())
    # Action 0 is worth 4, the others -4, at tau 2; the policy is uniform over 11 actions.
    best = 1 / (1 + 10 * math.exp(-4))
    other = (1 - best) / 10
    assert gradient == pytest.approx(0.1 * (1 / 11 - best), abs=1e-6)
    assert kl == pytest.approx(best * math.log(11 * best) + 10 * other * math.log(11 * other), abs=1e-5)
    assert lam == pytest.approx(0.12, abs=1e-6)  # far above the dead zone: one step of 1.2


def test_it_names_the_call_that_fails(tmp_path):
    program = tmp_path / "seed_kernels"
    source = ROOT / "examples/fatbin/seed_kernels.c"
    run([compiler("c"), "-std=c99", "-isystem", cuda_include(), source, "-o", program, "-l:libcuda.so.1"])
    (tmp_path / "no.fatbin").write_bytes(b"not a fatbin" + bytes(1000))
    with pytest.raises(AssertionError, match=r"cuModuleLoadData.*CUDA_ERROR_"):
        run([program, tmp_path / "no.fatbin"])
