# cython: language_level=3, freethreading_compatible=True
"""The manifest, the layouts and the state vector."""

cimport cython
from libc.stdint cimport int32_t, int64_t, uintptr_t

from qpi_distill._arrays cimport Framework
from qpi_distill._status cimport check
from qpi_distill._streams cimport stream_handle
from qpi_distill.c_api cimport (
    QPI_DEVICE_CPU,
    QPI_FAULT_ALPHA,
    QPI_FAULT_BOUND,
    QPI_FAULT_GRAD_SCALE,
    QPI_FAULT_LAM,
    QPI_FAULT_LAW,
    QPI_FAULT_SUPPORT,
    QPI_FAULT_TARGET,
    QPI_FAULT_TAU,
    QPI_FAULT_TAU_LAW,
    QPI_FAULT_VALUE,
    QPI_FAULT_WEIGHT,
    QPI_FLIGHT_MAX,
    QPI_LAM_LAW_COUNT,
    QPI_LAW_INPUT_ENTROPY,
    QPI_LAW_INPUT_KL,
    QPI_LAW_INPUT_NOTHING,
    QPI_LAW_INPUT_OBSERVATIONS,
    QPI_LAW_INPUT_PRIOR_KL,
    QPI_REASON_ABOVE,
    QPI_REASON_AT_MAX,
    QPI_REASON_AT_MIN,
    QPI_REASON_BELOW,
    QPI_REASON_ENDED,
    QPI_REASON_FAULT,
    QPI_REASON_FIXED,
    QPI_REASON_IN_BAND,
    QPI_REASON_NO_ROWS,
    QPI_REASON_NONE,
    QPI_REASON_OBSERVED,
    QPI_REASON_OFF,
    QPI_REASON_SCHEDULED,
    QPI_REASON_TOO_FEW,
    QPI_REASON_UNMEASURED,
    QPI_SLOT_COUNT,
    QPI_SLOT_F32,
    QPI_SLOT_OUTPUT,
    QPI_SLOT_PARAM,
    QPI_SLOT_STATE,
    QPI_SLOT_U32,
    QPI_SLOT_U64,
    QPI_TAU_LAW_COUNT,
    qpi_clear_faults,
    qpi_commit,
    qpi_control,
    qpi_discard,
    qpi_flight,
    qpi_flight_field,
    qpi_flight_field_count,
    qpi_flight_field_info,
    qpi_isv_init,
    qpi_isv_reset,
    qpi_isv_slot_address,
    qpi_isv_slot_info,
    qpi_lam_law_info,
    qpi_law_info,
    qpi_layout,
    qpi_layout_bus,
    qpi_layout_native,
    qpi_layout_words,
    qpi_preset_count,
    qpi_preset_get,
    qpi_preset_info,
    qpi_record,
    qpi_slot,
    qpi_slot_info,
    qpi_status,
    qpi_stream_t,
    qpi_tau_law_info,
    qpi_workspace_init,
    qpi_workspace_size,
    qpi_workspace_state_size,
)

from collections import namedtuple

Slot = namedtuple("Slot", "number name type role words default low high unit meaning")
Slot.__doc__ = "One line of the ISV manifest."
Law = namedtuple("Law", "number name input formula source")
Law.__doc__ = "One line of the registry of control laws."
Preset = namedtuple("Preset", "name lam_law values source")
Preset.__doc__ = "A law of lam with the numbers of its source: slot values by name, `lam_law` apart."

# Bits of slot `faults` and codes of slot `reason`, by the names that Python uses.
FAULTS = {
    "tau": <int> QPI_FAULT_TAU,
    "lam": <int> QPI_FAULT_LAM,
    "support": <int> QPI_FAULT_SUPPORT,
    "grad_scale": <int> QPI_FAULT_GRAD_SCALE,
    "weight": <int> QPI_FAULT_WEIGHT,
    "alpha": <int> QPI_FAULT_ALPHA,
    "target": <int> QPI_FAULT_TARGET,
    "law": <int> QPI_FAULT_LAW,
    "bound": <int> QPI_FAULT_BOUND,
    "value": <int> QPI_FAULT_VALUE,
    "tau_law": <int> QPI_FAULT_TAU_LAW,
}
REASONS = {
    <int> QPI_REASON_NONE: "none",
    <int> QPI_REASON_IN_BAND: "in_band",
    <int> QPI_REASON_ABOVE: "above",
    <int> QPI_REASON_BELOW: "below",
    <int> QPI_REASON_AT_MAX: "at_max",
    <int> QPI_REASON_AT_MIN: "at_min",
    <int> QPI_REASON_OFF: "off",
    <int> QPI_REASON_NO_ROWS: "no_rows",
    <int> QPI_REASON_TOO_FEW: "too_few",
    <int> QPI_REASON_FAULT: "fault",
    <int> QPI_REASON_OBSERVED: "observed",
    <int> QPI_REASON_FIXED: "fixed",
    <int> QPI_REASON_SCHEDULED: "scheduled",
    <int> QPI_REASON_ENDED: "ended",
    <int> QPI_REASON_UNMEASURED: "unmeasured",
}


