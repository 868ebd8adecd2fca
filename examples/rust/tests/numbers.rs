//! The layer against numbers worked out by hand, and its errors.

use qpi_distill::{device_batch, ffi, problem, Batch, Bound, HostIsv, Plan};
use std::cell::Cell;

const SUPPORT: [f32; 3] = [-1.0, 0.0, 1.0];
const Q: [f32; 6] = [-100.0, -100.0, 0.0, -100.0, 0.0, -100.0]; // worth 1 and 0

fn plan() -> Plan {
    let mut problem = problem(ffi::DEVICE_CPU, 2, 3, ffi::REDUCTION_SUM);
    problem.value_scale = ffi::VALUE_SCALE_NONE;
    Plan::new(&problem).unwrap()
}

fn cells<const N: usize>(value: f32) -> [Cell<f32>; N] {
    std::array::from_fn(|_| Cell::new(value))
}

#[test]
fn a_step_has_the_gradient_and_the_kl_of_the_formula() {
    let (plan, isv, pi, grad) = (plan(), HostIsv::new().unwrap(), cells::<2>(0.0), cells::<2>(1.0));
    let bound = plan.bind(&isv, Batch { q_logits: &Q, pi_logits: &pi, support: &SUPPORT, pi_grad: &grad }).unwrap();
    bound.step().unwrap();
    let target = 1f64.exp() / (1f64.exp() + 1.0);
    let kl = target * (2.0 * target).ln() + (1.0 - target) * (2.0 * (1.0 - target)).ln();
    let gradient = 0.1 * (0.5 - target); // lam starts at 0.1; the mode is add
    assert!((f64::from(grad[0].get()) - 1.0 - gradient).abs() < 1e-6);
    assert!((f64::from(grad[1].get()) - 1.0 + gradient).abs() < 1e-6);
    assert!((f64::from(isv.get(ffi::SLOT_KL_EMA).unwrap()) - kl).abs() < 1e-6);
    assert_eq!(isv.count(ffi::SLOT_OBSERVATIONS).unwrap(), 1);
}

#[test]
fn a_bound_call_sees_what_is_written_between_steps() {
    let (plan, isv, pi, grad) = (plan(), HostIsv::new().unwrap(), cells::<2>(0.0), cells::<2>(0.0));
    let bound = plan.bind(&isv, Batch { q_logits: &Q, pi_logits: &pi, support: &SUPPORT, pi_grad: &grad }).unwrap();
    bound.step().unwrap();
    pi[0].set(1.0); // now the policy is the target
    bound.step().unwrap();
    assert!(isv.get(ffi::SLOT_KL_LAST).unwrap().abs() < 1e-6);
}

#[test]
fn a_quantile_critic_has_no_support() {
    let mut problem = problem(ffi::DEVICE_CPU, 2, 3, ffi::REDUCTION_SUM);
    problem.critic = ffi::CRITIC_QUANTILE;
    problem.value_scale = ffi::VALUE_SCALE_NONE;
    let quantiles = [0.0, 1.0, 2.0, -1.0, 0.0, 1.0]; // worth 1 and 0
    let (plan, isv, pi, grad) =
        (Plan::new(&problem).unwrap(), HostIsv::new().unwrap(), cells::<2>(0.0), cells::<2>(0.0));
    let batch = Batch { q_logits: &quantiles, pi_logits: &pi, support: &[], pi_grad: &grad };
    plan.bind(&isv, batch).unwrap().step().unwrap();
    let target = 1f64.exp() / (1f64.exp() + 1.0);
    assert!((f64::from(grad[0].get()) - 0.1 * (0.5 - target)).abs() < 1e-6);
}

#[test]
fn errors_name_the_argument() {
    let error = Plan::new(&problem(ffi::DEVICE_CPU, 2, 3, 0)).err().unwrap();
    assert!(error.name == "QPI_ERROR_VALUE" && error.message.contains("reduction"), "{error}");
    let (plan, isv, pi, grad) = (plan(), HostIsv::new().unwrap(), cells::<2>(0.0), cells::<2>(0.0));
    let short = Batch { q_logits: &Q[1..], pi_logits: &pi, support: &SUPPORT, pi_grad: &grad };
    let error = plan.bind(&isv, short).err().unwrap();
    assert!(error.to_string().contains("q_logits has 5 elements; expected 6"), "{error}");
}

#[test]
#[should_panic(expected = "bind_raw")]
fn slices_are_not_read_with_strides() {
    let mut problem = problem(ffi::DEVICE_CPU, 2, 3, ffi::REDUCTION_SUM);
    problem.pi_stride = [1 << 20, 1];
    let (plan, isv, pi, grad) =
        (Plan::new(&problem).unwrap(), HostIsv::new().unwrap(), cells::<2>(0.0), cells::<2>(0.0));
    let _ = plan.bind(&isv, Batch { q_logits: &Q, pi_logits: &pi, support: &SUPPORT, pi_grad: &grad });
}

#[test]
fn device_addresses_pass_through() {
    let batch = device_batch(7, 1 << 40, 2 << 40, 3 << 40, 4 << 40);
    assert_eq!((batch.rows, batch.q_logits as u64, batch.pi_grad as u64), (7, 1 << 40, 4 << 40));
    assert!(batch.legal_actions.is_null() && batch.size == std::mem::size_of::<ffi::Batch>());
}

#[test]
fn plans_may_be_shared() {
    fn shared<T: Send + Sync>(_: &T) {}
    shared(&plan());
    let _: fn(&Bound) -> qpi_distill::Result<()> = |bound| bound.step();
}
