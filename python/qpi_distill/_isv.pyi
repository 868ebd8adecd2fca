from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

class Slot(NamedTuple):
    number: int
    name: str
    type: Literal["f32", "u32", "u64"]
    role: Literal["param", "state", "output"]
    words: int
    default: float
    low: float
    high: float
    unit: str
    meaning: str

class Law(NamedTuple):
    number: int
    name: str
    input: Literal["nothing", "kl", "observations", "entropy", "prior_kl"]
    formula: str
    source: str

class Preset(NamedTuple):
    name: str
    lam_law: str
    values: dict[str, float]
    source: str

RECORD_SIZE: int
FAULTS: dict[str, int]
REASONS: dict[int, str]
SLOTS: tuple[Slot, ...]
LAM_LAWS: tuple[Law, ...]
TAU_LAWS: tuple[Law, ...]
PRESETS: dict[str, Preset]
FLIGHT_FIELDS: tuple[tuple[str, Literal["f32", "u32", "u64"], int], ...]
FLIGHT_SIZE: int
FLIGHT_MAX: int
WORKSPACE_SIZE: int
WORKSPACE_STATE_SIZE: int

def native_layout() -> tuple[int, ...]: ...
def bus_layout() -> tuple[int, ...]: ...
def layout_words(indices: Sequence[int]) -> int: ...

class Trace:
    handle: int
    @property
    def known(self) -> bool: ...

class Isv:
    trace: Trace
    memory: Any
    def __init__(
        self, device: int, slots: int, words: int, workspace: int, indices: Sequence[int], memory: Any
    ) -> None: ...
    def attach(self, own: int, settle: Callable[[], None]) -> None: ...
    def relocate(self, slots: int, workspace: int) -> None: ...
    def record_to(self, flight: int, capacity: int, memory: Any) -> None: ...
    @property
    def device(self) -> int: ...
    @property
    def slots(self) -> int: ...
    @property
    def words(self) -> int: ...
    @property
    def workspace(self) -> int: ...
    def slot_address(self, slot: int) -> int: ...
    def order(self, stream: Any = None) -> tuple[int, Any, Any]: ...
    def wrote(self, handle: int, owner: Any, source: Any) -> None: ...
    def call(self, what: str, stream: Any = None) -> None: ...
