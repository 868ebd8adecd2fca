"""The state vector (ISV): every number that moves in the loop and every number that steers it, in one buffer."""

from __future__ import annotations

import operator
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from . import _arrays, _core, _isv, _pointer, _streams
from ._devices import CPU, ordinal_of
from ._host import HostState
from .errors import FaultError
from .layout import Layout

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from .recorder import Recorder

__all__ = ["ISV", "ISVValues", "RecordViews"]

_SLOTS = {slot.name: slot for slot in _isv.SLOTS}
# As the device holds them.
_DEFAULTS = {name: float(np.float32(s.default)) if s.type == "f32" else int(s.default) for name, s in _SLOTS.items()}
_FORMATS = {"f32": "<f", "u32": "<I", "u64": "<Q"}
# Slots that hold a code, and the names of the codes.
_CODES = {
    "lam_law": {law.number: law.name for law in _isv.LAM_LAWS},
    "tau_law": {law.number: law.name for law in _isv.TAU_LAWS},
    "reason": _isv.REASONS,
    "tau_reason": _isv.REASONS,
}
_WORD_DTYPES = ("float32", "int32", "uint32", "uint8")
_STATE_FORMAT = "qpi_distill.isv/1"


class ISVValues(Mapping[str, "Any"]):
    """The values of an ISV at one moment, by slot name; also as attributes.

    Floats and counters are numbers, `faults` is a tuple of names; `reason`, `tau_reason`, `lam_law` and `tau_law` are
    names. `raw` holds the numbers behind these as well.

    Attributes
    ----------
    raw : dict of str to float or int
        Every slot as a plain number: `faults` as bits, reasons and laws as their codes.
    """

    __slots__ = ("_values", "raw")

    _values: dict[str, Any]
    raw: dict[str, float | int]

    def __init__(self, raw: Mapping[str, float | int]) -> None:
        values: dict[str, Any] = dict(raw)
        values["faults"] = fault_names(int(raw["faults"]))
        for name in _CODES:
            values[name] = code_name(name, int(raw[name]))
        object.__setattr__(self, "_values", values)
        object.__setattr__(self, "raw", dict(raw))

    def __getitem__(self, name: str) -> Any:
        """Return the value of a slot."""
        return self._values[name]

    def __getattr__(self, name: str) -> Any:
        """Return the value of a slot."""
        try:
            return object.__getattribute__(self, "_values")[name]
        except KeyError:
            raise AttributeError(f"the ISV has no slot {name!r}") from None

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse: these are values of the past; `ISV.set` changes the ISV."""
        raise AttributeError("the values that were read cannot be changed; use ISV.set")

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle as plain numbers."""
        return ISVValues, (self.raw,)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the slots."""
        return iter(self._values)

    def __len__(self) -> int:
        """Return the number of slots."""
        return len(self._values)

    def __repr__(self) -> str:
        """Show every slot."""
        return f"ISVValues({', '.join(f'{name}={value!r}' for name, value in self._values.items())})"


class RecordViews(NamedTuple):
    """Views of an ISV's record, the statistic between `accumulate` and `commit`, to sum over ranks in place.

    Attributes
    ----------
    sums : array of 3 float64
        Sums of w * KL, of w, and of w * variance.
    counts : array of 3 int64
        Rows in the statistic, skipped, clipped.
    flags : array of 2 uint32
        Fault bits (to be combined by bitwise or) and number of accumulate calls.
    summary : array of 8 float64
        Sums of the distillers with ``summary=True``, in the order of `qpi_summary`.
    """

    sums: Any
    counts: Any
    flags: Any
    summary: Any


def fault_names(bits: int) -> tuple[str, ...]:
    """Return the names of the faults in a word of bits."""
    return tuple(name for name, bit in _isv.FAULTS.items() if bits & bit)


def code_name(slot: str, code: int) -> str:
    """Return the name of a reason's or a law's code, given the slot that holds it."""
    return _CODES[slot].get(code, f"code {code}")


def _law_number(slot: str, value: Any) -> Any:
    """Return the number of a law that is given by name; anything else as it is."""
    if not isinstance(value, str):
        return value
    names = {name: number for number, name in _CODES[slot].items()}
    if value not in names:
        raise ValueError(f"{slot}: {value!r} is no law; the laws are {', '.join(names)}")
    return names[value]


def _check_name(name: str) -> _isv.Slot:
    if not isinstance(name, str):
        raise TypeError(f"slot name: {name!r} is not a str; the slots are {', '.join(_SLOTS)}")
    slot = _SLOTS.get(name)
    if slot is None:
        import difflib

        near = difflib.get_close_matches(name, _SLOTS, 1)
        hint = f"; did you mean {near[0]}?" if near else f"; the slots are {', '.join(_SLOTS)}"
        raise TypeError(f"the ISV has no slot {name!r}{hint}")
    return slot


def _check_value(name: str, value: Any) -> float | int:
    """Return the value as the device will hold it, after checking its range."""
    slot = _check_name(name)
    if slot.role == "output":
        raise ValueError(f"{name}: is written by the loop, not by the host")
    number: float | int
    if name in _CODES:
        value = _law_number(name, value)
    try:
        if slot.type == "f32":
            if isinstance(value, (str, bytes)):
                raise TypeError
            exact = float(value)
            with np.errstate(over="ignore"):
                number = float(np.float32(exact))
            # The range is of what the device will hold, and of what was meant: rounding must not cross its ends.
            inside = slot.low <= exact <= slot.high and number <= slot.high and (number != 0 or exact == 0)
        else:
            number = operator.index(value)
            inside = 0 <= number < 2 ** (32 * slot.words) and (slot.words > 1 or slot.low <= number <= slot.high)
    except OverflowError:
        raise ValueError(f"{name}: {value!r} is outside [{slot.low:g}, {slot.high:g}]") from None
    except (TypeError, ValueError):
        expected = "a number" if slot.type == "f32" else "an integer"
        raise TypeError(f"{name}: {value!r} is not {expected}") from None
    if not inside:
        raise ValueError(f"{name}: {value!r} is outside [{slot.low:g}, {slot.high:g}]")
    return number


def _check_together(values: Mapping[str, float | int]) -> None:
    """Check what ties slots to each other."""
    lam, low, high = values["lam"], values["lam_min"], values["lam_max"]
    if low > high:
        raise ValueError(f"lam_min: {low:g} is above lam_max {high:g}")
    if lam != 0 and not low <= lam <= high:
        raise ValueError(f"lam: {lam:g} is neither 0 nor within [lam_min, lam_max] = [{low:g}, {high:g}]")


def _preset_values(preset: str | None) -> dict[str, Any]:
    if preset is None:
        return {}
    if preset not in _isv.PRESETS:
        raise ValueError(f"preset: {preset!r} is no preset; the presets are {', '.join(_isv.PRESETS)}")
    chosen = _isv.PRESETS[preset]
    return {"lam_law": chosen.lam_law, **chosen.values}


def _words_of(slot: _isv.Slot, value: float | int) -> list[int]:
    data = struct.pack(_FORMATS[slot.type], value)
    return [int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data), 4)]


class ISV:
    """The state of one distillation loop: lam, tau, the moving averages and every number that steers them.

    It lives on the device and is moved by `Distiller.step` alone; nothing has to be read or written by the host during
    training. One ISV belongs to one order of work at a time: calls that use it go to one stream, or to streams that the
    caller orders. A stream given as a number has to exist as long as it is the last that used the ISV.

    Parameters
    ----------
    device : str, int or device object, optional
        "cpu", "cuda" (the current GPU), "cuda:1" or 1, `cuda.core.Device`, `torch.device`. None: the current GPU if one
        can be used, else the CPU.
    layout : str or Layout
        "native" (compact), "bus" (the seed kernels' indices) or any `Layout`.
    preset : str, optional
        A law of lam with the numbers of its source, bounds of lam included: "seed" (the default's numbers),
        "symmetric", "schulman", "ziegler", "log_dual", "log_pi". `ISV.presets` lists what each sets.
    **values : float, int or str
        Initial values of parameters and states by slot name (`lam`, `tau`, `kl_target`, `kl_alpha`, ...), over those
        of the preset; the others have the manifest's defaults. `lam_law` and `tau_law` take the law's name or number.
        `ISV.slot_info` lists all slots with their ranges, `ISV.laws` the laws.

    Raises
    ------
    ValueError
        A value outside its range, lam neither 0 nor within [lam_min, lam_max].
    TypeError
        A name that is no slot's.
    DeviceError
        A GPU was named and none can be used.

    Examples
    --------
    >>> isv = ISV(lam=0.1, tau=1.0, kl_target=0.05, device="cpu")
    >>> isv.read().lam
    0.10000000149011612
    """

    def __init__(
        self,
        *,
        device: Any = None,
        layout: str | Layout = "native",
        preset: str | None = None,
        **values: float | str,
    ) -> None:
        values = {**_preset_values(preset), **values}
        checked = {name: _check_value(name, value) for name, value in values.items()}
        _check_together(_DEFAULTS | checked)
        self._create(ordinal_of(device), _layout_of(layout), None, None)
        self._initialise(checked)

    @classmethod
    def from_buffer(
        cls,
        buffer: Any,
        *,
        layout: str | Layout = "bus",
        device: Any = None,
        stream: Any = None,
        reset: bool = False,
    ) -> ISV:
        """Adopt a buffer that holds, or is to hold, the state: an existing bus, for example.

        Parameters
        ----------
        buffer : array, one dimension, packed
            float32, int32, uint32 or uint8 words, writable, at least as long as the layout needs. It is kept alive.
            Only the slots of the layout are ever written; the rest is left alone.
        layout : str or Layout
            As for `ISV`.
        device : str, int or device object, optional
            Where the buffer is, in case it does not say itself.
        stream : int or stream object, optional
            The stream that the buffer was filled on, for `reset` and for later reads.
        reset : bool
            Whether to write the defaults into the slots of the layout. Otherwise their values are used as they are.

        Raises
        ------
        TypeError
            A dtype other than those above.
        ValueError
            A buffer that is too short, has more than one dimension or gaps.
        BufferError
            Memory that is read-only, null, misaligned, or not on the device.
        """
        wanted = None if device is None else ordinal_of(device)
        from_stream = None if stream is None else _streams.handle_of(stream)
        pointer = _arrays.describe(buffer, "buffer", True, wanted, from_stream)
        if pointer.dtype not in _WORD_DTYPES:
            expected = ", ".join(_WORD_DTYPES)
            raise TypeError(f"buffer: dtype {pointer.dtype} is not supported; expected one of {expected}")
        if pointer.ndim != 1 or not pointer.packed:
            raise ValueError(f"buffer: shape {pointer.shape}, strides {pointer.strides}; expected one packed dimension")
        layout = _layout_of(layout)
        size = pointer.shape[0] * (1 if pointer.dtype == "uint8" else 4)
        if size < 4 * layout.words:
            raise ValueError(f"buffer: {size} bytes, but the layout needs {4 * layout.words}")
        if pointer.address % 4:
            raise BufferError(f"buffer: address 0x{pointer.address:x} is not aligned to 4 bytes")
        if wanted is None:
            wanted = pointer.ordinal
        if wanted < CPU:
            from . import _gpu

            wanted = _gpu.device_of(pointer.address)
        if wanted == CPU and stream is not None:
            raise ValueError("stream: work on the CPU has no stream; leave it out")
        handle = 0
        if wanted != CPU:
            from . import _gpu

            handle = from_stream or pointer.stream or _current_or_none(buffer, wanted)
            if handle:
                _gpu.refuse_capture(wanted, handle, "adopting a buffer")
        isv = cls.__new__(cls)
        isv._create(wanted, layout, pointer, size // 4)
        if wanted != CPU:
            if handle:
                isv._handle.wrote(handle, None if isinstance(stream, int) else stream, None)
            elif reset:
                raise ValueError("stream: where the buffer was last used is not known; pass stream=...")
        if reset:
            isv._handle.call("reset")
        return isv

    def _create(self, ordinal: int, layout: Layout, pointer: Any, words: int | None) -> None:
        """Make or adopt the memory and clear the workspace."""
        address = None if pointer is None else pointer.address
        sizes = (layout.words, _isv.WORKSPACE_SIZE, _isv.WORKSPACE_STATE_SIZE, address)
        self._state: Any
        if ordinal == CPU:
            self._state = HostState(*sizes)
        else:
            from . import _gpu

            self._state = _gpu.DeviceState(ordinal, *sizes)
        state = self._state
        self._layout = layout
        self._operators: dict[Any, Any] = {}
        self._recorder: Recorder | None = None
        memory = (state.memory, pointer)
        self._handle = _isv.Isv(
            ordinal, state.slots, layout.words if words is None else words, state.workspace, layout.indices, memory
        )
        state.attach(self._handle)
        self._offsets = {name: self._offset(slot) for name, slot in _SLOTS.items()}
        self._handle.call("workspace_init")

    def _initialise(self, values: Mapping[str, float | int]) -> None:
        """Write defaults and initial values before any stream is known."""
        self._handle.call("reset")
        if values:
            self._write(values, None)

    def _offset(self, slot: _isv.Slot) -> int:
        """Return where a slot is in what the state reads: the layout's words, then the head of the workspace."""
        address = self._handle.slot_address(slot.number)
        if self._layout.indices[slot.number] >= 0:
            return address - self._handle.slots
        return 4 * self._layout.words + address - self._handle.workspace

    # ---- what it is ---------------------------------------------------------------------------------------------

    @staticmethod
    def slot_info() -> tuple[_isv.Slot, ...]:
        """Return the manifest: name, type, role, words, default, range, unit and meaning of every slot."""
        return _isv.SLOTS

    @staticmethod
    def laws() -> dict[str, tuple[_isv.Law, ...]]:
        """Return the registry of control laws for "lam" and "tau": number, name, input, formula and source of each."""
        return {"lam": _isv.LAM_LAWS, "tau": _isv.TAU_LAWS}

    @staticmethod
    def presets() -> dict[str, _isv.Preset]:
        """Return the presets by name: their law of lam, the slots they set, and their source."""
        return dict(_isv.PRESETS)

    @property
    def device(self) -> str:
        """Where it is: "cpu" or "cuda:<ordinal>"."""
        return "cpu" if self._handle.device == CPU else f"cuda:{self._handle.device}"

    @property
    def layout(self) -> Layout:
        """Where the slots are in the buffer."""
        return self._layout

    @property
    def slots(self) -> Any:
        """The buffer as a float32 array: of NumPy on the CPU, with `__cuda_array_interface__` on a GPU.

        It is the memory itself. Whoever reads or writes it orders that with the stream of the steps.
        """
        return self._view(self._handle.slots, self._handle.words, "float32")

    @property
    def record(self) -> int:
        """Address of the record (`qpi_record`), at the start of the workspace."""
        return self._handle.workspace

    def record_views(self) -> RecordViews:
        """Return views of the record, so that a data-parallel job can all-reduce it between accumulate and commit."""
        base = self._handle.workspace
        return RecordViews(
            self._view(base, 3, "float64"),
            self._view(base + 24, 3, "int64"),
            self._view(base + 48, 2, "uint32"),
            self._view(base + 56, 8, "float64"),
        )

    def slot_address(self, name: str) -> int:
        """Return the address of a slot's first word.

        Parameters
        ----------
        name : str
            Name of the slot. Slots that the layout lacks are in the workspace.

        Raises
        ------
        TypeError
            If it is not the name of a slot.
        """
        return self._handle.slot_address(_check_name(name).number)

    def _view(self, address: int, shape: int | tuple[int, ...], dtype: str) -> Any:
        extents = shape if isinstance(shape, tuple) else (shape,)
        pointer = _pointer.Pointer(address, extents, dtype, self._handle.device, None, False, self._handle)
        return np.asarray(pointer) if self._handle.device == CPU else pointer

    def __repr__(self) -> str:
        """Show device and layout; reading the values would wait for the device."""
        return f"<qpi.ISV on {self.device}, {self._layout!r}>"

    # ---- reading and writing ------------------------------------------------------------------------------------

    def read(self, stream: Any = None, check: bool = True) -> ISVValues:
        """Return the values as they are after the last write.

        The host waits for that write, the stream that wrote does not wait: it copies the state beside and goes on.

        Parameters
        ----------
        stream : int or stream object, optional
            The stream after whose work so far the values are taken; a stream that replays a captured graph has to be
            named unless it is the framework's current one. None: follow the last call on this ISV.
        check : bool
            Whether to raise `FaultError` if `faults` is not empty.

        Raises
        ------
        FaultError
            Values on the device made no sense; the message names them.
        CaptureError
            The stream is being captured into a graph.
        """
        values = ISVValues(self._decode(self._state.read(stream)))
        if check and values.faults:
            names = ", ".join(values.faults)
            raise FaultError(
                f"the device met values that make no sense: {names}. What depended on them was not done. Correct them "
                "and call isv.clear_faults(); isv.read(check=False) reads all the same",
                values.faults,
            )
        return values

    def _decode(self, image: bytes) -> dict[str, float | int]:
        return {
            name: struct.unpack_from(_FORMATS[slot.type], image, self._offsets[name])[0]
            for name, slot in _SLOTS.items()
        }

    def set(self, stream: Any = None, **values: float | str) -> None:
        """Write parameters or states by name, in stream order.

        Parameters
        ----------
        stream : int or stream object, optional
            None: follow the last call on this ISV.
        **values : float, int or str
            New values by slot name; laws by name or number.

        Raises
        ------
        ValueError
            A value outside its range, lam neither 0 nor within [lam_min, lam_max], a slot that only the loop writes.
        TypeError
            A name that is no slot's.
        CaptureError
            lam, lam_min or lam_max while the stream is being captured: the check has to read the others.
        """
        checked = {name: _check_value(name, value) for name, value in values.items()}
        if not checked.keys().isdisjoint(("lam", "lam_min", "lam_max")):
            _check_together(self.read(stream, check=False).raw | checked)
        self._write(checked, stream)

    def _write(self, values: Mapping[str, float | int], stream: Any) -> None:
        writes = []
        for name, value in values.items():
            slot = _SLOTS[name]
            address = self._handle.slot_address(slot.number)
            writes += [(address + 4 * i, word) for i, word in enumerate(_words_of(slot, value))]
        self._state.write_words(writes, stream)

    def clear_faults(self, stream: Any = None) -> None:
        """Clear slot `faults`, in stream order.

        Parameters
        ----------
        stream : int or stream object, optional
            None: follow the last call on this ISV.
        """
        self._handle.call("clear_faults", stream)

    def reset(self, stream: Any = None) -> None:
        """Write the defaults into all slots and empty the record, in stream order. A recorder starts anew.

        Parameters
        ----------
        stream : int or stream object, optional
            None: follow the last call on this ISV.
        """
        self._handle.call("workspace_init", stream)
        self._handle.call("reset", stream)
        if self._recorder is not None:
            self._recorder._restart(0, stream)

    # ---- the parts of a step that need no arrays -------------------------------------------------------------------

    def commit(self, stream: Any = None) -> None:
        """Update the moving averages, lam and tau from the record, which is empty afterwards.

        Parameters
        ----------
        stream : int or stream object, optional
            None: follow the last call on this ISV.
        """
        self._handle.call("commit", stream)

    def control(self, stream: Any = None) -> None:
        """Let the control laws move lam and tau, on what drives them as it stands.

        Parameters
        ----------
        stream : int or stream object, optional
            None: follow the last call on this ISV.
        """
        self._handle.call("control", stream)

    def discard(self, stream: Any = None) -> None:
        """Empty the record without using it.

        Parameters
        ----------
        stream : int or stream object, optional
            None: follow the last call on this ISV.
        """
        self._handle.call("discard", stream)

    # ---- checkpoints -------------------------------------------------------------------------------------------------

    def state_dict(self, stream: Any = None) -> dict[str, Any]:
        """Return the whole state, to be saved: slots, layout, record and what lives in the workspace.

        Parameters
        ----------
        stream : int or stream object, optional
            None: follow the last call on this ISV.

        Returns
        -------
        dict
            Of str, int and NumPy arrays: ``format``, ``version``, ``names`` (of the slots), ``words`` (uint32, each
            slot's words in the order of the names), ``layout`` (int32, index of each slot or -1) and ``workspace``
            (uint8).

        Raises
        ------
        CaptureError
            The stream is being captured into a graph.
        """
        image = self._state.read(stream)
        words = [np.frombuffer(image, np.uint32, s.words, self._offsets[name]) for name, s in _SLOTS.items()]
        return {
            "format": _STATE_FORMAT,
            "version": _core.version(),
            "names": np.array(list(_SLOTS)),
            "words": np.concatenate(words),
            "layout": np.array(self._layout.indices, np.int32),
            "workspace": np.frombuffer(image, np.uint8, _isv.WORKSPACE_STATE_SIZE, 4 * self._layout.words).copy(),
        }

    def load_state_dict(self, state: Mapping[str, Any], stream: Any = None) -> None:
        """Restore a saved state; training goes on bit by bit as it would have, on the CPU as on a GPU.

        Values come back as they were saved, fault bits and values out of range included. A recorder goes on with the
        first commit after this; what it has not been drained of is dropped.

        Parameters
        ----------
        state : mapping
            What `state_dict` returned, possibly from another device or layout.
        stream : int or stream object, optional
            None: follow the last call on this ISV.

        Raises
        ------
        ValueError
            A state that is incomplete, of another format or of other sizes.
        CaptureError
            The stream is being captured into a graph.
        """
        missing = {"format", "names", "words", "layout", "workspace"} - set(state)
        if missing:
            raise ValueError(f"state: {', '.join(sorted(missing))} is missing")
        if state["format"] != _STATE_FORMAT:
            raise ValueError(f"state: format is {state['format']!r}, expected {_STATE_FORMAT!r}")
        names = [str(name) for name in np.asarray(state["names"]).tolist()]
        if names != list(_SLOTS):
            raise ValueError("state: was saved by a version of qpi-distill with other slots")
        words = np.asarray(state["words"])
        head = np.asarray(state["workspace"])
        if words.dtype != np.uint32 or words.shape != (sum(slot.words for slot in _SLOTS.values()),):
            raise ValueError(f"state: words are {words.dtype}{list(words.shape)}, which does not fit the slots")
        if head.dtype != np.uint8 or head.shape != (_isv.WORKSPACE_STATE_SIZE,):
            raise ValueError(
                f"state: workspace is {head.dtype}{list(head.shape)}, expected uint8[{_isv.WORKSPACE_STATE_SIZE}]"
            )
        writes: list[tuple[int, int]] = []
        at = 0
        for slot in _SLOTS.values():
            address = self._handle.slot_address(slot.number)
            writes += [(address + 4 * i, word) for i, word in enumerate(words[at : at + slot.words].tolist())]
            at += slot.words
        self._state.write_head(np.ascontiguousarray(head).tobytes(), stream)
        self._state.write_words(writes, stream)
        if self._recorder is not None:
            at = sum(slot.words for slot in _isv.SLOTS[: _SLOTS["commits"].number])
            self._recorder._restart(int(words[at]) | int(words[at + 1]) << 32, stream)


def _layout_of(layout: str | Layout) -> Layout:
    if isinstance(layout, Layout):
        return layout
    if layout == "native":
        return Layout.native()
    if layout == "bus":
        return Layout.bus()
    raise ValueError(f"layout: {layout!r} is not 'native', 'bus' or a Layout")


def _current_or_none(buffer: Any, ordinal: int) -> int | None:
    """Return the current stream of the library that a buffer comes from, where it can be known."""
    try:
        return _arrays.current_stream((buffer,), ordinal)[0]
    except ValueError:
        return None
