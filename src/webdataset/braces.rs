//! Brace patterns: `train-{000000..000099}.tar` is a hundred names.
//!
//! They expand as Python's `braceexpand` 0.1.7 expands them, which webdataset uses: lists, ranges of numbers and of letters, steps,
//! nesting, and a backslash before a character that means itself. What bash does differently is said there.

/// How many names a pattern may have: far more than anybody has shards.
const MOST: usize = 1_000_000;

/// The names of `pattern`, in its order.
///
/// # Errors
///
/// Why it is no pattern.
pub(super) fn expand(pattern: &str) -> Result<Vec<String>, String> {
    let names = pattern_of(&pattern.chars().collect::<Vec<_>>(), pattern, 0)?;
    Ok(names.into_iter().map(unescaped).collect())
}

/// How deep braces may be nested.
const DEEPEST: usize = 64;

fn pattern_of(text: &[char], whole: &str, depth: usize) -> Result<Vec<String>, String> {
    if depth > DEEPEST {
        return Err(format!(
            "{whole:?} has braces in more than {DEEPEST} others"
        ));
    }
    let mut names = vec![String::new()];
    let (mut start, mut at, mut open) = (0, 0, 0usize);
    while at < text.len() {
        match text[at] {
            '\\' => at += 1,
            '{' => {
                if open == 0 {
                    names = product(names, &[text[start..at].iter().collect()], whole)?;
                    start = at;
                }
                open += 1;
            }
            '}' => {
                if open == 0 {
                    return Err(unbalanced(whole));
                }
                open -= 1;
                if open == 0 {
                    let inside = &text[start + 1..at];
                    names = match expression(inside, whole, depth)? {
                        Some(parts) => product(names, &parts, whole)?,
                        None => {
                            let inner = pattern_of(inside, whole, depth + 1)?;
                            let literal: Vec<_> =
                                inner.iter().map(|name| format!("{{{name}}}")).collect();
                            product(names, &literal, whole)?
                        }
                    };
                    start = at + 1;
                }
            }
            _ => {}
        }
        at += 1;
    }
    if open > 0 {
        return Err(unbalanced(whole));
    }
    product(names, &[text[start..].iter().collect()], whole)
}

fn unbalanced(whole: &str) -> String {
    format!(
        r"{whole:?} has a brace without its other one; one that means itself is written \{{ or \}}"
    )
}

fn product(names: Vec<String>, parts: &[String], whole: &str) -> Result<Vec<String>, String> {
    if names.len().saturating_mul(parts.len()) > MOST {
        return Err(format!("{whole:?} is more than {MOST} names"));
    }
    if let [part] = parts {
        return Ok(names.into_iter().map(|name| name + part).collect());
    }
    let each = names.iter();
    Ok(each
        .flat_map(|name| parts.iter().map(move |part| format!("{name}{part}")))
        .collect())
}

/// What stands between braces; `None` if that is neither a range nor a list.
fn expression(text: &[char], whole: &str, depth: usize) -> Result<Option<Vec<String>>, String> {
    let flat: String = text.iter().collect();
    if let Some(range) = range(&flat) {
        return range
            .map(Some)
            .ok_or_else(|| format!("{whole:?} is more than {MOST} names"));
    }
    let (mut parts, mut names) = (0, Vec::new());
    let (mut start, mut at, mut open) = (0, 0, 0usize);
    while at < text.len() {
        match text[at] {
            '\\' => at += 1,
            '{' => open += 1,
            '}' => open = open.saturating_sub(1),
            ',' if open == 0 => {
                names.extend(pattern_of(&text[start..at], whole, depth + 1)?);
                (start, parts) = (at + 1, parts + 1);
            }
            _ => {}
        }
        at += 1;
    }
    if parts == 0 {
        return Ok(None);
    }
    names.extend(pattern_of(&text[start..], whole, depth + 1)?);
    Ok(Some(names))
}

