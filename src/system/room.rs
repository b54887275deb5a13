//! Lists as long as the program says: whether there is memory for one is asked before it is made.

use std::fmt;

use super::usable_memory_bytes;

/// A list that does not fit: its size in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoRoom(pub(crate) u128);

/// What it takes, and what there is.
impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NoRoom(bytes) = self;
        match usize::try_from(*bytes).is_ok_and(|bytes| bytes <= usable_memory_bytes()) {
            true => write!(f, "{bytes} bytes, for which the system has no memory"),
            false => {
                let usable = usable_memory_bytes();
                write!(f, "{bytes} bytes, and this process may use {usable}")
            }
        }
    }
}

/// Refuses what takes more memory than the process may use: so many values of so many bytes each.
pub(crate) fn check_room(count: u64, bytes_of_each: usize) -> Result<(), NoRoom> {
    let bytes = u128::from(count) * bytes_of_each as u128;
    match bytes <= usable_memory_bytes() as u128 {
        true => Ok(()),
        false => Err(NoRoom(bytes)),
    }
}

/// An empty list, with room for so many values.
pub(crate) fn room_for<T>(count: u64) -> Result<Vec<T>, NoRoom> {
    check_room(count, size_of::<T>())?;
    let mut list = Vec::new();
    match list.try_reserve_exact(usize::try_from(count).unwrap_or(usize::MAX)) {
        Ok(()) => Ok(list),
        Err(_) => Err(NoRoom(u128::from(count) * size_of::<T>() as u128)),
    }
}

/// A list of so many times the same value.
pub(crate) fn list_of<T: Clone>(count: u64, value: T) -> Result<Vec<T>, NoRoom> {
    let mut list = room_for(count)?;
    list.resize(count as usize, value); // there is room for as many
    Ok(list)
}

/// Adds a value to a list, which may have no room for it.
#[inline]
pub(crate) fn push<T>(list: &mut Vec<T>, value: T) -> Result<(), NoRoom> {
    if list.len() == list.capacity() {
        grow(list)?;
    }
    list.push(value);
    Ok(())
}

#[cold]
fn grow<T>(list: &mut Vec<T>) -> Result<(), NoRoom> {
    let more = list.len().max(64);
    let count = list.len() as u64 + more as u64;
    check_room(count, size_of::<T>())?;
    let no_room = |_| NoRoom(u128::from(count) * size_of::<T>() as u128);
    list.try_reserve_exact(more).map_err(no_room)
}

/// The values as a list.
pub(crate) fn collect<T>(values: impl IntoIterator<Item = T>) -> Result<Vec<T>, NoRoom> {
    let values = values.into_iter();
    let mut list = room_for(values.size_hint().0 as u64)?;
    for value in values {
        push(&mut list, value)?;
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_before_it_is_made() {
        for count in [1u64 << 50, 1 << 61, u64::MAX] {
            let NoRoom(bytes) = room_for::<u64>(count).unwrap_err();
            assert_eq!(bytes, u128::from(count) * 8);
            assert_eq!(list_of(count, 0u64).unwrap_err(), NoRoom(bytes));
        }
        assert_eq!(room_for::<()>(u64::MAX).unwrap().len(), 0);
        assert!(collect(0u64..).is_err() && collect(0u64..1 << 50).is_err());
        let said = room_for::<u64>(1 << 50).unwrap_err().to_string();
        assert!(
            said.starts_with("9007199254740992 bytes, and this process may use"),
            "{said}"
        );
    }

    #[test]
    fn what_fits_is_a_list() {
        // Whatever its length is said to be.
        assert!(
            collect((0..1_000).filter(|x| x % 3 == 0))
                .unwrap()
                .into_iter()
                .eq((0..1_000).step_by(3))
        );
        assert!(collect(Vec::<u8>::new()).unwrap().is_empty());
        assert_eq!(list_of(3, 7u8).unwrap(), [7; 3]);
    }
}
