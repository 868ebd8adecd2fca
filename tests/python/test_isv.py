"""The state vector: its manifest, layouts, values, checks and checkpoints."""

from __future__ import annotations

import copy
import gc
import math
import pickle
import re
import sys
from pathlib import Path

import numpy as np
import producers as fake
import pytest
from producers import CudaArray, DLPack, smoke

import qpi_distill as qpi
from qpi_distill import _isv

DEFAULTS = {s.name: s.default for s in _isv.SLOTS}


def problem_of(isv, **options):
    return qpi.Distiller(
        **{"support": [-1, 1], "actions": 3, "isv": isv, "reduction": "sum", "value_scale": "none", **options}
    )


# ---- manifest -------------------------------------------------------------------------------------------------------


def test_every_slot_has_its_default(isv):
    values = qpi.ISV(device="cpu").read()
    assert list(values) == list(DEFAULTS)
    for name, default in DEFAULTS.items():
        assert values.raw[name] == np.float32(default)


def test_names_of_faults_and_reasons_are_those_of_the_header():
    header = (Path(qpi.get_include()) / "qpi_distill.h").read_text()
    for prefix, names in (("FAULT", _isv.FAULTS), ("REASON", {name: code for code, name in _isv.REASONS.items()})):
        in_header = {name.lower(): int(value) for name, value in re.findall(rf"QPI_{prefix}_(\w+) = (\d+)", header)}
        assert names == in_header


def test_public_declarations_name_everything_in_the_header():
    root = Path(_isv.__file__).parent
    declarations = root / "c_api.pxd"
    if not declarations.exists():
        pytest.skip("not an installed package")
    header = re.sub(r"/\*.*?\*/", "", (Path(qpi.get_include()) / "qpi_distill.h").read_text(), flags=re.S)
    names = set(re.findall(r"\b(?:qpi_[a-z0-9_]+(?=\()|QPI_[A-Z0-9_]+(?= =))", header))
    assert names
    missing = names - set(re.findall(r"\w+", declarations.read_text()))
    assert not missing


# ---- construction ---------------------------------------------------------------------------------------------------


def test_values_by_name():
    isv = qpi.ISV(lam=0.5, tau=2, kl_target=0.1, kl_ema=0.25, observations=2**40 + 3, device="cpu")
    values = isv.read()
    assert (values.lam, values.tau, values.observations) == (0.5, 2.0, 2**40 + 3)
    assert values["kl_target"] == np.float32(0.1)
    assert dict(values)["kl_ema"] == 0.25
    assert values.faults == ()
    assert values.reason == "none"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kl_target", 0),
        ("kl_target", -1),
        ("kl_target", math.nan),
        ("kl_target", math.inf),
        ("tau", -1),
        ("tau", math.nan),
        ("tau", -math.inf),
        ("kl_alpha", 0),
        ("kl_alpha", 1.0000001),
        ("lam", -0.1),
        ("lam", 0.049),
        ("lam", 1.001),
        ("lam", math.nan),
        ("lam_min", 2.0),
        ("lam_down", 1.5),
        ("lam_up", 0.5),
        ("kl_tolerance", 0.9),
        ("lam_max", 1e39),
        ("observations", -1),
        ("observations", 2**64),
    ],
)
def test_a_c4_values_outside_their_range(isv, name, value):
    with pytest.raises(ValueError, match=f"^{name}"):
        qpi.ISV(device="cpu", **{name: value})
    before = isv.read().raw
    with pytest.raises(ValueError, match=f"^{name}"):
        isv.set(**{name: value})
    assert isv.read().raw == before


@pytest.mark.parametrize(("name", "value"), [("lam", "x"), ("lam", None), ("tau", [1, 2]), ("observations", 1.5)])
def test_values_that_are_no_numbers(name, value):
    with pytest.raises(TypeError, match=name):
        qpi.ISV(device="cpu", **{name: value})


@pytest.mark.parametrize("value", [0.0, 0.05, 1.0])
def test_lam_at_the_ends_of_its_range(value):
    assert qpi.ISV(device="cpu", lam=value).read().lam == np.float32(value)


