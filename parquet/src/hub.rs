//! Where the Hugging Face hub's programs keep what they have downloaded: the cache on disk, found as they find it.
//!
//! `datasets--org--name/refs/main` has the name of a revision, and `snapshots/<revision>/` its files, which are links to `blobs/`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pinfeed::BoxError;
use pinfeed::store::{LocalFiles, Store};

/// The words that `datasets` takes for a split, in a file's or folder's name, where the data set's README says nothing.
const WORDS: [&[&str]; 3] = [
    &["train", "training"],
    &["validation", "valid", "dev", "val"],
    &["test", "testing", "eval", "evaluation"],
];

/// A split of a data set, as it was asked for.
struct Asked<'a> {
    /// `org/name`, without the revision.
    name: &'a str,
    revision: &'a str,
    config: Option<&'a str>,
    split: &'a str,
}

/// Finds the files of a split in the cache. `name` may end with `@revision`.
pub(crate) fn find(
    name: &str,
    config: Option<&str>,
    split: &str,
) -> Result<(Arc<dyn Store>, Vec<String>), BoxError> {
    let (name, revision) = name.split_once('@').unwrap_or((name, "main"));
    let asked = Asked {
        name,
        revision,
        config,
        split,
    };
    let is_name =
        |part: &str| !part.is_empty() && part != "." && part != ".." && !part.contains(['\\', ':']);
    if !(1..=2).contains(&name.split('/').count()) || !name.split('/').all(is_name) {
        return Err(
            format!("{name:?} names no data set of the hub: it is \"organisation/name\"").into(),
        );
    }
    let snapshot = asked.snapshot(&cache(|variable| {
        std::env::var_os(variable).map(PathBuf::from)
    })?)?;
    let store = LocalFiles::open(snapshot)?;
    let listed = store.list("")?;
    let keys = listed.iter().map(|object| object.key.as_str());
    let found = asked.files(&keys.collect::<Vec<_>>(), &store.locate(""))?;
    if found.is_partial {
        let place = store.locate("");
        log::warn!(
            "{place}: of the split {split:?} of {name}, the hub has made Parquet of a part only (`partial-{split}`): the rest is not read"
        );
    }
    Ok((Arc::new(store), found.keys))
}

/// The files of a split.
#[derive(Debug, PartialEq)]
struct Files {
    keys: Vec<String>,
    /// The hub has made Parquet of a part of the split only.
    is_partial: bool,
}

/// A file that may be of the split.
struct Found<'a> {
    key: &'a str,
    /// What says that it is: its name without numbers, or a folder's, with a slash.
    stem: String,
    config: String,
}

