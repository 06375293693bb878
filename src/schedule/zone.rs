//! Time zones by their names in the IANA database.

use chrono_tz::{TZ_VARIANTS, Tz};

/// No name of a zone is longer, in bytes.
const MAX_NAME_BYTES: usize = 64;
/// How many letters may differ between a name and the one that is suggested for it.
const MAX_DISTANCE: usize = 2;

/// A name that no time zone has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not the name of a time zone in the IANA database{}", suggestion(.0.as_deref()))]
pub struct UnknownZone(Option<&'static str>);

fn suggestion(near: Option<&str>) -> String {
    near.map_or_else(|| ", such as `Europe/Berlin`".to_owned(), |near| format!("; did you mean `{near}`?"))
}

/// Parses the name of a time zone, such as `Europe/Berlin` or `UTC`.
///
/// # Errors
/// Returns the name that was probably meant, if one is near, when there is no such zone.
pub fn parse_zone(name: &str) -> Result<Tz, UnknownZone> {
    name.parse().map_err(|_| UnknownZone(nearest(name)))
}

/// Returns the zone whose name or last part (`Berlin` of `Europe/Berlin`) is spelled most like `name`.
fn nearest(name: &str) -> Option<&'static str> {
    if name.len() > MAX_NAME_BYTES {
        return None;
    }
    let name = name.to_lowercase();
    let distance = |other: &str| strsim::osa_distance(&name, &other.to_lowercase());
    let near = TZ_VARIANTS.iter().map(|zone| zone.name()).map(|zone| {
        let place = zone.rsplit('/').next().unwrap_or_default();
        (distance(zone).min(distance(place)), zone)
    });
    near.filter(|(distance, zone)| *distance <= MAX_DISTANCE && distance * 3 <= zone.len().min(name.len()))
        .min()
        .map(|(_, zone)| zone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zone_is_known_by_its_name_only_and_a_similar_name_is_suggested() {
        for name in ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata"] {
            assert_eq!(parse_zone(name).map(|zone| zone.name()), Ok(name));
        }
        for (name, near) in [
            ("berlin", Some("Europe/Berlin")),
            ("europe/berlin", Some("Europe/Berlin")),
            ("America/NewYork", Some("America/New_York")),
            ("Mars/Olympus_Mons", None),
            ("", None),
            ("+02:00", None),
            (&"x".repeat(100_000), None),
        ] {
            assert_eq!(parse_zone(name), Err(UnknownZone(near)), "{name:.20}");
        }
    }
}
