"""A policy table distilled from a fixed critic by the C library, without going through Python objects."""

from libc.stdint cimport uint32_t
from libc.stdlib cimport calloc, free

from qpi_distill.c_api cimport (
    QPI_REDUCTION_SUM,
    QPI_SUCCESS,
    QPI_VALUE_SCALE_NONE,
    qpi_batch,
    qpi_batch_init,
    qpi_isv,
    qpi_isv_init,
    qpi_isv_reset,
    qpi_last_error_message,
    qpi_layout_words,
    qpi_plan,
    qpi_plan_create,
    qpi_plan_destroy,
    qpi_problem,
    qpi_problem_init,
    qpi_status,
    qpi_step,
    qpi_workspace_init,
    qpi_workspace_size,
)

cdef enum:
    ROWS = 8
    ACTIONS = 3
    ATOMS = 5


cdef int check(qpi_status status) except -1:
    if status != QPI_SUCCESS:
        raise RuntimeError(qpi_last_error_message().decode())
    return 0


def agreement(int steps=200):
    """Share of the states in which the policy ends up choosing the critic's action.

    Parameters
    ----------
    steps : int, default 200
        Distillation steps.

    Returns
    -------
    float
        Between 0 and 1.
    """
    cdef float[ATOMS] support
    cdef float[ROWS][ACTIONS][ATOMS] q_logits
    cdef float[ROWS][ACTIONS] pi_logits
    cdef float[ROWS][ACTIONS] pi_grad
    cdef qpi_isv isv
    cdef qpi_problem problem
    cdef qpi_batch batch
    cdef qpi_plan* plan = NULL
    cdef int a, b, z, best, agree = 0

    for z in range(ATOMS):
        support[z] = z - 2
    for b in range(ROWS):
        for a in range(ACTIONS):
            pi_logits[b][a] = 0
            for z in range(ATOMS):
                q_logits[b][a][z] = 4 if z == (3 if a == b % ACTIONS else 1) else 0

    qpi_isv_init(&isv)
    isv.words = qpi_layout_words(&isv.layout)
    isv.slots = calloc(<size_t> isv.words, sizeof(uint32_t))
    isv.workspace = calloc(1, qpi_workspace_size())
    try:
        if isv.slots == NULL or isv.workspace == NULL:
            raise MemoryError
        check(qpi_workspace_init(&isv, NULL))
        check(qpi_isv_reset(&isv, NULL))

        qpi_problem_init(&problem)
        problem.actions = ACTIONS
        problem.atoms = ATOMS
        problem.reduction = QPI_REDUCTION_SUM
        problem.value_scale = QPI_VALUE_SCALE_NONE
        check(qpi_plan_create(&problem, &plan))

        qpi_batch_init(&batch)
        batch.rows = ROWS
        batch.q_logits = &q_logits[0][0][0]
        batch.pi_logits = &pi_logits[0][0]
        batch.support = support
        batch.pi_grad = &pi_grad[0][0]
        for _ in range(steps):
            for b in range(ROWS):
                for a in range(ACTIONS):
                    pi_grad[b][a] = 0
            check(qpi_step(plan, &isv, &batch, NULL))
            for b in range(ROWS):
                for a in range(ACTIONS):
                    pi_logits[b][a] -= pi_grad[b][a]
    finally:
        qpi_plan_destroy(plan)
        free(isv.workspace)
        free(isv.slots)

    for b in range(ROWS):
        best = 0
        for a in range(1, ACTIONS):
            if pi_logits[b][a] > pi_logits[b][best]:
                best = a
        agree += best == b % ACTIONS
    return agree / ROWS
