//! The nearest known name for one that nobody knows.

/// The known name with the smallest edit distance to `name`, if it is near enough to be what was
/// meant: at most a third of its length, and at most 3, wrong.
pub(crate) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let folded = name.to_lowercase().replace(['-', '_'], "");
    known
        .map(|known| (distance(&folded, &known.to_lowercase()), known))
        .filter(|(distance, known)| *distance <= (known.chars().count().div_ceil(3)).min(3))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

/// Optimal string alignment distance: insertion, deletion, substitution and the swap of two
/// neighbours cost 1 each.
fn distance(left: &str, right: &str) -> usize {
    // A name of any length costs a bounded amount of work.
    let left: Vec<char> = left.chars().take(64).collect();
    let right: Vec<char> = right.chars().take(64).collect();
    let mut before: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.iter().enumerate() {
        let mut next = Vec::with_capacity(right.len() + 1);
        next.push(i + 1);
        for (j, b) in right.iter().enumerate() {
            let substituted = row[j] + usize::from(a != b);
            let mut best = substituted.min(row[j + 1] + 1).min(next[j] + 1);
            if i > 0 && j > 0 && left[i - 1] == *b && right[j - 1] == *a {
                best = best.min(before[j - 1] + 1);
            }
            next.push(best);
        }
        before = std::mem::replace(&mut row, next);
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn a_slip_of_the_finger_finds_the_name_that_was_meant() {
        let known = ["replay", "safeTools", "startTimeout", "callTimeout"];
        let found = |name| nearest(name, known.into_iter());
        assert_eq!(found("relpay"), Some("replay"));
        assert_eq!(found("safe_tools"), Some("safeTools"));
        assert_eq!(found("start-timeout"), Some("startTimeout"));
        assert_eq!(found("calltimout"), Some("callTimeout"));
        assert_eq!(found("volume"), None);
    }
}