def test_lam_within_a_range_that_is_given_with_it(isv):
    assert qpi.ISV(device="cpu", lam=5, lam_max=6).read().lam == 5
    isv.set(lam=5, lam_max=6)
    isv.set(lam=6)
    with pytest.raises(ValueError, match="lam"):
        isv.set(lam=6.5)


def test_infinite_tau():
    assert qpi.ISV(device="cpu", tau=math.inf).read().tau == math.inf


def test_unknown_names(isv):
    for call in (lambda: qpi.ISV(device="cpu", lamm=1), lambda: isv.set(lamm=1), lambda: isv.slot_address("lamm")):
        with pytest.raises(TypeError, match=r"lamm.*did you mean lam"):
            call()


@pytest.mark.parametrize("name", ["faults", "reason", "kl_last", "skipped_rows"])
def test_outputs_are_not_set_by_the_host(isv, name):
    with pytest.raises(ValueError, match=name):
        isv.set(**{name: 1})


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "CPU", -1, True, "cuda:-1", object()])
def test_what_is_no_device(device):
    with pytest.raises(ValueError, match="device"):
        qpi.ISV(device=device)


@pytest.mark.skipif(qpi.info()["gpu"]["usable"], reason="there is a GPU here")
@pytest.mark.parametrize("device", ["cuda", "cuda:0", 0, type("Device", (), {"device_id": 0})()])
def test_a_p1_asking_for_a_gpu_says_what_is_missing(device):
    with pytest.raises(qpi.DeviceError) as caught:
        qpi.ISV(device=device)
    assert qpi.info()["gpu"]["reason"] in str(caught.value)
    assert qpi.ISV().device == "cpu"


# ---- memory ---------------------------------------------------------------------------------------------------------


def test_slots_are_the_memory_itself(isv):
    slots = isv.slots
    assert slots.dtype == np.float32
    slots[isv.layout["tau"]] = 3
    assert isv.read().tau == 3
    assert fake.address(slots[isv.layout["lam"] :]) == isv.slot_address("lam")
    del isv
    gc.collect()
    assert slots[0] == 1


def test_record_views(isv, op):
    q, pi, grad = smoke()
    views = isv.record_views()
    op.accumulate(q, pi, grad)
    op.accumulate(q, pi, grad)
    assert fake.address(views.sums) == isv.record
    assert abs(views.sums[0] - 2 * fake.SMOKE_KL) < 6e-6
    assert (views.sums[1], *views.counts, *views.flags) == (2, 2, 0, 0, 0, 2)
    views.sums[:] *= 10
    isv.commit()
    assert abs(isv.read().kl_ema - fake.SMOKE_KL) < 3e-6


def test_alignment():
    for _ in range(20):
        isv = qpi.ISV(device="cpu")
        assert isv.record % 16 == 0
        assert fake.address(isv.slots) % 16 == 0


def test_isv_outlives_nothing_that_uses_it(op):
    q, pi, grad = smoke()
    bound = op.bind(q, pi, grad)
    isv = op.isv
    address = isv.slot_address("observations")
    del op, isv
    gc.collect()
    junk = [np.ones(4096, np.uint32) for _ in range(50)]
    bound.step()
    assert np.asarray(qpi.pointer(address, (1,), "uint32", device="cpu"))[0] == 1
    assert all(x.all() for x in junk)


# ---- layouts --------------------------------------------------------------------------------------------------------


def test_standard_layouts():
    assert qpi.Layout.bus().to_dict() == {"lam": 486, "tau": 487, "kl_ema": 488, "kl_target": 491, "kl_alpha": 493}
    assert qpi.Layout.bus().words == 494
    native = qpi.Layout.native()
    assert list(native.to_dict()) == list(DEFAULTS)
    assert native.words == sum(s.words for s in _isv.SLOTS)
    assert qpi.ISV(layout="native", device="cpu").layout == native