impl<'a> Found<'a> {
    /// If the file is called by the split, or its folder is.
    fn exactly(key: &'a str, split: &str) -> Option<Found<'a>> {
        let (folders, name) = parts(key);
        if name == split || stem(name) == split {
            return Some(Found {
                key,
                stem: split.to_owned(),
                config: config(&folders),
            });
        }
        // (`auxiliary_train/train-00000-of-00001` is of the split that it is called by, and its folder is a configuration.)
        let names_another = WORDS.iter().any(|words| words.contains(&stem(name)));
        let (last, before) = folders.split_last().filter(|_| !names_another)?;
        let is_it = last.strip_prefix("partial-").unwrap_or(last) == split;
        is_it.then(|| Found {
            key,
            stem: format!("{last}/"),
            config: config(before),
        })
    }

    /// If the file's name, or a folder's, has one of the words.
    fn by_word(key: &'a str, words: &[&str]) -> Option<Found<'a>> {
        let has_one = |text: &str| words.iter().any(|word| has_word(text, word));
        let (folders, name) = parts(key);
        if has_one(name) {
            return Some(Found {
                key,
                stem: stem(name).to_owned(),
                config: config(&folders),
            });
        }
        let at = folders.iter().rposition(|folder| has_one(folder))?;
        Some(Found {
            key,
            stem: format!("{}/", folders[at]),
            config: config(&folders[..at]),
        })
    }

    /// If nothing says of which split it is.
    fn of_no_split(key: &'a str) -> Found<'a> {
        let (folders, _) = parts(key);
        Found {
            key,
            stem: String::new(),
            config: config(&folders[..folders.len().min(1)]),
        }
    }
}

/// The cache's folder.
fn cache(variable: impl Fn(&str) -> Option<PathBuf>) -> Result<PathBuf, BoxError> {
    let variable = |name: &str| variable(name).filter(|value| !value.as_os_str().is_empty());
    let of_home = || {
        Some(
            variable("XDG_CACHE_HOME")
                .or_else(|| Some(home(variable)?.join(".cache")))?
                .join("huggingface"),
        )
    };
    let hub = || Some(variable("HF_HOME").or_else(of_home)?.join("hub"));
    let folder = variable("HF_HUB_CACHE").or_else(|| variable("HUGGINGFACE_HUB_CACHE"));
    let folder = folder.or_else(hub).ok_or("the hub's cache is looked for in HF_HUB_CACHE, HF_HOME and the home folder, and none of them is known: set HF_HUB_CACHE")?;
    // (Python's programs expand it, too.)
    match (folder.strip_prefix("~"), home(variable)) {
        (Ok(rest), Some(home)) => Ok(home.join(rest)),
        _ => Ok(folder),
    }
}

fn home(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    variable("HOME").or_else(|| variable("USERPROFILE"))
}

impl Asked<'_> {
    /// The command that downloads it.
    fn command(&self, include: Option<&str>) -> String {
        let mut command = format!("hf download {} --repo-type dataset", self.name);
        if self.revision != "main" {
            command += &format!(" --revision {}", self.revision);
        }
        if let Some(include) = include {
            command += &format!(" --include \"{include}\"");
        }
        command
    }

    /// The folder of the revision's files.
    fn snapshot(&self, cache: &Path) -> Result<PathBuf, BoxError> {
        let folder = cache.join(format!("datasets--{}", self.name.replace('/', "--")));
        let missing = |what: String| -> BoxError {
            format!("{what}, and nothing is downloaded here. Run `{}`, or set HF_HUB_CACHE or HF_HOME to where it is", self.command(None)).into()
        };
        if !folder.is_dir() {
            return Err(missing(format!(
                "{} is not in the hub's cache: there is no {}",
                self.name,
                folder.display()
            )));
        }
        let reference = folder.join("refs").join(self.revision);
        let revision = match fs::read_to_string(&reference) {
            Ok(revision) => revision.trim().to_owned(),
            Err(_) => self.revision.to_owned(),
        };
        let snapshots = folder.join("snapshots");
        // (A revision may be named by the first digits of its hash, as for git.)
        let found = fs::read_dir(&snapshots).into_iter().flatten().flatten();
        let names: Vec<String> = found
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        let is_it = |name: &&String| {
            **name == revision || (revision.len() >= 7 && name.starts_with(&revision))
        };
        match names.iter().filter(is_it).collect::<Vec<_>>()[..] {
            [only] => Ok(snapshots.join(only)),
            _ => {
                let there = match names.is_empty() {
                    true => "has no revision".to_owned(),
                    false => format!("has {}", names.join(", ")),
                };
                Err(missing(format!(
                    "the revision {} of {} is not in the hub's cache: {} {there}",
                    self.revision,
                    self.name,
                    snapshots.display()
                )))
            }
        }
    }

    /// The files of the split, of one configuration.
    fn files(&self, keys: &[&str], place: &str) -> Result<Files, BoxError> {
        let parquet = keys.iter().copied();
        let parquet: Vec<&str> = parquet.filter(|key| key.ends_with(".parquet")).collect();
        let (name, split) = (self.name, self.split);
        if parquet.is_empty() {
            return Err(format!(
                "{place} has no Parquet file of {name}. If the data set is of another format, the hub makes Parquet of it, as a revision: `hf download {name} --repo-type dataset --revision refs/convert/parquet`, and then open \"{name}@refs/convert/parquet\". If its files were not downloaded: `{}`",
                self.command(None)
            )
            .into());
        }
        let (found, others) = self.found(&parquet);
        if found.is_empty() {
            let Some(wanted) = self.config.filter(|_| !others.is_empty()) else {
                return Err(format!(
                    "{place} has no file of the split {split:?}: its Parquet files are {}. A split is what a file or its folder is called: ask for one of these, or open them by a pattern (`Parquet::open(\"{place}/**/*.parquet\")`). If they were not all downloaded: `{}`",
                    some(parquet),
                    self.command(None)
                )
                .into());
            };
            return Err(format!(
                "{place} has no file of the split {split:?} in the configuration {wanted:?}: those that have one are {}",
                some(others)
            )
            .into());
        }
        let configs: BTreeSet<&str> = found.iter().map(|found| found.config.as_str()).collect();
        let only = match (self.config, configs.len()) {
            (Some(_), _) | (None, 1) => None,
            (None, _) if configs.contains("default") => Some("default"),
            (None, _) => {
                return Err(format!(
                    "{name} has several configurations with a split {split:?}: choose one of {} by `Parquet::hub_config`",
                    some(configs)
                )
                .into());
            }
        };
        let is_wanted = |found: &&Found<'_>| only.is_none_or(|only| found.config == only);
        let found: Vec<&Found<'_>> = found.iter().filter(is_wanted).collect();
        let stems: BTreeSet<&str> = found.iter().map(|found| found.stem.as_str()).collect();
        if stems.len() > 1 {
            return Err(format!(
                "{place} has several files that may be the split {split:?} of {name}: ask for one of {}, or open them by a pattern (`Parquet::open(\"{place}/**/*.parquet\")`)",
                some(stems.iter().map(|stem| stem.trim_end_matches('/')))
            )
            .into());
        }
        let is_partial = stems.iter().any(|stem| stem.starts_with("partial-"));
        let keys: Vec<String> = found.iter().map(|found| found.key.to_owned()).collect();
        self.check_all_there(&keys, place)?;
        Ok(Files { keys, is_partial })
    }

    /// The files that may be of the split, and the configurations that have such ones: by their names, or else by words in these, or else
    /// all.
    fn found<'k>(&self, parquet: &[&'k str]) -> (Vec<Found<'k>>, BTreeSet<String>) {
        let split = self.split;
        let words = WORDS.iter().find(|words| words[0] == split);
        let only = [split];
        let words = words.copied().unwrap_or(&only);
        let exactly = |split: &str| -> Vec<Found<'k>> {
            let found = parquet.iter().filter_map(|key| Found::exactly(key, split));
            found.collect()
        };
        let by_word = |words: &[&str]| -> Vec<Found<'k>> {
            let found = parquet.iter().filter_map(|key| Found::by_word(key, words));
            found.collect()
        };
        let all = || -> Vec<Found<'k>> {
            match split == "train" && by_word(&WORDS.concat()).is_empty() {
                true => parquet.iter().map(|key| Found::of_no_split(key)).collect(),
                false => Vec::new(),
            }
        };
        let mut configs = BTreeSet::new();
        for step in 0..4 {
            let found = match step {
                0 => exactly(split),
                1 => words
                    .iter()
                    .skip(1)
                    .flat_map(|word| exactly(word))
                    .collect(),
                2 => by_word(words),
                _ => all(),
            };
            configs.extend(found.iter().map(|found| found.config.clone()));
            let found = self.of_config(found);
            if !found.is_empty() {
                return (found, configs);
            }
        }
        (Vec::new(), configs)
    }

    /// Those of the configuration that was asked for: what is called so, or lies in a folder of that name.
    fn of_config<'k>(&self, mut found: Vec<Found<'k>>) -> Vec<Found<'k>> {
        if let Some(wanted) = self.config {
            let is_called = |found: &Found<'_>| found.config == wanted;
            let lies_in = |found: &Found<'_>| {
                let rest = found.key.strip_prefix(wanted);
                rest.is_some_and(|rest| rest.starts_with('/'))
            };
            match found.iter().any(is_called) {
                true => found.retain(is_called),
                false => found.retain(lies_in),
            }
        }
        found
    }

    /// A name says how many files there are: `train-00000-of-00012.parquet`.
    fn check_all_there(&self, files: &[String], place: &str) -> Result<(), BoxError> {
        let mut said = BTreeSet::new();
        for file in files {
            let Some((of, stem, at, total)) = numbered(file) else {
                continue;
            };
            if said.insert((of, stem, total)) {
                let width = at.len();
                let is_missing = |number: &usize| {
                    let name = format!("{of}{stem}-{number:0width$}-of-{total}");
                    !files.iter().any(|file| file.starts_with(&name))
                };
                let count: usize = total.parse().unwrap_or(0);
                if let Some(missing) = (0..count).find(is_missing) {
                    let there = files
                        .iter()
                        .filter(|file| file.starts_with(&format!("{of}{stem}-")))
                        .count();
                    return Err(format!(
                        "{place} has {there} of {count} files {of}{stem}-*-of-{total}: number {missing} is missing. Run `{}`",
                        self.command(Some(&format!("{of}{stem}-*")))
                    )
                    .into());
                }
            }
        }
        Ok(())
    }
}

