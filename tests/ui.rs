//! Programs that must not compile, each beside a twin that does.
//!
//! `ui/fail/x.rs` makes a mistake that the types refuse, and `ui/pass/x.rs` is the same program without the mistake, so
//! that it is the mistake that is refused and nothing else. A forbidden program begins with what the compiler has to say:
//!
//! ```text
//! //~ ERROR E0382                     the code of each of its errors (a lint's name; nothing where there is no code)
//! //~ says: borrow of moved value     a part of its words; as many of these lines as needed
//! //~ once                            there is one error, and no other
//! ```
//!
//! and its mistake ends with `//~ HERE` (or that is the next line): an error has to point at it.
//!
//! A program whose error is shown to readers (`examples/corruption`) has the compiler's words beside it, as `x.stderr`. They are
//! compared, but for notes and labels, which are not the same in all compilers. `PINFEED_UI_WRITE=1 cargo test --test ui` writes them anew.
//!
//! The programs are compiled against the library that was built for this test. Which file that is, Cargo itself is
//! asked: looking for it in Cargo's folders finds the leftovers of other features and compilers too. As Cargo has just
//! built everything, the question costs a fraction of a second, and as `rustc` then only checks, so does each program.
//! `trybuild`, the usual way, builds all dependencies once more, and compares all of the compiler's words, which
//! are not the same in the oldest and the newest compiler that we serve.

#![cfg(not(miri))] // it starts processes
#![allow(clippy::unwrap_used, clippy::expect_used)] // a panic is how a test fails

#[macro_use]
extern crate watch;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex};

use serde_json::Value;

#[test]
fn forbidden_programs_do_not_compile() {
    check_all("fail", |program, errors| {
        Expected::read(program).check(errors)?;
        check_words(program, errors)
    });
}

#[test]
fn their_twins_compile() {
    check_all("pass", |_, errors| match errors {
        [] => Ok(()),
        _ => Err("it does not compile".to_owned()),
    });
}

#[test]
fn each_program_has_its_twin() {
    let names = |folder| -> BTreeSet<_> {
        let programs = programs(folder).into_iter();
        programs
            .map(|path| path.file_name().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names("fail"), names("pass"));
}

/// What a forbidden program says of its errors.
struct Expected {
    code: Option<String>,
    says: Vec<String>,
    once: bool,
    lines: Vec<u64>,
}

impl Expected {
    fn read(program: &Path) -> Expected {
        let source = std::fs::read_to_string(program).unwrap();
        let header = |key: &str| -> Vec<String> {
            let lines = source.lines().filter_map(|line| line.strip_prefix(key));
            lines.map(|line| line.trim().to_owned()).collect()
        };
        let code = header("//~ ERROR").pop().expect("a line `//~ ERROR`");
        let lines = (1..).zip(source.lines()).filter_map(|(number, line)| {
            let code = line.strip_suffix("//~ HERE")?.trim();
            Some(if code.is_empty() { number - 1 } else { number })
        });
        let lines: Vec<u64> = lines.collect();
        assert!(!lines.is_empty(), "{}: no `//~ HERE`", program.display());
        Expected {
            code: Some(code).filter(|code| !code.is_empty()),
            says: header("//~ says:"),
            once: !header("//~ once").is_empty(),
            lines,
        }
    }

    fn check(&self, errors: &[CompilerError]) -> Result<(), String> {
        if errors.is_empty() {
            return Err("it compiles".to_owned());
        }
        if let Some(other) = errors.iter().find(|error| error.code != self.code) {
            return Err(format!("expected {:?}, not {:?}", self.code, other.code));
        }
        if self.once && errors.len() > 1 {
            return Err(format!("expected one error, not {}", errors.len()));
        }
        let said = |words: &String| errors.iter().any(|error| error.rendered.contains(words));
        if let Some(words) = self.says.iter().find(|words| !said(words)) {
            return Err(format!("expected the words: {words}"));
        }
        let hit = |line: &u64| errors.iter().any(|error| error.lines.contains(line));
        match self.lines.iter().find(|line| !hit(line)) {
            Some(line) => Err(format!("expected an error at line {line}")),
            None => Ok(()),
        }
    }
}

/// Compares the compiler's words with those that are kept beside the program, if they are.
fn check_words(program: &Path, errors: &[CompilerError]) -> Result<(), String> {
    let kept = program.with_extension("stderr");
    if !kept.exists() {
        return Ok(());
    }
    let folder = format!("{}/", env!("CARGO_MANIFEST_DIR"));
    let said: String = errors.iter().map(|error| error.rendered.as_str()).collect();
    let said = said.replace(&folder, "");
    if std::env::var_os("PINFEED_UI_WRITE").is_some() {
        std::fs::write(&kept, format!("{}\n", said.trim_end())).unwrap();
    }
    let words = std::fs::read_to_string(&kept).unwrap();
    match said_in_all_compilers(&words) == said_in_all_compilers(&said) {
        true => Ok(()),
        false => Err(format!(
            "{} says something else (PINFEED_UI_WRITE=1 writes it anew):\n{words}",
            kept.display()
        )),
    }
}

/// Each error's first line, where it is, and the lines of the program that it quotes before its notes.
fn said_in_all_compilers(words: &str) -> Vec<&str> {
    let mut said = Vec::new();
    let mut is_in_notes = false;
    for line in words.lines().map(str::trim) {
        let is_first = line.starts_with("error");
        let notes = ["note:", "help:", "= "];
        is_in_notes = !is_first && (is_in_notes || notes.iter().any(|note| line.starts_with(note)));
        let is_quoted =
            line.starts_with("-->") || line.starts_with(|first: char| first.is_ascii_digit());
        if is_first || (is_quoted && !is_in_notes) {
            said.push(line);
        }
    }
    said
}

/// An error, as the compiler reports it.
struct CompilerError {
    code: Option<String>,
    /// The lines that it points at first of all.
    lines: Vec<u64>,
    rendered: String,
}

impl CompilerError {
    fn parse(message: &Value) -> Option<CompilerError> {
        let spans = message["spans"].as_array()?;
        if message["level"] != "error" || spans.is_empty() {
            return None; // a warning, or the closing "aborting due to"
        }
        let primary = spans.iter().filter(|span| span["is_primary"] == true);
        Some(CompilerError {
            code: message["code"]["code"].as_str().map(str::to_owned),
            lines: primary
                .filter_map(|span| span["line_start"].as_u64())
                .collect(),
            rendered: message["rendered"].as_str()?.to_owned(),
        })
    }
}

/// Compiles each program of the folder and has its errors judged.
fn check_all(folder: &str, judge: impl Fn(&Path, &[CompilerError]) -> Result<(), String> + Sync) {
    let (programs, next) = (programs(folder), AtomicUsize::new(0));
    let complaints = Mutex::new(Vec::new());
    let check = || {
        while let Some(program) = programs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let errors = compile(program);
            if let Err(complaint) = judge(program, &errors) {
                let rendered: String = errors.into_iter().map(|error| error.rendered).collect();
                let complaint = format!("{}: {complaint}\n{rendered}", program.display());
                complaints.lock().unwrap().push(complaint);
            }
        }
    };
    LazyLock::force(&LIBRARY);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(check);
        }
    });
    let complaints = complaints.into_inner().unwrap();
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

