//! The source's own order: who may import whom, where cudarc is named, what shows an example, and that `tests/README.md` says which test
//! is where.
//!
//! A module imports lower layers and its own folder, nothing else; modules of one layer do not know each other. The
//! layers are the table in docs/ARCHITECTURE.md, and so are the floors within a large module. `image` imports what a program can, which `public_image.rs` holds it to.

#![cfg(not(miri))] // it reads files
#![allow(clippy::unwrap_used)] // a panic is how a test fails

#[macro_use]
extern crate watch;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The only folders that name cudarc.
const CUDARC: &[&str] = &["driver", "interop"];

/// The module that sees the crate as a program does: it imports public items only, from the root and the public modules.
const USER: &str = "image";

/// What takes no part in the pipeline, and may have locks, threads and clocks of its own: the system's answers, which never
/// change, and what reads folders and pictures.
const UNSCHEDULED: &[&str] = &["dataset", "image", "system"];

/// The root of the crate shows what every program names; what some need is in its modules.
const MOST_ROOT_NAMES: usize = 20;

/// What of the public items shows no example of its own: parts of errors and plain values, and what only stands in signatures.
#[rustfmt::skip]
const NO_EXAMPLE: &[&str] = &[
    "CollateError", "DeviceFault", "DocumentError", "Interrupted", "Limit", "ListingProgress", "Misfit", "SampleId", "ShapeError",
    "MadeStats", "Stage", "Tally", "TimedOut", "Way",
    "Change", "Colour", "Cut", "Warp", "erase", "DecoderLimits", "Drawing", "Encoded", "EncodedPicture", "Filter", "OnCpu", "PlaneLayout", "Planes", "Sampling",
    "Chain", "ChainIter", "Either", "Lines", "LinesIter", "Mixture", "MixtureIter", "PackedIter", "Pieces", "Repeat", "RepeatIter", "Shuffle", "ShuffleIter",
    "Skip", "SkipIter", "Take", "TakeIter",
    "BoxError", "Cached", "OnRuntime", "CollateFn", "Described", "Map", "Result", "Stack", "TensorRows", "Zip",
];

