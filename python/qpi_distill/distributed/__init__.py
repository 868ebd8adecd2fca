"""Data parallel: one statistic, one lam and one tau over all ranks of a job.

    from qpi_distill.distributed import Ranks

    ranks = Ranks(isv, torch.distributed.group.WORLD)  # or MPI.COMM_WORLD, or an NCCL communicator
    op.accumulate(q_logits, pi_logits, pi_grad)  # this rank's rows
    ranks.commit()  # the same slots, bit for bit, on every rank

The ranks send each other their records, 120 bytes each, and every rank adds all of them up in the order of the ranks.
So the result is the same bits everywhere by construction: it does not hang on how a library's all-reduce adds, counts
stay integers and fault bits are united.

Nothing here imports torch, mpi4py or nccl4py: whoever passes a group has imported its library.
"""

from .exchange import Exchange
from .ranks import Ranks

__all__ = ["Exchange", "Ranks"]
