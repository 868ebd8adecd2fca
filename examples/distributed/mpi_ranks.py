"""A policy without a framework, its rows spread over the processes of an MPI job, with one lam over all of them.

mpiexec -n 2 python examples/distributed/mpi_ranks.py
"""

import argparse

import numpy as np
from mpi4py import MPI

import qpi_distill as qpi
from qpi_distill.distributed import Ranks

ACTIONS, ATOMS, FEATURES = 6, 21, 16


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, default=50)
    parser.add_argument("--rows", type=int, default=64, help="of rank 0; each further rank has half as many")
    arguments = parser.parse_args()

    comm = MPI.COMM_WORLD
    same, own = np.random.default_rng(0), np.random.default_rng(1 + comm.rank)
    critic = same.normal(size=(FEATURES, ACTIONS * ATOMS)).astype(np.float32) / 4
    policy = np.zeros((FEATURES, ACTIONS), np.float32)

    isv = qpi.ISV(lam=0.1, kl_target=0.02, device="cpu")
    op = qpi.Distiller(actions=ACTIONS, support=qpi.linspace(-10, 10, ATOMS), isv=isv, reduction="sum")
    ranks = Ranks(isv, comm)

    rows = arguments.rows >> comm.rank
    scale = ranks.grad_scale(rows)  # the gradients are added up below
    for update in range(arguments.updates):
        x = own.normal(size=(rows, FEATURES)).astype(np.float32)
        logits = x @ policy
        grad = np.zeros_like(logits)
        op.accumulate((x @ critic).reshape(rows, ACTIONS, ATOMS), logits, grad, grad_scale=scale)
        ranks.commit()
        step = x.T @ grad
        comm.Allreduce(MPI.IN_PLACE, step)
        policy -= 0.5 * step
        if update % 10 == 9 or update == arguments.updates - 1:
            state = isv.read()
            text = f"rank {comm.rank} update {update + 1} rows {state.rows_last} lam {state.lam!r} KL {state.kl_last!r}"
            lines = comm.gather(text)
            if comm.rank == 0:
                print("\n".join(lines))


if __name__ == "__main__":
    main()