fn programs(folder: &str) -> Vec<PathBuf> {
    let ui = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ui");
    let entries = std::fs::read_dir(ui.join(folder)).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| is(path, "rs")).collect()
}

fn is(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|found| found == extension)
}

fn compile(program: &Path) -> Vec<CompilerError> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut rustc = Command::new(rustc);
    rustc.args(["--edition=2024", "--emit=metadata", "--error-format=json"]);
    rustc.args(["--out-dir", env!("CARGO_TARGET_TMPDIR")]);
    rustc.args(&*LIBRARY).arg(program);
    let output = rustc.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let messages = said.lines().map(|line| match serde_json::from_str(line) {
        Ok(message) => message,
        Err(_) => panic!("{}: {said}", program.display()),
    });
    let errors = messages.filter_map(|message| CompilerError::parse(&message));
    let errors: Vec<_> = errors.collect();
    assert_eq!(output.status.success(), errors.is_empty(), "{said}");
    errors
}

/// The compiler's arguments that name the library as it was built for this test, and what it depends on.
static LIBRARY: LazyLock<Vec<String>> = LazyLock::new(|| {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["test", "--no-run", "--test=ui", "--message-format=json"]);
    cargo.arg("--no-default-features");
    for (feature, _) in FEATURES.iter().filter(|(_, is_on)| *is_on) {
        cargo.args(["--features", feature]);
    }
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    let output = cargo.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");

    let mut arguments = BTreeSet::new();
    for message in String::from_utf8(output.stdout).unwrap().lines() {
        let message: Value = serde_json::from_str(message).unwrap();
        for file in message["filenames"].as_array().into_iter().flatten() {
            let file = Path::new(file.as_str().unwrap());
            arguments.insert(format!("-Ldependency={}", file.parent().unwrap().display()));
            if message["target"]["name"] == "pinfeed" && is(file, "rlib") {
                arguments.insert(format!("--extern=pinfeed={}", file.display()));
            }
        }
    }
    arguments.into_iter().collect()
});

/// The features that the test was built with: with the same ones, Cargo finds everything built.
const FEATURES: &[(&str, bool)] = &[
    ("candle", cfg!(feature = "candle")),
    ("candle-cuda", cfg!(feature = "candle-cuda")),
    ("cuda", cfg!(feature = "cuda")),
    ("derive", cfg!(feature = "derive")),
    ("image", cfg!(feature = "image")),
    ("rand_core", cfg!(feature = "rand_core")),
    ("serde", cfg!(feature = "serde")),
    ("testing", cfg!(feature = "testing")),
    ("tracing", cfg!(feature = "tracing")),
];