/// The parts of `data/train-00000-of-00012-0123456789abcdef.parquet`: `data/`, `train`, `00000` and `00012`.
fn numbered(key: &str) -> Option<(&str, &str, &str, &str)> {
    let name_at = key.rfind('/').map_or(0, |slash| slash + 1);
    let (folder, name) = key.split_at(name_at);
    let (before, behind) = name.split_once("-of-")?;
    let (stem, at) = before.rsplit_once('-')?;
    let total = behind
        .split(|character: char| !character.is_ascii_digit())
        .next()?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(at) && is_number(total)).then_some((folder, stem, at, total))
}

/// The folders of a file, and its name without the ending.
fn parts(key: &str) -> (Vec<&str>, &str) {
    let key = key.strip_suffix(".parquet").unwrap_or(key);
    let mut folders: Vec<&str> = key.split('/').collect();
    let name = folders.pop().unwrap_or_default();
    (folders, name)
}

/// A file's name without the number of the file: `train` of `train-00000-of-00012`, and of `train_0`.
fn stem(name: &str) -> &str {
    match numbered(name) {
        Some((_, stem, ..)) => stem,
        None => {
            let stem = name.trim_end_matches(|character: char| character.is_ascii_digit());
            match stem.len() == name.len() {
                true => name,
                false => stem.trim_end_matches(['-', '_', '.', ' ']),
            }
        }
    }
}

