//! Whole small programs, as somebody writes them who has read the README: each file is one, and can be copied as it stands. They are
//! compiled into one test binary, and run.

#![allow(unreachable_pub)] // modules of a program: what is `pub` in them is for the others

#[macro_use]
extern crate watch;

macro_rules! programs {
    ($($program:ident),* $(,)?) => {$(
        mod $program;

        #[test]
        fn $program() -> Result<(), Box<dyn std::error::Error>> {
            $program::main()
        }
    )*};
}

#[path = "../../examples/digits.rs"]
mod digits_example;

#[test]
fn digits() -> Result<(), Box<dyn std::error::Error>> {
    digits_example::main()
}

programs! {
    own_loop,
    two_ways,
}
