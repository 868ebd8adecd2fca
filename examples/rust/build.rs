//! Finds the installed package, links its library and takes the slots of the state vector from its header.
//!
//! `QPI_DISTILL_ROOT` names the folder with `include` and `lib`. Without it the interpreter in `PYTHON`, or `python3`,
//! is asked where the package is.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

const QUESTION: &str = "import qpi_distill; print(qpi_distill.get_include())";

fn main() {
    println!("cargo:rerun-if-env-changed=QPI_DISTILL_ROOT");
    println!("cargo:rerun-if-env-changed=PYTHON");

    let root = env::var_os("QPI_DISTILL_ROOT").map_or_else(ask_python, PathBuf::from);
    let library = root.join("lib");
    let manifest = root.join("include/qpi_distill/isv_manifest.h");
    println!("cargo:rerun-if-changed={}", manifest.display());
    println!("cargo:rustc-link-search=native={}", library.display());
    println!("cargo:rustc-link-lib=dylib=qpi_distill");
    println!("cargo:rustc-link-arg=-Wl,-rpath,{}", library.display());

    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    fs::write(out.join("slots.rs"), slots(&manifest)).expect("OUT_DIR can be written to");
}

fn ask_python() -> PathBuf {
    let python = env::var("PYTHON").unwrap_or_else(|_| "python3".into());
    let answer = Command::new(&python)
        .args(["-c", QUESTION])
        .output()
        .unwrap_or_else(|error| panic!("{python} does not start: {error}; set QPI_DISTILL_ROOT or PYTHON"));
    assert!(
        answer.status.success(),
        "{python} has no qpi_distill; set QPI_DISTILL_ROOT or PYTHON\n{}",
        String::from_utf8_lossy(&answer.stderr)
    );
    let include = String::from_utf8(answer.stdout).expect("the path is UTF-8");
    let include = Path::new(include.trim());
    include.parent().expect("the header lies in a folder of the package").into()
}

/// The manifest's entries, `X(name, TYPE, …)`, as constants: a slot's number is its place in the list.
fn slots(manifest: &Path) -> String {
    let text = fs::read_to_string(manifest).unwrap_or_else(|error| panic!("{}: {error}", manifest.display()));
    let (_, entries) = text.split_once("#define QPI_ISV_MANIFEST(X)").expect("the header defines the manifest");
    let names: Vec<&str> =
        entries.lines().filter_map(|line| line.trim_start().strip_prefix("X(")?.split(',').next()).collect();
    assert!(names.contains(&"lam"), "{} is not a manifest", manifest.display());
    let mut out = format!("pub const SLOT_COUNT: usize = {};\n", names.len());
    for (number, name) in names.iter().enumerate() {
        out += &format!("pub const SLOT_{}: c_int = {number};\n", name.to_uppercase());
    }
    out
}
