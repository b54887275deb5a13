//! Planes of luma and chroma, and the pixels in them.

/// How many times coarser chroma is than luma.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Sampling {
    /// There is no chroma.
    Grey = 0,
    /// 4:4:4.
    None = 1,
    /// 4:2:2: half as many columns.
    Columns = 2,
    /// 4:2:0: half as many columns and rows.
    Both = 3,
    /// 4:4:0: half as many rows.
    Rows = 4,
}

impl Sampling {
    /// All of them.
    pub const ALL: [Sampling; 5] = [
        Sampling::Grey,
        Sampling::None,
        Sampling::Columns,
        Sampling::Both,
        Sampling::Rows,
    ];

    pub(super) fn of(number: u8) -> Option<Sampling> {
        Sampling::ALL.get(usize::from(number)).copied()
    }

    /// Whether there are half as many columns, and half as many rows, of chroma.
    pub fn halves(self) -> [bool; 2] {
        [
            matches!(self, Sampling::Columns | Sampling::Both),
            matches!(self, Sampling::Rows | Sampling::Both),
        ]
    }

    /// How many planes there are.
    pub fn planes(self) -> usize {
        match self {
            Sampling::Grey => 1,
            _ => 3,
        }
    }

    /// The width and height of chroma, of a picture of this size. (Grey has none.)
    pub fn chroma(self, [width, height]: [u32; 2]) -> [u32; 2] {
        let [across, down] = self.halves();
        let side = |side: u32, half: bool| if half { side.div_ceil(2) } else { side };
        match self {
            Sampling::Grey => [0, 0],
            _ => [side(width, across), side(height, down)],
        }
    }

    /// The width and height of each plane, of a picture of this size.
    pub fn sizes(self, size: [u32; 2]) -> [[u32; 2]; 3] {
        [size, self.chroma(size), self.chroma(size)]
    }
}

/// Where a picture's planes lie in a decoder's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlaneLayout {
    /// Where each plane begins.
    pub starts: [usize; 3],
    /// From row to row: a plane's own width.
    pub pitch: [usize; 3],
    /// All of it, so that the next picture may follow.
    pub bytes: usize,
}

impl PlaneLayout {
    /// The alignment of planes.
    pub const ALIGN: usize = 256;

    /// Places the planes of a picture of this size one behind the other.
    pub fn new(sampling: Sampling, size: [u32; 2]) -> PlaneLayout {
        let mut layout = PlaneLayout {
            starts: [0; 3],
            pitch: [0; 3],
            bytes: 0,
        };
        for (plane, [width, height]) in sampling.sizes(size).into_iter().enumerate() {
            layout.starts[plane] = layout.bytes;
            layout.pitch[plane] = width as usize;
            let bytes = width as usize * height as usize;
            layout.bytes += bytes.next_multiple_of(PlaneLayout::ALIGN);
        }
        layout
    }
}

/// The planes of a decoded picture: luma, and blue and red chroma.
#[derive(Debug, Clone, Copy)]
pub struct Planes<'a> {
    /// The bytes of each, from its first pixel on.
    pub bytes: [&'a [u8]; 3],
    /// From row to row.
    pub pitch: [usize; 3],
}

/// How pixels are found between those of the planes.
pub(super) struct Upsampled<'a> {
    planes: Planes<'a>,
    sampling: Sampling,
    chroma: [u32; 2],
    /// The nearest pixel is taken: libjpeg does not interpolate two columns of chroma.
    is_narrow: bool,
}

impl<'a> Upsampled<'a> {
    pub(super) fn new(planes: Planes<'a>, sampling: Sampling, size: [u32; 2]) -> Upsampled<'a> {
        let chroma = sampling.chroma(size);
        Upsampled {
            planes,
            sampling,
            chroma,
            is_narrow: sampling.halves()[0] && chroma[0] <= 2,
        }
    }

    /// The red, green and blue of a pixel.
    pub(super) fn pixel(&self, x: u32, y: u32) -> [u8; 3] {
        let luma = self.at(0, x, y);
        match self.sampling {
            Sampling::Grey => [luma as u8; 3],
            _ => rgb(luma, self.chroma(1, x, y), self.chroma(2, x, y)),
        }
    }

    fn at(&self, plane: usize, x: u32, y: u32) -> i32 {
        i32::from(self.planes.bytes[plane][y as usize * self.planes.pitch[plane] + x as usize])
    }

    /// Chroma at a pixel of luma: three quarters of the nearer, and one quarter of the farther, in each direction. As libjpeg's
    /// "fancy upsampling" (jdsample.c), down to what is added before the shift.
    fn chroma(&self, plane: usize, x: u32, y: u32) -> i32 {
        let [across, down] = self.sampling.halves();
        let column = if across { x / 2 } else { x };
        let row = if down { y / 2 } else { y };
        if self.is_narrow {
            return self.at(plane, column, row);
        }
        let next = |at: u32, near: u32, of: u32| match at % 2 {
            0 => near.saturating_sub(1),
            _ => (near + 1).min(of - 1),
        };
        let other_column = next(x, column, self.chroma[0]);
        let other_row = next(y, row, self.chroma[1]);
        let sum = |column| 3 * self.at(plane, column, row) + self.at(plane, column, other_row);
        let odd = |at: u32| (at % 2) as i32;
        match (across, down) {
            (false, false) => self.at(plane, column, row),
            (true, false) => {
                let sum = 3 * self.at(plane, column, row) + self.at(plane, other_column, row);
                (sum + 1 + odd(x)) >> 2
            }
            (false, true) => (sum(column) + 1 + odd(y)) >> 2,
            (true, true) => (3 * sum(column) + sum(other_column) + 8 - odd(x)) >> 4,
        }
    }
}

/// As libjpeg converts colours (jdcolor.c), in 16 bits behind the point.
fn rgb(luma: i32, blue: i32, red: i32) -> [u8; 3] {
    const HALF: i32 = 1 << 15;
    let (blue, red) = (blue - 128, red - 128);
    let channel = |added: i32| (luma + (added >> 16)).clamp(0, 255) as u8;
    [
        channel(91_881 * red + HALF),
        channel(-22_554 * blue - 46_802 * red + HALF),
        channel(116_130 * blue + HALF),
    ]
}
