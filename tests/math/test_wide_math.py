"""exp, log and sin of the control laws, compiled for the host, against the C library's."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

CUDA = Path(__file__).parents[2] / "cuda"
COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")

SOURCE = """
#include "wide_math.h"
#define ALL(name)                                                             \\
  extern "C" void name##_all(const double* x, double* y, long n) {            \\
    for (long i = 0; i < n; ++i) y[i] = qpi::wide_##name(x[i]);               \\
  }
ALL(exp)
ALL(log)
ALL(sin)
"""


@pytest.fixture(scope="module")
def functions(tmp_path_factory):
    if COMPILER is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("wide_math")
    (folder / "wide_math.cpp").write_text(SOURCE)
    library = folder / "libwide_math.so"
    flags = ["-std=c++17", "-O2", "-ffp-contract=off", "-shared", "-fPIC", f"-I{CUDA / 'math'}"]
    subprocess.run([COMPILER, *flags, str(folder / "wide_math.cpp"), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


def apply(function, x):
    x = np.ascontiguousarray(x, np.float64)
    y = np.empty_like(x)
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in (x, y)]
    function(*pointers, ctypes.c_long(x.size))
    return y


def ulps(got, want):
    return np.abs(got - want) / np.spacing(np.abs(want))


def test_exp(functions):
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-700, 700, 200_000), rng.normal(size=200_000) * 1e-3, [0.0, 700, -700]])
    assert ulps(apply(functions.exp_all, x), np.exp(x)).max() <= 2
    assert apply(functions.exp_all, [0.0])[0] == 1
    assert np.array_equal(apply(functions.exp_all, [800, np.inf, -800, -np.inf]), np.exp([700.0, 700, -700, -700]))


def test_log(functions):
    rng = np.random.default_rng(1)
    x = np.concatenate([np.exp(rng.uniform(-690, 690, 200_000)), 1 + rng.normal(size=200_000) * 1e-4])
    smallest = [np.finfo(np.float64).tiny, float(np.float32(1e-45)), np.finfo(np.float64).max, np.sqrt(0.5)]
    x = np.concatenate([x, smallest])
    assert ulps(apply(functions.log_all, x), np.log(x)).max() <= 2
    assert apply(functions.log_all, [1.0])[0] == 0


def test_sin(functions):
    x = np.concatenate([np.linspace(-np.pi / 2, np.pi / 2, 200_001), np.random.default_rng(2).normal(size=999) * 1e-5])
    got, want = apply(functions.sin_all, x), np.sin(x)
    assert ulps(got[x != 0], want[x != 0]).max() <= 2
    assert np.array_equal(apply(functions.sin_all, [0.0, np.pi / 2, -np.pi / 2]), [0, 1, -1])
