"""Devices and contexts: whose GPU it is, what stays as it was, and processes that fork or cannot compile."""

import ctypes
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import qpi_distill as qpi
from stepping import arguments, distiller, frozen, make_isv, random_problem, run

SMOKE_GRAD = [[0.575210383, 0, -0.575210383]]
Q = np.array([[[0, -40], [0, 0], [0, 40]]], np.float32)
PI = np.array([[1, 0, -1]], np.float32)
PAIR = np.array([-1, 1], np.float32)

PRELUDE = f"""
import os, sys
sys.path[:0] = {sys.path!r}
import numpy as np
Q = np.array([[[0, -40], [0, 0], [0, 40]]], np.float32)
PI = np.array([[1, 0, -1]], np.float32)
SMOKE = [[0.575210383, 0, -0.575210383]]
def smoke(ordinal=0):
    import qpi_distill as qpi
    from backends import Cuda
    gpu = Cuda(ordinal)
    isv = qpi.ISV(lam=1.0, device=ordinal)
    op = qpi.Distiller(support=[-1, 1], actions=3, isv=isv, reduction="sum", value_scale="none")
    grad = gpu.put(0 * PI)
    op.step(gpu.put(Q), gpu.put(PI), grad, stream=gpu.stream)
    assert np.allclose(gpu.get(grad), SMOKE, atol=2e-6), gpu.get(grad)
    assert abs(isv.read(stream=gpu.stream).kl_ema - 1.150420765) < 2e-6
"""


def fresh_process(code, **environment):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PRELUDE + textwrap.dedent(code)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_smoke_in_a_fresh_process():
    fresh_process("smoke()")


def test_a_p1_import_opens_no_device():
    fresh_process(
        """
        import qpi_distill
        links = [f"/proc/self/fd/{n}" for n in os.listdir("/proc/self/fd")]
        opened = [os.readlink(name) for name in links if os.path.islink(name)]
        assert not [name for name in opened if "nvidia" in name], opened
        """
    )


def test_a_p1_a_child_forked_after_the_import_can_use_the_gpu():
    fresh_process(
        """
        import qpi_distill
        child = os.fork()
        if child == 0:
            try:
                smoke()
            except BaseException:
                import traceback
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        smoke()
        """
    )


def test_a_p1_hidden_gpus():
    fresh_process(
        """
        import qpi_distill as qpi
        try:
            qpi.ISV(device="cuda")
        except qpi.DeviceError as error:
            assert len(str(error)) > 20
        else:
            raise SystemExit("asking for a hidden GPU did not fail")
        isv = qpi.ISV(lam=1.0)
        grad = 0 * PI
        qpi.step(Q, PI, grad, support=[-1, 1], isv=isv, reduction="sum", value_scale="none")
        assert np.allclose(grad, SMOKE, atol=2e-6)
        """,
        CUDA_VISIBLE_DEVICES="",
    )


def test_a_p3_kernels_exist_without_a_compiler_in_the_driver():
    fresh_process("smoke()", CUDA_DISABLE_PTX_JIT="1")


def test_a_p3_lazy_and_eager_loading():
    fresh_process("smoke()", CUDA_MODULE_LOADING="EAGER")
    fresh_process("smoke()", CUDA_MODULE_LOADING="LAZY")


def test_asking_for_information_creates_no_context():
    fresh_process(
        """
        import cuda_driver as cd
        import qpi_distill as qpi
        from cuda.bindings import driver
        cd.call(driver.cuInit, 0)
        qpi.info()
        assert not cd.primary_context_active(0)
        assert cd.current_context() == 0
        """
    )


def test_the_current_context_stays_what_it_was(gpu):
    """With none current, and with one that is not the primary one."""
    fresh_process(
        """
        import cuda_driver as cd
        import qpi_distill as qpi
        from cuda.bindings import driver
        smoke()
        grad = 0
        own = cd.call(driver.cuCtxCreate, None, 0, cd.call(driver.cuDeviceGet, 0))
        assert cd.current_context() == int(own)
        isv = qpi.ISV(lam=1.0, device=0)
        op = qpi.Distiller(support=[-1, 1], actions=3, isv=isv, reduction="sum", value_scale="none")
        assert cd.current_context() == int(own)
        try:
            op.step(qpi.pointer(0, (2, 3, 2), device=0), qpi.pointer(0, (2, 3), device=0),
                    qpi.pointer(0, (2, 3), device=0), stream=1)
        except BufferError:
            pass
        assert cd.current_context() == int(own)
        while cd.current_context():  # there is a stack of them
            cd.call(driver.cuCtxSetCurrent, driver.CUcontext(0))
        op = qpi.Distiller(support=[-1, 1], actions=3, isv=isv, reduction="sum", value_scale="none")
        assert cd.current_context() == 0
        """
    )


