//! A node whose owner carries out its requests: for benchmarks of this repository, in the same version. **Any release may
//! change or remove these items.**

pub use crate::shell::group_node::{GroupNode, Need};
pub use crate::shell::group_operations::KeyRequest;
