//! The programs of the guide's first pages (docs/guide/src/start), as they stand there: whole programs, which a reader pastes and runs.

#![cfg(all(
    feature = "arrays",
    feature = "image",
    feature = "webdataset",
    not(miri)
))]
#![allow(clippy::unwrap_used)] // a panic is how a test fails

#[macro_use]
extern crate watch;

#[allow(unreachable_pub)] // it is `pub` for the snippets that include it
#[path = "../../docs/guide/data.rs"]
mod data;
use std::error::Error;
use std::sync::Mutex;

/// Runs a program in a folder with the data that it reads, and compares it with its page.
fn run(page: &str, program: &str, main: fn() -> Result<(), Box<dyn Error>>) {
    assert!(
        page.contains(&format!("```rust\n{program}```")),
        "the page has another program: copy it from tests/start"
    );
    // All programs of this process have one working directory.
    static IN_FOLDER: Mutex<()> = Mutex::new(());
    let _one_by_one = IN_FOLDER.lock().unwrap();
    let _folder = data::enter().unwrap();
    main().unwrap();
}

macro_rules! pages {
    ($($test:ident: $program:ident, $page:literal, $file:literal;)*) => {$(
        #[allow(unsafe_code)] // one of them maps a file, as its reader does
        mod $program {
            include!($file);

            pub(super) const RUN: fn() -> Result<(), Box<dyn std::error::Error>> = main;
        }

        #[test]
        fn $test() {
            run(include_str!($page), include_str!($file), $program::RUN);
        }
    )*};
}

pages! {
    your_folder: folder, "../../docs/guide/src/start/folder.md", "folder.rs";
    your_table: table, "../../docs/guide/src/start/table.md", "table.rs";
    your_tokens: tokens, "../../docs/guide/src/start/tokens.md", "tokens.rs";
    your_shards: shards, "../../docs/guide/src/start/shards.md", "shards.rs";
}
