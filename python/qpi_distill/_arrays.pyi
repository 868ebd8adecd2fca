from collections.abc import Iterable
from typing import Any

from ._pointer import Pointer

class Framework:
    adapter: Any

def describe(
    obj: Any, name: str = "array", output: bool = False, device: int | None = None, stream: int | None = None
) -> Pointer: ...
def current_stream(arrays: Iterable[Any], device: int) -> tuple[int, Any]: ...
