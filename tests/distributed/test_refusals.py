"""What cannot be is refused by name before anything is sent."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import qpi_distill as qpi
from optional import mpi
from qpi_distill.distributed import Exchange, Ranks


class Alone(Exchange):
    """One rank, and how often it has sent."""

    rank, size = 0, 1

    def __init__(self):
        self.sent = 0

    def check(self, device):
        if device >= 0:
            raise ValueError("group: serves the CPU alone")

    def all_gather(self, send, receive, device):
        def gather(stream):
            assert stream == 0
            self.sent += 1
            receive[0] = send

        return gather


def make(group=None, **values):
    return Ranks(qpi.ISV(device="cpu", **values), Alone() if group is None else group)


def test_an_exchange_of_ones_own():
    alone = Alone()
    ranks = make(alone)
    assert (ranks.rank, ranks.size) == (0, 1)
    before = alone.sent
    ranks.commit()
    assert alone.sent == before + 1
    assert ranks.isv.read().commits == 1
    assert repr(ranks) == "<qpi.distributed.Ranks: rank 0 of 1, <qpi.ISV on cpu, Layout.native()>>"


def test_what_is_no_isv_and_what_is_no_group():
    with pytest.raises(TypeError, match=r"isv: dict is not a qpi\.ISV"):
        Ranks({}, Alone())
    isv = qpi.ISV(device="cpu")
    with pytest.raises(TypeError, match=r"group: builtins\.int is not a torch\.distributed ProcessGroup, an "):
        Ranks(isv, 3)
    with pytest.raises(TypeError, match=r"NoneType is not .* \(call torch\.distributed\.init_process_group first\)"):
        Ranks(isv, None)


@pytest.mark.parametrize("weight", [-1.0, np.nan, np.inf])
def test_weights_that_cannot_be(weight):
    ranks = make()
    with pytest.raises(ValueError, match=r"weight: .*, expected 0 or more and finite"):
        ranks.grad_scale(weight)


def test_a_weight_that_is_none_and_gradients_that_are_none():
    ranks = make()
    with pytest.raises(TypeError, match="weight: 'x' is not a real number"):
        ranks.grad_scale("x")
    with pytest.raises(ValueError, match="gradients: 'max' is not one of 'sum', 'mean'"):
        ranks.grad_scale(1.0, gradients="max")


def test_grad_scale_is_one_array_whose_value_changes():
    ranks = make()
    first = ranks.grad_scale(4)
    assert (first.dtype, first.shape, first[0]) == (np.float32, (1,), 0.25)
    second = ranks.grad_scale(0)
    assert first.ctypes.data == second.ctypes.data
    assert first[0] == 0
    del ranks  # the array keeps its memory
    first[0] = 7
    assert first[0] == 7


def test_a_stream_on_the_cpu():
    ranks = make()
    with pytest.raises(ValueError, match="stream: work on the CPU has no stream"):
        ranks.commit(stream=1)


def test_a_layout_that_lacks_slots():
    isv = qpi.ISV(device="cpu", layout="bus", lam=0.2)
    ranks = Ranks(isv, Alone())
    isv.record_views().sums[:] = 2, 1, 0
    isv.record_views().counts[0] = 1
    ranks.commit()
    assert isv.read().kl_ema == 2


class Stranger(Alone):
    """With another rank, whose greeting differs in one place."""

    size = 2

    def __init__(self, change):
        super().__init__()
        self.change = change

    def all_gather(self, send, receive, device):
        def gather(stream):
            receive[:] = send
            self.change(receive[1].view(np.uint8))

        return gather


def another_lam(greeting):
    if greeting.size > 500:
        greeting[64:68] = np.frombuffer(np.float32(0.7).tobytes(), np.uint8)


def another_version(greeting):
    if greeting.size > 500:
        greeting[:6] = np.frombuffer(b"9.10.1", np.uint8)


def test_what_differs_is_named():
    assert make(Stranger(lambda greeting: None)).size == 2
    with pytest.raises(ValueError, match=r"isv: rank 1 has another lam than rank 0; make every ISV"):
        make(Stranger(another_lam))
    with pytest.raises(ValueError, match=rf"group: rank 1 has qpi-distill 9\.10\.1, but rank 0 has {qpi.__version__}"):
        make(Stranger(another_version))


def test_importing_it_imports_no_library_for_connecting():
    import subprocess

    code = (
        "import sys, qpi_distill.distributed\n"
        "print([name for name in ('torch', 'mpi4py', 'nccl', 'cuda') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# ---- what a library's own groups are refused for --------------------------------------------------------------------


def test_mpi_groups_that_cannot_serve():
    library = mpi()
    isv = qpi.ISV(device="cpu")
    with pytest.raises(ValueError, match="the MPI communicator is null"):
        Ranks(isv, library.COMM_NULL)
    with pytest.raises(TypeError, match="group: Group is not an mpi4py Comm"):
        Ranks(isv, library.GROUP_EMPTY)
    assert Ranks(isv, library.COMM_SELF).size == 1


def test_torch_before_and_after_its_initialisation(tmp_path):
    torch = pytest.importorskip("torch")
    dist = torch.distributed
    isv = qpi.ISV(device="cpu")
    with pytest.raises(TypeError, match="init_process_group first"):
        Ranks(isv, dist.group.WORLD)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        exchange = pytest.importorskip("qpi_distill.distributed.torch").TorchExchange(dist.group.WORLD)
        with pytest.raises(ValueError, match=r"its backend for cuda is 'gloo', but .* needs 'nccl'"):
            exchange.check(0)
        assert Ranks(isv, dist.group.WORLD).size == 1
    finally:
        dist.destroy_process_group()


def test_nccl_serves_gpus_alone():
    core = pytest.importorskip("nccl.core")
    with pytest.raises(ValueError, match="the NCCL communicator is not initialised"):
        Ranks(qpi.ISV(device="cpu"), core.Communicator())


def test_the_example_of_the_docstring():
    import doctest

    mpi()
    from qpi_distill.distributed import ranks

    outcome = doctest.testmod(ranks)
    assert outcome.attempted > 2
    assert outcome.failed == 0
