use super::*;

/// A PNG file with a palette of so many colours, and these indices in one row.
fn with_palette(colours: u8, indices: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, indices.len() as u32, 1);
    encoder.set_color(png::ColorType::Indexed);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_palette((0..3 * colours).collect::<Vec<u8>>());
    let mut writer = encoder.write_header().unwrap();
    writer.write_image_data(indices).unwrap();
    writer.finish().unwrap();
    file
}

#[test]
fn an_index_behind_the_end_of_the_palette_has_no_colour() {
    let ids = |indices: &[u8]| LazyMap::coloured(with_palette(3, indices), panoptic_id).decode();
    let id = |r: i32| r + 256 * (r + 1) + 65_536 * (r + 2);
    assert_eq!(ids(&[2, 0, 1]).unwrap().as_slice(), [id(6), id(0), id(3)]);
    let error = ids(&[2, 3]).unwrap_err().to_string();
    assert!(error.contains("behind the end of its palette"), "{error}");
    // As numbers, indices need no colours.
    let numbers = LazyMap::<u16>::encoded(with_palette(3, &[2, 3])).decode();
    assert_eq!(numbers.unwrap().as_slice(), [2, 3]);
}

#[test]
fn a_colour_is_asked_for_where_it_changes() {
    let asked = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = std::sync::Arc::clone(&asked);
    let code = move |[r, ..]: [u8; 3]| {
        counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Some(r)
    };
    let map = LazyMap::coloured(with_palette(3, &[1, 1, 1, 2, 2, 1]), code);
    assert_eq!(map.decode().unwrap().as_slice(), [3, 3, 3, 6, 6, 3]);
    assert_eq!(asked.load(std::sync::atomic::Ordering::Relaxed), 3);
}
