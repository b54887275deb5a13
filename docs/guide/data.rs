// What the guide's snippets read. Each of them that needs files includes this in a hidden line, and enters a folder of its own.

use std::fs;
use std::path::Path;

/// Makes a folder with small data, and makes it the process's working directory. It is removed when what is returned is dropped.
pub fn enter() -> Result<tempfile::TempDir, Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    std::env::set_current_dir(folder.path())?;
    for (class, name) in ["cat", "dog"].iter().enumerate() {
        fs::create_dir_all(format!("pets/{name}"))?;
        for number in 0..16u8 {
            fs::write(
                format!("pets/{name}/{number:02}.ppm"),
                picture(40, 100 * class as u8 + number),
            )?;
        }
    }
    let rows = (0..200).map(|row| format!("{},{},{}\n", 40 + row, 1 + row % 5, 1_000 * row));
    fs::write(
        "houses.csv",
        "size,rooms,price\n".to_owned() + &rows.collect::<String>(),
    )?;
    let tokens = (0..20_000u16).flat_map(|place| (place % 97).to_le_bytes());
    fs::write("train.bin", tokens.collect::<Vec<u8>>())?;
    for name in ["books", "web"] {
        let lines = (0..100).map(|line| format!("{name} {line} {}\n", "word ".repeat(line % 7)));
        fs::write(format!("{name}.txt"), lines.collect::<String>())?;
    }
    fs::create_dir("shards")?;
    for shard in 0..4 {
        write_shard(Path::new(&format!("shards/pets-{shard:06}.tar")), shard)?;
    }
    Ok(folder)
}

/// A picture of one grey, `side` pixels wide and high.
fn picture(side: usize, grey: u8) -> Vec<u8> {
    [
        format!("P6 {side} {side} 255\n").into_bytes(),
        vec![grey; 3 * side * side],
    ]
    .concat()
}

/// What `webdataset.ShardWriter` writes: 24 pictures, and their classes.
fn write_shard(path: &Path, shard: u8) -> std::io::Result<()> {
    let mut archive = tar::Builder::new(fs::File::create(path)?);
    for sample in 0..24u8 {
        let fields = [
            ("cls", (sample % 2).to_string().into_bytes()),
            ("ppm", picture(40, 50 * shard + sample)),
        ];
        for (field, contents) in fields {
            let mut header = tar::Header::new_ustar();
            header.set_size(contents.len() as u64);
            header.set_mode(0o644);
            archive.append_data(
                &mut header,
                format!("{shard:02}{sample:04}.{field}"),
                &contents[..],
            )?;
        }
    }
    archive.finish()
}
