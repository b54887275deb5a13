//! Where the Hugging Face hub's programs keep what they have downloaded: the cache on disk, found as they find it.
//!
//! `datasets--org--name/refs/main` has the name of a revision, and `snapshots/<revision>/` its files, which are links to `blobs/`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pinfeed::BoxError;
use pinfeed::store::{LocalFiles, Store};

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
    let keys = asked.files(&keys.collect::<Vec<_>>(), &store.locate(""))?;
    Ok((Arc::new(store), keys))
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
    fn files(&self, keys: &[&str], place: &str) -> Result<Vec<String>, BoxError> {
        let parquet: Vec<&str> = keys
            .iter()
            .copied()
            .filter(|key| key.ends_with(".parquet"))
            .collect();
        let (name, split) = (self.name, self.split);
        if parquet.is_empty() {
            return Err(format!(
                "{place} has no Parquet file of {name}. If the data set is of another format, the hub makes Parquet of it, as a revision: `hf download {name} --repo-type dataset --revision refs/convert/parquet`, and then open \"{name}@refs/convert/parquet\". If its files were not downloaded: `{}`",
                self.command(None)
            )
            .into());
        }
        let of_split = parquet.iter().copied().filter(|key| has_split(key, split));
        let of_split: Vec<&str> = of_split.collect();
        let configs: BTreeSet<String> = of_split.iter().map(|key| config(key, split)).collect();
        let wanted = match (self.config, configs.len()) {
            (Some(wanted), _) => wanted.to_owned(),
            (None, 0) => {
                return Err(format!(
                    "{place} has no file of the split {split:?}: its Parquet files are {}. If they were not all downloaded: `{}`",
                    some(&parquet),
                    self.command(None)
                )
                .into());
            }
            (None, 1) => configs.iter().next().cloned().unwrap_or_default(),
            (None, _) if configs.contains("default") => "default".to_owned(),
            (None, _) => {
                let names: Vec<&str> = configs.iter().map(String::as_str).collect();
                return Err(format!(
                    "{name} has several configurations with a split {split:?}: choose one of {} by `Parquet::hub_config`",
                    some(&names)
                )
                .into());
            }
        };
        let is_wanted = |key: &&str| config(key, split) == wanted;
        let files: Vec<String> = of_split
            .into_iter()
            .filter(is_wanted)
            .map(str::to_owned)
            .collect();
        if files.is_empty() {
            let names: Vec<&str> = configs.iter().map(String::as_str).collect();
            return Err(format!(
                "{place} has no file of the split {split:?} in the configuration {wanted:?}: those that have one are {}",
                some(&names)
            )
            .into());
        }
        self.check_all_there(&files, place)?;
        Ok(files)
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

/// Whether a file's name, or that of its folder, has the split's as a word, as the hub's programs look for it: `data/train-00000-of-00001`,
/// `en/train/0000`, `partial-train/0000`, `my_data_train`.
fn has_split(key: &str, split: &str) -> bool {
    let is_edge = |character: Option<char>| {
        character.is_none_or(|character| !character.is_ascii_alphabetic())
    };
    let key = key.strip_suffix(".parquet").unwrap_or(key);
    let mut found = key.match_indices(split);
    found.any(|(at, _)| {
        is_edge(key[..at].chars().next_back()) && is_edge(key[at + split.len()..].chars().next())
    })
}

/// The configuration that a file belongs to: its first folder, unless that is `data`, or the split's.
fn config(key: &str, split: &str) -> String {
    match key.split_once('/') {
        Some((folder, _)) if folder != "data" && !has_split(folder, split) => folder.to_owned(),
        _ => "default".to_owned(),
    }
}

/// Names for a message.
fn some(names: &[&str]) -> String {
    const SHOWN: usize = 12;
    let shown = names
        .iter()
        .take(SHOWN)
        .copied()
        .collect::<Vec<_>>()
        .join(", ");
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

    #[test]
    fn splits_are_words_in_names() {
        for key in [
            "data/train-00000-of-00001.parquet",
            "default/train/0000.parquet",
            "en/partial-train/0000.parquet",
            "train.parquet",
            "x_train_1.parquet",
        ] {
            assert!(has_split(key, "train"), "{key}");
        }
        for key in [
            "data/training-0.parquet",
            "data/test-0.parquet",
            "constraint/0.parquet",
        ] {
            assert!(!has_split(key, "train"), "{key}");
        }
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
                .map(|files| files.len()),
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
            of(Some("en"), "train").files(&keys, "place").ok(),
            Some(vec![keys[1].to_owned()])
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
