"""qpi_distill.torch in data parallel: every rank commits the statistic of all rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

torch = pytest.importorskip("torch")
adapter = pytest.importorskip("qpi_distill.torch")

ROWS = 6
SHARDS = {"uneven": (slice(0, 4), slice(4, 6)), "empty": (slice(0, 0), slice(0, 6))}
FAULTY_WEIGHT = 16


def batch():
    generator = torch.Generator().manual_seed(5)
    return torch.randn(ROWS, 4, generator=generator), torch.randn(ROWS, 4, 7, generator=generator)


def module():
    return adapter.DistillLoss(torch.linspace(-2, 3, 7), reduction="mean", summary=True, lam=0.4, tau=0.5)


def run_rank(rank, folder):
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    x, q = batch()
    for name, shards in SHARDS.items():
        policy = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4, bias=False))
        with torch.no_grad():
            policy.module.weight.copy_(torch.eye(4))
        mine = module()
        at = shards[rank]
        # DDP divides by the number of ranks, and "mean" by the rows of the rank.
        factor = 2 * (at.stop - at.start) / ROWS
        (mine(policy(x[at]), q[at]) * factor).backward()
        if rank == 1:
            mine.record.view(torch.int32)[12] |= FAULTY_WEIGHT
        mine.all_reduce()
        calls = int(mine.record.view(torch.int32)[13])
        mine.commit()
        found = {"slots": mine.slots, "record": mine.record, "grad": policy.module.weight.grad, "calls": calls}
        torch.save(found, Path(folder, f"{name}-{rank}.pt"))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each of two processes has after one commit, by kind of shards."""
    folder = str(tmp_path_factory.mktemp("ranks"))
    torch.multiprocessing.spawn(run_rank, (folder,), nprocs=2)
    return {name: [torch.load(f"{folder}/{name}-{rank}.pt") for rank in range(2)] for name in SHARDS}


@pytest.mark.parametrize("shards", SHARDS)
def test_all_ranks_do_what_one_would(found, shards):
    one, other = found[shards]
    assert torch.equal(one["slots"], other["slots"]), "bit for bit"
    assert not one["record"].any()
    assert one["calls"] == sum(at.stop > at.start for at in SHARDS[shards])
    x, q = batch()
    weight = torch.eye(4, requires_grad=True)
    whole = module()
    whole(x @ weight.T, q).backward()
    whole.commit()
    assert_allclose(one["grad"], weight.grad, atol=1e-6)
    values, expected = adapter.read_state(one["slots"], check=False), whole.read()
    assert values.faults == ("weight",)
    assert values.rows_last == expected.rows_last == ROWS
    names = ["kl_ema", "lam", "loss_last", "target_entropy", "policy_entropy", "agreement", "pi_at_qstar", "overlap"]
    assert_allclose([values[name] for name in names], [expected[name] for name in names], rtol=1e-6)
    assert np.isfinite(values.kl_ema)
    assert values.loss_last > 0
