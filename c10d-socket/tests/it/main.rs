//! Sockets over loopback, in one test binary.

mod connect;
mod listen;
mod peers;
mod wait;
