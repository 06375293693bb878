//! The seed of what a test makes up at random.

use proptest::test_runner::RngSeed;

/// The seed of what repeats within a budget.
const USUAL: u64 = 20_261_121;
/// Names a seed in the environment, for every test that has one.
pub(crate) const VARIABLE: &str = "LEASEHOLD_TEST_SEED";

/// The seed that the environment names, if it names one.
pub(crate) fn named() -> Option<u64> {
    std::env::var(VARIABLE).ok().map(|seed| seed.parse().expect("the seed is a number"))
}

/// A new seed, unless the environment names one. It is printed, so that a failure says how to repeat it.
pub(crate) fn any() -> u64 {
    let seed = named().unwrap_or_else(rand::random);
    println!("{VARIABLE}={seed} makes up the same again");
    seed
}

/// The same seed for every change, unless the environment names another, as the nightly script does.
pub(crate) fn usual() -> u64 {
    named().unwrap_or(USUAL)
}

/// The same for property tests.
pub(crate) fn of_cases() -> RngSeed {
    RngSeed::Fixed(any())
}
