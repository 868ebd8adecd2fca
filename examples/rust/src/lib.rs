//! A small safe layer over the C library: what a CPU loop needs, and the one unsafe door for device memory.
//!
//! # With cudarc
//!
//! The library takes device pointers and a stream as they are. With cudarc they come from its own types:
//!
//! ```ignore
//! let context = cudarc::driver::CudaContext::new(0)?;
//! let stream = context.default_stream();
//! let handle = stream.cu_stream() as ffi::Stream;
//!
//! let plan = Plan::new(&problem(0, 11, 21, ffi::REDUCTION_MEAN))?;
//! let mut slots = stream.alloc_zeros::<u32>(native_words())?;
//! let mut workspace = stream.alloc_zeros::<u8>(workspace_size())?;
//! let (slots_at, _slots) = slots.device_ptr_mut(&stream); // a CUdeviceptr, and a guard that keeps stream order
//! let (workspace_at, _workspace) = workspace.device_ptr_mut(&stream);
//! let isv = unsafe { device_isv(0, slots_at, workspace_at, handle)? };
//!
//! let batch = device_batch(rows, q_at, pi_at, support_at, grad_at); // likewise from CudaSlice<f32>
//! let bound = unsafe { plan.bind_raw(&isv, &batch)? };
//! unsafe { bound.step_on(handle)? }; // enqueued; capturable in a graph
//! ```

pub mod ffi;

use std::cell::{Cell, UnsafeCell};
use std::ffi::CStr;
use std::marker::PhantomData;
use std::mem::{size_of, MaybeUninit};
use std::os::raw::{c_int, c_void};
use std::{fmt, ptr};

/// A call that failed. The message says which argument, what it was and what was expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    pub status: c_int,
    pub name: String,
    pub message: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.message)
    }
}

impl std::error::Error for Error {}

pub type Result<T> = std::result::Result<T, Error>;

fn check(status: c_int) -> Result<()> {
    if status == ffi::SUCCESS {
        return Ok(());
    }
    // SAFETY: both are NUL-terminated; the message lasts until this thread's next call, and is copied before.
    let (name, message) =
        unsafe { (CStr::from_ptr(ffi::qpi_status_name(status)), CStr::from_ptr(ffi::qpi_last_error_message())) };
    Err(Error { status, name: name.to_string_lossy().into_owned(), message: message.to_string_lossy().into_owned() })
}

fn check_length(name: &str, length: usize, expected: usize) -> Result<()> {
    if length == expected {
        return Ok(());
    }
    Err(Error {
        status: 1,
        name: "QPI_ERROR_VALUE".into(),
        message: format!("{name} has {length} elements; expected {expected}"),
    })
}

/// Bytes of a workspace, whatever the number of rows.
pub fn workspace_size() -> usize {
    // SAFETY: takes nothing.
    unsafe { ffi::qpi_workspace_size() }
}

/// 4-byte slots of a state vector in the native layout.
pub fn native_words() -> usize {
    let isv = initialised(ffi::qpi_isv_init);
    // SAFETY: the initialiser filled the layout in.
    unsafe { ffi::qpi_layout_words(&isv.layout) as usize }
}

/// A struct as its initialiser fills it in. Each begins with its size, which must be the one that ffi.rs gives it.
fn initialised<T: Copy>(initialiser: unsafe extern "C" fn(*mut T)) -> T {
    // Room for two: a library with more members than ffi.rs is caught, not let into other memory.
    let mut room = MaybeUninit::<[T; 2]>::zeroed();
    // SAFETY: plain data of C, for which zero bytes are values, and which begins with a size_t.
    unsafe {
        initialiser(room.as_mut_ptr().cast());
        let size = room.as_ptr().cast::<usize>().read();
        assert_eq!(size, size_of::<T>(), "the header has changed: adapt ffi.rs");
        room.assume_init()[0]
    }
}

/// A problem of packed float32 arrays with the library's defaults.
pub fn problem(device: i32, actions: usize, atoms: usize, reduction: c_int) -> ffi::Problem {
    let mut out = initialised(ffi::qpi_problem_init);
    out.device = device;
    out.actions = actions as i64;
    out.atoms = atoms as i64;
    out.reduction = reduction;
    out
}

#[repr(C, align(16))]
struct Block([u8; ffi::WORKSPACE_ALIGNMENT]);

/// A state vector in host memory that owns its buffers. The library writes behind shared references, hence the cells.
pub struct HostIsv {
    isv: ffi::Isv,
    _slots: Box<[Cell<u32>]>,
    _workspace: Box<[UnsafeCell<Block>]>,
}

