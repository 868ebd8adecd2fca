//! Distils a fixed critic into a table of policy logits, on the CPU.

use qpi_distill::{ffi, problem, Batch, HostIsv, Plan, Result};
use std::cell::Cell;

const ROWS: usize = 8;
const ACTIONS: usize = 3;
const ATOMS: usize = 5;
const STEPS: usize = 200;

fn main() -> Result<()> {
    // In state b, action b % 3 most likely returns +1, the others -1. The policy starts uniform.
    let support = [-2.0f32, -1.0, 0.0, 1.0, 2.0];
    let mut q = [0f32; ROWS * ACTIONS * ATOMS];
    for b in 0..ROWS {
        for a in 0..ACTIONS {
            q[(b * ACTIONS + a) * ATOMS + if a == b % ACTIONS { 3 } else { 1 }] = 4.0;
        }
    }
    let (mut pi, mut grad) = ([0f32; ROWS * ACTIONS], [0f32; ROWS * ACTIONS]);
    let pi = Cell::from_mut(&mut pi[..]).as_slice_of_cells();
    let grad = Cell::from_mut(&mut grad[..]).as_slice_of_cells();

    let mut problem = problem(ffi::DEVICE_CPU, ACTIONS, ATOMS, ffi::REDUCTION_SUM);
    problem.mode = ffi::MODE_WRITE;
    problem.value_scale = ffi::VALUE_SCALE_NONE;
    let plan = Plan::new(&problem)?;

    let isv = HostIsv::new()?;
    isv.set(ffi::SLOT_LAM, 0.5)?;
    isv.set(ffi::SLOT_TAU, 0.5)?;

    let bound = plan.bind(&isv, Batch { q_logits: &q, pi_logits: pi, support: &support, pi_grad: grad })?;
    for step in 0..STEPS {
        bound.step()?;
        for (logit, gradient) in pi.iter().zip(grad) {
            logit.set(logit.get() - 0.5 * gradient.get());
        }
        if step % 40 == 0 {
            println!("step {step:3}  kl {:.4}  lam {:.3}", isv.get(ffi::SLOT_KL_LAST)?, isv.get(ffi::SLOT_LAM)?);
        }
    }

    let agree = (0..ROWS).filter(|&b| argmax(&pi[b * ACTIONS..][..ACTIONS]) == b % ACTIONS).count();
    println!("critic and policy agree on {agree} of {ROWS} states");
    std::process::exit(i32::from(agree != ROWS));
}

fn argmax(values: &[Cell<f32>]) -> usize {
    (0..values.len()).fold(0, |best, i| if values[i].get() > values[best].get() { i } else { best })
}
