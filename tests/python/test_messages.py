"""Arguments of the wrong kind: the documented exception, naming argument, value and expectation."""

from __future__ import annotations

import copy
import inspect
import math
import pickle

import numpy as np
import pytest
from producers import CudaArray, smoke

import qpi_distill as qpi
from qpi_distill._arrays import describe
from qpi_distill._bound import Bound

# ---- methods that read their arguments themselves -------------------------------------------------------------------

NAMES = ("q_logits", "pi_logits", "pi_grad")


@pytest.mark.parametrize("method", ["step", "accumulate", "distill_grad"])
def test_arguments_by_position_and_by_name(op, method):
    q, pi, grad = smoke()
    call = getattr(op, method)
    want = None
    for position in range(4):
        given = dict(zip(NAMES, (q, pi, grad), strict=True))
        # Names that were made at run time are equal to ours without being the same objects.
        named = {"".join(name): given[name] for name in NAMES[position:]}
        grad[:] = 0
        op.isv.set(lam=1.0)
        call(*list(given.values())[:position], row_weights=None, **named, stream=None)
        want = grad.copy() if want is None else want
        assert np.array_equal(grad, want)
        assert grad.any()


@pytest.mark.parametrize("method", ["step", "accumulate", "distill_grad"])
def test_arguments_that_do_not_fit_the_signature(op, method):
    q, pi, grad = smoke()
    call = getattr(op, method)
    for arguments, keywords, match in (
        ((), {}, "q_logits"),
        ((q,), {}, "pi_logits"),
        ((q, pi), {}, "pi_grad"),
        ((q,), {"pi_grad": grad}, "pi_logits"),
        ((q, pi, grad, None), {}, "3 positional"),
        ((q, pi, grad), {"colour": 1}, "colour"),
        ((q, pi, grad), {"q_logits": q}, r"multiple.*q_logits"),
        ((q, pi, None), {}, r"pi_grad.*NoneType"),
    ):
        with pytest.raises(TypeError, match=match):
            call(*arguments, **keywords)
    assert not grad.any()


@pytest.mark.parametrize("method", ["step", "accumulate", "distill_grad"])
def test_bound_arguments_that_do_not_fit_the_signature(op, method):
    q, pi, grad = smoke()
    call = getattr(op.bind(q, pi, grad), method)
    for arguments, keywords, match in (
        ((None, None), {}, "1 positional"),
        ((), {"colour": 1}, "colour"),
        ((None,), {"stream": None}, r"multiple.*stream"),
    ):
        with pytest.raises(TypeError, match=match):
            call(*arguments, **keywords)
    assert not grad.any()
    with pytest.raises(ValueError, match="stream"):
        call(7)
    call(stream=None)
    assert grad.any()


def test_methods_of_another_object(op):
    for method in (qpi.Distiller.step, Bound.step):
        with pytest.raises(TypeError):
            method(object())


def test_signatures_and_documentation_are_kept():
    assert str(inspect.signature(Bound.step)) == "(self, /, stream=None)"
    assert "Parameters" in Bound.step.__doc__
    for name in ("step", "accumulate", "distill_grad"):
        parameters = inspect.signature(getattr(qpi.Distiller, name)).parameters
        assert [str(p) for p in parameters.values()] == [
            "self",
            *NAMES,
            *(f"{optional}=None" for optional in ("legal_actions", "row_weights", "grad_scale", "stream")),
        ]
        assert [p.kind for p in list(parameters.values())[4:]] == [inspect.Parameter.KEYWORD_ONLY] * 4
        assert name in repr(getattr(qpi.Distiller, name))


# ---- copies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_what_stands_for_memory_is_not_copied(op, duplicate):
    bound = op.bind(*smoke())
    for thing, advice in ((bound, "bind the arrays again"), (op, "state_dict")):
        with pytest.raises(TypeError, match=advice):
            duplicate(thing)
    bound.step()


# ---- arrays that are none -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [np.ndarray, CudaArray, int, qpi.Distiller])
def test_a_class_is_not_an_array(op, cls):
    q, pi, grad = smoke()
    for arguments, name in (((cls, pi, grad), "q_logits"), ((q, cls, grad), "pi_logits"), ((q, pi, cls), "pi_grad")):
        with pytest.raises(TypeError, match=rf"{name}: is the class .*{cls.__name__}, expected an array"):
            op.step(*arguments)
    with pytest.raises(TypeError, match="support: is the class"):
        qpi.Distiller(support=cls, actions=3, isv=op.isv, reduction="sum")


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("shape", 3, TypeError),
        ("shape", "33", TypeError),
        ("shape", (3.0,), TypeError),
        ("shape", (None,), TypeError),
        ("shape", (True,), TypeError),
        ("shape", (2**64,), OverflowError),
        ("strides", 4, TypeError),
        ("strides", ("4",), TypeError),
        ("strides", (2**70,), OverflowError),
        ("typestr", None, TypeError),
        ("typestr", np.float32, TypeError),
        ("typestr", b"<f4", TypeError),
        ("data", None, TypeError),
        ("data", 4096, TypeError),
        ("data", (4096,), TypeError),
        ("data", (4096, False, 1), TypeError),
        ("data", ("4096", False), TypeError),
        ("data", (-8, False), TypeError),
        ("data", (2**64, False), TypeError),
        ("version", None, TypeError),
        ("version", "3", TypeError),
        ("stream", "7", TypeError),
        ("stream", True, TypeError),
        ("stream", 1.5, TypeError),
        ("stream", -7, ValueError),
    ],
)
def test_a_malformed_interface(field, value, error):
    with pytest.raises(error, match="pi_logits") as caught:
        describe(CudaArray(np.zeros(3, np.float32), **{field: value}), "pi_logits")
    assert field in str(caught.value)
    assert repr(value) in str(caught.value) or field == "stream"