_TYPES = {<int> QPI_SLOT_F32: "f32", <int> QPI_SLOT_U32: "u32", <int> QPI_SLOT_U64: "u64"}
_INPUTS = {
    <int> QPI_LAW_INPUT_NOTHING: "nothing",
    <int> QPI_LAW_INPUT_KL: "kl",
    <int> QPI_LAW_INPUT_OBSERVATIONS: "observations",
    <int> QPI_LAW_INPUT_ENTROPY: "entropy",
    <int> QPI_LAW_INPUT_PRIOR_KL: "prior_kl",
}


cdef tuple _manifest():
    cdef qpi_slot_info info
    cdef int32_t i
    roles = {<int> QPI_SLOT_PARAM: "param", <int> QPI_SLOT_STATE: "state", <int> QPI_SLOT_OUTPUT: "output"}
    slots = []
    for i in range(QPI_SLOT_COUNT):
        check(qpi_isv_slot_info(i, &info))
        slots.append(Slot(
            i, info.name.decode("ascii"), _TYPES[<int> info.type], roles[<int> info.role], info.words,
            info.default_value, info.low, info.high, info.unit.decode("utf-8"), info.meaning.decode("utf-8"),
        ))
    return tuple(slots)


cdef object _law(int32_t number, const qpi_law_info* info):
    return Law(
        number, info.name.decode("ascii"), _INPUTS[<int> info.input], info.formula.decode("utf-8"),
        info.source.decode("utf-8"),
    )


cdef tuple _lam_laws():
    cdef qpi_law_info info
    cdef int32_t i
    laws = []
    for i in range(QPI_LAM_LAW_COUNT):
        check(qpi_lam_law_info(i, &info))
        laws.append(_law(i, &info))
    return tuple(laws)


cdef tuple _tau_laws():
    cdef qpi_law_info info
    cdef int32_t i
    laws = []
    for i in range(QPI_TAU_LAW_COUNT):
        check(qpi_tau_law_info(i, &info))
        laws.append(_law(i, &info))
    return tuple(laws)


cdef dict _presets():
    cdef qpi_preset_info info
    cdef int32_t i, k
    presets = {}
    for i in range(qpi_preset_count()):
        check(qpi_preset_get(i, &info))
        name = info.name.decode("ascii")
        values = {SLOTS[<int> info.values[k].slot].name: info.values[k].value for k in range(info.count)}
        presets[name] = Preset(name, LAM_LAWS[<int> info.lam_law].name, values, info.source.decode("utf-8"))
    return presets


cdef tuple _flight_fields():
    cdef qpi_flight_field info
    cdef int32_t i
    fields = []
    for i in range(qpi_flight_field_count()):
        check(qpi_flight_field_info(i, &info))
        fields.append((info.name.decode("ascii"), _TYPES[<int> info.type], info.offset))
    return tuple(fields)


SLOTS = _manifest()
LAM_LAWS = _lam_laws()
TAU_LAWS = _tau_laws()
PRESETS = _presets()
FLIGHT_FIELDS = _flight_fields()
FLIGHT_SIZE = sizeof(qpi_flight)
FLIGHT_MAX = QPI_FLIGHT_MAX
RECORD_SIZE = sizeof(qpi_record)
WORKSPACE_SIZE = qpi_workspace_size()
WORKSPACE_STATE_SIZE = qpi_workspace_state_size()


cdef tuple _indices(const qpi_layout* layout):
    cdef int i
    return tuple([layout.index[i] for i in range(QPI_SLOT_COUNT)])


cdef int _fill_layout(object indices, qpi_layout* layout) except -1:
    cdef int i
    if len(indices) != QPI_SLOT_COUNT:
        raise ValueError(f"layout: {len(indices)} indices, expected {<int> QPI_SLOT_COUNT}")
    qpi_layout_native(layout)
    for i in range(QPI_SLOT_COUNT):
        layout.index[i] = indices[i]
    return 0


def native_layout() -> tuple:
    """Return the index of every slot in the compact layout."""
    cdef qpi_layout layout
    qpi_layout_native(&layout)
    return _indices(&layout)


def bus_layout() -> tuple:
    """Return the index of every slot in the seed kernels' bus, -1 where it has none."""
    cdef qpi_layout layout
    qpi_layout_bus(&layout)
    return _indices(&layout)


def layout_words(indices) -> int:
    """Return the length in words of a buffer for a layout, or -1 where the layout is not valid."""
    cdef qpi_layout layout
    _fill_layout(indices, &layout)
    return qpi_layout_words(&layout)


cdef class Trace:
    @property
    def known(self) -> bool:
        """Whether something keeps the stream: an object that owns it, or the framework that it came from."""
        return self.owner is not None or self.source is not None


