//! Clicks that a model learns all night, until somebody presses Ctrl-C: one half of the times the run stops behind its step, as programs do that listen;
//! the other half it ends where it stands. Each time it goes on from its checkpoint: no row is lost or doubled.

use std::error::Error;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{env, thread};

use arrow_array::{ArrayRef, Float32Array, Int64Array, RecordBatch};
use parquet::arrow::ArrowWriter;
use pinfeed::DataLoader;
use pinfeed::loader::LoaderState;
use pinfeed_parquet::{Numbers, Parquet};

const ROWS: i64 = 3_000;

/// What a batch had, and the state behind it.
type Step = (Vec<i64>, String);

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

fn write(folder: &Path) -> Result<(), Box<dyn Error>> {
    for day in 0..3 {
        let rows = day * ROWS / 3..(day + 1) * ROWS / 3;
        let features: Float32Array = rows.clone().map(|at| Some(at as f32 / 2.0)).collect();
        let user: Int64Array = rows.map(Some).collect();
        let columns: [(&str, ArrayRef); 2] = [("dwell", Arc::new(features)), ("user", Arc::new(user))];
        let batch = RecordBatch::try_from_iter(columns)?;
        let mut writer = ArrowWriter::try_new(File::create(folder.join(format!("day-{day}.parquet")))?, batch.schema(), None)?;
        for first in (0..batch.num_rows()).step_by(100) {
            writer.write(&batch.slice(first, 100))?;
            writer.flush()?; // a row group
        }
        writer.close()?;
    }
    Ok(())
}

/// Trains, and after each step writes down what it had, and where it is, in one line of a file.
fn train(home: &Path) -> Result<(), Box<dyn Error>> {
    let files = home.join("clicks");
    let table = Parquet::open(files.to_str().ok_or("a path that is no text")?)?
        .build_numbers((Numbers::<f32>::of(["dwell"]), Numbers::<i64>::of(["user"])))?;
    let loader = DataLoader::builder(table).batch_size(150).shuffle(true).seed(4).num_workers(2).build()?;
    let log = home.join("log");
    let state = match steps(&log)?.last() {
        Some((_, state)) => state.parse()?,
        None => LoaderState::default(),
    };
    let mut log = OpenOptions::new().create(true).append(true).open(log)?;
    for epoch in loader.resume(0..2, &state)? {
        for batch in epoch {
            let (dwell, user) = batch?;
            thread::sleep(Duration::from_millis(3)); // a step
            assert!(dwell.as_slice().iter().zip(user.as_slice()).all(|(dwell, user)| *dwell == *user as f32 / 2.0));
            log.write_all(format!("{:?};{}\n", user.as_slice(), loader.state()).as_bytes())?;
            println!("step");
            if STOP.load(Ordering::Relaxed) {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// The steps that were written down: rows, and the state behind them. (One line is one write, which happens or not.)
fn steps(log: &Path) -> Result<Vec<Step>, Box<dyn Error>> {
    let text = fs::read_to_string(log).unwrap_or_default();
    let line = |line: &str| -> Result<_, Box<dyn Error>> {
        let (seen, state) = line.split_once(';').ok_or("half a line")?;
        let seen = seen.trim_matches(['[', ']']).split(", ");
        let seen: Result<Vec<i64>, _> = seen.map(str::parse).collect();
        Ok((seen?, state.to_owned()))
    };
    text.lines().map(line).collect()
}

pub fn main() -> Result<(), Box<dyn Error>> {
    if !cfg!(unix) {
        return Ok(()); // no Ctrl-C by a call there
    }
    if let Some(home) = env::var_os("PINFEED_TEST_CTRL_C_HOME") {
        if env::var_os("PINFEED_TEST_CTRL_C_LISTENS").is_some() {
            listen();
        }
        return train(Path::new(&home));
    }
    let home = tempfile::tempdir()?;
    fs::create_dir(home.path().join("clicks"))?;
    write(&home.path().join("clicks"))?;
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
    let mut seen: Vec<i64> = steps(&home.path().join("log"))?.into_iter().flat_map(|(seen, _)| seen).collect();
    seen.sort_unstable();
    let twice = (0..ROWS).flat_map(|row| [row, row]);
    assert!(seen.into_iter().eq(twice), "each row once in each of two epochs");
    Ok(())
}
