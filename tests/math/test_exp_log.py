"""exp and log of the row mathematics, compiled for the host, against float64."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

CUDA = Path(__file__).parents[2] / "cuda"
COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")

SOURCE = """
#include "exp_log.h"
extern "C" void exp_all(const float* x, float* y, long n) {
  for (long i = 0; i < n; ++i) y[i] = qpi::exp_nonpositive(x[i]);
}
extern "C" void exp_clamped_all(const float* x, float* y, long n) {
  for (long i = 0; i < n; ++i) y[i] = qpi::exp_clamped(x[i]);
}
extern "C" void exp_in_range_all(const float* x, float* y, long n) {
  for (long i = 0; i < n; ++i) y[i] = qpi::exp_in_range(x[i]);
}
extern "C" void log_all(const float* x, float* y, long n) {
  for (long i = 0; i < n; ++i) y[i] = qpi::log_at_least_one(x[i]);
}
"""


@pytest.fixture(scope="module")
def functions(tmp_path_factory):
    if COMPILER is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("exp_log")
    (folder / "exp_log.cpp").write_text(SOURCE)
    library = folder / "libexp_log.so"
    flags = [
        "-std=c++17",
        "-O2",
        "-ffp-contract=off",
        "-shared",
        "-fPIC",
        f"-I{CUDA / 'math'}",
        f"-I{CUDA / 'include'}",
    ]
    subprocess.run([COMPILER, *flags, str(folder / "exp_log.cpp"), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


def apply(function, x):
    x = np.ascontiguousarray(x, np.float32)
    y = np.empty_like(x)
    function(x.ctypes.data_as(ctypes.c_void_p), y.ctypes.data_as(ctypes.c_void_p), ctypes.c_long(x.size))
    return y


def every_seventh(low, high):
    """Floats from low to high in steps of a few hundred bit patterns, so that all exponents are met."""
    ends = np.array([low, high], np.float32).view(np.uint32)
    return np.arange(ends.min(), ends.max(), 601, dtype=np.uint32).view(np.float32)


def test_exp(functions):
    x = -every_seventh(1e-38, 87.0)
    want = np.exp(x.astype(np.float64))
    bound = (1e-7 + 1.4e-8 * np.abs(x.astype(np.float64))) * want
    for function in (functions.exp_all, functions.exp_clamped_all):
        assert (np.abs(apply(function, x) - want) <= bound).all()


def test_exp_on_both_sides_of_zero(functions):
    x = every_seventh(1e-38, 87.0)
    x = np.concatenate([-x, [0], x]).astype(np.float32)
    want = np.exp(x.astype(np.float64))
    bound = (1e-7 + 1.4e-8 * np.abs(x.astype(np.float64))) * want
    assert (np.abs(apply(functions.exp_in_range_all, x) - want) <= bound).all()


def test_exp_at_its_ends(functions):
    x = np.float32([0.0, -0.0, -87.0, -87.5, -104, -1e30, -np.inf, np.nan])
    y = apply(functions.exp_all, x)
    assert y[0] == y[1] == 1
    assert y[2] == pytest.approx(np.exp(-87.0), rel=1e-6)
    assert not y[3:7].any()
    clamped = apply(functions.exp_clamped_all, x[:7])
    assert (clamped[:3] == y[:3]).all()
    assert (clamped[3:] == y[2]).all()


def test_exp_falls_with_its_argument(functions):
    x = -np.linspace(0, 87, 2_000_000, dtype=np.float32)
    y = apply(functions.exp_all, x).astype(np.float64)
    assert (np.diff(y) <= np.spacing(y[1:].astype(np.float32))).all()


def test_log(functions):
    x = every_seventh(1.0, 1e38)
    want = np.log(x.astype(np.float64))
    assert (np.abs(apply(functions.log_all, x) - want) <= 1e-7 * np.maximum(1, want)).all()
    counts = np.arange(1, 5000, dtype=np.float32)
    assert apply(functions.log_all, counts)[0] == 0
    assert np.abs(apply(functions.log_all, counts) - np.log(counts.astype(np.float64))).max() < 1e-6