def test_layouts_are_values():
    a, b = qpi.Layout.bus(faults=3), qpi.Layout.from_dict({**qpi.Layout.bus().to_dict(), "faults": 3})
    assert a == b
    assert hash(a) == hash(b)
    assert a != qpi.Layout.bus()
    assert pickle.loads(pickle.dumps(a)) == a
    assert copy.deepcopy(a) == a
    assert "faults" in a
    assert "reason" not in a
    assert a["faults"] == 3
    assert repr(qpi.Layout.bus()) == "Layout.bus()"
    assert "'faults': 3" in repr(a)
    with pytest.raises(AttributeError):
        a.indices = ()


@pytest.mark.parametrize(
    ("index", "error"),
    [
        ({"lam": 0, "tau": 0}, ValueError),
        ({"observations": 0, "tau": 1}, ValueError),
        ({"lam": -1}, ValueError),
        ({"lam": 2**31}, ValueError),
        ({"lam": 1.5}, TypeError),
        ({"lam": True}, TypeError),
        ({"lamm": 1}, TypeError),
    ],
)
def test_layouts_that_cannot_be(index, error):
    with pytest.raises(error, match="layout"):
        qpi.Layout(index)


@pytest.mark.parametrize("layout", ["Native", None, 3])
def test_what_is_no_layout(layout):
    with pytest.raises(ValueError, match="layout"):
        qpi.ISV(layout=layout, device="cpu")


def test_slots_that_the_layout_lacks_live_in_the_workspace():
    isv = qpi.ISV(device="cpu", layout="bus", lam_up=1.5, tau=2)
    values = isv.read()
    assert values.lam_up == 1.5
    assert values.tau == 2
    isv.set(lam_up=1.25)
    assert isv.read().lam_up == 1.25
    isv.reset()
    assert isv.read().raw == qpi.ISV(device="cpu").read().raw


# ---- a buffer of the caller's ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint32", "uint8"])
def test_buffers_are_adopted(dtype):
    bus = np.zeros(600 * 4, np.uint8).view(dtype)
    words = bus.view(np.float32)
    words[:] = 7
    words[[486, 487, 488, 491, 493]] = [0.5, 2, 0.25, 0.05, 0.05]
    isv = qpi.ISV.from_buffer(bus)
    assert isv.read().lam == 0.5
    assert isv.read().kl_ema == 0.25
    isv.set(tau=4)
    assert words[487] == 4
    q, pi, grad = smoke()
    problem_of(isv).step(q, pi, grad)
    assert np.flatnonzero(words != 7).tolist() == [486, 487, 488, 491, 493]
    assert fake.address(isv.slots) == fake.address(bus)
    assert len(isv.slots) == 600


def test_buffers_can_be_reset():
    bus = np.full(494, 7, np.float32)
    isv = qpi.ISV.from_buffer(bus, reset=True)
    assert bus[486] == np.float32(0.1)
    assert np.flatnonzero(bus != 7).tolist() == [486, 487, 488, 491, 493]
    assert isv.read().raw == qpi.ISV(device="cpu").read().raw


def test_buffers_through_protocols():
    bus = np.zeros(600, np.float32)
    for wrap in (lambda x: x, DLPack, memoryview, lambda x: qpi.pointer(fake.address(x), x.shape, device="cpu")):
        isv = qpi.ISV.from_buffer(wrap(bus), layout="bus", reset=True)
        assert isv.device == "cpu"
        assert isv.read().tau == 1


def test_a_buffer_is_kept():
    isv = qpi.ISV.from_buffer(np.zeros(2000, np.float32), reset=True)
    gc.collect()
    junk = [np.ones(2000, np.float32) for _ in range(20)]
    assert isv.read().tau == 1
    assert len(junk) == 20


