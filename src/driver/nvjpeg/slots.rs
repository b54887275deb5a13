//! The memory that nvJPEG's hardware backend keeps, and how all of it is made larger at once.
//!
//! A state decodes with two slots for each engine. Each slot has device memory for a file and for its planes, and exchanges it for other
//! memory when a picture needs more than those before it did, or has another kind of chroma. That goes on all through an epoch, and costs
//! more than decoding: `cuMemFree` waits for the device, and while it does, no other kernels are launched. So each kind of chroma
//! has a state of its own, and before a picture needs more, a *blank* one is decoded in all slots, which needs a good deal more.
//!
//! (Probed with nvJPEG 13.0 on an H200, by the driver's calls: [gpu.md](../../../docs/gpu.md). The backend does not use the allocators that
//! it is given; the sizes here follow from what it frees.)

use crate::picture::{PlaneLayout, Sampling};

/// How many there are for each engine.
const EACH: usize = 2;

/// What slots have room for at least, once they have anything: a blank picture of this size takes 2.1 MB of a slot in 4:2:0.
const LEAST: Needs = Needs {
    size: [1024, 1024],
    bytes: 512 << 10,
};

/// Room grows in these steps, and by a quarter at least.
const SIDE_STEP: u32 = 512;
const BYTES_STEP: usize = 256 << 10;

/// What a picture needs of a slot, or a slot has room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Needs {
    pub(super) size: [u32; 2],
    /// The file's.
    pub(super) bytes: usize,
}

impl Needs {
    pub(super) fn covers(self, other: Needs) -> bool {
        self.max(other) == self
    }

    /// What both need.
    pub(super) fn max(self, other: Needs) -> Needs {
        let [width, height] = self.size;
        Needs {
            size: [width.max(other.size[0]), height.max(other.size[1])],
            bytes: self.bytes.max(other.bytes),
        }
    }

    /// The room that slots which have this are given for what does not fit.
    pub(super) fn grown_for(self, needs: Needs) -> Needs {
        let grown = |has: u64, needs: u64, step: u64| match needs > has {
            true => needs.max(has + has / 4).next_multiple_of(step),
            false => has,
        };
        let side = |has: u32, needs: u32| {
            let side = grown(has.into(), needs.into(), SIDE_STEP.into());
            u32::try_from(side).unwrap_or(u32::MAX)
        };
        let has = self.max(LEAST);
        let bytes = grown(has.bytes as u64, needs.bytes as u64, BYTES_STEP as u64);
        Needs {
            size: [
                side(has.size[0], needs.size[0]),
                side(has.size[1], needs.size[1]),
            ],
            bytes: usize::try_from(bytes).unwrap_or(usize::MAX),
        }
    }

    /// How much device memory that is in all slots of a decoder with so many engines.
    pub(super) fn all_bytes(self, sampling: Sampling, engines: u32) -> usize {
        let planes = sampling.sizes(self.size).map(|[width, height]| {
            let pitch = width.next_multiple_of(SIDE_STEP) as usize;
            pitch * height.next_multiple_of(16) as usize
        });
        EACH * engines as usize * (planes.iter().sum::<usize>() + self.bytes)
    }

    /// A grey picture that needs this, as a file: trailing bytes make it as long.
    pub(super) fn blank(self, sampling: Sampling) -> Vec<u8> {
        let [width, height] = self.size.map(|side| side as u16);
        let [across, down] = sampling.halves().map(|half| 1 + u8::from(half));
        let planes = sampling.planes() as u8;
        let mut file = vec![0xFF, 0xD8];
        let mut segment = |marker: u8, content: &[u8]| {
            file.extend([0xFF, marker]);
            file.extend((content.len() as u16 + 2).to_be_bytes());
            file.extend(content);
        };
        segment(0xDB, &[&[0][..], &[1; 64]].concat());
        let mut frame = vec![8];
        frame.extend(height.to_be_bytes());
        frame.extend(width.to_be_bytes());
        frame.push(planes);
        frame.extend([1, across << 4 | down, 0]);
        frame.extend((2..=planes).flat_map(|plane| [plane, 0x11, 0]));
        segment(0xC0, &frame);
        // One code each, of one bit: no difference, and the end of a block.
        let codes = |class: u8| [&[class << 4, 1][..], &[0; 15], &[0]].concat();
        segment(0xC4, &codes(0));
        segment(0xC4, &codes(1));
        let mut scan = vec![planes];
        scan.extend((1..=planes).flat_map(|plane| [plane, 0]));
        scan.extend([0, 63, 0]);
        segment(0xDA, &scan);
        let units = |side: u32, per: u8| side.div_ceil(8 * u32::from(per)) as usize;
        let blocks = usize::from(across * down + planes - 1);
        let bits = 2 * blocks * units(self.size[0], across) * units(self.size[1], down);
        file.resize(file.len() + bits / 8, 0);
        if !bits.is_multiple_of(8) {
            file.push(0xFF >> (bits % 8)); // ones fill the last byte
        }
        file.extend([0xFF, 0xD9]);
        file.resize(file.len().max(self.bytes), 0);
        file
    }

    /// Where its planes go.
    pub(super) fn layout(self, sampling: Sampling) -> PlaneLayout {
        PlaneLayout::new(sampling, self.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs(width: u32, height: u32, bytes: usize) -> Needs {
        Needs {
            size: [width, height],
            bytes,
        }
    }

    #[test]
    fn room_grows_seldom() {
        let mut room = Needs::default().grown_for(needs(10, 10, 1_000));
        assert_eq!(room, LEAST);
        let mut times = 0;
        for side in 1..16_384 {
            let needs = needs(side, 16_384 - side, 50 * side as usize);
            if !room.covers(needs) {
                let grown = room.grown_for(needs);
                assert!(grown.covers(needs) && grown.covers(room));
                room = grown;
                times += 1;
            }
        }
        assert!(times < 25, "{times}");
    }

    /// Other decoders read it, and find it grey, of its size.
    #[test]
    fn a_blank_picture_is_a_picture() {
        for sampling in Sampling::ALL {
            for needs in [
                needs(1024, 1024, 512 << 10),
                needs(15, 9, 0),
                needs(33, 520, 100_000),
            ] {
                let file = needs.blank(sampling);
                assert!(file.len() >= needs.bytes);
                let decoded = ::image::load_from_memory(&file).unwrap();
                assert_eq!([decoded.width(), decoded.height()], needs.size);
                let bytes = decoded.to_rgb8().into_raw();
                assert!(bytes.iter().all(|byte| *byte == 128), "{sampling:?}");
            }
        }
    }

    /// As much as was seen to be freed, of an H200's seven engines.
    #[test]
    fn slots_take_what_was_measured() {
        let taken = needs(1600, 1200, 491_520).all_bytes(Sampling::Both, 7);
        assert_eq!(taken, 14 * (2_457_600 + 2 * 622_592 + 491_520));
    }
}
