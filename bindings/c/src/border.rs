//! C's pointers as slices, and Rust's memory as C's: the only file with `unsafe` blocks.
//!
//! The pointer types have a private field and no constructor, so that their values come only from callers in C, which
//! keep the contract of the header: a pointer that is not null points to as many readable bytes or elements as the
//! length beside it says, until the function returns. So do buffers, which are made here or are zero.

#![expect(
    unsafe_code,
    reason = "this file dereferences the pointers of C callers"
)]

use std::borrow::Cow;
use std::ffi::{CStr, c_char, c_void};
use std::mem::{self, MaybeUninit};
use std::ptr::{self, NonNull};
use std::slice;

use c10d_store::key_from_bytes;

use crate::failure::Failure;
use crate::status::Status;

/// A text that a NUL byte ends, or null.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct CText(*const c_char);

impl CText {
    /// The text; `None` if the pointer is null.
    pub(crate) fn optional(&self, name: &str) -> Result<Option<&str>, Failure> {
        if self.0.is_null() {
            return Ok(None);
        }
        // SAFETY: a text of a C caller ends with a NUL byte and stays unchanged until the function returns, which is
        // longer than `self` lives.
        let text = unsafe { CStr::from_ptr(self.0) };
        match text.to_str() {
            Ok(text) => Ok(Some(text)),
            Err(_) => Err(Failure::invalid_argument(format!("{name} is not UTF-8"))),
        }
    }

    /// The text; a null pointer is refused.
    pub(crate) fn required(&self, name: &str) -> Result<&str, Failure> {
        self.optional(name)?
            .ok_or_else(|| Failure::invalid_argument(format!("{name} is null")))
    }
}

/// The bytes of a key, whose length is beside it.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct KeyPointer(*const c_char);

impl KeyPointer {
    /// The key, for Rust's stores.
    pub(crate) fn key(&self, len: usize, name: &str) -> Result<Cow<'_, str>, Failure> {
        // SAFETY: as the module says, `len` bytes are readable while `self` lives.
        let bytes = unsafe { elements(self.0.cast::<u8>(), len, name) }?;
        Ok(key_from_bytes(bytes))
    }

    pub(crate) const fn is_null(&self) -> bool {
        self.0.is_null()
    }
}

/// Bytes of any kind, whose length is beside them.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct DataPointer(*const c_void);

impl DataPointer {
    /// The bytes; none if the pointer is null and the length is 0.
    pub(crate) fn bytes(&self, len: usize, name: &str) -> Result<&[u8], Failure> {
        // SAFETY: as the module says, `len` bytes are readable while `self` lives.
        unsafe { elements(self.0.cast::<u8>(), len, name) }
    }

    pub(crate) const fn is_null(&self) -> bool {
        self.0.is_null()
    }
}

/// Bytes of the caller: a key of a list, or a value. The library only reads them.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Bytes {
    /// The first byte. May be null if `len` is 0.
    pub data: DataPointer,
    /// The number of bytes.
    pub len: usize,
}

impl Bytes {
    pub(crate) fn key(&self, name: &str) -> Result<Cow<'_, str>, Failure> {
        Ok(key_from_bytes(self.data.bytes(self.len, name)?))
    }

    pub(crate) fn bytes(&self, name: &str) -> Result<&[u8], Failure> {
        self.data.bytes(self.len, name)
    }
}

/// An array of keys or values, whose length is beside it.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct BytesArray(*const Bytes);

impl BytesArray {
    /// The elements; none if the pointer is null and the length is 0.
    pub(crate) fn elements(&self, len: usize, name: &str) -> Result<&[Bytes], Failure> {
        // SAFETY: as the module says, `len` elements are readable while `self` lives.
        unsafe { elements(self.0, len, name) }
    }
}

/// An array of numbers, whose length is beside it.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct NumberArray(*const usize);

