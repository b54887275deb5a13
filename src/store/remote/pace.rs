//! How long is waited before a request is made again.

use std::time::Duration;

/// The first wait, which doubles with each attempt.
const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(20);

/// How long to wait after so many attempts that failed. It is drawn by no chance: [`Pace`] keeps callers apart.
pub(super) fn back_off(failed: u32) -> Duration {
    let doubled = 1u32.checked_shl(failed.saturating_sub(1));
    let factor = doubled.unwrap_or(u32::MAX);
    FIRST.saturating_mul(factor).min(LONGEST)
}

/// How many requests a store is asked for once more, by all callers together: 100 at once, and then ten a second, and one for each request
/// that succeeds. So a server that is down is not asked more often by more callers, and all of them get through when it is back.
///
/// It is the generic cell rate algorithm (ITU-T I.371, "virtual scheduling"). Times are those since the store was opened.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// When the last turn that was taken would have come, had none been saved up.
    due: Duration,
}

const EVERY: Duration = Duration::from_millis(100);
const AT_ONCE: u32 = 100;

impl Pace {
    /// Takes a turn. Returns how long to wait for it; `None` if that is more than `most`, and then none was taken.
    pub(super) fn turn(&mut self, now: Duration, most: Duration) -> Option<Duration> {
        let due = self.due.max(now) + EVERY;
        let wait = due.saturating_sub(now + EVERY * AT_ONCE);
        if wait > most {
            return None;
        }
        self.due = due;
        Some(wait)
    }

    /// A request has succeeded.
    pub(super) fn succeeded(&mut self) {
        self.due = self.due.saturating_sub(EVERY);
    }
}

/// The time that `Retry-After` asks for (RFC 9110, 10.2.3): seconds, or a date, of which `now` is subtracted (seconds since 1970).
pub(super) fn retry_after(text: &str, now: u64) -> Option<Duration> {
    let text = text.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let then = date(text)?;
    Some(Duration::from_secs(then.saturating_sub(now)))
}

/// A date such as `Sun, 06 Nov 1994 08:49:37 GMT`, as seconds since 1970.
pub(super) fn date(text: &str) -> Option<u64> {
    const MONTHS: &str = "JanFebMarAprMayJunJulAugSepOctNovDec";
    let words: Vec<&str> = text.split([' ', ':']).collect();
    let [_, day, month, year, hour, minute, second, "GMT"] = words[..] else {
        return None;
    };
    let number = |word: &str| word.parse::<u64>().ok();
    let month = MONTHS.find(month).filter(|_| month.len() == 3)? as u64 / 3;
    let (day, year) = (number(day)?, number(year)?);
    if !(1970..10_000).contains(&year) || !(1..32).contains(&day) {
        return None;
    }
    // Days of years that begin in March (H. Hinnant, "chrono-compatible low-level date algorithms").
    let (year, month) = if month < 2 {
        (year - 1, month + 10)
    } else {
        (year, month - 2)
    };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    let days = days.checked_sub(719_468)?;
    Some(((days * 24 + number(hour)?) * 60 + number(minute)?) * 60 + number(second)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn waits_double_up_to_the_longest() {
        let waits: Vec<u64> = (1..=10).map(|n| back_off(n).as_millis() as u64).collect();
        assert_eq!(
            waits,
            [
                100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 20_000, 20_000
            ]
        );
        assert_eq!(back_off(u32::MAX), LONGEST);
    }

    #[test]
    fn a_hundred_turns_come_at_once_and_then_ten_a_second() {
        let (mut pace, most) = (Pace::default(), ms(60_000));
        let now = ms(5_000);
        for _ in 0..100 {
            assert_eq!(pace.turn(now, most), Some(ms(0)));
        }
        assert_eq!(pace.turn(now, most), Some(ms(100)));
        assert_eq!(pace.turn(now, most), Some(ms(200)));
        // None is taken that comes too late.
        assert_eq!(pace.turn(now, ms(299)), None);
        assert_eq!(pace.turn(now, ms(300)), Some(ms(300)));
        // A success pays for one.
        pace.succeeded();
        assert_eq!(pace.turn(now, most), Some(ms(300)));
        // Time, too: but no more than a hundred are saved.
        let later = ms(1_000_000);
        let at_once = (0..200).filter(|_| pace.turn(later, ms(0)).is_some());
        assert_eq!(at_once.count(), 100);
    }

    #[test]
    fn successes_save_no_more_than_time_does() {
        let mut pace = Pace::default();
        (0..1_000).for_each(|_| pace.succeeded());
        let at_once = (0..200).filter(|_| pace.turn(ms(1_000), ms(0)).is_some());
        assert_eq!(at_once.count(), 100);
    }

    #[test]
    fn a_server_says_when_in_seconds_or_by_a_date() {
        let now = 784_111_777; // RFC 9110's own date
        assert_eq!(retry_after("120", now), Some(ms(120_000)));
        let date = "Sun, 06 Nov 1994 08:49:47 GMT";
        assert_eq!(retry_after(date, now), Some(ms(10_000)));
        assert_eq!(retry_after(date, now + 60), Some(ms(0)));
        let leap = "Thu, 29 Feb 2024 00:00:00 GMT";
        assert_eq!(
            retry_after(leap, 1_709_164_800 - 5),
            Some(Duration::from_secs(5))
        );
        for text in [
            "",
            "soon",
            "-1",
            "1.5",
            "Sun, 06 Nov 1994 08:49:47",
            "Sun, 06 XYZ 1994 08:49:37 GMT",
        ] {
            assert_eq!(retry_after(text, now), None, "{text}");
        }
    }
}