@pytest.mark.parametrize(
    ("buffer", "error"),
    [
        (np.zeros(493, np.float32), ValueError),
        (np.zeros(494 * 4 - 1, np.uint8), ValueError),
        (np.zeros((2, 494), np.float32), ValueError),
        (np.zeros(1000, np.float32)[::2], ValueError),
        (np.zeros(494, np.float64), TypeError),
        (np.zeros(494, np.float16), TypeError),
        (np.zeros(494, ">f4"), TypeError),
        (np.zeros(494 * 4 + 1, np.uint8)[1:], BufferError),
        ([0.0] * 494, TypeError),
        (CudaArray(np.zeros(494, np.float32), mask=1), BufferError),
        (CudaArray(np.zeros(494, np.float32), data=(64, True)), BufferError),
        (DLPack(np.zeros(494, np.float32), flags=fake.READ_ONLY), BufferError),
        (qpi.pointer(64, (494,), device="cpu", readonly=True), BufferError),
    ],
)
def test_buffers_that_do_not_serve(buffer, error):
    with pytest.raises(error):
        qpi.ISV.from_buffer(buffer, layout="bus")


def test_a_i4_read_only_buffers():
    bus = np.zeros(494, np.float32)
    bus.flags.writeable = False
    with pytest.raises(BufferError, match=r"buffer.*read-only"):
        qpi.ISV.from_buffer(bus, reset=True)
    assert not bus.any()


def test_buffers_elsewhere():
    with pytest.raises(BufferError, match="cuda:1"):
        qpi.ISV.from_buffer(DLPack(np.zeros(494, np.float32), device=(fake.CUDA, 1)), device="cpu")


# ---- reading --------------------------------------------------------------------------------------------------------


def test_values_are_frozen(isv):
    values = isv.read()
    with pytest.raises(AttributeError, match=r"ISV\.set"):
        values.lam = 2
    with pytest.raises(TypeError):
        values["lam"] = 2
    with pytest.raises(AttributeError, match="nothing"):
        values.nothing  # noqa: B018
    with pytest.raises(KeyError):
        values["nothing"]
    assert pickle.loads(pickle.dumps(values)) == values
    assert copy.deepcopy(values).raw == values.raw
    assert "lam=1.0" in repr(values)
    isv.set(lam=0.5)
    assert values.lam == 1


def test_faults_become_an_error(isv, op):
    q, pi, grad = smoke()
    isv.slots[isv.layout["tau"]] = -1
    isv.slots[isv.layout["lam"]] = np.nan
    op.step(q, pi, grad)
    assert not grad.any()
    with pytest.raises(qpi.FaultError, match=r"tau, lam.*clear_faults") as caught:
        isv.read()
    assert caught.value.faults == ("tau", "lam")
    assert isinstance(caught.value, ArithmeticError)
    assert isinstance(caught.value, qpi.QpiError)
    values = isv.read(check=False)
    assert values.faults == ("tau", "lam")
    assert values.raw["faults"] == 3
    assert values.reason == "fault"
    isv.set(tau=1, lam=1)
    isv.clear_faults()
    assert isv.read().faults == ()


def test_exceptions_can_be_pickled():
    error = pickle.loads(pickle.dumps(qpi.FaultError("text", ("tau",))))
    assert (str(error), error.faults) == ("text", ("tau",))


# ---- checkpoints ----------------------------------------------------------------------------------------------------


def random_steps(isv, rng, count):
    op = qpi.Distiller(support=qpi.linspace(-5, 5, 9), actions=4, isv=isv, reduction="mean", value_scale="running_std")
    out = []
    for n in range(count):
        q = rng.normal(size=(10, 4, 9)).astype(np.float32)
        pi = rng.normal(size=(10, 4)).astype(np.float32)
        grad = np.zeros_like(pi)
        (op.accumulate if n % 3 else op.step)(q, pi, grad)
        if n % 3 == 2:
            op.commit()
        out.append(grad)
    return np.stack(out)