impl NumberArray {
    /// The numbers; none if the pointer is null and the length is 0.
    pub(crate) fn elements(&self, len: usize, name: &str) -> Result<&[usize], Failure> {
        // SAFETY: as the module says, `len` elements are readable while `self` lives.
        unsafe { elements(self.0, len, name) }
    }
}

/// Memory of the caller that holds a value or receives one, whose length is beside it.
#[repr(transparent)]
#[derive(Debug)]
pub struct ValuePointer(*mut c_void);

impl ValuePointer {
    /// The value that it holds.
    pub(crate) fn bytes(&self, len: usize, name: &str) -> Result<&[u8], Failure> {
        // SAFETY: as the module says, `len` bytes are readable while `self` lives.
        unsafe { elements(self.0.cast::<u8>(), len, name) }
    }

    /// Refuses null with a length, before anything is done to receive a value.
    pub(crate) fn check(&self, len: usize, name: &str) -> Result<(), Failure> {
        check_elements(self.0.cast::<u8>(), len, name)
    }

    /// Receives a value, which has as many bytes as the memory.
    pub(crate) fn fill(&mut self, len: usize, value: &[u8], name: &str) -> Result<(), Failure> {
        self.check(len, name)?;
        if value.len() != len {
            let text = format!("{name} has {len} bytes, the value has {}", value.len());
            return Err(Failure::new(Status::C10D_ERROR_MISMATCH, text));
        }
        if len > 0 {
            // SAFETY: `len` bytes are writable while `self` lives, as the module says of memory that the caller does
            // not declare const. They may be uninitialized: nothing reads them, and no reference to them is made. The
            // value is Rust's own memory, so that the two do not overlap.
            unsafe { ptr::copy_nonoverlapping(value.as_ptr(), self.0.cast::<u8>(), len) };
        }
        Ok(())
    }
}

/// Bytes that a function of the library returns. Free them with `c10d_buffer_free`.
#[repr(C)]
#[derive(Debug)]
pub struct Buffer {
    /// The first byte. Not null after success, even if `len` is 0; null after a failure. No NUL byte follows the last
    /// one.
    pub data: *mut c_char,
    /// The number of bytes.
    pub len: usize,
}

impl Buffer {
    /// No bytes, and nothing to free.
    pub(crate) const NULL: Self = Self {
        data: ptr::null_mut(),
        len: 0,
    };

    /// Hands the bytes to C.
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        if bytes.is_empty() {
            // Not null, so that C code may give it to functions that require a pointer.
            return Self {
                data: c"".as_ptr().cast_mut(),
                len: 0,
            };
        }
        let (data, len) = leak(bytes.into_boxed_slice());
        Self {
            data: data.cast::<c_char>(),
            len,
        }
    }

    /// Takes the bytes back from C, and leaves [`NULL`](Self::NULL).
    pub(crate) fn take(&mut self) -> Box<[u8]> {
        let Self { data, len } = mem::replace(self, Self::NULL);
        // SAFETY: a buffer of a C caller is one that `new` made, whose bytes no other buffer owns, or zero.
        unsafe { unleak(data.cast::<u8>(), len) }
    }
}

/// Buffers that a function of the library returns. Free them with `c10d_buffer_list_free`.
#[repr(C)]
#[derive(Debug)]
pub struct BufferList {
    /// The first buffer; null if `len` is 0. It belongs to the list: free the list, not its buffers.
    pub items: *mut Buffer,
    /// The number of buffers.
    pub len: usize,
}

impl BufferList {
    /// No buffers, and nothing to free.
    pub(crate) const NULL: Self = Self {
        items: ptr::null_mut(),
        len: 0,
    };

    /// Hands the values to C.
    pub(crate) fn new(values: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let buffers: Box<[Buffer]> = values.into_iter().map(Buffer::new).collect();
        if buffers.is_empty() {
            return Self::NULL;
        }
        let (items, len) = leak(buffers);
        Self { items, len }
    }