cdef class Isv:
    """The state vector as the C library sees it.

    Parameters
    ----------
    device : int
        -1 for the CPU, or the ordinal of a GPU.
    slots, words : int
        Address and length in 4-byte slots of the state vector.
    workspace : int
        Address of `WORKSPACE_SIZE` bytes, aligned to 16.
    indices : sequence of int
        The layout.
    memory : object
        Kept alive as long as this object is.
    """

    def __cinit__(self):
        self.trace = Trace()

    def __init__(self, int32_t device, uintptr_t slots, int64_t words, uintptr_t workspace, indices, memory):
        qpi_isv_init(&self.c)
        self.c.device = device
        self.c.slots = <void*> slots
        self.c.words = words
        self.c.workspace = <void*> workspace
        _fill_layout(indices, &self.c.layout)
        self.memory = memory

    def attach(self, uintptr_t own, settle) -> None:
        """Name the stream for calls before any caller's, and how to wait for it."""
        self.own = own
        self.settle = settle

    def relocate(self, uintptr_t slots, uintptr_t workspace) -> None:
        """Have the calls to come work on other memory of the same size, on the same device.

        For state that its owner moves about. The caller keeps the memory alive, and calls of other threads away.
        """
        self.c.slots = <void*> slots
        self.c.workspace = <void*> workspace

    def record_to(self, uintptr_t flight, int64_t capacity, memory) -> None:
        """Give the commits to come a ring of `capacity` records at an address, or none with 0 and 0.

        `memory` is kept alive until the next call, and as long as this object is.
        """
        self.c.flight = <qpi_flight*> flight
        self.c.flight_capacity = capacity
        self.flight_memory = memory
        self.rings += 1

    cdef int note(self, uintptr_t handle, object owner, object source) except -1:
        """Remember the stream of a call."""
        cdef Trace trace = self.trace
        if handle == trace.handle and source is trace.source and owner is trace.owner:
            return 0
        with cython.critical_section(trace):
            trace.handle = handle
            trace.owner = owner
            trace.source = source
        return 0

    @property
    def device(self) -> int:
        """-1 for the CPU, or the ordinal of a GPU."""
        return self.c.device

    @property
    def slots(self) -> int:
        """Address of the state vector."""
        return <uintptr_t> self.c.slots

    @property
    def words(self) -> int:
        """Length of the state vector in 4-byte slots."""
        return self.c.words

    @property
    def workspace(self) -> int:
        """Address of the workspace, which begins with the record."""
        return <uintptr_t> self.c.workspace

    def slot_address(self, int32_t slot) -> int:
        """Return the address of a slot's words, in the caller's buffer or in the workspace."""
        cdef void* address = NULL
        check(qpi_isv_slot_address(&self.c, <qpi_slot> slot, &address))
        return <uintptr_t> address

    def order(self, stream=None):
        """Return (handle, owner, source) of the stream for work that follows the last call's; handle 0: not known.

        A named stream is itself. None repeats what the last call did: the current stream of the framework, where it
        was left to the framework, else the stream that was named.
        """
        cdef uintptr_t handle = 0
        if self.c.device == QPI_DEVICE_CPU:
            if stream is not None:
                raise ValueError("stream: work on the CPU has no stream; leave it out")
            return 0, None, None
        if stream is not None:
            handle = stream_handle(stream)
            return handle, None if type(stream) is int else stream, None
        source = self.trace.source
        if source is not None:
            owner = (<Framework> source).current_stream(None, self.c.device, &handle)
            if handle:
                return handle, owner, source
        return self.trace.handle, self.trace.owner, source

    def wrote(self, uintptr_t handle, owner, source) -> None:
        """Remember the stream of a write."""
        self.note(handle, owner, source)

    def call(self, str what, stream=None) -> None:
        """Enqueue `commit`, `control`, `discard`, `clear_faults`, `reset` or `workspace_init` on a stream.

        Where no stream is named and no call has used one yet, our own one serves, and the host waits for it.
        """
        cdef qpi_status status
        handle, owner, source = self.order(stream)
        cdef bint fresh = handle == 0 and self.c.device != QPI_DEVICE_CPU
        cdef qpi_stream_t target = <qpi_stream_t> <uintptr_t> (self.own if fresh else handle)
        if what == "commit":
            with nogil:
                status = qpi_commit(&self.c, target)
        elif what == "control":
            with nogil:
                status = qpi_control(&self.c, target)
        elif what == "discard":
            with nogil:
                status = qpi_discard(&self.c, target)
        elif what == "clear_faults":
            with nogil:
                status = qpi_clear_faults(&self.c, target)
        elif what == "reset":
            with nogil:
                status = qpi_isv_reset(&self.c, target)
        else:
            with nogil:
                status = qpi_workspace_init(&self.c, target)
        check(status)
        if fresh:
            self.settle()
        else:
            self.note(handle, owner, source)