#[test]
fn modules_import_lower_layers_only() {
    let (layers, mut complaints) = (layers(), Vec::new());
    for file in sources() {
        for (line, import) in file.imports() {
            if let Err(complaint) = judge(&layers, &file.module, import) {
                complaints.push(format!("{}:{line}: {complaint}", file.path.display()));
            }
        }
    }
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

/// What imports a higher floor all the same, or another folder of its own: functions of `Pipeline` that lie with what they do, and not yet
/// with the state that they need. The list only gets shorter.
const UPWARDS: &[&str] = &["pipeline/transfer/send.rs -> threads"];

#[test]
fn files_import_lower_floors_only() {
    let mut upwards = BTreeSet::new();
    let layers = layers();
    for file in sources() {
        let Some((floor, ours)) = file.floor(&layers) else {
            continue;
        };
        for import in file.imports_within() {
            let name = format!("{}/{import}", file.module);
            let theirs = layers.get(&name);
            let theirs = theirs.unwrap_or_else(|| panic!("`{name}` has no floor"));
            if name != floor && *theirs >= ours {
                upwards.insert(format!("{} -> {import}", file.path.display()));
            }
        }
    }
    let listed = UPWARDS.iter().map(|line| (*line).to_owned());
    let listed: BTreeSet<String> = listed.collect();
    let new: Vec<_> = upwards.difference(&listed).collect();
    let gone: Vec<_> = listed.difference(&upwards).collect();
    assert!(
        new.is_empty(),
        "imports of a higher floor: {new:#?}\nlet the caller above do that with what you return, or move the value down"
    );
    assert!(gone.is_empty(), "take these from the list: {gone:#?}");
}

#[test]
fn every_module_has_its_layer() {
    let files = sources();
    let modules = files.iter().filter(|file| file.module != "lib");
    let mut modules: Vec<_> = modules.map(|file| file.module.as_str()).collect();
    modules.sort_unstable();
    modules.dedup();
    let (floors, named): (Vec<_>, Vec<_>) =
        layers().into_keys().partition(|name| name.contains('/'));
    assert_eq!(modules, named, "src/ and the table in docs/ARCHITECTURE.md");
    let below: BTreeSet<String> = files.iter().filter_map(Source::below).collect();
    let divided = |name: &&String| {
        floors
            .iter()
            .any(|floor| floor.split('/').next() == name.split('/').next())
    };
    let below: Vec<_> = below.iter().filter(divided).collect();
    assert_eq!(
        below,
        floors.iter().collect::<Vec<_>>(),
        "the floors in docs/ARCHITECTURE.md"
    );
}

#[test]
fn cudarc_is_named_where_drivers_and_embedders_meet_only() {
    for file in sources() {
        if CUDARC.contains(&file.module.as_str()) {
            continue;
        }
        for (line, code) in file.code() {
            let path = file.path.display();
            assert!(!code.contains("cudarc"), "{path}:{line}: {code}");
        }
    }
}

#[test]
fn locks_threads_and_clocks_come_from_sync() {
    for file in sources() {
        if file.module == "sync" || UNSCHEDULED.contains(&file.module.as_str()) {
            continue;
        }
        let words = ["std::sync", "std::thread", "Instant", "thread_local!"];
        let words = words.iter().chain(&["parking_lot", "crossbeam", "rayon"]);
        for word in words {
            let imports = file.imported_from_sync(word.trim_end_matches('!'));
            for (line, code) in file.code() {
                let code = code.replace("std::thread::available_parallelism", "");
                let path = file.path.display();
                let complaint = "shuttle would not see it: import it from crate::sync";
                assert!(
                    !code.contains(word) || imports,
                    "{path}:{line}: {word}: {complaint}"
                );
            }
        }
    }
}

/// A logger is the program's code, which must not run under a lock: what the library logs is put off until the thread holds none.
#[test]
fn what_is_logged_is_logged_without_locks() {
    let levels = ["error", "warn", "info", "debug", "trace"].map(|level| format!("log::{level}!"));
    let mut seen = 0;
    for file in sources() {
        if ["sync", USER].contains(&file.module.as_str()) {
            continue; // `image` has none of the library's locks
        }
        let imports = file.text.contains("\nuse crate::sync::log;\n");
        for (line, code) in file.code() {
            let logs = levels.iter().any(|level| code.contains(level));
            let path = file.path.display();
            assert!(!logs || imports, "{path}:{line}: use crate::sync::log");
            seen += usize::from(logs);
        }
    }
    assert!(seen > 20, "{seen}");
}

#[test]
fn the_root_is_small() {
    let files = sources();
    let lib = files.iter().find(|file| file.module == "lib").unwrap();
    let names = re_exported(&lib.text, "\npub use ");
    assert!(names.len() <= MOST_ROOT_NAMES, "{names:?}");
    assert!(names.contains("DataLoader"), "{names:?}");
}

#[test]
fn public_items_show_an_example() {
    let files = sources();
    let names = public(&files);
    assert!(names.len() > 80, "{names:?}");
    for name in names {
        let docs = files.iter().find_map(|file| docs_of(&file.text, name));
        let docs = docs.unwrap_or_else(|| panic!("{name} is defined nowhere"));
        let shows = docs.contains("# Examples");
        let exempt = NO_EXAMPLE.contains(&name);
        assert!(
            shows != exempt,
            "{name}: an example: {shows}, exempt: {exempt}"
        );
    }
}

/// The names that are public: in `lib.rs`, with the modules written there, and in the modules that it declares.
fn public(files: &[Source]) -> BTreeSet<&str> {
    let lib = files.iter().find(|file| file.module == "lib").unwrap();
    let modules = lib.text.lines().filter_map(|line| {
        let module = line.strip_prefix("pub mod ")?.strip_suffix(';')?;
        let heads = [format!("{module}.rs"), format!("{module}/mod.rs")].map(PathBuf::from);
        files.iter().find(|file| heads.contains(&file.path))
    });
    let texts = modules.chain([lib]).map(|file| file.text.as_str());
    texts.flat_map(exported).collect()
}

/// The names that a file re-exports, and those of the public items that it defines.
fn exported(text: &str) -> BTreeSet<&str> {
    let defined = text.lines().filter_map(|line| {
        let kinds = ["struct ", "enum ", "trait ", "fn ", "type "];
        let item = line.strip_prefix("pub ")?;
        let name = kinds.iter().find_map(|kind| item.strip_prefix(kind))?;
        name.split(|c: char| !c.is_alphanumeric() && c != '_')
            .next()
    });
    let mut names = re_exported(text, "pub use ");
    names.extend(defined);
    names
}

/// The names of the crate's own in the statements that begin so.
fn re_exported<'a>(text: &'a str, start: &str) -> BTreeSet<&'a str> {
    let statements = text.split(start).skip(1);
    let statements = statements.map(|rest| rest.split(';').next().unwrap());
    let own = statements.filter(|statement| !statement.starts_with("pinfeed_derive"));
    let items = own.flat_map(|statement| {
        let list = statement
            .split_once('{')
            .map_or(statement, |(_, list)| list);
        list.split([',', '}'])
    });
    let names = items.map(|item| item.trim().rsplit("::").next().unwrap());
    names.filter(|name| !name.is_empty()).collect()
}