def test_a_fresh_thread_can_step(gpu):
    import threading

    """It has no current context, and none afterwards."""
    cuda_driver = pytest.importorskip("cuda_driver")
    out = {}
    problem = random_problem(np.random.default_rng(0), 20)
    (q, pi, grad), keywords = arguments(gpu, problem)

    def work():
        try:
            assert cuda_driver.current_context() == 0
            isv = make_isv(gpu)
            distiller(isv, problem).step(q, pi, grad, **keywords)
            assert cuda_driver.current_context() == 0
            out["observations"] = isv.read(stream=gpu.stream).observations
        except Exception as error:
            out["error"] = error

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert out == {"observations": 1}


def test_a_refused_call_leaves_nothing_behind(gpu):
    problem = random_problem(np.random.default_rng(0), 20)
    isv = make_isv(gpu)
    op = distiller(isv, problem)
    (q, pi, grad), keywords = arguments(gpu, problem)
    for _ in range(3):
        with pytest.raises(BufferError):
            op.step(q, pi, pi, **keywords)
        op.step(q, pi, grad, **keywords)
    gpu.sync()
    assert isv.read(stream=gpu.stream).observations == 3


def test_host_memory_passed_as_device_memory(gpu):
    problem = random_problem(np.random.default_rng(0), 20)
    isv = make_isv(gpu)
    (q, _, grad), keywords = arguments(gpu, problem)
    keywords.pop("stream")
    lie = qpi.pointer(problem.pi.ctypes.data, problem.pi.shape, device=0, owner=problem.pi)
    with pytest.raises(BufferError, match="pi_logits"):
        distiller(isv, problem).bind(q, lie, grad, **keywords)
    with pytest.raises(BufferError, match="pi_logits"):
        distiller(isv, problem, checked=True).step(q, lie, grad, stream=gpu.stream)
    with pytest.raises((BufferError, ValueError, TypeError), match="pi_logits"):
        distiller(isv, problem).step(q, problem.pi, grad, stream=gpu.stream)
    assert isv.read(stream=gpu.stream).observations == 0


class Interface:
    """Memory that does not say on which GPU it is, or whether on any."""

    def __init__(self, array, address):
        self.owner = array
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (address, False),
            "version": 3,
        }


@pytest.mark.parametrize("name", ["q_logits", "pi_logits", "pi_grad", "legal_actions", "row_weights", "grad_scale"])
def test_arrays_that_do_not_say_where_they_are(gpu, name):
    """The driver is asked of each of them: the one in host memory is named, and nothing is launched."""
    problem = random_problem(np.random.default_rng(1), 20, masked=True, weighted=True, grad_scale=0.5)
    isv = make_isv(gpu)
    op = distiller(isv, problem)
    arrays = {
        "q_logits": problem.q,
        "pi_logits": problem.pi,
        "pi_grad": problem.grad,
        "legal_actions": problem.legal,
        "row_weights": problem.weights,
        "grad_scale": np.full(1, 0.5, np.float32),
    }
    there = {key: gpu.put(array) for key, array in arrays.items()}
    shown = {key: Interface(array, there[key].address) for key, array in arrays.items()}
    lie = Interface(arrays[name], arrays[name].ctypes.data)
    gpu.sync()
    wrong = rf"^{name} is 0x[0-9a-f]+, which is host memory; expected memory of GPU 0"
    for call in (op.step, op.accumulate, op.distill_grad):
        with pytest.raises(BufferError, match=wrong):
            call(**{**shown, name: lie}, stream=gpu.stream)
    assert_array_equal(gpu.get(there["pi_grad"]), problem.grad)
    op.step(**shown, stream=gpu.stream)
    assert isv.read(stream=gpu.stream).observations == 1


