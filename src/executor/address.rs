//! The class of an IP address.
//!
//! The tables follow IANA's special-purpose address registries (RFC 6890). What they do not name is public in IPv4;
//! in IPv6 only 2000::/3 is, since nothing else is given out for the public Internet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};

use crate::job::words;

words! {
    /// The class of an IP address.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum AddressClass: "a class of addresses", "classes" {
        /// An address on the public Internet.
        Public = "public",
        /// An address of this machine.
        Loopback = "loopback",
        /// An address in a private network (RFC 1918).
        Private = "private",
        /// An address on this link only (RFC 3927, RFC 4291).
        LinkLocal = "link-local",
        /// An address in a carrier's or a cluster's inner network (RFC 6598).
        Shared = "shared (CGNAT)",
        /// An address in a private network (RFC 4193).
        UniqueLocal = "unique local",
        /// The address of a cloud's metadata service, which hands out the machine's credentials.
        Metadata = "cloud metadata",
        /// The unspecified address, which many systems take for this machine.
        Unspecified = "unspecified",
        /// The address of a multicast group.
        Multicast = "multicast",
        /// The address of every machine on the link.
        Broadcast = "broadcast",
        /// An address for documentation.
        Documentation = "documentation",
        /// An address for benchmarks.
        Benchmark = "benchmark",
        /// Any other address that no public server has.
        Reserved = "reserved",
    }
}

use AddressClass::{
    Benchmark, Broadcast, Documentation, LinkLocal, Loopback, Metadata, Multicast, Private, Public, Reserved, Shared,
    UniqueLocal, Unspecified,
};

/// The first network that contains an address gives its class.
#[rustfmt::skip]
const V4: [(Ipv4Net, AddressClass); 26] = [
    (v4([169, 254, 169, 254], 32), Metadata),  // AWS, Azure, Google, DigitalOcean, Oracle and others
    (v4([169, 254, 170, 2], 32), Metadata),    // AWS ECS
    (v4([169, 254, 170, 23], 32), Metadata),   // AWS EKS
    (v4([169, 254, 0, 23], 32), Metadata),     // Tencent
    (v4([100, 100, 100, 200], 32), Metadata),  // Alibaba
    (v4([192, 0, 0, 192], 32), Metadata),      // Oracle, of old
    (v4([168, 63, 129, 16], 32), Metadata),    // Azure's wire server, on an address that looks public
    (v4([0, 0, 0, 0], 8), Unspecified),
    (v4([10, 0, 0, 0], 8), Private),
    (v4([100, 64, 0, 0], 10), Shared),
    (v4([127, 0, 0, 0], 8), Loopback),
    (v4([169, 254, 0, 0], 16), LinkLocal),
    (v4([172, 16, 0, 0], 12), Private),
    (v4([192, 0, 0, 0], 24), Reserved),
    (v4([192, 0, 2, 0], 24), Documentation),
    (v4([192, 31, 196, 0], 24), Reserved),
    (v4([192, 52, 193, 0], 24), Reserved),
    (v4([192, 88, 99, 0], 24), Reserved),
    (v4([192, 168, 0, 0], 16), Private),
    (v4([192, 175, 48, 0], 24), Reserved),
    (v4([198, 18, 0, 0], 15), Benchmark),
    (v4([198, 51, 100, 0], 24), Documentation),
    (v4([203, 0, 113, 0], 24), Documentation),
    (v4([224, 0, 0, 0], 4), Multicast),
    (v4([255, 255, 255, 255], 32), Broadcast),
    (v4([240, 0, 0, 0], 4), Reserved),
];

/// The first network that contains an address gives its class; an address in none is reserved.
#[rustfmt::skip]
const V6: [(Ipv6Net, AddressClass); 14] = [
    (v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254], 128), Metadata),   // AWS
    (v6([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254], 128), Metadata),    // Google
    (v6([0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42], 128), Metadata),     // Scaleway
    (v6([0, 0, 0, 0, 0, 0, 0, 0], 128), Unspecified),
    (v6([0, 0, 0, 0, 0, 0, 0, 1], 128), Loopback),
    (v6([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7), UniqueLocal),
    (v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10), LinkLocal),
    (v6([0xff00, 0, 0, 0, 0, 0, 0, 0], 8), Multicast),
    (v6([0x2001, 2, 0, 0, 0, 0, 0, 0], 48), Benchmark),
    (v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 23), Reserved),            // with Teredo, which can hide any address of IPv4
    (v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32), Documentation),
    (v6([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20), Documentation),
    (v6([0x2620, 0x4f, 0x8000, 0, 0, 0, 0, 0], 48), Reserved),
    (v6([0x2000, 0, 0, 0, 0, 0, 0, 0], 3), Public),
];

/// Addresses of IPv4 translated to IPv6 (RFC 6052).
const NAT64: Ipv6Net = v6([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96);
/// Addresses of IPv6 behind one of IPv4 (RFC 3056).
const SIX_TO_FOUR: Ipv6Net = v6([0x2002, 0, 0, 0, 0, 0, 0, 0], 16);

const fn v4(octets: [u8; 4], prefix: u8) -> Ipv4Net {
    let [a, b, c, d] = octets;
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix)
}

const fn v6(segments: [u16; 8], prefix: u8) -> Ipv6Net {
    let [a, b, c, d, e, f, g, h] = segments;
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, d, e, f, g, h), prefix)
}

impl AddressClass {
    /// Returns the class of an address. An IPv6 address that stands for an IPv4 address has the class of that address.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Self::of_v4(address),
            IpAddr::V6(address) => embedded(address).map_or_else(|| Self::of_v6(address), Self::of_v4),
        }
    }

    /// Returns whether the class is one of private addresses, which a policy may allow as a whole.
    #[must_use]
    pub const fn is_private(self) -> bool {
        matches!(self, Loopback | Private | LinkLocal | Shared | UniqueLocal)
    }

    fn of_v4(address: Ipv4Addr) -> Self {
        V4.iter().find(|(network, _)| network.contains(&address)).map_or(Public, |(_, class)| *class)
    }

    fn of_v6(address: Ipv6Addr) -> Self {
        V6.iter().find(|(network, _)| network.contains(&address)).map_or(Reserved, |(_, class)| *class)
    }
}

/// Returns the IPv4 address that this address stands for. The old IPv4-compatible form (::/96) is reserved.
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [_, _, a, b, c, d, _, _, _, _, _, _, e, f, g, h] = address.octets();
    if SIX_TO_FOUR.contains(&address) {
        return Some(Ipv4Addr::new(a, b, c, d));
    }
    if NAT64.contains(&address) {
        return Some(Ipv4Addr::new(e, f, g, h));
    }
    address.to_ipv4_mapped()
}
