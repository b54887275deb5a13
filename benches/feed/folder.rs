//! `folder`: opening an `ImageFolder`, saving its index, and opening that. No picture is touched.
//!
//! Without `--data` it makes 1,000 class folders of `--samples` empty files together, and removes them in the end. All is
//! done several times: the first time (`first_open_ms`) finds the folders as they were, later ones in memory.

#[cfg(not(feature = "image"))]
pub fn run(_: &crate::args::Args, _: &mut crate::report::Report) -> crate::Outcome {
    Err("folders of pictures need the feature `image`".into())
}

#[cfg(feature = "image")]
pub use images::run;

#[cfg(feature = "image")]
mod images {
    use std::fs::{self, File};
    use std::path::Path;
    use std::time::Instant;

    use pinfeed::Dataset;
    use pinfeed::image::ImageFolder;
    use tempfile::TempDir;

    use crate::Outcome;
    use crate::args::Args;
    use crate::drive::ms;
    use crate::report::{Record, Report};
    use crate::window::{Window, median};

    const CLASSES: usize = 1_000;

    const TIMES: usize = 5;

    pub fn run(args: &Args, report: &mut Report) -> Outcome {
        let place = TempDir::new()?;
        let made = place.path().join("data");
        let root = match &args.data {
            Some(root) => root,
            None => {
                make(&made, args.samples.unwrap_or(100_000))?;
                &made
            }
        };
        let index = place.path().join("index");
        let (mut opens, mut saves, mut index_opens) = (Vec::new(), Vec::new(), Vec::new());
        let window = Window::begin();
        let mut samples = 0;
        for _ in 0..TIMES {
            let begun = Instant::now();
            let data = ImageFolder::open(root)?;
            opens.push(ms(begun.elapsed()));

            let begun = Instant::now();
            data.save_index(&index)?;
            saves.push(ms(begun.elapsed()));

            let begun = Instant::now();
            let again = ImageFolder::open_index(root, &index)?;
            index_opens.push(ms(begun.elapsed()));
            if !(again.paths().eq(data.paths()) && again.labels() == data.labels()) {
                return Err("the index is not what was listed".into());
            }
            samples = data.len();
        }
        let record = Record::new("folder", "host").measured(&window.end());
        report.print(
            &record
                .with("samples", samples)
                .with_number("first_open_ms", opens[0])
                .with_number("open_ms", median(opens[1..].to_vec()))
                .with_number("save_index_ms", median(saves))
                .with_number("open_index_ms", median(index_opens))
                .with_number("index_mb", fs::metadata(&index)?.len() as f64 / 1e6),
        );
        Ok(())
    }

    /// Class folders of empty files, which are named as ImageNet's are.
    fn make(root: &Path, files: usize) -> Outcome {
        eprintln!("making {files} files in {}", root.display());
        for class in 0..CLASSES.min(files) {
            let name = format!("n{:08}", 1_440_764 + 13_007 * class);
            let folder = root.join(&name);
            fs::create_dir_all(&folder)?;
            for file in (class..files).step_by(CLASSES) {
                File::create(folder.join(format!("{name}_{file}.JPEG")))?;
            }
        }
        Ok(())
    }
}
