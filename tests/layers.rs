//! The source's own order: who may import whom, where cudarc is named, what shows an example, and that `tests/README.md` says which test
//! is where.
//!
//! A module imports lower layers and its own folder, nothing else; modules of one layer do not know each other. The
//! layers are a table in docs/ARCHITECTURE.md, and so are the floors within the large modules, whose files also stand in no large circle, and
//! have the methods of their own types, or of one of a lower layer. `image` imports what a program can, which `public_image.rs` holds it to.

#![cfg(not(miri))] // it reads files
#![allow(clippy::unwrap_used)] // a panic is how a test fails

#[macro_use]
extern crate watch;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

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
    "CollateError", "DeviceFault", "DocumentError", "Interrupted", "Limit", "ListingProgress", "MapValue", "Misfit", "SampleId", "ShapeError",
    "MadeStats", "ItemError", "Stage", "StoreErrorKind", "Tally", "TimedOut", "Way",
    "Change", "Colour", "Cut", "Warp", "erase", "DecoderLimits", "Drawing", "Encoded", "EncodedPicture", "Filter", "OnCpu", "PlaneLayout", "Planes", "Sampling",
    "BucketByLengthIter", "Chain", "ChainIter", "Either", "FilterIter", "FlatMap", "FlatMapIter", "Lines", "LinesIter", "Mixture", "MixtureIter", "PackedIter", "Pieces", "Repeat", "RepeatIter", "Shuffle", "ShuffleIter",
    "Skip", "SkipIter", "Take", "TakeIter",
    "IntoFileBytes", "Token", "WideWindows", "StreamedSample", "WebStreamIter",
    "BoxError", "Cached", "Extent", "OnRuntime", "CollateFn", "Described", "Map", "Result", "Stack", "TensorRows", "Zip",
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

#[test]
fn files_import_lower_floors_only() {
    let (layers, files) = (layers(), sources());
    let mut upwards = BTreeSet::new();
    for file in &files {
        let Some((floor, ours)) = file.floor(&layers) else {
            continue;
        };
        for import in file.imported(&files) {
            let Some((theirs, above)) = import.floor(&layers) else {
                panic!("{}: what it imports has no floor", file.path.display());
            };
            if theirs != floor && above >= ours {
                let name = theirs.split('/').nth(1).unwrap();
                upwards.insert(format!("{} -> {name}", file.path.display()));
            }
        }
    }
    none(
        "imports of a higher floor",
        "let the caller above do that with what you return, or move the value down",
        &upwards,
    );
}

#[test]
fn no_circle_has_more_than_two_files() {
    let (layers, files) = (layers(), sources());
    let has_floors = |file: &&Source| {
        layers
            .keys()
            .any(|name| name.starts_with(&format!("{}/", file.module)))
    };
    let paths = |files: Vec<&Source>| -> BTreeSet<PathBuf> {
        files.into_iter().map(|file| file.path.clone()).collect()
    };
    let imports: BTreeMap<PathBuf, BTreeSet<PathBuf>> = files
        .iter()
        .filter(has_floors)
        .map(|file| (file.path.clone(), paths(file.imported(&files))))
        .collect();
    let reached = |from: &PathBuf| {
        let (mut left, mut reached) = (vec![from], BTreeSet::new());
        while let Some(path) = left.pop() {
            let new = imports[path]
                .iter()
                .filter(|next| reached.insert((*next).clone()));
            left.extend(new);
        }
        reached
    };
    let reached: BTreeMap<&PathBuf, BTreeSet<PathBuf>> =
        imports.keys().map(|path| (path, reached(path))).collect();
    let circles: BTreeSet<String> = imports
        .keys()
        .map(|path| {
            let circle = reached[path]
                .iter()
                .filter(|other| reached[*other].contains(path));
            let circle: Vec<String> = circle.map(|other| other.display().to_string()).collect();
            circle
        })
        .filter(|circle| circle.len() > 2)
        .map(|circle| circle.join(" "))
        .collect();
    none(
        "circles of imports",
        "move what several of them need into a file of its own",
        &circles,
    );
}