    /// Takes the buffers back from C, and leaves [`NULL`](Self::NULL).
    pub(crate) fn take(&mut self) -> Box<[Buffer]> {
        let Self { items, len } = mem::replace(self, Self::NULL);
        // SAFETY: a list of a C caller is one that `new` made, whose buffers no other list owns, or zero.
        unsafe { unleak(items, len) }
    }
}

/// The reference, or an error that names the argument.
pub(crate) fn not_null<T>(reference: Option<T>, name: &str) -> Result<T, Failure> {
    reference.ok_or_else(|| Failure::invalid_argument(format!("{name} is null")))
}

/// Where a new handle is written.
pub(crate) type Place<'a, T> = Option<&'a mut MaybeUninit<Option<Box<T>>>>;

/// Where a result is written, which is `empty` until then and after a failure.
pub(crate) fn result<'a, T>(
    place: Option<&'a mut MaybeUninit<T>>,
    empty: T,
    name: &str,
) -> Result<&'a mut T, Failure> {
    Ok(not_null(place, name)?.write(empty))
}

fn check_elements<T>(pointer: *const T, len: usize, name: &str) -> Result<(), Failure> {
    let problem = if len == 0 {
        return Ok(());
    } else if pointer.is_null() {
        format!("{name} is null, but its length is {len}")
    } else if !pointer.is_aligned() {
        format!("{name} is not aligned")
    } else if len > isize::MAX.unsigned_abs() / size_of::<T>() {
        format!("{name} has length {len}: more than the address space")
    } else {
        return Ok(());
    };
    Err(Failure::invalid_argument(problem))
}

/// The elements of a C array; none for the length 0, whatever the pointer is.
///
/// # Safety
/// Unless the pointer is null, `len` elements are readable and unchanged as long as `'a`.
unsafe fn elements<'a, T>(pointer: *const T, len: usize, name: &str) -> Result<&'a [T], Failure> {
    check_elements(pointer, len, name)?;
    if len == 0 {
        return Ok(&[]);
    }
    // SAFETY: the pointer is aligned and not null, the length is in range, and the caller promises the rest.
    Ok(unsafe { slice::from_raw_parts(pointer, len) })
}

fn leak<T>(elements: Box<[T]>) -> (*mut T, usize) {
    let len = elements.len();
    (Box::into_raw(elements).cast::<T>(), len)
}

/// # Safety
/// The pointer and the length are of one `leak` that was not taken back yet, or the length is 0.
unsafe fn unleak<T>(pointer: *mut T, len: usize) -> Box<[T]> {
    match NonNull::new(pointer) {
        Some(pointer) if len > 0 => {
            let slice = NonNull::slice_from_raw_parts(pointer, len);
            // SAFETY: the caller promises that this is the box that `leak` took apart.
            unsafe { Box::from_raw(slice.as_ptr()) }
        }
        _ => Box::default(),
    }
}

#[cfg(test)]
mod tests {
    use c10d_store::key_to_bytes;

    use super::*;

    fn problem<T: std::fmt::Debug>(result: Result<T, Failure>) -> String {
        let failure = result.expect_err("this is refused");
        assert_eq!(failure.status(), Status::C10D_ERROR_INVALID_ARGUMENT);
        failure.text().to_owned()
    }

    #[test]
    fn null_is_empty_or_refused() {
        let null = KeyPointer(ptr::null());
        assert_eq!(null.key(0, "key").unwrap(), "");
        assert_eq!(
            problem(null.key(3, "key")),
            "key is null, but its length is 3"
        );
        let null = DataPointer(ptr::null());
        assert_eq!(null.bytes(0, "value").unwrap(), b"");
        assert_eq!(
            problem(null.bytes(1, "value")),
            "value is null, but its length is 1"
        );
        assert_eq!(CText(ptr::null()).optional("host").unwrap(), None);
        assert_eq!(problem(CText(ptr::null()).required("host")), "host is null");
        assert_eq!(problem(not_null(None::<&u8>, "store")), "store is null");
    }

