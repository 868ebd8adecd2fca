"""The logger: silent unless asked, and what it says when it is."""

from __future__ import annotations

import logging
import subprocess
import sys

import numpy as np

import qpi_distill as qpi
from qpi_distill import _devices

STEP = """
import logging
import sys
if len(sys.argv) > 1:
    logging.basicConfig(level=sys.argv[1])
import qpi_distill as qpi
isv = qpi.ISV()
op = qpi.Distiller(actions=2, support=[0, 1], isv=isv, reduction="sum")
"""


def said(*arguments):
    done = subprocess.run([sys.executable, "-c", STEP, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    return done.stderr


def test_quiet_by_default():
    assert said() == ""
    assert said("INFO") == ""


def test_what_debug_says():
    text = said("DEBUG")
    assert f"DEBUG:qpi_distill:version {qpi.__version__}, library /" in text
    assert "libqpi_distill.so" in text
    info = qpi.info()
    if not info["gpu"]["usable"]:
        assert f"no GPU is used: {info['gpu']['reason']}" in text
        for rows in (256, 4096, 1048576):
            assert f"a step on {rows} rows runs CPU, {info['cpu']['kernels'][-1]}" in text


def test_why_there_is_no_gpu_is_said_once(caplog):
    caplog.set_level(logging.DEBUG, "qpi_distill")
    _devices.why_no_gpu.cache_clear()
    for _ in range(2):
        qpi.ISV()
    usable = qpi.info()["gpu"]["usable"]
    assert sum("no GPU is used" in record.message for record in caplog.records) == (0 if usable else 1)


def test_steps_say_nothing(caplog):
    isv = qpi.ISV(device="cpu")
    op = qpi.Distiller(actions=2, support=[0, 1], isv=isv, reduction="sum")
    caplog.set_level(logging.DEBUG, "qpi_distill")
    arrays = np.zeros((3, 2, 2), np.float32), np.zeros((3, 2), np.float32), np.zeros((3, 2), np.float32)
    op.step(*arrays)
    op.bind(*arrays).step()
    isv.read()
    assert caplog.records == []


def test_the_handler_is_one_that_does_nothing():
    handlers = logging.getLogger("qpi_distill").handlers
    assert [type(handler) for handler in handlers] == [logging.NullHandler]