impl HostIsv {
    /// With the default in every slot.
    pub fn new() -> Result<Self> {
        let mut isv = initialised(ffi::qpi_isv_init);
        let slots: Box<[Cell<u32>]> = (0..native_words()).map(|_| Cell::new(0)).collect();
        let blocks = workspace_size().div_ceil(ffi::WORKSPACE_ALIGNMENT);
        let workspace: Box<[UnsafeCell<Block>]> =
            (0..blocks).map(|_| UnsafeCell::new(Block([0; ffi::WORKSPACE_ALIGNMENT]))).collect();
        isv.words = slots.len() as i64;
        isv.slots = slots.as_ptr() as *mut c_void;
        isv.workspace = workspace.as_ptr() as *mut c_void;
        // SAFETY: the buffers are as long as the library asked for, and boxes do not move their contents.
        unsafe {
            check(ffi::qpi_workspace_init(&isv, ptr::null_mut()))?;
            check(ffi::qpi_isv_reset(&isv, ptr::null_mut()))?;
        }
        Ok(Self { isv, _slots: slots, _workspace: workspace })
    }

    fn address(&self, slot: c_int) -> Result<*mut c_void> {
        let mut address = ptr::null_mut();
        // SAFETY: the description is whole; the number of the slot is checked by the library.
        check(unsafe { ffi::qpi_isv_slot_address(&self.isv, slot, &mut address) })?;
        Ok(address)
    }

    /// The value of a float slot.
    pub fn get(&self, slot: c_int) -> Result<f32> {
        // SAFETY: an aligned word of our own buffers.
        Ok(unsafe { self.address(slot)?.cast::<f32>().read() })
    }

    /// Sets a float slot.
    pub fn set(&self, slot: c_int, value: f32) -> Result<()> {
        // SAFETY: as above; nothing else holds a reference to it.
        unsafe { self.address(slot)?.cast::<f32>().write(value) };
        Ok(())
    }

    /// The value of a 64-bit counter, low word first.
    pub fn count(&self, slot: c_int) -> Result<u64> {
        let words = self.address(slot)?.cast::<u32>();
        // SAFETY: a counter has two words.
        Ok(unsafe { u64::from(words.read()) | u64::from(words.add(1).read()) << 32 })
    }
}

/// One batch of packed arrays. Cells where the caller writes between steps, or the library does.
#[derive(Clone, Copy)]
pub struct Batch<'a> {
    /// `[rows, actions, atoms]`
    pub q_logits: &'a [f32],
    /// `[rows, actions]`
    pub pi_logits: &'a [Cell<f32>],
    /// `[atoms]`; empty for a quantile critic
    pub support: &'a [f32],
    /// `[rows, actions]`
    pub pi_grad: &'a [Cell<f32>],
}

/// What does not change from step to step.
pub struct Plan {
    plan: *mut ffi::Plan,
    actions: usize,
    atoms: usize,
    supports: usize,
    takes_slices: bool,
}

// SAFETY: plans are immutable, and any number of threads may share one.
unsafe impl Send for Plan {}
unsafe impl Sync for Plan {}

fn takes_slices(problem: &ffi::Problem) -> bool {
    let strides = [&problem.q_stride[..], &problem.pi_stride, &problem.grad_stride, &problem.support_stride].concat();
    problem.device == ffi::DEVICE_CPU
        && [problem.q_dtype, problem.pi_dtype, problem.grad_dtype] == [ffi::FLOAT32; 3]
        && strides.iter().all(|&stride| stride == ffi::PACKED)
}

impl Plan {
    pub fn new(problem: &ffi::Problem) -> Result<Self> {
        // SAFETY: takes nothing.
        assert_eq!(unsafe { ffi::qpi_abi() }, ffi::ABI, "the library has another ABI than ffi.rs");
        let mut plan = ptr::null_mut();
        // SAFETY: the library checks the problem and says what is wrong with it.
        check(unsafe { ffi::qpi_plan_create(problem, &mut plan) })?;
        Ok(Self {
            plan,
            actions: problem.actions as usize,
            atoms: problem.atoms as usize,
            supports: if problem.critic == ffi::CRITIC_QUANTILE { 0 } else { problem.atoms as usize },
            takes_slices: takes_slices(problem),
        })
    }

