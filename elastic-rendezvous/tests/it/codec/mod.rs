//! The codec of the rendezvous state, from outside: golden vectors of PyTorch, random states,
//! hostile bytes.

mod hostile;
mod random;
mod states;
mod vectors;
mod watch;

/// Without optimization, which makes the codec twenty times slower, every loop does its share of what
/// it does in a release build, where CI runs these tests too.
const SHARE: usize = if cfg!(debug_assertions) { 8 } else { 1 };

/// A number of random cases for a property.
fn cases(of_release: u32) -> proptest::prelude::ProptestConfig {
    let share = u32::try_from(SHARE).expect("a small number");
    proptest::prelude::ProptestConfig::with_cases(of_release.div_ceil(share))
}