/// The documentation of the item of that name, if the file defines it.
fn docs_of(text: &str, name: &str) -> Option<String> {
    let lines: Vec<&str> = text.lines().collect();
    let defines = |line: &&str| {
        let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
        let kinds = ["struct", "enum", "trait", "fn", "type"];
        words.next() == Some("pub")
            && words.next().is_some_and(|kind| kinds.contains(&kind))
            && words.next() == Some(name)
    };
    let place = lines.iter().position(defines)?;
    let above = lines[..place].iter().rev();
    let above = above.take_while(|line| !line.is_empty());
    let docs: Vec<&str> = above
        .filter(|line| line.starts_with("///"))
        .copied()
        .collect();
    Some(docs.join("\n"))
}

#[test]
fn the_judge_sees_what_is_forbidden() {
    let imports = |text: &str| -> Vec<String> {
        let file = Source {
            path: PathBuf::new(),
            module: "batch".to_owned(),
            text: text.to_owned(),
        };
        let imports = file.imports().into_iter();
        imports.map(|(_, import)| import.to_owned()).collect()
    };
    assert_eq!(imports("use crate::device::Slab; // crate::a"), ["device"]);
    assert_eq!(imports("    let x = crate::loader::f();"), ["loader"]);
    assert_eq!(imports("//! [`x`](crate::loader::X)"), [""; 0]);
    assert_eq!(imports("#[cfg(test)]\nmod tests {\nuse crate::a"), [""; 0]);
    assert_eq!(imports("use crate::{a, b};"), [""]);
    assert_eq!(imports("$crate::c!(); pub(in crate::d)"), ["c", "d"]);

    let layers = layers();
    let judge = |module, import| judge(&layers, module, import);
    assert!(judge("batch", "device").is_ok());
    assert!(judge("batch", "batch").is_ok());
    assert!(judge("lib", "loader").is_ok());
    assert!(judge("batch", "loader").is_err());
    assert!(judge("dataset", "device").is_err());
    assert!(judge("batch", "Error").is_err());
    assert!(judge("batch", "").is_err());
    assert!(judge("image", "").is_ok());
    assert!(judge("interop", "image").is_err());
}

fn judge(layers: &Layers, module: &str, import: &str) -> Result<(), String> {
    if module == import || module == "lib" || module == USER {
        return Ok(());
    }
    let Some(theirs) = layers.get(import) else {
        return Err(format!(
            "`crate::{import}` names no module: import from the module that has it, one module a line"
        ));
    };
    match layers.get(module) {
        None => Err(format!("`{module}` has no layer")),
        Some(ours) if theirs < ours => Ok(()),
        Some(ours) => Err(format!(
            "`{module}` (layer {ours}) imports `{import}` (layer {theirs})"
        )),
    }
}

/// Each module's layer.
type Layers = BTreeMap<String, usize>;

fn layers() -> Layers {
    let pages = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/ARCHITECTURE.md");
    let text = fs::read_to_string(pages).unwrap();
    let rows = text.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| ")?.split(" | ");
        let layer: usize = cells.next()?.parse().ok()?;
        Some((layer, cells.next()?))
    });
    let modules = rows.flat_map(|(layer, modules)| {
        let modules = modules.split('`').skip(1).step_by(2);
        modules.map(move |module| (module.to_owned(), layer))
    });
    modules.collect()
}

/// A file of `src/`.
struct Source {
    path: PathBuf,
    /// The folder or file directly below `src/` that it belongs to.
    module: String,
    text: String,
}

