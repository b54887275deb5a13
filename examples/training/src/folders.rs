//! Draws a data set in class folders: one shape in each picture.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cache::{cached, on_all_cores};
use crate::rng::Rng;
use crate::shapes::{KINDS, paint, save_jpeg};
use crate::{Result, at};

/// How many images of each class a data set has.
#[derive(Clone, Copy)]
struct Size {
    train: u64,
    val: u64,
}

/// Shapes in any colours: only their form tells them apart.
pub const SHAPES: &str = "pinfeed-shapes-v1";
/// Shapes whose colour depends on their kind.
pub const COLOURED_SHAPES: &str = "pinfeed-coloured-shapes-v1";

/// Returns a folder with `train` and `val`, drawn on first use. A quick one is small.
pub fn drawn(name: &str, quick: bool) -> Result<PathBuf> {
    let in_colours = name == COLOURED_SHAPES;
    if quick {
        let size = Size { train: 40, val: 10 };
        return cached(&format!("{name}-quick"), |folder| {
            draw(folder, in_colours, size)
        });
    }
    let size = Size {
        train: 500,
        val: 100,
    };
    cached(name, |folder| draw(folder, in_colours, size))
}

fn draw(folder: &Path, in_colours: bool, size: Size) -> Result<()> {
    for split in ["train", "val"] {
        for kind in KINDS {
            let folder = folder.join(split).join(kind.name);
            fs::create_dir_all(&folder).map_err(at(&folder))?;
        }
    }
    let per_class = size.train + size.val;
    on_all_cores(per_class * KINDS.len() as u64, |index| {
        let kind = &KINDS[(index / per_class) as usize];
        let number = index % per_class;
        let (split, number) = match number.checked_sub(size.train) {
            None => ("train", number),
            Some(number) => ("val", number),
        };
        let path = folder.join(format!("{split}/{}/{number:04}.jpg", kind.name));
        save_jpeg(
            &paint(kind, in_colours, &mut Rng::new([index, 0, 0])),
            &path,
        )
    })
}