    /// Checks and prepares a batch on the CPU once. Panics where the plan is not of packed float32 arrays there.
    pub fn bind<'a>(&'a self, isv: &'a HostIsv, batch: Batch<'a>) -> Result<Bound<'a>> {
        assert!(self.takes_slices, "slices are packed float32 in host memory; for anything else there is bind_raw");
        let rows = batch.pi_logits.len() / self.actions;
        check_length("pi_logits", batch.pi_logits.len(), rows * self.actions)?;
        check_length("q_logits", batch.q_logits.len(), rows * self.actions * self.atoms)?;
        check_length("support", batch.support.len(), self.supports)?;
        check_length("pi_grad", batch.pi_grad.len(), rows * self.actions)?;
        let raw = raw_batch(
            rows,
            batch.q_logits.as_ptr().cast(),
            batch.pi_logits.as_ptr().cast(),
            if batch.support.is_empty() { ptr::null() } else { batch.support.as_ptr() },
            batch.pi_grad.as_ptr() as *mut c_void,
        );
        // SAFETY: the lengths are right, and the lifetimes keep everything alive.
        unsafe { self.bind_raw(&isv.isv, &raw) }
    }

    /// Checks and prepares any batch once: device memory, optional arrays, other dtypes.
    ///
    /// # Safety
    /// The memory that `isv` and `batch` point to is as large as the problem says and outlives the bound call.
    pub unsafe fn bind_raw<'a>(&'a self, isv: &ffi::Isv, batch: &ffi::Batch) -> Result<Bound<'a>> {
        let mut bound = ptr::null_mut();
        // SAFETY: by the caller's promise.
        check(unsafe { ffi::qpi_bind(self.plan, isv, batch, &mut bound) })?;
        Ok(Bound { bound, _borrows: PhantomData })
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: made by qpi_plan_create, destroyed once; bound calls borrow the plan.
        unsafe { ffi::qpi_plan_destroy(self.plan) }
    }
}

/// A step whose checks are paid for.
pub struct Bound<'a> {
    bound: *mut ffi::Bound,
    _borrows: PhantomData<&'a Cell<f32>>,
}

impl Bound<'_> {
    /// Gradient, statistic, moving average and control law; on the CPU they are done on return.
    pub fn step(&self) -> Result<()> {
        // SAFETY: null is the CPU's stream and, on a GPU, the default one.
        unsafe { self.step_on(ptr::null_mut()) }
    }

    /// The same, enqueued on a stream of the plan's GPU.
    ///
    /// # Safety
    /// `stream` is null or a live stream.
    pub unsafe fn step_on(&self, stream: ffi::Stream) -> Result<()> {
        // SAFETY: by the caller's promise.
        check(unsafe { ffi::qpi_bound_step(self.bound, stream) })
    }
}

impl Drop for Bound<'_> {
    fn drop(&mut self) {
        // SAFETY: made by qpi_bind, destroyed once.
        unsafe { ffi::qpi_bound_destroy(self.bound) }
    }
}

/// A state vector in device memory, with the default in every slot. Addresses are `CUdeviceptr`s, as cudarc gives them.
///
/// # Safety
/// `slots` has `native_words()` 4-byte words, `workspace` has `workspace_size()` bytes aligned to 16, both on `device`;
/// they outlive every use of the description. `stream` is a live stream of that device.
pub unsafe fn device_isv(device: i32, slots: u64, workspace: u64, stream: ffi::Stream) -> Result<ffi::Isv> {
    let mut isv = initialised(ffi::qpi_isv_init);
    isv.device = device;
    isv.words = native_words() as i64;
    isv.slots = slots as *mut c_void;
    isv.workspace = workspace as *mut c_void;
    // SAFETY: by the caller's promise.
    unsafe {
        check(ffi::qpi_workspace_init(&isv, stream))?;
        check(ffi::qpi_isv_reset(&isv, stream))?;
    }
    Ok(isv)
}

/// A batch in device memory. Addresses are `CUdeviceptr`s.
pub fn device_batch(rows: usize, q_logits: u64, pi_logits: u64, support: u64, pi_grad: u64) -> ffi::Batch {
    raw_batch(
        rows,
        q_logits as *const c_void,
        pi_logits as *const c_void,
        support as *const f32,
        pi_grad as *mut c_void,
    )
}

fn raw_batch(
    rows: usize,
    q_logits: *const c_void,
    pi_logits: *const c_void,
    support: *const f32,
    pi_grad: *mut c_void,
) -> ffi::Batch {
    let mut batch = initialised(ffi::qpi_batch_init);
    batch.rows = rows as i64;
    batch.q_logits = q_logits;
    batch.pi_logits = pi_logits;
    batch.support = support;
    batch.pi_grad = pi_grad;
    batch
}
