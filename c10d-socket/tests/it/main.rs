//! Sockets over loopback, in one process: one binary to build and to start.

mod connect;
mod listen;
mod peers;
mod wait;
