//! The codec of the rendezvous state, from outside: golden vectors of PyTorch, random states,
//! hostile bytes.

mod hostile;
mod random;
mod states;
mod vectors;
mod watch;