# ---- numbers, names, objects ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        (("a", 1, 3), TypeError, "low: 'a' is not a real number"),
        ((0, None, 3), TypeError, "high: None is not a real number"),
        ((0, 1j, 3), TypeError, "high: 1j"),
        ((0, [1, 2], 3), TypeError, "high"),
        ((True, 1, 3), TypeError, "low: True"),
        ((0, 1, 2.5), TypeError, "atoms: 2.5 is not an integer"),
        ((0, 1, "3"), TypeError, "atoms: '3' is not an integer"),
        ((0, 1, True), TypeError, "atoms: True is not an integer"),
        ((0, 1, 0), ValueError, "atoms: 0, expected 1 or more"),
        ((0, math.nan, 3), ValueError, "nan"),
        ((0, 1e39, 3), ValueError, "1e\\+39"),
    ],
)
def test_linspace(arguments, error, match):
    with pytest.raises(error, match=match):
        qpi.linspace(*arguments)


@pytest.mark.parametrize("index", [None, 5, "lam", ["lam"], {("lam", 3)}])
def test_a_layout_of_something_else(index):
    with pytest.raises(TypeError, match=r"layout: .* is not a mapping of slot names to indices"):
        qpi.Layout(index)


def test_slots_that_are_not_there():
    with pytest.raises(TypeError, match=r"layout: unknown slot 3, colour"):
        qpi.Layout({"colour": 1, 3: 4})
    with pytest.raises(KeyError, match=r"no slot 'faults'.*lam"):
        qpi.Layout.bus()["faults"]
    isv = qpi.ISV(device="cpu")
    for name in ("colour", 3, None, ["tau"]):
        with pytest.raises(TypeError, match=r"slot.*lam"):
            isv.slot_address(name)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"illegal_below": "low"}, TypeError, "illegal_below: 'low' is not a real number"),
        ({"illegal_below": [1]}, TypeError, "illegal_below"),
        ({"max_threads": 1.5}, TypeError, "max_threads: 1.5 is not an integer"),
        ({"max_threads": "2"}, TypeError, "max_threads"),
        ({"max_blocks": 2**31}, ValueError, "max_blocks: 2147483648"),
        ({"kernel": 3}, ValueError, "kernel: 3 is not one of 'auto'"),
        ({"kernel": ["tile"]}, ValueError, "kernel"),
        ({"q_dtype": 0}, TypeError, "q_dtype: dtype 0 is not supported; expected one of float32"),
        ({"pi_dtype": None}, TypeError, "pi_dtype: dtype None"),
        ({"grad_dtype": object()}, TypeError, "grad_dtype"),
    ],
)
def test_options_of_another_kind(isv, options, error, match):
    with pytest.raises(error, match=match):
        qpi.Distiller(support=[-1, 1], actions=3, isv=isv, reduction="sum", **options)


def test_rows_to_explain_are_an_integer(op):
    with pytest.raises(TypeError, match="rows: '3' is not an integer"):
        op.explain("3")


@pytest.mark.parametrize("isv", [None, 3, np.zeros(600, np.float32)])
def test_the_control_law_needs_an_isv(isv):
    with pytest.raises(TypeError, match=rf"isv: {type(isv).__name__} is not a qpi.ISV"):
        qpi.lambda_controller(isv)


def test_the_seed_calls_name_their_arguments(isv):
    names = ("q_logits", "pi_logits", "atom_supports", "isv_bus", "pi_grad_logits")
    right = [np.zeros(s, np.float32) for s in ((2, 11, 21), (2, 11), (21,), (494,), (2, 11))]
    assert list(inspect.signature(qpi.seed_distill_grad).parameters)[:5] == list(names)
    for position, name in enumerate(names):
        for wrong in (None, "text", 3, right[position].astype(np.float64), right[position].reshape(-1)[::2]):
            arguments = list(right)
            arguments[position] = wrong
            with pytest.raises((TypeError, ValueError), match=rf"^{name}: "):
                qpi.seed_distill_grad(*arguments)
    for wrong in (None, np.zeros(493, np.float32), np.zeros(494, np.int32), isv):
        with pytest.raises((TypeError, ValueError), match=r"^isv_bus: "):
            qpi.seed_lambda_controller(wrong)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ((4096, 3), TypeError, "shape: 3 is not a sequence of integers"),
        ((4096, (3, "4")), TypeError, "shape: '4' is not an integer"),
        (("4096", (3,)), TypeError, "address: '4096' is not an integer"),
        ((2**64, (3,)), OverflowError, "address"),
    ],
)
def test_pointers_of_something_else(arguments, error, match):
    with pytest.raises(error, match=match):
        qpi.pointer(*arguments, device="cpu")
    with pytest.raises(TypeError, match=r"strides: 1.5 is not an integer"):
        qpi.pointer(4096, (3,), device="cpu", strides=(1.5,))
