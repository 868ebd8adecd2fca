from typing import Any

class Plans:
    count: int
    def __init__(
        self,
        device: int,
        actions: int,
        atoms: int,
        support_strides: tuple[int, int],
        *,
        reduction: str,
        mode: str,
        value_scale: str,
        kl_stat: str,
        kernel: str,
        illegal_below: float,
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
    def prepare(self, q_dtype: Any, pi_dtype: Any, grad_dtype: Any) -> None: ...
    def describe(self, rows: int, q_dtype: Any, pi_dtype: Any, grad_dtype: Any) -> str: ...
