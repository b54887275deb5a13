//! Whole small programs, as somebody writes them who has read the README: each file is one, and can be copied as it stands. They
//! are compiled into one test binary, and run.

#![allow(unreachable_pub)] // modules of a program: what is `pub` in them is for the others

macro_rules! programs {
    ($($program:ident),* $(,)?) => {$(
        mod $program;

        #[test]
        fn $program() -> Result<(), Box<dyn std::error::Error>> {
            $program::main()
        }
    )*};
}

// tabular_struct: after the derive is mended
programs! {
    broken_file,
    evaluation,
    images,
    in_a_thread,
    ndarrays,
    replay_buffer,
    structs,
    tabular,
    text,
    tokio_tasks,
}