impl Source {
    /// The lines with code: without comments, and without the unit tests at the file's end, which see all of the crate.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = (1..).zip(self.text.lines());
        lines
            .take_while(|(_, line)| line.trim() != "#[cfg(test)]")
            .map(|(number, line)| (number, line.split("//").next().unwrap()))
    }

    /// Whether an import from `crate::sync` has the name.
    fn imported_from_sync(&self, name: &str) -> bool {
        let mut imports = self.text.split("use crate::sync::").skip(1);
        imports.any(|import| import.split(';').next().unwrap().contains(name))
    }

    /// `folder/file` of a file two levels below `src/`, or deeper; `None` for the folder's own `mod.rs`.
    fn below(&self) -> Option<String> {
        let second = self.path.iter().nth(1)?;
        let second = Path::new(second).file_stem().unwrap().to_str().unwrap();
        (second != "mod").then(|| format!("{}/{second}", self.module))
    }

    /// The floor that the file is on, if its module has floors.
    fn floor(&self, layers: &Layers) -> Option<(String, usize)> {
        let name = self.below()?;
        let floor = *layers.get(&name)?;
        Some((name, floor))
    }

    /// What it imports of its own module, as the names of files and folders there.
    fn imports_within(&self) -> BTreeSet<String> {
        // How many times `super` leads from the file to its module.
        let deep = self.path.iter().count() - 1 - usize::from(self.path.ends_with("mod.rs"));
        let up = "super::".repeat(deep);
        let absolute = format!("crate::{}::", self.module);
        let end = |c: char| !c.is_alphanumeric() && c != '_';
        let mut names = BTreeSet::new();
        for (_, line) in self.code() {
            for (start, of) in [(&absolute, true), (&up, deep > 0)] {
                let paths = line.split(start.as_str()).skip(1).filter(|_| of);
                names.extend(paths.map(|path| path.split(end).next().unwrap().to_owned()));
            }
        }
        names
    }

    /// What follows `crate::` in code, by line; empty where it is no single name.
    fn imports(&self) -> Vec<(usize, &str)> {
        let imports = self.code().flat_map(|(number, line)| {
            let paths = line.split("crate::").skip(1);
            paths.map(move |path| (number, path))
        });
        let end = |c: char| !c.is_alphanumeric() && c != '_';
        imports
            .map(|(number, path)| (number, path.split(end).next().unwrap()))
            .collect()
    }
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut folders, mut sources) = (vec![root.clone()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let below = path.strip_prefix(&root).unwrap().to_owned();
            if path.extension().is_some_and(|found| found == "rs") && !is_test(&below) {
                let module = Path::new(below.iter().next().unwrap()).file_stem();
                sources.push(Source {
                    module: module.unwrap().to_str().unwrap().to_owned(),
                    text: fs::read_to_string(&path).unwrap(),
                    path: below,
                });
            }
        }
    }
    assert!(!sources.is_empty());
    sources
}

fn is_test(path: &Path) -> bool {
    path.iter()
        .any(|name| name == "tests" || name == "tests.rs")
}

/// The files with tests, as paths below `tests/`: those beside the README, and those of folders that are compiled.
fn tests() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let inside = |folder: &Path| {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().path())
    };
    let (folders, mut files): (Vec<_>, Vec<_>) = inside(&root).partition(|path| path.is_dir());
    files.extend(folders.iter().flat_map(|folder| inside(folder)));
    files.retain(|path| path.extension().is_some_and(|found| found == "rs"));
    let below = files.iter().map(|path| path.strip_prefix(&root).unwrap());
    let tests = below.filter(|path| !path.starts_with("watch"));
    tests.map(Path::to_owned).collect()
}

fn test_text(path: impl AsRef<Path>) -> Option<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    fs::read_to_string(root.join(path)).ok()
}

/// A hang is a failure: every binary with tests has the watch of `tests/watch`, which names the test that hangs.
#[test]
fn every_test_is_watched() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let has_watch = |text: &str| text.contains("\n#[macro_use]\nextern crate watch;\n");
    let mut seen = 0;
    for path in tests() {
        let text = test_text(&path).unwrap();
        let folder = path.parent().unwrap();
        let is_root = path.ends_with("main.rs") || folder.as_os_str().is_empty();
        if !is_root {
            // Its root has the line, for all files of the binary.
            assert!(!has_watch(&text), "{}: it is in main.rs", path.display());
            continue;
        }
        let by_hand = text.contains("watch::on(");
        let has_tests = path != Path::new("public_image.rs"); // compiling it is the test
        assert!(
            has_watch(&text) || by_hand || !has_tests,
            "{}: extern crate watch;",
            path.display()
        );
        seen += 1;
    }
    assert!(seen > 10, "{seen}");
    let lib = fs::read_to_string(root.join("src/lib.rs")).unwrap();
    assert!(has_watch(&lib), "src/lib.rs");
}

