//! What an error shows of a file's text.

/// The beginning of a text, in one line.
pub(super) fn shown(text: &str) -> String {
    const SHOWN: usize = 100;
    let mut shown = String::new();
    for c in text.chars().take(SHOWN) {
        match c.is_control() {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    if text.chars().nth(SHOWN).is_some() {
        shown += "..";
    }
    shown
}
