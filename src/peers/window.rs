//! Which numbers of a sender's calls have come: each is taken once, and a late one only while it is among the last
//! [`WIDTH`].

/// How far a number may be behind the highest one: calls of one sender that are under way at once overtake each other.
pub(super) const WIDTH: u64 = 1024;

const WORD: u64 = u64::BITS as u64;

/// The numbers that have come of one sender.
#[derive(Clone, Debug, Default)]
pub(super) struct Window {
    highest: u64,
    /// A bit for each of the last numbers, at the place `number % WIDTH`.
    seen: [u64; (WIDTH / WORD) as usize],
}

impl Window {
    /// Takes a number, from 1 on. Returns false when it has come before, or may have.
    pub(super) fn take(&mut self, number: u64) -> bool {
        if number == 0 || self.highest.saturating_sub(number) >= WIDTH {
            return false;
        }
        if number > self.highest {
            // More than the width clears all, once.
            let first = (self.highest + 1).max(number.saturating_sub(WIDTH - 1));
            (first..=number).for_each(|passed| self.set(passed, false));
            self.highest = number;
        }
        let is_new = !self.has(number);
        self.set(number, true);
        is_new
    }

    fn has(&self, number: u64) -> bool {
        self.seen[place(number).0] & place(number).1 != 0
    }

    fn set(&mut self, number: u64, is_seen: bool) {
        let (word, bit) = place(number);
        if is_seen {
            self.seen[word] |= bit;
        } else {
            self.seen[word] &= !bit;
        }
    }
}

fn place(number: u64) -> (usize, u64) {
    let place = number % WIDTH;
    (usize::try_from(place / WORD).unwrap_or(0), 1 << (place % WORD))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Numbers as they come: mostly near each other, some from anywhere.
    fn numbers() -> impl Strategy<Value = Vec<u64>> {
        let near = (0_u64..4 * WIDTH).boxed();
        let at_the_end = (0_u64..2 * WIDTH).prop_map(|before| u64::MAX - before).boxed();
        let leaps = (0_u64..20).prop_map(|times| times * WIDTH).boxed();
        let number = prop_oneof![20 => near, 1 => at_the_end, 4 => leaps, 1 => any::<u64>()];
        prop_oneof![
            proptest::collection::vec((0_u64..4 * WIDTH).boxed(), 0..3000),
            proptest::collection::vec(number, 0..300)
        ]
    }

    proptest! {
        #[test]
        fn a_number_is_taken_once_and_only_if_it_is_not_too_far_behind(numbers in numbers()) {
            let (mut window, mut taken, mut highest) = (Window::default(), BTreeSet::new(), 0_u64);
            for number in numbers {
                let is_late = number == 0 || highest >= WIDTH && number <= highest - WIDTH;
                let is_to_be_taken = !is_late && taken.insert(number);
                prop_assert_eq!(window.take(number), is_to_be_taken, "{} after {}", number, highest);
                highest = highest.max(number);
            }
        }
    }

    #[test]
    fn calls_that_overtake_each_other_are_all_taken() {
        let mut window = Window::default();
        for first in [1, 1 + WIDTH, 1 + 7 * WIDTH] {
            assert!((first..first + WIDTH).rev().all(|number| window.take(number)));
            assert!(!(first..first + WIDTH).any(|number| window.take(number)));
        }
    }
}
