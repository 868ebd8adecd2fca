"""Records to one record: by NumPy, and by the source of the kernels, compiled for the host."""

from __future__ import annotations

import ctypes
import functools

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from backends import CRecord
from qpi_distill._record import RECORD, WORDS, fold
from qpi_distill.distributed.folds import SOURCE, HostFolds, definitions
from toolchain import compiler, run

# What CUDA gives a kernel, for one thread of the host after the other.
SHIM = r"""
#include <cstring>
#define __global__
struct { int x; } threadIdx;
static double __longlong_as_double(long long bits) { double x; std::memcpy(&x, &bits, 8); return x; }
static long long __double_as_longlong(double x) { long long bits; std::memcpy(&bits, &x, 8); return bits; }
#include SOURCE
extern "C" void fold_block(const unsigned long long* records, int ranks, unsigned long long* record) {
  for (threadIdx.x = 0; threadIdx.x < 32; ++threadIdx.x) fold_records(records, ranks, record);
}
"""


@functools.cache
def host_kernels(folder):
    library = folder / "libfold.so"
    (folder / "shim.cpp").write_text(SHIM, encoding="utf-8")
    macros = [f"-D{name}={value}" for name, value in [*definitions(), ("SOURCE", f'"{SOURCE}"')]]
    run([compiler("c++"), "-std=c++17", "-O2", "-ffp-contract=off", "-fPIC", "-shared", "-Wno-unknown-pragmas",
         *macros, folder / "shim.cpp", "-o", library])  # fmt: skip
    return ctypes.CDLL(str(library))


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    return host_kernels(tmp_path_factory.mktemp("fold"))


reals = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300)
small = st.integers(0, 2**61)
words = st.integers(0, 2**32 - 1)
PLACES = {"f8": reals, "i8": small, "u4": words}
records_of = st.lists(st.tuples(*(PLACES[RECORD[name].str[1:]] for name in RECORD.names)), min_size=1, max_size=4).map(
    lambda rows: np.array(rows, RECORD)
)


def expected(records):
    """One after the other, in Python's own numbers."""
    out = np.zeros((), RECORD)
    for name in RECORD.names:
        values = records[name].tolist()
        if name == "faults":
            out[name] = functools.reduce(int.__or__, values)
        elif name == "calls":
            out[name] = sum(values) % 2**32
        elif RECORD[name].kind == "f":
            out[name] = functools.reduce(float.__add__, values, 0.0)
        else:
            out[name] = sum(values) if sum(values) < 2**63 else sum(values) - 2**64
    return out.tobytes()


def as_words(records):
    return records.view(np.int64).reshape(-1, WORDS)


def test_the_record_is_that_of_the_header():
    assert RECORD.itemsize == ctypes.sizeof(CRecord) == 8 * WORDS
    head = CRecord._fields_[:-1]
    assert [(name, getattr(CRecord, name).offset) for name, _ in head] == [
        (name, RECORD.fields[name][1]) for name in RECORD.names[: len(head)]
    ]
    assert RECORD.fields["summary_weight"][1] == CRecord.summary.offset


@given(records_of)
def test_numpy_adds_one_record_after_the_other(records):
    into = np.full(WORDS, -1, np.int64)
    fold(as_words(records), into)
    assert into.tobytes() == expected(records)


@given(records=records_of)
def test_the_kernel_does_the_same(kernels, records):
    into = np.full(WORDS, -1, np.int64)
    kernels.fold_block(records.ctypes.data_as(ctypes.c_void_p), len(records), into.ctypes.data_as(ctypes.c_void_p))
    assert into.tobytes() == expected(records)


@pytest.mark.parametrize("ranks", [1, 2, 7, 64, 1000])
def test_the_order_is_that_of_the_ranks(kernels, ranks):
    rng = np.random.default_rng(ranks)
    records = np.zeros(ranks, RECORD)
    for name in RECORD.names:
        if RECORD[name].kind == "f":  # magnitudes so far apart that any other order rounds otherwise
            records[name] = rng.normal(size=ranks) * 10.0 ** rng.integers(-12, 12, ranks)
    into, other = np.zeros((2, WORDS), np.int64)
    fold(as_words(records), into)
    kernels.fold_block(records.ctypes.data_as(ctypes.c_void_p), ranks, other.ctypes.data_as(ctypes.c_void_p))
    assert into.tobytes() == other.tobytes() == expected(records)
    if ranks >= 64:
        backwards = np.zeros(WORDS, np.int64)
        fold(as_words(records[::-1].copy()), backwards)
        assert backwards.tobytes() != into.tobytes(), "these records do not tell one order from another"


@example([5e-324], 8.0)
@example([1e-40, 0.0], 1.0)
@given(
    st.lists(st.floats(0, 2.0**40), min_size=1, max_size=6),
    st.sampled_from([1.0, 2.0, 8.0]),
)
def test_normalisers(weights, factor):
    scale = np.full(1, np.nan, np.float32)
    HostFolds().normalise(np.array(weights), factor, scale, 0)
    total = functools.reduce(float.__add__, weights)
    with np.errstate(over="ignore"):
        assert scale[0] == (np.float32(np.float64(factor) / total) if total > 0 else 0)


def test_the_kernel_normalises_likewise(kernels):
    kernels.normalise.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_double, ctypes.c_void_p)
    for weights in ([3.0, 0.0, 4.5], [0.0], [1.0], [0.0, 0.0], [1e-3, 7e9]):
        values, got, want = np.array(weights), np.full(1, np.nan, np.float32), np.full(1, np.nan, np.float32)
        HostFolds().normalise(values, 3.0, want, 0)
        kernels.normalise(values.ctypes.data, len(values), 3.0, got.ctypes.data)
        assert got.tobytes() == want.tobytes()


def test_nvrtc_takes_the_kernels():
    """Compiling needs no GPU."""
    core = pytest.importorskip("cuda.core")
    options = core.ProgramOptions(std="c++17", arch="sm_90", define_macro=definitions(), fma=False)
    try:
        program = core.Program(SOURCE.read_text(encoding="utf-8"), "c++", options)
    except Exception as error:
        if type(error).__name__ != "DynamicLibNotFoundError":
            raise
        pytest.skip(f"NVRTC is not installed: {error}")
    assert len(program.compile("cubin").code) > 1000
