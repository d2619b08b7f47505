//! Gives the shared library its name and keeps it loaded.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("linux") {
        return;
    }
    let major = env::var("CARGO_PKG_VERSION_MAJOR").expect("cargo sets the version");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libc10d.so.{major}");
    // Threads and thread-local values of the library may outlive a `dlclose`.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
