//! CIFAR-10 and CIFAR-100, "binary version".
//!
//! The format is that of <https://www.cs.toronto.edu/~kriz/cifar.html>: records of a label (CIFAR-100: two) and three planes of 32 x 32
//! bytes.

use std::path::Path;

use super::file::FileBytes;
use crate::error::{Error, Result};
use crate::system::room;
use crate::tensor::Tensor;

const SIDE: usize = 32;
const PLANE: usize = SIDE * SIDE;
const CHANNELS: usize = 3;

/// Reads files of CIFAR-10's binary version (`data_batch_1.bin` to `data_batch_5.bin`, or `test_batch.bin`), one behind the other.
///
/// Returns the pictures, `[n, 32, 32, 3]`, red, green and blue, as [`image`](mod@crate::image) has them and torchvision's `CIFAR10.data`;
/// and the labels, `[n]`, 0 to 9. A [`TensorDataset`](crate::TensorDataset) takes the pair as it is. On the device,
/// [`normalize`](crate::DeviceTensor::normalize) makes floating-point numbers of the pictures, in either order of the dimensions.
///
/// # Errors
///
/// [`Error::DataSet`] if a file has another length than records of 3,073 bytes make (cut off, or CIFAR-100), or a label is not below 10;
/// or if the pictures do not fit into memory. Those of [`FileBytes::read`].
///
/// # Examples
///
/// ```
/// use pinfeed::{TensorDataset, arrays};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("test_batch.bin");
/// # std::fs::write(&path, [[9].as_slice(), &[1; 1024], &[2; 1024], &[3; 1024]].concat())?;
/// let (images, labels) = arrays::cifar10([&path])?;
/// assert_eq!((&images.shape()[..], labels.as_slice()), (&[1, 32, 32, 3][..], &[9][..]));
/// assert_eq!(images.as_slice()[..6], [1, 2, 3, 1, 2, 3]);
/// let table = TensorDataset::new((images, labels))?;
/// # drop(table);
///
/// std::fs::write(&path, b"an error page")?;
/// let error = arrays::cifar10([&path]).unwrap_err();
/// assert!(error.to_string().contains("test_batch.bin: it has 13 bytes"), "{error}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn cifar10<P: AsRef<Path>>(
    paths: impl IntoIterator<Item = P>,
) -> Result<(Tensor<u8>, Tensor<i64>)> {
    let (pictures, [labels]) = read(paths, [("label", 10)])?;
    Ok((pictures, labels))
}

/// Reads files of CIFAR-100's binary version (`train.bin`, `test.bin`), one behind the other.
///
/// Returns the pictures, as [`cifar10`] does, the coarse labels (0 to 19) and the fine ones (0 to 99).
///
/// # Errors
///
/// As [`cifar10`], for records of 3,074 bytes.
///
/// # Examples
///
/// ```
/// use pinfeed::arrays;
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("test.bin");
/// # std::fs::write(&path, [[19, 99].as_slice(), &[1; 1024], &[2; 1024], &[3; 1024]].concat())?;
/// let (images, _coarse, fine) = arrays::cifar100([&path])?;
/// assert_eq!((&images.shape()[..], fine.as_slice()), (&[1, 32, 32, 3][..], &[99][..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn cifar100<P: AsRef<Path>>(
    paths: impl IntoIterator<Item = P>,
) -> Result<(Tensor<u8>, Tensor<i64>, Tensor<i64>)> {
    let labels = [("coarse label", 20), ("fine label", 100)];
    let (pictures, [coarse, fine]) = read(paths, labels)?;
    Ok((pictures, coarse, fine))
}

/// Reads records of so many labels, each below a number.
fn read<const L: usize, P: AsRef<Path>>(
    paths: impl IntoIterator<Item = P>,
    kinds: [(&str, u8); L],
) -> Result<(Tensor<u8>, [Tensor<i64>; L])> {
    let record = L + CHANNELS * PLANE;
    let mut files = Vec::new();
    for path in paths {
        let file = FileBytes::read(path)?;
        if !file.len().is_multiple_of(record) || file.is_empty() {
            let classes = kinds[L - 1].1;
            return Err(file.refused(format!(
                "it has {} bytes, and pictures of CIFAR-{classes} (binary version) take {record} each: is it cut off, or of another data set?",
                file.len()
            )));
        }
        files.push(file);
    }
    let Some(first) = files.first() else {
        return Err(Error::option("paths", "there are no files to read"));
    };
    let pictures: usize = files.iter().map(|file| file.len() / record).sum();
    let no_room = |no_room: room::NoRoom| first.refused(format!("the pictures take {no_room}"));
    let mut pixels = room::room_for((pictures * CHANNELS * PLANE) as u64).map_err(no_room)?;
    let mut labels = [(); L].map(|()| Vec::with_capacity(pictures));
    for file in &files {
        for (number, record) in file.as_slice().chunks_exact(record).enumerate() {
            let (own, planes) = record.split_at(L);
            for ((label, (kind, classes)), list) in own.iter().zip(kinds).zip(&mut labels) {
                if *label >= classes {
                    return Err(file.refused(format!(
                        "picture {number}: its {kind} is {label}, and should be below {classes}"
                    )));
                }
                list.push(i64::from(*label));
            }
            let (red, rest) = planes.split_at(PLANE);
            let (green, blue) = rest.split_at(PLANE);
            let pixel = red.iter().zip(green).zip(blue);
            pixels.extend(pixel.flat_map(|((red, green), blue)| [*red, *green, *blue]));
        }
    }
    let pixels = Tensor::from_vec(pixels, &[pictures, SIDE, SIDE, CHANNELS])?;
    Ok((pixels, labels.map(Tensor::from)))
}
