from qpi_distill.c_api cimport qpi_status


cdef int check(qpi_status status) except -1
