//! One suite, run on every backend: what the CPU device promises, a GPU keeps, and the other way round.
//!
//! Without a CUDA device the tests on it are counted as ignored, and said to be; with `PINFEED_REQUIRE_CUDA=1` a
//! missing device is a failure. Arguments: parts of test names; none runs all, `--skip NAME` leaves some out.

#![allow(unsafe_code)] // kernels write and read memory by its address
#![allow(clippy::expect_used, clippy::unwrap_used)] // a panic is how a test fails
#![allow(clippy::disallowed_methods)] // threads of one line need no names
#![allow(clippy::mem_forget)] // forgotten loans are what is tested
#![allow(unreachable_pub)] // a binary has no public items

mod any_order;
mod backend;
mod blocks;
mod buffers;
mod bytes;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "nvjpeg")]
mod decoding;
mod devices;
mod dlpack;
mod early;
mod epochs;
mod gathered;
mod hand_over;
mod large;
mod lent;
mod listed;
mod loaders;
mod mixing;
mod normalize;
mod parts;
mod ragged;
mod resident;
mod resumed;
mod sequences;
mod slabs;
mod sources;
mod split;
mod staging;
mod stress;
mod together;
mod transfers;

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::time::Instant;

use backend::Backend;

/// A test of the suite: it gets a fresh device of its backend.
type Test = (&'static str, fn(&Backend));

/// The tests of one backend alone.
fn own_tests(backend: &str) -> &'static [Test] {
    match backend {
        #[cfg(feature = "cuda")]
        "cuda" => cuda::TESTS,
        "hostile" => staging::HOSTILE,
        _ => &[],
    }
}

/// What a test needs of its device beyond being there: a decoder of pictures, which on a GPU takes nvJPEG. Without it, the test is ignored
/// as without a GPU.
#[cfg(feature = "nvjpeg")]
fn ready(backend: &Backend, test: &str) -> pinfeed::Result<()> {
    match decoding::TESTS.iter().any(|(name, _)| *name == test) {
        true => decoding::ready(&backend.device),
        false => Ok(()),
    }
}

#[cfg(not(feature = "nvjpeg"))]
fn ready(_: &Backend, _: &str) -> pinfeed::Result<()> {
    Ok(())
}

/// A test that forgets a loan leaks its device: the check for leaks (ci/sanitizers.sh) knows such a device by this function's name.
#[inline(never)]
fn forgotten(open: fn() -> pinfeed::Result<Backend>) -> pinfeed::Result<Backend> {
    open()
}

fn main() -> ExitCode {
    #[cfg(feature = "cuda")]
    if let Ok(scenario) = std::env::var("PINFEED_CHILD") {
        cuda::run_child(&scenario);
        return ExitCode::SUCCESS;
    }
    let (filters, skipped) = arguments();
    let tests: Vec<Test> = [
        transfers::TESTS,
        loaders::TESTS,
        epochs::TESTS,
        gathered::TESTS,
        hand_over::TESTS,
        large::TESTS,
        dlpack::TESTS,
        lent::TESTS,
        listed::TESTS,
        parts::TESTS,
        normalize::TESTS,
        mixing::TESTS,
        ragged::TESTS,
        any_order::TESTS,
        bytes::TESTS,
        resident::TESTS,
        together::TESTS,
        resumed::TESTS,
        sequences::TESTS,
        slabs::TESTS,
        sources::TESTS,
        blocks::TESTS,
        devices::TESTS,
        early::TESTS,
        buffers::TESTS,
        split::TESTS,
        staging::TESTS,
        stress::TESTS,
        #[cfg(feature = "nvjpeg")]
        decoding::TESTS,
    ]
    .concat();
    let required = std::env::var_os("PINFEED_REQUIRE_CUDA").is_some_and(|value| value != "0");
    let (mut passed, mut ignored, mut failed) = (0, 0, Vec::new());
    for (backend, open) in [
        ("cpu", Backend::cpu as fn() -> _),
        ("hostile", Backend::hostile),
        ("cuda", Backend::cuda),
    ] {
        for (test, run) in tests.iter().chain(own_tests(backend)) {
            let name = format!("{backend}::{test}");
            let named = |parts: &[String]| parts.iter().any(|part| name.contains(part.as_str()));
            if !filters.is_empty() && !named(&filters) || named(&skipped) {
                continue;
            }
            let start = Instant::now();
            let _watch = watch::on(&name);
            let opened = match test.contains("forgotten") {
                true => forgotten(open),
                false => open(),
            };
            let opened = opened.and_then(|backend| ready(&backend, test).map(|()| backend));
            let outcome = match opened {
                Ok(backend) => std::panic::catch_unwind(AssertUnwindSafe(|| run(&backend)))
                    .map_err(|payload| message(&*payload).to_owned()),
                Err(error) if backend == "cuda" && !required => {
                    ignored += 1;
                    println!("test {name} ... ignored, {error}");
                    continue;
                }
                Err(error) => Err(error.to_string()),
            };
            match outcome {
                Ok(()) => {
                    passed += 1;
                    println!(
                        "test {name} ... ok ({:.2} s)",
                        start.elapsed().as_secs_f64()
                    );
                }
                Err(reason) => {
                    println!("test {name} ... FAILED {reason}");
                    failed.push(format!("{name}: {reason}"));
                }
            }
        }
    }
    let verdict = if failed.is_empty() { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {verdict}. {passed} passed; {} failed; {ignored} ignored; 0 measured; 0 filtered out\n",
        failed.len()
    );
    if failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        println!("failed:\n{}", failed.join("\n"));
        ExitCode::FAILURE
    }
}

/// What a test panicked with.
fn message(payload: &(dyn Any + Send)) -> &str {
    let formatted = payload.downcast_ref::<String>().map(String::as_str);
    let message = formatted.or_else(|| payload.downcast_ref::<&str>().copied());
    message.unwrap_or("it panicked")
}

/// Parts of the names of tests that are to run, and of those that are not.
fn arguments() -> (Vec<String>, Vec<String>) {
    let (mut wanted, mut skipped) = (Vec::new(), Vec::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        if argument == "--skip" {
            skipped.extend(arguments.next());
        } else if !argument.starts_with('-') {
            wanted.push(argument);
        }
    }
    (wanted, skipped)
}
