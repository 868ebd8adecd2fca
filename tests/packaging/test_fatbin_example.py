"""The program that loads the shipped fatbin compiles; tests/gpu runs it."""

from cuda_headers import cuda_include
from toolchain import ROOT, compiler, run


def test_it_compiles(tmp_path):
    flags = ["-std=c99", "-pedantic-errors", "-Wall", "-Wextra", "-Wconversion", "-Werror"]
    source = ROOT / "examples/fatbin/seed_kernels.c"
    # A system header, so that the warnings are about the example.
    run([compiler("c"), *flags, "-isystem", cuda_include(), "-c", source, "-o", tmp_path / "seed_kernels.o"])
