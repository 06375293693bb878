use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::*;

fn policy(allow_private: bool, allow: &[&str]) -> TargetPolicy {
    let allow = allow.iter().map(|text| text.parse().expect("an allowed target")).collect();
    TargetPolicy { allow_private, allow }
}

fn target(url: &str) -> TargetUrl {
    TargetUrl::parse(url).unwrap_or_else(|error| panic!("{url} {error}"))
}

fn class_of(address: &str) -> AddressClass {
    AddressClass::of(address.parse().expect("an address"))
}

#[test]
fn every_special_network_has_its_class_from_its_first_address_to_its_last() {
    use AddressClass::*;
    for (class, first, last) in [
        (Unspecified, "0.0.0.0", "0.255.255.255"),
        (Private, "10.0.0.0", "10.255.255.255"),
        (Shared, "100.64.0.0", "100.127.255.255"),
        (Loopback, "127.0.0.0", "127.255.255.255"),
        (LinkLocal, "169.254.0.0", "169.254.255.255"),
        (Private, "172.16.0.0", "172.31.255.255"),
        (Private, "192.168.0.0", "192.168.255.255"),
        (Reserved, "192.0.0.0", "192.0.0.255"),
        (Documentation, "192.0.2.0", "192.0.2.255"),
        (Documentation, "198.51.100.0", "198.51.100.255"),
        (Documentation, "203.0.113.0", "203.0.113.255"),
        (Benchmark, "198.18.0.0", "198.19.255.255"),
        (Multicast, "224.0.0.0", "239.255.255.255"),
        (Reserved, "240.0.0.0", "255.255.255.254"),
        (Unspecified, "::", "::"),
        (Loopback, "::1", "::1"),
        (Reserved, "::2", "::ffff:ffff"),
        (UniqueLocal, "fc00::", "fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
        (LinkLocal, "fe80::", "febf:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
        (Reserved, "fec0::", "feff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
        (Multicast, "ff00::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
        (Reserved, "2001::", "2001:0:ffff:ffff:ffff:ffff:ffff:ffff"),
        (Documentation, "2001:db8::", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff"),
        (Documentation, "3fff::", "3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff"),
        (Reserved, "64:ff9b:1::", "64:ff9b:1:ffff:ffff:ffff:ffff:ffff"),
        (Reserved, "100::", "100::ffff:ffff:ffff:ffff"),
        (Reserved, "5f00::", "5fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
        (Reserved, "::ffff:0:7f00:1", "::ffff:0:7f00:1"),
    ] {
        assert_eq!((class_of(first), class_of(last)), (class, class), "{first} to {last}");
    }
    assert_eq!(class_of("255.255.255.255"), Broadcast);
}

#[test]
fn metadata_services_are_known_even_where_they_look_public() {
    for address in
        ["169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16", "fd00:ec2::254", "fd20:ce::254"]
    {
        assert_eq!(class_of(address), AddressClass::Metadata, "{address}");
    }
}

#[test]
fn the_neighbours_of_special_networks_are_public() {
    for address in [
        "1.0.0.0",
        "9.255.255.255",
        "11.0.0.0",
        "100.63.255.255",
        "100.128.0.0",
        "126.255.255.255",
        "128.0.0.0",
        "169.253.255.255",
        "169.255.0.0",
        "172.15.255.255",
        "172.32.0.0",
        "192.167.255.255",
        "192.169.0.0",
        "198.17.255.255",
        "198.20.0.0",
        "223.255.255.255",
        "2001:200::",
        "2606:4700::1111",
        "3ffe:ffff::",
    ] {
        assert_eq!(class_of(address), AddressClass::Public, "{address}");
    }
}

#[test]
fn every_spelling_of_this_machine_is_refused() {
    for host in [
        "127.0.0.1",
        "127.1",
        "127.0.1",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "017700000001",
        "0177.0.0.01",
        "127.0.0.1.",
        "127。0。0。1",
        "１２７.0.0.1",
        "%31%32%37.0.0.1",
        "0",
        "0.0.0.0",
        "[::1]",
        "[0:0:0:0:0:0:0:1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[64:ff9b::127.0.0.1]",
        "[2002:7f00:1::]",
        "[::ffff:0:127.0.0.1]",
        "localhost",
        "LOCALHOST",
        "localhost.",
        "a.localhost",
        "ⓛocalhost",
    ] {
        let url = format!("http://{host}:8080/x");
        assert!(policy(false, &[]).check(&target(&url)).is_err(), "{url}");
    }
}

#[test]
fn metadata_services_stay_refused_where_private_targets_are_allowed() {
    for host in [
        "169.254.169.254",
        "2852039166",
        "0xa9fea9fe",
        "[::ffff:a9fe:a9fe]",
        "[64:ff9b::a9fe:a9fe]",
        "[fd00:ec2::254]",
        "100.100.100.200",
        "metadata.google.internal",
        "METADATA.google.internal.",
        "metadata",
    ] {
        let url = target(&format!("http://{host}/latest/meta-data/"));
        assert!(policy(true, &[]).check(&url).is_err(), "{host}");
    }
    let listed = policy(false, &["169.254.169.254"]);
    assert_eq!(listed.check(&target("http://169.254.169.254/")), Ok(()));
}

#[test]
fn allowing_private_targets_opens_private_networks_and_nothing_else() {
    let open = policy(true, &[]);
    for host in ["127.0.0.1", "10.1.2.3", "192.168.0.1", "100.64.0.1", "169.254.1.1", "[::1]", "[fd12::1]", "[fe80::1]"]
    {
        assert_eq!(open.check(&target(&format!("http://{host}/"))), Ok(()), "{host}");
    }
    for host in ["0.0.0.0", "224.0.0.1", "255.255.255.255", "240.0.0.1", "192.0.2.1", "[::]", "[ff02::1]", "[2001::1]"]
    {
        assert!(open.check(&target(&format!("http://{host}/"))).is_err(), "{host}");
    }
}

#[test]
fn an_exception_opens_what_it_names_and_nothing_beside_it() {
    let some = policy(false, &["10.1.0.0/16", "fd12::/16", "Hooks.Internal.", "192.168.7.7"]);
    for host in ["10.1.2.3", "[::ffff:10.1.2.3]", "[fd12::1]", "192.168.7.7"] {
        assert_eq!(some.check(&target(&format!("http://{host}/"))), Ok(()), "{host}");
    }
    for host in ["10.2.0.1", "192.168.7.8", "127.0.0.1", "[fd13::1]"] {
        assert!(some.check(&target(&format!("http://{host}/"))).is_err(), "{host}");
    }
    let private = Ipv4Addr::new(10, 9, 9, 9).into();
    assert_eq!(some.check_address("hooks.internal", private), Ok(()));
    assert_eq!(some.check_address("hooks.internal.", private), Ok(()));
    assert!(some.check_address("other.internal", private).is_err());
    assert!(some.check_address("evil.hooks.internal", private).is_err());
    let metadata = Ipv4Addr::new(169, 254, 169, 254).into();
    assert!(some.check_address("hooks.internal", metadata).is_err());
}

#[test]
fn an_exception_is_a_network_an_address_or_a_name() {
    for text in ["10.0.0.0/8", "fd00::/8", "127.0.0.1/32", "hooks.internal"] {
        assert_eq!(text.parse::<AllowedTarget>().map(|allowed| allowed.to_string()), Ok(text.to_owned()));
    }
    for text in ["", ".", "10.0.0.0/33", "http://hooks", "a b", "hooks:80"] {
        assert!(text.parse::<AllowedTarget>().is_err(), "{text}");
    }
}

#[test]
fn only_http_without_credentials_is_a_target() {
    for (url, error) in [
        ("ftp://example.org/", InvalidTarget::Scheme),
        ("file:///etc/passwd", InvalidTarget::Scheme),
        ("gopher://example.org/", InvalidTarget::Scheme),
        ("http://me@example.org/", InvalidTarget::Credentials),
        ("http://:word@example.org/", InvalidTarget::Credentials),
    ] {
        assert_eq!(TargetUrl::parse(url), Err(error), "{url}");
    }
    // A backslash ends the host, as browsers have it: what follows is a path.
    assert_eq!(target("http://example.org\\@127.0.0.1/").host(), "example.org");
    assert!(matches!(TargetUrl::parse("http://"), Err(InvalidTarget::Unreadable(_))));
    assert!(matches!(TargetUrl::parse("http://[fe80::1%25eth0]/"), Err(InvalidTarget::Unreadable(_))));
    let long = format!("http://example.org/{}", "x".repeat(MAX_URL_BYTES));
    assert_eq!(TargetUrl::parse(&long), Err(InvalidTarget::TooLong));
}

#[test]
fn a_target_does_not_print_its_path() {
    let printed = format!("{:?}", target("https://hooks.example.org/services/secret?key=secret"));
    assert_eq!(printed, "https://hooks.example.org/…");
}

/// Any address of IPv4, half of them from special networks.
fn v4_address() -> impl Strategy<Value = Ipv4Addr> {
    let special = prop::sample::select(vec![
        ("0.0.0.0", 8),
        ("10.0.0.0", 8),
        ("100.64.0.0", 10),
        ("127.0.0.0", 8),
        ("169.254.0.0", 16),
        ("172.16.0.0", 12),
        ("192.168.0.0", 16),
        ("198.18.0.0", 15),
        ("224.0.0.0", 3),
    ]);
    let special = (special, any::<u32>()).prop_map(|((network, prefix), host)| {
        let network: Ipv4Addr = network.parse().expect("an address");
        Ipv4Addr::from_bits(network.to_bits() | (host >> prefix))
    });
    prop_oneof![special, any::<u32>().prop_map(Ipv4Addr::from_bits)]
}

/// The forms of IPv6 that lead, or once led, to an address of IPv4.
fn v6_forms(address: Ipv4Addr) -> [Ipv6Addr; 4] {
    let [a, b, c, d] = address.octets().map(u16::from);
    let (high, low) = (a << 8 | b, c << 8 | d);
    [
        address.to_ipv6_mapped(),
        Ipv6Addr::new(0, 0, 0, 0, 0, 0, high, low),
        Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low),
        Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 1),
    ]
}

proptest! {
    #[test]
    fn a_refused_address_is_refused_in_every_form_and_spelling(address in v4_address(), allow_private: bool) {
        let policy = policy(allow_private, &[]);
        let plain = policy.check(&target(&format!("http://{address}/")));
        prop_assert_eq!(plain.is_ok(), policy.check_address("a.example", address.into()).is_ok());
        let bits = address.to_bits();
        for spelled in [format!("{bits}"), format!("{bits:#x}"), format!("0{bits:o}")] {
            let found = policy.check(&target(&format!("http://{spelled}/")));
            prop_assert_eq!(found.is_ok(), plain.is_ok(), "{}", spelled);
        }
        if plain.is_err() {
            for form in v6_forms(address) {
                prop_assert!(policy.check(&target(&format!("http://[{form}]/"))).is_err(), "{}", form);
                prop_assert!(policy.check_address("a.example", form.into()).is_err(), "{}", form);
            }
        }
    }

    #[test]
    fn no_address_outside_the_public_internet_passes_the_default_policy(bits: u128) {
        let address = Ipv6Addr::from_bits(bits);
        let passes = TargetPolicy::default().check_address("a.example", address.into()).is_ok();
        prop_assert!(!passes || address.segments()[0] >> 13 == 1 || address.to_ipv4_mapped().is_some());
    }
}