    #[test]
    fn a_value_fills_memory_of_its_own_length() {
        let mut memory = [0_u8; 4];
        let mut pointer = ValuePointer(memory.as_mut_ptr().cast());
        pointer.fill(4, b"abcd", "value").unwrap();
        assert_eq!(pointer.bytes(4, "value").unwrap(), b"abcd");
        let failure = pointer.fill(4, b"abc", "value").unwrap_err();
        assert_eq!(failure.status(), Status::C10D_ERROR_MISMATCH);
        assert_eq!(failure.text(), "value has 4 bytes, the value has 3");
        assert_eq!(&memory, b"abcd");
        let mut null = ValuePointer(ptr::null_mut());
        null.fill(0, b"", "value").unwrap();
        problem(null.fill(4, b"abcd", "value"));
        let numbers = [3, 4];
        assert_eq!(
            NumberArray(numbers.as_ptr()).elements(2, "ranks").unwrap(),
            [3, 4]
        );
    }

    #[test]
    fn impossible_lengths_and_places_are_refused() {
        let bytes = [0_u8; 32];
        let pointer = DataPointer(bytes.as_ptr().cast());
        assert!(problem(pointer.bytes(usize::MAX, "value")).contains("address space"));
        let list = [Bytes {
            data: pointer,
            len: 1,
        }];
        let array = BytesArray(list.as_ptr());
        assert!(problem(array.elements(usize::MAX / 8, "keys")).contains("address space"));
        let odd = BytesArray(list.as_ptr().wrapping_byte_add(1));
        assert_eq!(problem(odd.elements(1, "keys")), "keys is not aligned");
    }

    #[test]
    fn keys_are_any_bytes() {
        let bytes = b"ab\xff";
        let key = KeyPointer(bytes.as_ptr().cast());
        assert_eq!(key.key(2, "key").unwrap(), "ab");
        assert_eq!(*key_to_bytes(&key.key(3, "key").unwrap()), bytes[..3]);
    }

    #[test]
    fn buffers_return_what_they_were_given() {
        for bytes in [&b""[..], b"x", b"binary \0 value"] {
            let mut buffer = Buffer::new(bytes.to_vec());
            assert!(!buffer.data.is_null());
            assert_eq!(buffer.len, bytes.len());
            assert_eq!(&*buffer.take(), bytes);
            assert!(buffer.data.is_null());
            assert_eq!(&*buffer.take(), b"", "a second time there is nothing");
        }
        let mut list = BufferList::new([b"a".to_vec(), Vec::new()]);
        assert_eq!(list.len, 2);
        let values: Vec<_> = list.take().iter_mut().map(Buffer::take).collect();
        assert_eq!(values, [b"a".to_vec().into_boxed_slice(), Box::default()]);
        assert!(list.take().is_empty());
    }

    #[test]
    fn results_are_empty_until_they_are_written() {
        let mut place = MaybeUninit::uninit();
        assert_eq!(*result(Some(&mut place), 0, "sum").unwrap(), 0);
        assert_eq!(problem(result::<u8>(None, 0, "sum")), "sum is null");
    }

    /// Everything else of the crate is safe code: the attribute of exported names is its only `unsafe`.
    #[test]
    fn only_this_file_has_unsafe_blocks() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut checked = 0;
        for entry in std::fs::read_dir(folder).expect("the sources exist") {
            let path = entry.expect("a file").path();
            if path.ends_with("border.rs") {
                continue;
            }
            let source = std::fs::read_to_string(&path).expect("a text");
            for line in source.lines().filter(|line| !line.contains("//")) {
                let rest = line.replace("#[unsafe(no_mangle)]", "");
                let rest = rest.replace("unsafe_code", "");
                assert!(!rest.contains("unsafe"), "{}: {line}", path.display());
            }
            checked += 1;
        }
        assert!(checked > 10, "{checked} files");
    }
}
