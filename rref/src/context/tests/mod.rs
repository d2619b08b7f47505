mod all_orders;
mod deletions;
mod random;
mod replaced;
mod scripted;
mod world;
