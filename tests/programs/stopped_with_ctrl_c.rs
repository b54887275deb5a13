//! A run over pictures in a bucket that is stopped with Ctrl-C, again and again. One half of the times it stops behind its step, as programs do
//! that listen; the other half it ends where it stands, as those do that do not. Each time it goes on from its checkpoint: no picture is lost or doubled.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{env, thread};

use pinfeed::image::StoredFolder;
use pinfeed::loader::LoaderState;
use pinfeed::store::{self, DiskCache};
use pinfeed::{BoxError, DataLoader};

const PICTURES: u8 = 120;

/// What a batch had, and the state behind it.
type Step = (Vec<u8>, String);

static STOP: AtomicBool = AtomicBool::new(false);

/// From now on, Ctrl-C asks the run to stop. (A program would take the crate `ctrlc`.)
#[cfg(unix)]
#[allow(unsafe_code)]
fn listen() {
    extern "C" fn stop(_: libc::c_int) {
        STOP.store(true, Ordering::Relaxed);
    }
    // SAFETY: what the handler does may be done in a handler.
    unsafe { libc::signal(libc::SIGINT, stop as extern "C" fn(libc::c_int) as libc::sighandler_t) };
}

/// What the terminal does at Ctrl-C.
#[cfg(unix)]
#[allow(unsafe_code)]
fn press_ctrl_c(child: &Child) {
    // SAFETY: it is a process of ours that was not waited for.
    unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGINT) };
}

#[cfg(not(unix))]
fn listen() {}

#[cfg(not(unix))]
fn press_ctrl_c(_: &Child) {}

/// Trains, and after each step writes down what it had, and where it is, in one line of a file. Returns whether it came to the end.
fn train(home: &Path) -> Result<bool, BoxError> {
    let bucket = store::open(home.join("bucket").to_str().ok_or("a path that is no text")?)?; // "s3://.."
    let cache = Arc::new(DiskCache::open(bucket, home.join("cache"), 64 << 20)?);
    let data = StoredFolder::open(cache, "train")?;
    let loader = DataLoader::builder(data).batch_size(7).shuffle(true).seed(8).num_workers(2).build()?;
    let log = home.join("log");
    let state = match steps(&log)?.last() {
        Some((_, state)) => state.parse()?,
        None => LoaderState::default(),
    };
    let mut log = OpenOptions::new().create(true).append(true).open(log)?;
    for epoch in loader.resume(0..2, &state)? {
        for batch in epoch {
            let (pictures, _labels) = batch?;
            thread::sleep(Duration::from_millis(3)); // a step
            let seen: Vec<u8> = pictures.as_slice().chunks(3 * 4 * 4).map(|picture| picture[0]).collect();
            log.write_all(format!("{seen:?};{}\n", loader.state()).as_bytes())?;
            println!("step");
            if STOP.load(Ordering::Relaxed) {
                return Ok(false); // workers end, requests too
            }
        }
    }
    Ok(true)
}

/// The steps that were written down: pictures, and the state behind them. (One line is one write, which happens or not.)
fn steps(log: &Path) -> Result<Vec<Step>, BoxError> {
    let text = fs::read_to_string(log).unwrap_or_default();
    let line = |line: &str| -> Result<_, BoxError> {
        let (seen, state) = line.split_once(';').ok_or("half a line")?;
        let seen = seen.trim_matches(['[', ']']).split(", ");
        let seen: Result<Vec<u8>, _> = seen.map(str::parse).collect();
        Ok((seen?, state.to_owned()))
    };
    text.lines().map(line).collect()
}

pub fn main() -> Result<(), BoxError> {
    if !cfg!(unix) {
        return Ok(()); // no Ctrl-C by a call there
    }
    if let Some(home) = env::var_os("PINFEED_TEST_CTRL_C_HOME") {
        if env::var_os("PINFEED_TEST_CTRL_C_LISTENS").is_some() {
            listen();
        }
        train(Path::new(&home))?;
        return Ok(());
    }
    let home = tempfile::tempdir()?;
    for n in 0..PICTURES {
        let class = home.path().join("bucket/train").join(["cat", "dog"][usize::from(n % 2)]);
        fs::create_dir_all(&class)?;
        let mut file = b"P6 4 4 255\n".to_vec();
        file.resize(file.len() + 4 * 4 * 3, n);
        fs::write(class.join(format!("{n}.ppm")), file)?;
    }
    for run in 0..6 {
        let mut command = Command::new(env::current_exe()?);
        command.args(["--exact", "stopped_with_ctrl_c", "--nocapture"]).stdout(Stdio::piped());
        command.env("PINFEED_TEST_CTRL_C_HOME", home.path());
        let listens = run % 2 == 0;
        if listens {
            command.env("PINFEED_TEST_CTRL_C_LISTENS", "1");
        }
        let mut child = command.spawn()?;
        let mut lines = BufReader::new(child.stdout.take().ok_or("it has no output")?).lines();
        let mut steps = 0;
        while let Some(line) = lines.next().transpose()? {
            steps += usize::from(line.ends_with("step"));
            if run < 5 && steps == 1 + run {
                press_ctrl_c(&child);
                break;
            }
        }
        lines.for_each(drop); // to its end
        let status = child.wait()?;
        let ended = status.success() || (run < 5 && !listens && status.code().is_none()); // (no code: a signal)
        assert!(ended, "run {run}: {status}");
    }
    let mut seen: Vec<u8> = steps(&home.path().join("log"))?.into_iter().flat_map(|(seen, _)| seen).collect();
    seen.sort_unstable();
    let twice = (0..PICTURES).flat_map(|picture| [picture, picture]);
    assert!(seen.into_iter().eq(twice), "each picture once in each of two epochs");
    Ok(())
}
