//! Tests the public codec with golden vectors of PyTorch, random states and hostile bytes.

mod hostile;
mod random;
mod states;
mod vectors;
mod watch;

/// Debug builds, in which the codec is twenty times slower, run this fraction of the cases. CI also runs all of
/// them in a release build.
const SHARE: usize = if cfg!(debug_assertions) { 8 } else { 1 };

/// The number of random cases of a property.
fn cases(of_release: u32) -> proptest::prelude::ProptestConfig {
    let share = u32::try_from(SHARE).expect("a small number");
    proptest::prelude::ProptestConfig::with_cases(of_release.div_ceil(share))
}
