//! Tar shards as Python's webdataset writes them: the files of a sample have one name, and follow each other.

use std::fs::File;
use std::path::Path;

use crate::colours::Noise;

/// Writes eight shards of 100 samples each: a picture, and its class as text.
pub(crate) fn write(folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let mut noise = Noise::new();
    for shard in 0..8 {
        let path = folder.join(format!("shard-{shard:03}.tar"));
        let mut archive = tar::Builder::new(File::create(path)?);
        let mut file = |name: String, contents: &[u8]| {
            let mut header = tar::Header::new_ustar();
            header.set_size(contents.len() as u64);
            header.set_mode(0o644);
            archive.append_data(&mut header, name, contents)
        };
        for sample in 0..100 {
            let (key, class) = (format!("{shard:03}{sample:05}"), sample % 3);
            file(format!("{key}.cls"), class.to_string().as_bytes())?;
            file(format!("{key}.ppm"), &noise.picture(class))?;
        }
        archive.finish()?;
    }
    Ok(())
}
