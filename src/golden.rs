//! What is compared with the recorded files of `tests/golden`, for tests beside the code.

#[path = "../tests/integration/golden/recorded.rs"]
mod recorded;

pub(crate) use recorded::{Files, check};

/// How many bytes a line shows.
const LINE_BYTES: usize = 16;

/// Bytes as text, so that a difference can be read: each as a number, then the letters among them.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let letter = |byte: &u8| if byte.is_ascii_graphic() { char::from(*byte) } else { '.' };
    let line = |bytes: &[u8]| {
        let numbers: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{:47}  {}\n", numbers.join(" "), bytes.iter().map(letter).collect::<String>())
    };
    bytes.chunks(LINE_BYTES).map(line).collect()
}

/// Several of them, each under a title.
pub(crate) fn hex_of<T: AsRef<[u8]>>(parts: impl IntoIterator<Item = (String, T)>) -> String {
    let part =
        |(title, bytes): (String, T)| format!("{title}: {} bytes\n{}\n", bytes.as_ref().len(), hex(bytes.as_ref()));
    parts.into_iter().map(part).collect()
}
