"""Results as a run would leave them."""

from benchmarks.cases import CPU_CASES, GPU_CASES, MILLION, Case
from benchmarks.results import case_fields

SANITIZERS = ("memcheck", "racecheck", "initcheck", "synccheck")


def row(rows=MILLION, us=280.0, fraction=0.9, backend="cuda", **vs):
    """A row of the plain step."""
    case = Case(rows, backend=backend)
    return {**case_fields(case), "kernel": "tile", "us": us, "fraction_of_copy": fraction, "vs": vs}


def result(**changes):
    """A small result."""
    return {
        "device": "A",
        "driver": "580",
        "cuda": "13.0",
        "date": "then",
        "copy_tb_s": 4.28,
        "tests": {"passed": 10, "failed": 1, "skipped": 2, "failures": ["gpu: tests.x::test_y"]},
        "sanitizer": dict.fromkeys(SANITIZERS, "passed"),
        "step": [
            row(seed=5.0, torch_compile=2.0),
            row(32, 4.0, 0.01, seed=1.2),
            row(65536, 9000.0, None, "cpu", numpy=6.0),
        ],
        "host_us": {"launches": 2, "rows": 32, "bare_c": 4.0, "bound": 5.0, "torch": 7.0},
        "import_s": {"numpy": 0.1, "qpi_distill": 0.15},
        **changes,
    }


def whole(device="NVIDIA H200", copy_tb_s=4.25, share=0.995):
    """A result in which everything was measured, on a device that is `share` of the copy rate fast, or takes 2 us."""
    steps = []
    for case in (*GPU_CASES, *CPU_CASES):
        us = max(case.bytes / (share * copy_tb_s * 1e6), 2.0)
        fraction = round(case.bytes / (us * copy_tb_s * 1e6), 4) if case.backend == "cuda" else None
        steps.append(
            {
                **case_fields(case),
                "kernel": "tile" if case.backend == "cuda" else "avx512",
                "us": round(us, 3),
                "spread": 0.01,
                "fraction_of_copy": fraction,
                "error": {"grad": 3e-7, "kl": 2e-8},
                "vs": dict.fromkeys(case.peers, 12.0),
            }
        )
    host = {"launches": 1, "rows": 32, "bare_c": 4.0, "bound": 4.4, "pointers": 4.6}
    return result(
        device=device,
        copy_tb_s=copy_tb_s,
        step=steps,
        host_us=host | {"torch": 5.2, "cupy": 7.5, "numba": 7.9},
        host_spread=dict.fromkeys(("bound", "torch"), 0.02),
        cpu={"model": "Some CPU", "isa": "avx512", "cores": 2},
    )