/// Whether a name has a word: with no letter beside it (`my_data_train`, `train2`), as `datasets` looks for it.
fn has_word(text: &str, word: &str) -> bool {
    let is_edge = |character: Option<char>| {
        character.is_none_or(|character| !character.is_ascii_alphabetic())
    };
    let mut found = text.match_indices(word);
    found.any(|(at, _)| {
        is_edge(text[..at].chars().next_back()) && is_edge(text[at + word.len()..].chars().next())
    })
}

/// The configuration of files in a folder: what it is called, but for `data`.
fn config(folders: &[&str]) -> String {
    match folders {
        [] | ["data"] => "default".to_owned(),
        ["data", rest @ ..] => rest.join("/"),
        folders => folders.join("/"),
    }
}

/// Names for a message.
fn some<N: AsRef<str>>(names: impl IntoIterator<Item = N>) -> String {
    const SHOWN: usize = 12;
    let names: Vec<N> = names.into_iter().collect();
    let shown: Vec<&str> = names.iter().take(SHOWN).map(AsRef::as_ref).collect();
    let shown = shown.join(", ");
    match names.len().checked_sub(SHOWN) {
        None | Some(0) => shown,
        Some(more) => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<'a>(config: Option<&'a str>, split: &'a str) -> Asked<'a> {
        Asked {
            name: "org/name",
            revision: "main",
            config,
            split,
        }
    }

    #[test]
    fn the_cache_is_where_the_hubs_programs_look_for_it() {
        let cases: [(&[(&str, &str)], &str); 5] = [
            (&[("HOME", "/h")], "/h/.cache/huggingface/hub"),
            (
                &[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")],
                "/x/huggingface/hub",
            ),
            (&[("HOME", "/h"), ("HF_HOME", "/f")], "/f/hub"),
            (
                &[("HOME", "/h"), ("HF_HOME", "/f"), ("HF_HUB_CACHE", "/c")],
                "/c",
            ),
            (&[("HOME", "/h"), ("HF_HOME", "~/f")], "/h/f/hub"),
        ];
        for (variables, expected) in cases {
            let found = cache(|name| {
                variables
                    .iter()
                    .find(|(of, _)| *of == name)
                    .map(|(_, value)| PathBuf::from(value))
            });
            assert_eq!(found.ok().as_deref(), Some(Path::new(expected)));
        }
        assert!(cache(|_| None).is_err());
    }

    /// The files that are found, or the error.
    fn found(keys: &[&str], config: Option<&str>, split: &str) -> Result<Vec<String>, String> {
        let files = of(config, split).files(keys, "place");
        files
            .map(|files| files.keys)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn splits_are_what_files_and_folders_are_called() {
        for (key, split) in [
            ("data/train-00000-of-00001.parquet", "train"),
            (
                "data/train-00000-of-00001-0123456789abcdef.parquet",
                "train",
            ),
            ("default/train/0000.parquet", "train"),
            ("en/partial-train/0000.parquet", "train"),
            ("train.parquet", "train"),
            ("train_01.parquet", "train"),
            ("train/part-00000-of-00001.parquet", "train"),
            (
                "data/validation_matched-00000-of-00001.parquet",
                "validation_matched",
            ),
            ("data/train_1-00000-of-00001.parquet", "train_1"),
            // By words in them, if there is nothing else.
            ("plain_text/squad-train.parquet", "train"),
            ("x_train_1.parquet", "train"),
            ("my-train-data/0000.parquet", "train"),
            ("train/2024/0000.parquet", "train"),
            // As `datasets` calls them, too.
            ("training.parquet", "train"),
            ("data/valid-00000-of-00001.parquet", "validation"),
            ("en/dev/0000.parquet", "validation"),
            ("squad-val.parquet", "validation"),
            ("eval.parquet", "test"),
            // Or nothing says anything of a split.
            ("data/0000.parquet", "train"),
            ("0000.parquet", "train"),
            ("data/2024/part-0.parquet", "train"),
        ] {
            assert_eq!(
                found(&[key], None, split),
                Ok(vec![key.to_owned()]),
                "{key}"
            );
        }
        for (key, split) in [
            ("data/trains-00000-of-00001.parquet", "test"),
            ("data/test-00000-of-00001.parquet", "train"),
            ("data/0000.parquet", "test"),
            ("data/dev.parquet", "valid"),
            ("constraint/evaluation.parquet", "train"),
        ] {
            let error = found(&[key], None, split).unwrap_err();
            let said = format!("no file of the split {split:?}: its Parquet files are {key}");
            assert!(error.contains(&said), "{error}");
        }
    }

    /// Splits that have one word in common are not made one.
    #[test]
    fn splits_that_are_alike_are_told_apart() {
        let keys = [
            "data/validation_matched-00000-of-00001.parquet",
            "data/validation_mismatched-00000-of-00001.parquet",
            "data/train_sft-00000-of-00001.parquet",
            "data/train_gen-00000-of-00001.parquet",
        ];
        for (split, expected) in [("validation_matched", 0), ("train_gen", 3)] {
            assert_eq!(
                found(&keys, None, split),
                Ok(vec![keys[expected].to_owned()])
            );
        }
        for (split, said) in [
            (
                "validation",
                "ask for one of validation_matched, validation_mismatched",
            ),
            ("train", "ask for one of train_gen, train_sft"),
        ] {
            let error = found(&keys, None, split).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
        let more = [&keys[..], &["data/train-00000-of-00001.parquet"]].concat();
        assert_eq!(found(&more, None, "train"), Ok(vec![more[4].to_owned()]));
        let error = found(&["a/dev.parquet", "a/val.parquet"], None, "validation").unwrap_err();
        assert!(error.contains("ask for one of dev, val"), "{error}");
    }

    /// As of MMLU: a configuration is called as a split is, and another has a split of that name.
    #[test]
    fn configurations_may_be_called_as_splits_are() {
        let keys = [
            "all/auxiliary_train-00000-of-00001.parquet",
            "all/test-00000-of-00001.parquet",
            "astronomy/dev-00000-of-00001.parquet",
            "auxiliary_train/train-00000-of-00001.parquet",
        ];
        let one = |at: usize| Ok(vec![keys[at].to_owned()]);
        assert_eq!(found(&keys, Some("auxiliary_train"), "train"), one(3));
        assert_eq!(found(&keys, None, "train"), one(3));
        assert_eq!(found(&keys, Some("all"), "auxiliary_train"), one(0));
        assert_eq!(found(&keys, None, "auxiliary_train"), one(0));
        assert_eq!(found(&keys, Some("astronomy"), "validation"), one(2));
        let error = found(&keys, Some("astronomy"), "test").unwrap_err();
        assert!(
            error.contains("in the configuration \"astronomy\": those that have one are all"),
            "{error}"
        );
        // As the hub converts it.
        let keys = [
            "auxiliary_train/partial-train/0000.parquet",
            "all/auxiliary_train/0000.parquet",
        ];
        assert_eq!(
            found(&keys, Some("auxiliary_train"), "train"),
            Ok(vec![keys[0].to_owned()])
        );
        let of_part = of(Some("auxiliary_train"), "train").files(&keys, "place");
        assert!(of_part.is_ok_and(|files| files.is_partial));
        let whole = of(Some("all"), "auxiliary_train").files(&keys, "place");
        assert!(whole.is_ok_and(|files| !files.is_partial));
        // A folder of folders is one, too.
        let keys = [
            "data/2023/0.parquet",
            "data/2024/0.parquet",
            "sample/0.parquet",
        ];
        assert_eq!(found(&keys, None, "train").map(|keys| keys.len()), Ok(2));
        assert_eq!(
            found(&keys, Some("sample"), "train").map(|keys| keys.len()),
            Ok(1)
        );
    }

    #[test]
    fn a_configuration_is_a_folder() {
        let keys = [
            "data/train-00000-of-00002.parquet",
            "data/train-00001-of-00002.parquet",
            "data/test-00000-of-00001.parquet",
        ];
        assert_eq!(
            of(None, "train")
                .files(&keys, "place")
                .ok()
                .map(|files| files.keys.len()),
            Some(2)
        );
        let error = of(None, "train")
            .files(&keys[1..], "place")
            .map_err(|error| error.to_string());
        assert!(
            error
                .as_ref()
                .is_err_and(|error| error.contains("number 0 is missing")
                    && error.contains("--include \"data/train-*\"")),
            "{error:?}"
        );
        let keys = ["de/train/0000.parquet", "en/train/0000.parquet"];
        let error = of(None, "train")
            .files(&keys, "place")
            .map_err(|error| error.to_string());
        assert!(
            error.as_ref().is_err_and(|error| error.contains("de, en")),
            "{error:?}"
        );
        assert_eq!(
            found(&keys, Some("en"), "train"),
            Ok(vec![keys[1].to_owned()])
        );
        let error = of(None, "valid")
            .files(&keys, "place")
            .map_err(|error| error.to_string());
        assert!(
            error
                .as_ref()
                .is_err_and(|error| error.contains("no file of the split \"valid\"")),
            "{error:?}"
        );
    }
}
