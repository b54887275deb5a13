//! Numbers of a header, one after the other. There are none behind the end.

/// Bytes that are read from their beginning.
#[derive(Clone, Copy)]
pub(super) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(super) const EMPTY: Cursor<'static> = Cursor { rest: &[] };

    /// Begins at a place, if there is one.
    pub(super) fn at(bytes: &'a [u8], place: u64) -> Option<Cursor<'a>> {
        let rest = bytes.get(usize::try_from(place).ok()?..)?;
        Some(Cursor { rest })
    }

    pub(super) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    fn number<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (number, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*number)
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.number().map(u8::from_le_bytes)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.number().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.number().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.number().map(u64::from_le_bytes)
    }

    /// A number whose first byte is the largest part.
    pub(super) fn u32_be(&mut self) -> Option<u32> {
        self.number().map(u32::from_be_bytes)
    }

    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }
}
