"""A policy trained by DistributedDataParallel on uneven shards, with one lam over all ranks.

torchrun --nproc-per-node 2 examples/distributed/torch_ranks.py
"""

import argparse

import torch
import torch.distributed as dist

import qpi_distill as qpi
from qpi_distill.distributed import Ranks

ACTIONS, ATOMS, FEATURES = 6, 21, 16


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, default=50)
    parser.add_argument("--rows", type=int, default=64, help="of rank 0; each further rank has half as many")
    arguments = parser.parse_args()

    gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if gpu else "gloo")
    rank = dist.get_rank()
    device = torch.device("cuda", rank % torch.cuda.device_count()) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)

    torch.manual_seed(0)  # the same critic everywhere
    critic = torch.nn.Linear(FEATURES, ACTIONS * ATOMS, device=device)
    policy = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(FEATURES, ACTIONS, device=device))
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-2)

    isv = qpi.ISV(lam=0.1, kl_target=0.02, device=device)
    op = qpi.Distiller(actions=ACTIONS, support=qpi.linspace(-10, 10, ATOMS), isv=isv, reduction="sum")
    ranks = Ranks(isv, dist.group.WORLD)

    rows = arguments.rows >> rank
    scale = ranks.grad_scale(rows, gradients="mean")  # DDP averages
    data = torch.Generator(device).manual_seed(1 + rank)  # other rows everywhere
    for update in range(arguments.updates):
        x = torch.randn(rows, FEATURES, device=device, generator=data)
        with torch.no_grad():
            q_logits = critic(x).view(rows, ACTIONS, ATOMS)
        logits = policy(x)
        grad = torch.zeros_like(logits)
        op.accumulate(q_logits, logits.detach(), grad, grad_scale=scale)
        ranks.commit()
        optimizer.zero_grad()
        logits.backward(grad)
        optimizer.step()
        if update % 10 == 9 or update == arguments.updates - 1:
            state = isv.read()
            print(f"rank {rank} update {update + 1} rows {state.rows_last} lam {state.lam!r} KL {state.kl_last!r}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