#[test]
fn methods_stand_in_their_types_file_or_folder() {
    let (layers, files) = (layers(), sources());
    let mut elsewhere = BTreeSet::new();
    for file in &files {
        let of_module = format!("{}/", file.module);
        if !layers.keys().any(|name| name.starts_with(&of_module)) {
            continue;
        }
        for name in file.types_with_methods() {
            // (Another module may have a type of that name.)
            let mut own = files.iter().filter(|other| other.module == file.module);
            let is_own = own.any(|home| home.is_home_of(file) && home.defines(&name));
            if !is_own && !file.adds_to(&name, &files, &layers) {
                elsewhere.insert(format!("{}: {name}", file.path.display()));
            }
        }
    }
    none(
        "methods away from their type",
        "make it a function, or move it to the type",
        &elsewhere,
    );
}

fn none(what: &str, advice: &str, found: &BTreeSet<String>) {
    assert!(found.is_empty(), "{what}: {found:#?}\n{advice}");
}

/// The README of each mechanism is short enough to be read at once, and its links lead somewhere.
#[test]
fn readmes_are_short_and_their_links_lead_somewhere() {
    const MOST_WORDS: usize = 1_200;
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut folders, mut seen) = (vec![root.join("src")], 0);
    while let Some(folder) = folders.pop() {
        let inside = fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        folders.extend(inside.filter(|path| path.is_dir()));
        let Ok(text) = fs::read_to_string(folder.join("README.md")) else {
            continue;
        };
        let page = folder.strip_prefix(root).unwrap().display();
        let words = text.split_whitespace().count();
        assert!(
            words <= MOST_WORDS,
            "{page}: {words} words, {MOST_WORDS} at most"
        );
        for link in text.split("](").skip(1) {
            let link = link.split([')', '#']).next().unwrap();
            let is_there = link.starts_with("http") || folder.join(link).exists();
            assert!(is_there, "{page}: {link}");
        }
        seen += 1;
    }
    assert!(seen > 8, "{seen}");
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
    let is_file = |name: &&String| !name.ends_with("/mod");
    let below: Vec<_> = below.iter().filter(divided).filter(is_file).collect();
    let floors: Vec<_> = floors.iter().filter(is_file).collect();
    assert_eq!(below, floors, "the floors in docs/ARCHITECTURE.md");
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