/// The numbers or letters from one to another; `Some(None)` if they are too many.
fn range(text: &str) -> Option<Option<Vec<String>>> {
    let parts: Vec<&str> = text.split("..").collect();
    let (first, last, step) = match parts[..] {
        [first, last] => (first, last, None),
        [first, last, step] => (first, last, Some(step)),
        _ => return None,
    };
    let step = match step.map(|step| step.strip_prefix('-').unwrap_or(step)) {
        Some(step) if is_digits(step) => step.parse::<u64>().unwrap_or(u64::MAX).max(1),
        Some(_) => return None,
        None => 1,
    };
    numbers(first, last, step).or_else(|| letters(first, last, step).map(Some))
}

fn numbers(first: &str, last: &str, step: u64) -> Option<Option<Vec<String>>> {
    let is_number = |text: &str| is_digits(text.strip_prefix('-').unwrap_or(text));
    if !is_number(first) || !is_number(last) {
        return None;
    }
    let pads = |text: &str| {
        !matches!(text, "0" | "-0") && (text.starts_with('0') || text.starts_with("-0"))
    };
    let width = match pads(first) || pads(last) {
        true => first.len().max(last.len()),
        false => 0,
    };
    let (Ok(first), Ok(last)) = (first.parse::<i64>(), last.parse::<i64>()) else {
        return Some(None);
    };
    if first.abs_diff(last) / step >= MOST as u64 {
        return Some(None);
    }
    let many = first.abs_diff(last) / step;
    let number = |at: u64| {
        let far = (at * step) as i64; // (at most the distance, whose ends are of this type)
        let number = match first < last {
            true => first.wrapping_add(far),
            false => first.wrapping_sub(far),
        };
        format!("{number:0width$}")
    };
    Some(Some((0..=many).map(number).collect()))
}

/// In `braceexpand`'s alphabet: capital letters, and the small ones behind them.
fn letters(first: &str, last: &str, step: u64) -> Option<Vec<String>> {
    let alphabet: Vec<char> = ('A'..='Z').chain('a'..='z').collect();
    let place = |text: &str| {
        let mut letters = text.chars();
        let letter = letters.next().filter(|_| letters.next().is_none())?;
        alphabet.iter().position(|of| *of == letter)
    };
    let (first, last) = (place(first)?, place(last)?);
    let step = usize::try_from(step).unwrap_or(usize::MAX);
    let between = match first < last {
        true => alphabet[first..=last].to_vec(),
        false => alphabet[last..=first].iter().rev().copied().collect(),
    };
    Some(between.iter().step_by(step).map(char::to_string).collect())
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Without the backslashes before other characters.
fn unescaped(name: String) -> String {
    if !name.contains('\\') {
        return name;
    }
    let (mut plain, mut letters) = (String::with_capacity(name.len()), name.chars());
    while let Some(letter) = letters.next() {
        plain.push(match letter {
            '\\' => letters.next().unwrap_or('\\'),
            other => other,
        });
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answers of braceexpand 0.1.7, from `tests/fixtures/shards.py`; `None` where it raises an error.
    #[test]
    fn patterns_expand_as_braceexpand_expands_them() {
        let file = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/fixtures/shards/braces.json"
        );
        let cases: Vec<(String, Option<Vec<String>>)> =
            serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        assert!(cases.len() > 30);
        for (pattern, expected) in cases {
            assert_eq!(expand(&pattern).ok(), expected, "{pattern:?}");
        }
    }

    #[test]
    fn patterns_that_are_too_large_are_refused() {
        for pattern in [
            "{0..1000000}",
            "{0..99999999999999999999}",
            "{0..999}{0..999}{0..9}",
            &"{".repeat(100_000),
            &("{a,".repeat(100) + &"}".repeat(100)),
        ] {
            assert!(expand(pattern).is_err(), "{:.20}", pattern);
        }
    }
}
