mod all_orders;
mod random;
mod replaced;
mod scripted;
mod world;