/// Without the feature nothing is left to a device, as two empty types say: what lies between them needs no gate.
#[test]
fn nvjpeg_gates_the_decoder_and_not_its_callers() {
    let gated = [
        "device/decoding/engine.rs",
        "driver/",
        "image/",
        "loader/data_loader/",
        "tuning.rs",
    ];
    let mut seen = 0;
    for file in sources() {
        let path = file.path.to_string_lossy().replace('\\', "/");
        for (line, text) in file.text.lines().enumerate() {
            if text.contains("feature = \"nvjpeg\"") {
                let may = gated.iter().any(|gated| path.starts_with(gated));
                let line = line + 1;
                assert!(may, "{path}:{line}: compile it without `nvjpeg`, too");
                seen += 1;
            }
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
        // (What is not public may have the same name.)
        let docs = files.iter().filter_map(|file| docs_of(&file.text, name));
        let docs: Vec<String> = docs.collect();
        assert!(!docs.is_empty(), "{name} is defined nowhere");
        let shows = docs.iter().any(|docs| docs.contains("# Examples"));
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
        let file = Source::new(PathBuf::new(), "batch", text.to_owned());
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

#[test]
fn an_import_is_found_where_it_is_defined() {
    let files = [
        (
            "mod.rs",
            "pub use self::x::{X, Z};\npub(crate) use w::W;\nmod x;",
        ),
        (
            "x.rs",
            "use super::W;\npub struct X;\nimpl<'a, T: Into<u8>> X {\n}",
        ),
        (
            "w.rs",
            "pub(crate) struct W; // super::x::X\nimpl super::x::X {\n}",
        ),
        (
            "x/part.rs",
            "use super::X;\nuse super::super::{W as V, Z};\nimpl X {\n}\nimpl From<V> for X {\n}",
        ),
    ];
    let files =
        files.map(|(name, text)| Source::new(Path::new("a").join(name), "a", text.to_owned()));
    let imports = |of: usize| -> Vec<String> {
        let imported = files[of].imported(&files).into_iter();
        imported
            .map(|file| file.path.display().to_string())
            .collect()
    };
    assert_eq!(imports(0), [""; 0]);
    assert_eq!(imports(1), ["a/w.rs"]);
    assert_eq!(imports(2), ["a/x.rs"]);
    assert_eq!(imports(3), ["a/x.rs", "a/w.rs", "a/x.rs"]);
    let have_methods = |file: &Source| file.types_with_methods().contains("X");
    assert_eq!(
        [0, 1, 2, 3].map(|of| have_methods(&files[of])),
        [false, true, true, true]
    );
    assert!(files[1].defines("X") && !files[2].defines("X"));
    assert_eq!(
        [1, 2, 3].map(|of| files[1].is_home_of(&files[of])),
        [true, false, true]
    );
}

#[test]
fn methods_of_a_lower_type_are_added_in_one_file() {
    let layers: Layers = [("low", 1), ("high", 2)]
        .map(|(module, layer)| (module.to_owned(), layer))
        .into();
    let add = "use crate::low::X;\nimpl<T> X<T> {\n}";
    let adds = |module: &str, text: &str, beside: &str| {
        let files = [
            ("low", "low/mod.rs", "pub use self::x::X;\nmod x;"),
            ("low", "low/x.rs", "pub struct X<T>(T);"),
            ("high", "high/mod.rs", "pub use self::y::X;\nmod y;"),
            ("high", "high/y.rs", "pub struct X<T>(T);"),
            (module, &*format!("{module}/adds.rs"), text),
            (module, &*format!("{module}/beside.rs"), beside),
        ]
        .map(|(module, path, text)| Source::new(PathBuf::from(path), module, text.to_owned()));
        files[4].adds_to("X", &files, &layers)
    };
    assert!(adds("high", add, ""));
    assert!(adds("high", &format!("{add}\nfn helper() {{}}"), ""));
    assert!(!adds("high", &format!("{add}\nstruct Own;"), ""));
    assert!(!adds("high", &format!("{add}\nimpl Y {{\n}}"), ""));
    assert!(!adds("high", add, add), "two files add to it");
    assert!(!adds("low", add, ""), "its own layer");
    assert!(
        !adds("high", &add.replace("low", "high"), ""),
        "its own module"
    );
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
    let mut columns: Vec<String> = Vec::new();
    let mut layers = Layers::new();
    for line in text.lines() {
        let cells: Vec<&str> = line.split('|').skip(1).map(str::trim).collect();
        let names = |cell: &str| {
            let names: Vec<String> = cell
                .split('`')
                .skip(1)
                .step_by(2)
                .map(str::to_owned)
                .collect();
            names
        };
        match cells.split_first() {
            Some((&"layer", _)) => columns = vec![String::new()],
            Some((&"floor", modules)) => {
                columns = modules.iter().flat_map(|cell| names(cell)).collect();
            }
            Some((number, cells)) => {
                let Ok(number) = number.parse::<usize>() else {
                    continue;
                };
                for (column, cell) in columns.iter().zip(cells) {
                    let names = names(cell).into_iter();
                    layers.extend(names.map(|name| match &**column {
                        "" => (name, number),
                        module => (format!("{module}/{name}"), number),
                    }));
                }
            }
            None => columns.clear(),
        }
    }
    layers
}

/// A file of `src/`.
struct Source {
    path: PathBuf,
    /// The folder or file directly below `src/` that it belongs to.
    module: String,
    text: String,
    /// Its place among the modules.
    place: Vec<String>,
    /// The code as one text.
    whole: String,
    given_on: OnceLock<BTreeMap<String, Vec<String>>>,
}

impl Source {
    fn new(path: PathBuf, module: &str, text: String) -> Source {
        let names = path.iter().map(|name| name.to_str().unwrap());
        let names = names.map(|name| name.trim_end_matches(".rs").to_owned());
        let place = names
            .filter(|name| name != "mod" && name != "lib")
            .collect();
        let mut source = Source {
            path,
            module: module.to_owned(),
            text,
            place,
            whole: String::new(),
            given_on: OnceLock::new(),
        };
        let lines: Vec<&str> = source.code().map(|(_, line)| line).collect();
        source.whole = lines.join("\n");
        source
    }

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

    /// `folder/file` of a file two levels below `src/`, or deeper.
    fn below(&self) -> Option<String> {
        let second = Path::new(self.path.iter().nth(1)?);
        let second = second.file_stem().unwrap().to_str().unwrap();
        Some(format!("{}/{second}", self.module))
    }

    /// The floor that the file is on, if it has one.
    fn floor(&self, layers: &Layers) -> Option<(String, usize)> {
        let name = self.below()?;
        let floor = *layers.get(&name)?;
        Some((name, floor))
    }

    /// What it imports, by its names there: others may import it from here.
    fn given_on(&self) -> &BTreeMap<String, Vec<String>> {
        self.given_on.get_or_init(|| {
            // (`use x::Y` may name a module below.)
            let code = self.whole.replace("use ", "use self::");
            let code = ["self", "crate", "super"].iter().fold(code, |code, start| {
                code.replace(&format!("self::{start}"), start)
            });
            let owned =
                |path: Vec<&str>| -> Vec<String> { path.into_iter().map(str::to_owned).collect() };
            let paths = named(&code).into_iter().map(|(path, _)| owned(path)).rev();
            paths
                .map(|path| (path.last().unwrap().clone(), path))
                .collect()
        })
    }

    /// The other files of its module that define what this one names.
    fn imported<'a>(&self, files: &'a [Source]) -> Vec<&'a Source> {
        let code = &self.whole;
        let mut imported = Vec::new();
        for (path, is_given_on) in named(code) {
            // What is only given on is not needed here.
            let name = path.last().unwrap();
            let is_used = || {
                code.split(|c| !is_of_name(c))
                    .filter(|word| word == name)
                    .count()
                    > 1
            };
            if is_given_on && !is_used() {
                continue;
            }
            if path[0] == "crate" && path.get(1) != Some(&&*self.module) {
                continue;
            }
            let path: Vec<String> = path.into_iter().map(str::to_owned).collect();
            let found = resolve(files, &self.place, &path, 8);
            let found = found.filter(|found| found.module == self.module);
            imported.extend(found.filter(|found| found.path != self.path));
        }
        imported
    }

    /// Whether it defines a type of that name.
    fn defines(&self, name: &str) -> bool {
        self.types().any(|defined| defined == name)
    }

    /// The types that it defines.
    fn types(&self) -> impl Iterator<Item = &str> {
        self.whole.lines().filter_map(|line| {
            if line.starts_with([' ', '}']) {
                return None;
            }
            let mut words = line.split(|c: char| !is_of_name(c));
            let kind = words
                .by_ref()
                .find(|word| !["pub", "crate", "super", ""].contains(word));
            let is_type = kind.is_some_and(|kind| ["struct", "enum", "union"].contains(&kind));
            words.next().filter(|_| is_type)
        })
    }

    /// Whether it is the file in which its module adds methods to a type of a lower layer: the module has no other, and this one has
    /// no type of its own, and methods of no second.
    fn adds_to(&self, name: &str, files: &[Source], layers: &Layers) -> bool {
        let is_of_lower_layer = named(&self.whole).into_iter().any(|(path, _)| {
            let path: Vec<String> = path.into_iter().map(str::to_owned).collect();
            let home = resolve(files, &self.place, &path, 8).filter(|home| home.defines(name));
            path.last().unwrap() == name
                && home.is_some_and(|home| layers[&home.module] < layers[&self.module])
        });
        let is_only = files
            .iter()
            .filter(|file| file.module == self.module && file.types_with_methods().contains(name))
            .all(|file| file.path == self.path);
        let is_for_that = self.types().next().is_none() && self.types_with_methods().len() == 1;
        is_of_lower_layer && is_only && is_for_that
    }

    /// Whether methods of a type that is defined here may stand in that file: this one, one in the folder of the same name, or beside it in a
    /// folder that is a part of a module.
    fn is_home_of(&self, other: &Source) -> bool {
        let folder = self.path.parent().unwrap();
        let is_part = folder.iter().count() > 1 || self.path.ends_with("mod.rs");
        self.path == other.path
            || other.path.starts_with(self.path.with_extension(""))
            || is_part && other.path.starts_with(folder)
    }

    /// The types that have methods here.
    fn types_with_methods(&self) -> BTreeSet<String> {
        let heads = self.whole.split("\nimpl").skip(1);
        let heads = heads.map(|head| head.split('{').next().unwrap());
        let names = heads.filter(|head| !has_word(head, "for")).map(|head| {
            let mut depth = 0;
            // Behind the parameters.
            let start = head.find(|c: char| {
                depth += i32::from(c == '<') - i32::from(c == '>');
                depth == 0 && is_of_name(c)
            });
            let name = head[start.unwrap()..].split(|c: char| !is_of_name(c) && c != ':');
            name.map(|path| path.rsplit("::").next().unwrap().to_owned())
                .next()
                .unwrap()
        });
        names.collect()
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

fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The paths that code names from the crate, its own module or the one above; and whether it only gives them on.
fn named(code: &str) -> Vec<(Vec<&str>, bool)> {
    let mut found = Vec::new();
    for start in ["crate", "self", "super"] {
        for (at, _) in code.match_indices(&format!("{start}::")) {
            let before = &code[..at];
            if before.ends_with(|c: char| is_of_name(c) || c == ':') || before.ends_with("in ") {
                continue;
            }
            let statement = before.rsplit('\n').next().unwrap();
            let is_given_on = statement.starts_with("pub") && statement.contains("use ");
            let mut paths = Vec::new();
            follow(&code[at..], &[], &mut paths);
            found.extend(paths.into_iter().map(|path| (path, is_given_on)));
        }
    }
    found
}

/// The paths that a text begins with: several where braces group them. Returns what is left of the text.
fn follow<'a>(text: &'a str, path: &[&'a str], found: &mut Vec<Vec<&'a str>>) -> &'a str {
    if let Some(mut rest) = text.strip_prefix('{') {
        while !rest.is_empty() && !rest.starts_with('}') {
            rest = follow(rest.trim_start(), path, found);
            rest = rest.trim_start_matches(|c| c != ',' && c != '}'); // `as` another name
            rest = rest.trim_start_matches([',', ' ', '\n']);
        }
        return rest.strip_prefix('}').unwrap_or(rest);
    }
    let end = text.find(|c| !is_of_name(c)).unwrap_or(text.len());
    let path: Vec<&str> = path.iter().copied().chain([&text[..end]]).collect();
    match text[end..].strip_prefix("::") {
        Some(rest) => follow(rest, &path, found),
        None => {
            found.push(path);
            &text[end..]
        }
    }
}

/// The file that defines what is named so in the file at this place.
fn resolve<'a>(
    files: &'a [Source],
    place: &[String],
    path: &[String],
    most: usize,
) -> Option<&'a Source> {
    let at = |place: &[String]| files.iter().find(|file| file.place == place);
    let mut names = path.iter().map(String::as_str).peekable();
    let mut place = place.to_vec();
    while let Some(name) = names.next_if(|name| ["crate", "self", "super"].contains(name)) {
        match name {
            "crate" => place.clear(),
            "super" => _ = place.pop(),
            _ => {}
        }
    }
    while let Some(name) = names.peek() {
        let mut below = place.clone();
        below.push((*name).to_owned());
        if at(&below).is_none() {
            break;
        }
        place = below;
        names.next();
    }
    let file = at(&place)?;
    let given_on = names.peek().filter(|_| most > 0).and_then(|name| {
        let found = resolve(files, &file.place, file.given_on().get(*name)?, most - 1);
        found.filter(|found| found.path != file.path)
    });
    Some(given_on.unwrap_or(file))
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
                let module = module.unwrap().to_str().unwrap().to_owned();
                let text = fs::read_to_string(&path).unwrap();
                sources.push(Source::new(below, &module, text));
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
    let builders = files
        .iter()
        .filter(|file| file.path.starts_with("loader/data_loader"));
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
