mod all_orders;
mod by_hand;
mod random;
mod replaced;
mod world;
