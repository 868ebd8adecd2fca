"""qpi_distill.torch under torch.compile: one graph, the same bits of state."""

from __future__ import annotations

import pytest
from numpy.testing import assert_allclose
from torch_cases import pytest_generate_tests  # noqa: F401

torch = pytest.importorskip("torch")
adapter = pytest.importorskip("qpi_distill.torch")

# What torch deprecates of its own parts, and says about a GPU's matrix products, is not about us.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch"),
]


def batch(rows, device):
    generator = torch.Generator().manual_seed(5)
    pi = torch.randn(rows, 4, generator=generator).to(device).requires_grad_()
    return pi, torch.randn(rows, 4, 7, generator=generator).to(device)


def step(criterion, pi, q):
    loss = criterion(pi * 2, q) + pi.square().mean()
    criterion.commit()
    return loss


@pytest.mark.parametrize("compiler", ["aot_eager", "inductor"])
def test_one_graph_and_the_same_bits(device, compiler):
    torch.compiler.reset()
    plain, compiled = (adapter.DistillLoss(torch.linspace(-2, 3, 7), reduction="mean", device=device) for _ in range(2))
    run = torch.compile(step, fullgraph=True, backend=compiler)
    for rows in (6, 6, 9):  # the last with dynamic shapes
        pi, q = batch(rows, device)
        other = pi.detach().clone().requires_grad_()
        step(plain, pi, q).backward()
        run(compiled, other, q).backward()
        assert_allclose(other.grad.cpu(), pi.grad.cpu(), rtol=1e-6, atol=1e-8)
    # The logits of both went through the same arithmetic, so that the library saw the same bits.
    assert torch.equal(compiled.slots, plain.slots)
    assert torch.equal(compiled.record, plain.record)
    assert compiled.read().commits == 3


def test_a_compiled_evaluation_moves_nothing(device):
    torch.compiler.reset()
    mine = adapter.DistillLoss(torch.linspace(-2, 3, 7), reduction="mean", device=device)
    before = mine.record.clone()
    run = torch.compile(lambda pi, q: mine(pi, q), fullgraph=True, backend="aot_eager")
    pi, q = batch(6, device)
    mine.eval()
    run(pi, q)
    assert torch.equal(mine.record, before)
    mine.train()
    run(pi, q)
    assert mine.record[3].item() == 6


def test_bad_arguments_are_named_while_compiling(device):
    torch.compiler.reset()
    mine = adapter.DistillLoss(torch.linspace(-2, 3, 7), reduction="mean", device=device)
    pi, q = batch(6, device)
    with pytest.raises(Exception, match="pi_logits: shape"):
        torch.compile(mine, fullgraph=True, backend="aot_eager")(pi[1:], q)
