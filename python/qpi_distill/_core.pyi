from typing import Any

from ._bound import Bound
from ._isv import Isv

def version() -> str: ...
def build_info() -> str: ...
def host_memory(address: int, size: int) -> memoryview: ...

class Operator:
    handle: Isv
    support_memory: Any
    def __init__(
        self,
        handle: Isv,
        actions: int,
        atoms: int,
        support: int,
        support_strides: tuple[int, int],
        support_memory: Any,
        *,
        reduction: str,
        mode: str,
        value_scale: str,
        kl_stat: str,
        kernel: str,
        illegal_below: float,
        q_dtype: Any,
        pi_dtype: Any,
        grad_dtype: Any,
        checked: bool,
        max_blocks: int,
        max_threads: int,
        critic: str,
        target: str,
        epsilon: float,
        divergence: str,
        beta: float,
        policy_temperature: float,
        control_stat: str,
        summary: bool,
    ) -> None: ...
    def prepare(self, q_dtype: Any = "float32", pi_dtype: Any = "float32", grad_dtype: Any = "float32") -> None: ...
    def describe(self, rows: int, q_dtype: Any, pi_dtype: Any, grad_dtype: Any) -> str: ...
    def relocate(self, slots: int, workspace: int, support: int) -> None: ...
    @property
    def plan_count(self) -> int: ...
    def step(
        self,
        q_logits: Any,
        pi_logits: Any,
        pi_grad: Any,
        *,
        legal_actions: Any = None,
        row_weights: Any = None,
        grad_scale: Any = None,
        stream: Any = None,
    ) -> None: ...
    def accumulate(
        self,
        q_logits: Any,
        pi_logits: Any,
        pi_grad: Any,
        *,
        legal_actions: Any = None,
        row_weights: Any = None,
        grad_scale: Any = None,
        stream: Any = None,
    ) -> None: ...
    def distill_grad(
        self,
        q_logits: Any,
        pi_logits: Any,
        pi_grad: Any,
        *,
        legal_actions: Any = None,
        row_weights: Any = None,
        grad_scale: Any = None,
        stream: Any = None,
    ) -> None: ...
    def measure_into(
        self, record: int, q_logits: Any, pi_logits: Any, legal_actions: Any, row_weights: Any, stream: Any
    ) -> int: ...
    def commit(self, stream: Any = None) -> None: ...
    def discard(self, stream: Any = None) -> None: ...
    def bind(
        self,
        q_logits: Any,
        pi_logits: Any,
        pi_grad: Any,
        *,
        legal_actions: Any = None,
        row_weights: Any = None,
        grad_scale: Any = None,
        stream: Any = None,
    ) -> Bound: ...
