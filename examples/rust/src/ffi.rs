//! The part of `qpi_distill.h` that this crate uses, declaration for declaration. The header says what they mean.

use std::os::raw::{c_char, c_int, c_void};

include!(concat!(env!("OUT_DIR"), "/slots.rs"));

pub const ABI: i32 = 1;
pub const SUCCESS: c_int = 0;
pub const DEVICE_CPU: i32 = -1;
pub const FLOAT32: c_int = 0;
pub const FLOAT16: c_int = 1;
pub const BFLOAT16: c_int = 2;
pub const PACKED: i64 = i64::MIN;
pub const REDUCTION_SUM: c_int = 1;
pub const REDUCTION_MEAN: c_int = 2;
pub const MODE_ADD: c_int = 0;
pub const MODE_WRITE: c_int = 1;
pub const CRITIC_CATEGORICAL: c_int = 0;
pub const CRITIC_QUANTILE: c_int = 1;
pub const VALUE_SCALE_NONE: c_int = 0;
pub const VALUE_SCALE_RUNNING_STD: c_int = 1;
pub const WORKSPACE_ALIGNMENT: usize = 16;

/// A `cudaStream_t` or `CUstream`; null on the CPU.
pub type Stream = *mut c_void;

#[repr(C)]
pub struct Plan {
    _opaque: [u8; 0],
}

#[repr(C)]
pub struct Bound {
    _opaque: [u8; 0],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Layout {
    pub size: usize,
    pub index: [i32; SLOT_COUNT],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Isv {
    pub size: usize,
    pub device: i32,
    pub slots: *mut c_void,
    pub words: i64,
    pub workspace: *mut c_void,
    pub layout: Layout,
    pub flight: *mut c_void,
    pub flight_capacity: i64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Problem {
    pub size: usize,
    pub device: i32,
    pub actions: i64,
    pub atoms: i64,
    pub q_dtype: c_int,
    pub pi_dtype: c_int,
    pub grad_dtype: c_int,
    pub reduction: c_int,
    pub mode: c_int,
    pub value_scale: c_int,
    pub kl_stat: c_int,
    pub illegal_below: f32,
    pub q_stride: [i64; 3],
    pub pi_stride: [i64; 2],
    pub grad_stride: [i64; 2],
    pub legal_stride: [i64; 2],
    pub support_stride: [i64; 2],
    pub weight_stride: i64,
    pub flags: u32,
    pub kernel: c_int,
    pub max_blocks: i32,
    pub max_threads: i32,
    pub critic: c_int,
    pub target: c_int,
    pub target_epsilon: f32,
    pub divergence: c_int,
    pub divergence_beta: f32,
    pub policy_temperature: f32,
    pub control_stat: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Batch {
    pub size: usize,
    pub rows: i64,
    pub q_logits: *const c_void,
    pub pi_logits: *const c_void,
    pub support: *const f32,
    pub pi_grad: *mut c_void,
    pub legal_actions: *const u8,
    pub row_weights: *const f32,
    pub grad_scale: *const f32,
}

extern "C" {
    pub fn qpi_abi() -> i32;
    pub fn qpi_status_name(status: c_int) -> *const c_char;
    pub fn qpi_last_error_message() -> *const c_char;

    pub fn qpi_layout_words(layout: *const Layout) -> i64;
    pub fn qpi_workspace_size() -> usize;
    pub fn qpi_isv_init(isv: *mut Isv);
    pub fn qpi_workspace_init(isv: *const Isv, stream: Stream) -> c_int;
    pub fn qpi_isv_reset(isv: *const Isv, stream: Stream) -> c_int;
    pub fn qpi_isv_slot_address(isv: *const Isv, slot: c_int, address: *mut *mut c_void) -> c_int;

    pub fn qpi_problem_init(problem: *mut Problem);
    pub fn qpi_plan_create(problem: *const Problem, plan: *mut *mut Plan) -> c_int;
    pub fn qpi_plan_destroy(plan: *mut Plan);

    pub fn qpi_batch_init(batch: *mut Batch);
    pub fn qpi_bind(plan: *const Plan, isv: *const Isv, batch: *const Batch, bound: *mut *mut Bound) -> c_int;
    pub fn qpi_bound_step(bound: *const Bound, stream: Stream) -> c_int;
    pub fn qpi_bound_destroy(bound: *mut Bound);
}
