//! Whether a program needs anything of the system that runs it: a dynamic linker or libraries. ELF files of 64 bits, little endian.

/// A segment that names the dynamic linker.
const INTERP: u32 = 3;
/// The segment with what the dynamic linker should do.
const DYNAMIC: u32 = 2;
/// An entry there that names a library.
const NEEDED: u64 = 1;

/// What a program needs, in words; `None` if it needs nothing. An error if it is no program that this can read.
pub(super) fn needs(program: &[u8]) -> Result<Option<&'static str>, &'static str> {
    const UNREADABLE: &str = "it is no ELF file of 64 bits, little endian";
    if !program.starts_with(b"\x7fELF\x02\x01") {
        return Err(UNREADABLE);
    }
    let number = |at: u64, bytes: u64| -> Result<u64, &'static str> {
        let start = usize::try_from(at).map_err(|_| UNREADABLE)?;
        let end = start
            .checked_add(usize::try_from(bytes).map_err(|_| UNREADABLE)?)
            .ok_or(UNREADABLE)?;
        let bytes = program.get(start..end).ok_or(UNREADABLE)?;
        Ok(bytes
            .iter()
            .rev()
            .fold(0, |sum, byte| (sum << 8) | u64::from(*byte)))
    };
    let (table, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    for index in 0..count {
        let header = table + index * size;
        let kind = number(header, 4)?;
        if kind == u64::from(INTERP) {
            return Ok(Some("a dynamic linker"));
        }
        if kind == u64::from(DYNAMIC) {
            let (start, length) = (number(header + 8, 8)?, number(header + 32, 8)?);
            for entry in 0..length / 16 {
                if number(start + entry * 16, 8)? == NEEDED {
                    return Ok(Some("a library"));
                }
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with these segments: a kind, and for a dynamic one the tags of its entries.
    fn file(segments: &[(u32, &[u64])]) -> Vec<u8> {
        let mut file = vec![0; 64 + segments.len() * 56];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[32] = 64;
        file[54] = 56;
        file[56] = u8::try_from(segments.len()).unwrap();
        for (index, (kind, tags)) in segments.iter().enumerate() {
            let header = 64 + index * 56;
            let start = file.len() as u64;
            for tag in *tags {
                file.extend(tag.to_le_bytes());
                file.extend([0; 8]);
            }
            file[header..header + 4].copy_from_slice(&kind.to_le_bytes());
            file[header + 8..header + 16].copy_from_slice(&start.to_le_bytes());
            file[header + 32..header + 40].copy_from_slice(&(tags.len() as u64 * 16).to_le_bytes());
        }
        file
    }

    #[test]
    fn a_static_program_needs_nothing() {
        assert_eq!(needs(&file(&[(1, &[])])), Ok(None));
        // One that can be loaded anywhere has such a segment too, and no library in it.
        assert_eq!(needs(&file(&[(1, &[]), (DYNAMIC, &[5, 6, 0])])), Ok(None));
    }

    #[test]
    fn a_linker_and_libraries_are_found() {
        assert_eq!(
            needs(&file(&[(1, &[]), (INTERP, &[])])),
            Ok(Some("a dynamic linker"))
        );
        assert_eq!(needs(&file(&[(DYNAMIC, &[5, NEEDED])])), Ok(Some("a library")));
        assert!(needs(b"#!/bin/sh").is_err());
        assert!(needs(&file(&[(1, &[])])[..60]).is_err());
    }

    /// This task itself, which is linked as cargo does it by default.
    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn an_ordinary_program_is_not_static() {
        let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(needs(&program), Ok(Some("a dynamic linker")));
    }
}