def test_pinned_and_managed_memory_that_does_not_say_where_it_is(gpu):
    """Managed memory is every GPU's own; pinned memory is the host's, though a GPU can reach it."""
    driver = pytest.importorskip("cuda.bindings.driver")
    call = pytest.importorskip("cuda_driver").call
    problem = random_problem(np.random.default_rng(2), 20)
    isv = make_isv(gpu)
    op = distiller(isv, problem)
    (q, _, grad), keywords = arguments(gpu, problem)
    size = problem.pi.nbytes
    managed = call(driver.cuMemAllocManaged, size, driver.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL.value)
    pinned = call(driver.cuMemHostAlloc, size, 0)
    try:
        ctypes.memmove(int(managed), problem.pi.ctypes.data, size)
        ctypes.memmove(int(pinned), problem.pi.ctypes.data, size)
        with pytest.raises(BufferError, match=r"^pi_logits is 0x[0-9a-f]+, which is host memory"):
            op.step(q, Interface(problem.pi, int(pinned)), grad, **keywords)
        op.step(q, Interface(problem.pi, int(managed)), grad, **keywords)
        assert isv.read(stream=gpu.stream).observations == 1
        want = run(gpu, problem, isv=make_isv(gpu), call="step").grad
        assert_array_equal(gpu.get(grad), want)
    finally:
        call(driver.cuMemFree, managed)
        call(driver.cuMemFreeHost, pinned)


# ---- two GPUs -----------------------------------------------------------------------------------------------------


@pytest.mark.gpu2
def test_a_s1_work_runs_where_the_data_is():
    torch = pytest.importorskip("torch")
    torch.cuda.set_device(0)
    q, pi, grad = (torch.tensor(x, device="cuda:1") for x in (Q, PI, 0 * PI))
    isv = qpi.ISV(lam=1.0, device="cuda:1")
    op = qpi.Distiller(support=PAIR, actions=3, isv=isv, reduction="sum", value_scale="none")
    op.step(q, pi, grad)
    assert torch.cuda.current_device() == 0
    torch.cuda.synchronize(1)
    assert_allclose(grad.cpu().numpy(), SMOKE_GRAD, atol=2e-6)
    with pytest.raises(BufferError, match="q_logits: is on cuda:0, but the ISV is on cuda:1"):
        op.step(q.to("cuda:0"), pi, grad)
    assert torch.cuda.current_device() == 0
    assert isv.read().observations == 1


@pytest.mark.gpu2
def test_a_s1_an_address_of_another_gpu_is_refused_by_the_names_of_both():
    from backends import Cuda

    first, second = Cuda(0), Cuda(1)
    isv = qpi.ISV(lam=1.0, device="cuda:1")
    op = qpi.Distiller(support=PAIR, actions=3, isv=isv, reduction="sum", value_scale="none")
    elsewhere = first.put(PI)
    claimed = qpi.pointer(elsewhere.address, PI.shape, device="cuda:1", owner=elsewhere)
    with pytest.raises(BufferError, match=r"pi_logits is .*, memory of GPU 0; expected memory of GPU 1"):
        op.bind(second.put(Q), claimed, second.put(0 * PI))


@pytest.mark.gpu2
def test_a_s1_cupy_arrays_of_another_device():
    cupy = pytest.importorskip("cupy")
    with cupy.cuda.Device(1):
        q, pi, grad = (cupy.asarray(x) for x in (Q, PI, 0 * PI))
    with cupy.cuda.Device(0):
        isv = qpi.ISV(lam=1.0, device="cuda:1")
        op = qpi.Distiller(support=PAIR, actions=3, isv=isv, reduction="sum", value_scale="none")
        with cupy.cuda.Device(1):
            stream = cupy.cuda.Stream(non_blocking=True)
        op.step(q, pi, grad, stream=stream)
        assert cupy.cuda.runtime.getDevice() == 0
    stream.synchronize()
    with cupy.cuda.Device(1):
        assert_allclose(cupy.asnumpy(grad), SMOKE_GRAD, atol=2e-6)


@pytest.mark.gpu2
def test_a_s1_the_other_gpu_is_left_alone():
    fresh_process(
        """
        import cuda_driver as cd
        smoke(1)
        assert not cd.primary_context_active(0)
        """
    )


@pytest.mark.gpu2
def test_two_gpus_give_the_same_bits():
    from backends import Cuda
    from stepping import assert_same_bits, run

    problem = random_problem(np.random.default_rng(0), 500, 11, 21)
    a, b = (run(Cuda(n), problem) for n in (0, 1))
    assert_same_bits(a.grad, b.grad)
    assert frozen(a.values) == frozen(b.values)
