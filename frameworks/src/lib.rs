//! Only examples: `examples/tch.rs` and `examples/cutile.rs`.
