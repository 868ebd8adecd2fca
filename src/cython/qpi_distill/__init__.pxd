# Marks the package for `cimport`: downstream modules use `from qpi_distill.c_api cimport ...`.
