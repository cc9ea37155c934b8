//! Durations and sizes as people write them.
//!
//! Owns the grammar: a whole number and a unit. It must not know which setting is being read.

use std::time::Duration;

/// The longest duration that is accepted, 100 years of 365 days: far from any overflow of a clock.
pub(crate) const DURATION_MS_MAX: u64 = 100 * 365 * 24 * 60 * 60 * 1000;

/// Reads `500ms`, `10s`, `5m`, `1h`, `7d`, or a bare number of milliseconds. `None` if it is none
/// of these or longer than 100 years.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let (number, unit) = split(text)?;
    let factor = match unit {
        "" | "ms" => 1,
        "s" => 1000,
        "m" | "min" => 60 * 1000,
        "h" => 60 * 60 * 1000,
        "d" => 24 * 60 * 60 * 1000,
        _ => return None,
    };
    let ms = number
        .checked_mul(factor)
        .filter(|ms| *ms <= DURATION_MS_MAX)?;
    Some(Duration::from_millis(ms))
}

/// Reads `64MiB`, `16KiB`, `1GiB`, `500B` or a bare number of bytes. `None` if it is none of these.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let (number, unit) = split(text)?;
    let shift = match unit {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => return None,
    };
    number.checked_mul(1 << shift)
}

/// The shortest exact spelling of a duration of whole milliseconds.
pub fn show_duration(duration: Duration) -> String {
    let ms = duration.as_millis();
    let units = [
        ("d", 86_400_000),
        ("h", 3_600_000),
        ("m", 60_000),
        ("s", 1000),
    ];
    for (unit, factor) in units {
        if ms > 0 && ms.is_multiple_of(factor) {
            return format!("{}{unit}", ms / factor);
        }
    }
    format!("{ms}ms")
}

/// The shortest exact spelling of a number of bytes.
pub fn show_bytes(bytes: u64) -> String {
    for (unit, shift) in [("GiB", 30), ("MiB", 20), ("KiB", 10)] {
        if bytes > 0 && bytes.is_multiple_of(1 << shift) {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    format!("{bytes}B")
}

fn split(text: &str) -> Option<(u64, &str)> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at_checked(digits)?;
    Some((number.parse().ok()?, unit.trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_and_show_the_same() {
        for text in ["500ms", "10s", "5m", "1h", "7d", "90s", "0ms"] {
            let duration = parse_duration(text).expect(text);
            assert_eq!(show_duration(duration), text);
        }
        assert_eq!(parse_duration("1500"), Some(Duration::from_millis(1500)));
    }

    #[test]
    fn what_is_no_duration_is_refused() {
        for text in [
            "",
            "s",
            "1.5s",
            "-1s",
            "10 parsecs",
            "99999999999999999999",
            "40000d",
        ] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }

    #[test]
    fn sizes_read_and_show_the_same() {
        for text in ["64MiB", "16KiB", "2GiB", "500B"] {
            assert_eq!(show_bytes(parse_bytes(text).expect(text)), text);
        }
        assert_eq!(parse_bytes("1024"), Some(1024));
        assert_eq!(parse_bytes("64MB"), None);
    }
}