@pytest.mark.parametrize("layout", ["native", "bus"])
@pytest.mark.parametrize("stop", [3, 4, 5])
def test_a_checkpoint_resumes_to_the_bit(layout, stop):
    """Also between accumulate and commit: the record is part of the state."""
    whole, half = (qpi.ISV(device="cpu", layout=layout, kl_alpha=0.3, tau=0.7) for _ in range(2))
    rng = np.random.default_rng(1)
    want = random_steps(whole, rng, 9)
    rng = np.random.default_rng(1)

    op = qpi.Distiller(support=qpi.linspace(-5, 5, 9), actions=4, isv=half, reduction="mean")
    resumed = None
    for n in range(9):
        if n == stop:
            state = pickle.loads(pickle.dumps(half.state_dict()))
            resumed = qpi.ISV(device="cpu", layout=layout)
            resumed.load_state_dict(state)
            op = qpi.Distiller(support=qpi.linspace(-5, 5, 9), actions=4, isv=resumed, reduction="mean")
        q = rng.normal(size=(10, 4, 9)).astype(np.float32)
        pi = rng.normal(size=(10, 4)).astype(np.float32)
        grad = np.zeros_like(pi)
        (op.accumulate if n % 3 else op.step)(q, pi, grad)
        if n % 3 == 2:
            op.commit()
        assert grad.tobytes() == want[n].tobytes()
    assert resumed.read().raw == whole.read().raw


def test_a_checkpoint_is_plain():
    state = qpi.ISV(device="cpu").state_dict()
    assert {type(x) for x in state.values()} <= {str, int, np.ndarray}
    assert all(x.dtype.kind in "uiU" for x in state.values() if isinstance(x, np.ndarray))


def test_a_checkpoint_is_a_copy(isv):
    state = isv.state_dict()
    isv.set(tau=5)
    other = qpi.ISV(device="cpu")
    other.load_state_dict(state)
    assert other.read().tau == 1


def test_a_checkpoint_moves_between_layouts():
    one = qpi.ISV(device="cpu", layout="native", lam_up=1.3, tau=2, observations=7, kl_ema=0.5)
    two = qpi.ISV(device="cpu", layout=qpi.Layout.bus(lam_up=3))
    two.load_state_dict(one.state_dict())
    assert two.read().raw == one.read().raw
    assert two.slots[3] == np.float32(1.3)
    three = qpi.ISV(device="cpu")
    three.load_state_dict(two.state_dict())
    assert three.read().raw == one.read().raw


def test_loading_leaves_the_rest_of_a_bus_alone():
    bus = np.full(600, 7, np.float32)
    isv = qpi.ISV.from_buffer(bus, reset=True)
    isv.load_state_dict(qpi.ISV(device="cpu", tau=3).state_dict())
    assert np.flatnonzero(bus != 7).tolist() == [486, 487, 488, 491, 493]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("format", "other/1"),
        ("names", np.array(["lam", "tau"])),
        ("words", np.zeros(5, np.uint32)),
        ("words", np.zeros(sum(s.words for s in _isv.SLOTS), np.float32)),
        ("workspace", np.zeros(3, np.uint8)),
        ("workspace", None),
        ("names", None),
    ],
)
def test_states_that_do_not_fit(isv, field, value):
    state = isv.state_dict()
    if value is None:
        del state[field]
    else:
        state[field] = value
    before = isv.state_dict()
    with pytest.raises(ValueError, match="state"):
        isv.load_state_dict(state)
    assert all(np.array_equal(x, before[name]) for name, x in isv.state_dict().items())


# ---- the parts ------------------------------------------------------------------------------------------------------


def test_commit_discard_and_control(isv, op):
    q, pi, grad = smoke()
    op.accumulate(q, pi, grad)
    isv.discard()
    isv.commit()
    assert isv.read().observations == 0
    assert isv.read().reason == "no_rows"
    op.accumulate(q, pi, grad)
    op.discard()
    op.accumulate(q, pi, grad)
    op.commit()
    assert isv.read().observations == 1
    isv.set(kl_ema=0.0)
    isv.control()
    assert isv.read().lam == np.float32(0.998)
    assert isv.read().reason == "below"
    qpi.lambda_controller(isv)
    assert isv.read().lam < 0.998


def test_nothing_but_numpy_is_imported():
    import subprocess

    program = """
import sys, qpi_distill as qpi
isv = qpi.ISV(device="cpu")
isv.read(); isv.state_dict()
heavy = {"cuda", "torch", "cupy", "jax", "numba", "ml_dtypes", "ctypes.wintypes"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", program], check=True)
