"""The distillation term: where the demo calls the library.

PPO has already written its gradient; `add` lets the distiller add λ · (π - softmax(E_Q / τ)) to it. Every minibatch is
accumulated and a policy iteration is committed once, because the law's rates are per commit.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

import qpi_distill as qpi
from qpi_distill._devices import ordinal_of

from .config import Config, DemoError
from .networks import Array


class HostTerm:
    """Distillation on NumPy arrays, by the CPU backend.

    Parameters
    ----------
    config : Config
        Gives λ, τ and the KL target.
    actions : int
        Actions of the environment.
    support : numpy.ndarray of float32
        Atoms of the critic, `[Z]`.
    """

    device: Any = "cpu"

    def __init__(self, config: Config, actions: int, support: Array) -> None:
        lam = 0.0 if config.arm == "ppo" else config.lam
        self.isv = qpi.ISV(
            lam=lam,
            tau=config.tau,
            min_std=config.min_std,
            kl_target=config.kl_target,
            kl_tolerance=config.kl_tolerance,
            lam_min=config.lam_min,
            lam_max=config.lam_max,
            lam_down=config.lam_down,
            device=self.device,
        )
        # one thread: a minibatch is too small to share out
        self.op = qpi.Distiller(
            actions=actions, support=support, isv=self.isv, reduction="mean", value_scale="running_std", max_threads=1
        )

    def add(self, q_logits: Array, pi_logits: Array, pi_grad: Array) -> None:
        """Add the distillation gradient of one minibatch to `pi_grad`: `[B, A, Z]`, `[B, A]` and `[B, A]`."""
        self.op.accumulate(q_logits, pi_logits, pi_grad)

    def commit(self) -> Any:
        """Close the iteration: move the averages and λ. Return the state vector's values."""
        self.isv.commit()
        return self.isv.read()

    def set_lam(self, lam: float) -> Any:
        """Overrule the law's λ. Return the state vector's values."""
        self.isv.set(lam=lam)
        return self.isv.read()


class DeviceTerm(HostTerm):
    """The same on a GPU: the three arrays that the distiller touches are mirrored there, every copy written out."""

    def __init__(self, config: Config, actions: int, support: Array) -> None:
        ordinal_of(config.device)  # says what is missing where there is no GPU
        from cuda.core import Device, LegacyPinnedMemoryResource

        _, _, ordinal = config.device.partition(":")
        self.device = Device(int(ordinal)) if ordinal else Device()
        self.device.set_current()
        self.stream = self.device.create_stream()
        super().__init__(config, actions, support)

        pinned = LegacyPinnedMemoryResource()
        rows = config.minibatch
        self.q = Mirror(self.device, self.stream, pinned, (rows, actions, support.size))
        self.pi = Mirror(self.device, self.stream, pinned, (rows, actions))
        self.grad = Mirror(self.device, self.stream, pinned, (rows, actions))
        self.bound = self.op.bind(self.q.pointer, self.pi.pointer, self.grad.pointer)

    def add(self, q_logits: Array, pi_logits: Array, pi_grad: Array) -> None:
        self.q.upload(q_logits)
        self.pi.upload(pi_logits)
        self.grad.upload(pi_grad)
        self.bound.accumulate(self.stream)
        self.grad.download(pi_grad)

    def commit(self) -> Any:
        self.isv.commit(self.stream)
        return self.isv.read(self.stream)

    def set_lam(self, lam: float) -> Any:
        self.isv.set(self.stream, lam=lam)
        return self.isv.read(self.stream)


class Mirror:
    """A float32 array on the GPU with a page-locked copy on the host."""

    def __init__(self, device: Any, stream: Any, pinned: Any, shape: tuple[int, ...]) -> None:
        count = int(np.prod(shape))
        self.stream = stream
        self.there = device.allocate(4 * count, stream=stream)
        self.here = pinned.allocate(4 * count, stream=stream)
        words = (ctypes.c_float * count).from_address(int(self.here.handle))
        self.array = np.frombuffer(words, np.float32).reshape(shape)
        self.pointer = qpi.pointer(int(self.there.handle), shape, "float32", device=device, owner=self.there)

    def upload(self, source: Array) -> None:
        """Copy `source` to the GPU, in stream order."""
        np.copyto(self.array, source)
        self.there.copy_from(self.here, stream=self.stream)

    def download(self, target: Array) -> None:
        """Copy the GPU's array to `target`, and wait for it."""
        self.there.copy_to(self.here, stream=self.stream)
        self.stream.sync()
        np.copyto(target, self.array)


def make_term(config: Config, actions: int, support: Array) -> HostTerm:
    """Return the term for `config.device`; raise `DemoError` with what the device lacks or the library refuses."""
    kind = HostTerm if config.device == "cpu" else DeviceTerm
    try:
        return kind(config, actions, support)
    except ValueError as error:
        raise DemoError(str(error)) from error
    except (ImportError, RuntimeError) as error:
        raise DemoError(f"--device {config.device}: {error}") from error