/// A file that its `main.rs` does not name is compiled nowhere, and its tests never run.
#[test]
fn every_file_of_a_group_is_a_module() {
    for path in tests() {
        let Some(main) = test_text(path.with_file_name("main.rs")) else {
            continue;
        };
        let name = path.file_stem().unwrap().to_str().unwrap();
        let is_named = main.split(|c: char| !c.is_alphanumeric() && c != '_');
        let is_named = is_named.into_iter().any(|word| word == name);
        assert!(is_named || name == "main", "{}", path.display());
    }
}

/// The folders that the columns of tests/README.md leave out.
const COLUMNS: [(&str, &str); 7] = [
    ("tests", ""),
    ("properties", ""),
    ("programs", "programs/"),
    ("hostile", "hostile/"),
    ("conformance", "conformance/"),
    ("schedules", "shuttle/"),
    ("GPU", ""),
];

/// A row of that page: the words in code font, and the files with their columns.
struct IndexRow {
    words: Vec<String>,
    files: Vec<(&'static str, PathBuf)>,
}

fn index(text: &str) -> Vec<IndexRow> {
    let cells = |line: &str| -> Vec<String> {
        let cells = line.trim_matches('|').split('|');
        cells.map(|cell| cell.trim().to_owned()).collect()
    };
    let titles: Vec<&str> = COLUMNS.iter().map(|column| column.0).collect();
    let mut rows = Vec::new();
    let mut is_index = false;
    for line in text.lines() {
        let cells = cells(line);
        let (subject, columns) = cells.split_first().unwrap();
        if !line.starts_with('|') || columns.len() != COLUMNS.len() {
            is_index = false;
        } else if columns == titles {
            is_index = true;
        } else if is_index && subject != "---" {
            let words = subject.split('`').skip(1).step_by(2);
            let files = columns
                .iter()
                .zip(COLUMNS)
                .flat_map(|(cell, (column, folder))| {
                    let names = cell.split(", ").filter(|name| !name.is_empty());
                    names.map(move |name| (column, PathBuf::from(format!("{folder}{name}.rs"))))
                });
            rows.push(IndexRow {
                words: words.map(str::to_owned).collect(),
                files: files.collect(),
            });
        }
    }
    rows
}

/// Whether the word stands there, and not as a part of another.
fn has_word(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(start, _)| {
        !text[..start].ends_with(is_part) && !text[start + word.len()..].starts_with(is_part)
    })
}

#[test]
fn the_index_of_tests_names_files_that_test_it() {
    let text = test_text("README.md").unwrap();
    let rows = index(&text);
    assert!(rows.len() > 50, "{}", rows.len());
    let mut named: BTreeSet<PathBuf> = BTreeSet::new();
    for row in &rows {
        assert!(!row.files.is_empty(), "{:?}: no file tests it", row.words);
        for (column, path) in &row.files {
            let test = test_text(path);
            let test = test.unwrap_or_else(|| panic!("{}: there is no such file", path.display()));
            assert!(
                row.words.iter().any(|word| has_word(&test, word)),
                "{} has none of {:?}",
                path.display(),
                row.words
            );
            assert!(
                *column != "properties" || test.contains("proptest!"),
                "{} has no properties",
                path.display()
            );
            named.insert(path.clone());
        }
    }
    let beside: BTreeSet<&str> = text.split('`').skip(1).step_by(2).collect();
    for path in tests() {
        let is_part = path.ends_with("main.rs") || path.starts_with("ui");
        let is_named = named.contains(&path) || beside.contains(path.to_str().unwrap());
        assert!(
            is_named || is_part,
            "{} is not in tests/README.md",
            path.display()
        );
    }
}

#[test]
fn the_index_of_tests_has_every_option() {
    let rows = index(&test_text("README.md").unwrap());
    let words: BTreeSet<&str> = rows
        .iter()
        .flat_map(|row| &row.words)
        .map(String::as_str)
        .collect();
    let files = sources();
    let builders = files.iter().filter(|file| {
        let is_builder =
            file.path.starts_with("loader/builder") || file.path.ends_with("iterable.rs");
        file.module == "loader" && (is_builder || file.path.ends_with("builder.rs"))
    });
    let mut seen = 0;
    for file in builders {
        for (line, code) in file.code() {
            let Some(method) = code.strip_prefix("    pub fn ") else {
                continue;
            };
            let option = method.split(['(', '<']).next().unwrap();
            let is_option = method.contains("(mut self") && option != "build";
            if is_option || option == "collate_fn" {
                let path = file.path.display();
                assert!(words.contains(option), "{path}:{line}: no row for {option}");
                seen += 1;
            }
        }
    }
    assert!(seen > 30, "{seen}");
}
