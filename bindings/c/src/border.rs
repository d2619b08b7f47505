//! C's pointers as slices, and Rust's memory as C's: the only file with `unsafe` blocks.
//!
//! The pointer types have a private field and no constructor, so that their values come only from callers in C, which
//! keep the contract of the header: a pointer that is not null points to at least as many readable bytes or elements as
//! the length beside it, until the function returns. The same holds for buffers, which are created here or are zero.

#![expect(
    unsafe_code,
    reason = "this file dereferences the pointers of C callers"
)]

use std::ffi::{CStr, c_char, c_void};
use std::mem::{self, MaybeUninit};
use std::ptr::{self, NonNull};
use std::slice;

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

/// A pointer to elements, whose number is beside it. It is not `Copy`, so that memory that is written has one owner.
pub(crate) trait Pointer {
    type Element;

    fn first(&self) -> *const Self::Element;
}

macro_rules! pointers {
    ($($(#[$comment:meta])* $name:ident($pointer:ty) to $element:ty;)+) => {$(
        $(#[$comment])*
        #[repr(transparent)]
        #[derive(Debug)]
        pub struct $name($pointer);

        impl Pointer for $name {
            type Element = $element;

            fn first(&self) -> *const $element {
                self.0.cast()
            }
        }
    )+};
}

pointers! {
    /// The bytes of a key.
    KeyPointer(*const c_char) to u8;
    /// Bytes of any kind.
    DataPointer(*const c_void) to u8;
    /// An array of keys or values.
    BytesArray(*const Bytes) to Bytes;
    /// An array of numbers.
    NumberArray(*const usize) to usize;
    /// Memory of the caller that holds a value or receives one.
    ValuePointer(*mut c_void) to u8;
}

/// Bytes of the caller: a key of a list, or a value. The library only reads them.
#[repr(C)]
#[derive(Debug)]
pub struct Bytes {
    /// The first byte. May be null if `len` is 0.
    pub data: DataPointer,
    /// The number of bytes.
    pub len: usize,
}

impl Bytes {
    pub(crate) fn read(&self, name: &str) -> Result<&[u8], Failure> {
        // SAFETY: as the module says, `len` bytes are readable while `self` lives.
        unsafe { elements(self.data.first(), self.len, name) }
    }
}

/// A named argument of a C caller: a pointer and a length. Only `read` reads the elements.
#[derive(Debug)]
pub(crate) struct Counted<P> {
    pointer: P,
    len: usize,
    name: &'static str,
}

impl<P: Pointer> Counted<P> {
    pub(crate) const fn new(pointer: P, len: usize, name: &'static str) -> Self {
        Self { pointer, len, name }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_null(&self) -> bool {
        self.pointer.first().is_null()
    }

    /// The elements; none if the pointer is null and the length is 0.
    pub(crate) fn read(&self) -> Result<&[P::Element], Failure> {
        // SAFETY: as the module says, `len` elements are readable while `self` lives.
        unsafe { elements(self.pointer.first(), self.len, self.name) }
    }
}

impl Counted<ValuePointer> {
    /// Refuses null with a length, before anything is done to receive a value.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        check_elements(self.pointer.first(), self.len, self.name)
    }

    /// Receives a value, which has as many bytes as the memory.
    pub(crate) fn fill(self, value: &[u8]) -> Result<(), Failure> {
        self.check()?;
        let Self { pointer, len, name } = self;
        if value.len() != len {
            let text = format!("{name} has {len} bytes, the value has {}", value.len());
            return Err(Failure::new(Status::C10D_ERROR_MISMATCH, text));
        }
        if len > 0 {
            // SAFETY: `len` bytes are writable until the function returns, as the module says of memory that the caller
            // does not declare const. They may be uninitialized: nothing reads them, and no reference to them exists,
            // since `read` borrows what this consumes. The value is Rust's own memory, so that the two do not overlap.
            unsafe { ptr::copy_nonoverlapping(value.as_ptr(), pointer.0.cast::<u8>(), len) };
        }
        Ok(())
    }
}

/// Bytes that a function of the library returns. Free them with `c10d_buffer_free`.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Buffer {
    /// The first byte. Not null after success, even if `len` is 0; null after a failure. No NUL byte follows the last
    /// one.
    pub data: Option<NonNull<c_char>>,
    /// The number of bytes.
    pub len: usize,
}

impl From<Vec<u8>> for Buffer {
    /// Hands the bytes to C.
    fn from(bytes: Vec<u8>) -> Self {
        if bytes.is_empty() {
            // Not null, so that C code may give it to functions that require a pointer.
            return Self {
                data: NonNull::new(c"".as_ptr().cast_mut()),
                len: 0,
            };
        }
        let (data, len) = leak(bytes.into_boxed_slice());
        Self {
            data: data.map(NonNull::cast),
            len,
        }
    }
}

impl From<Option<Vec<u8>>> for Buffer {
    /// Returns a null buffer for a missing value.
    fn from(bytes: Option<Vec<u8>>) -> Self {
        bytes.map(Self::from).unwrap_or_default()
    }
}

impl Buffer {
    /// Takes the bytes back from C, and leaves none.
    pub(crate) fn take(&mut self) -> Box<[u8]> {
        let Self { data, len } = mem::take(self);
        // SAFETY: a buffer of a C caller was created by `from`, and no other buffer owns its bytes, or it is zero.
        unsafe { unleak(data.map(NonNull::cast), len) }
    }
}

/// Buffers that a function of the library returns. Free them with `c10d_buffer_list_free`.
#[repr(C)]
#[derive(Debug, Default)]
pub struct BufferList {
    /// The first buffer; null if `len` is 0. It belongs to the list: free the list, not its buffers.
    pub items: Option<NonNull<Buffer>>,
    /// The number of buffers.
    pub len: usize,
}

impl From<Vec<Vec<u8>>> for BufferList {
    /// Hands the values to C.
    fn from(values: Vec<Vec<u8>>) -> Self {
        let buffers: Box<[Buffer]> = values.into_iter().map(Buffer::from).collect();
        if buffers.is_empty() {
            return Self::default();
        }
        let (items, len) = leak(buffers);
        Self { items, len }
    }
}

impl BufferList {
    /// Takes the buffers back from C, and leaves none.
    pub(crate) fn take(&mut self) -> Box<[Buffer]> {
        let Self { items, len } = mem::take(self);
        // SAFETY: a list of a C caller was created by `from`, and no other list owns its buffers, or it is zero.
        unsafe { unleak(items, len) }
    }
}

/// The reference, or an error that names the argument.
pub(crate) fn not_null<T>(reference: Option<T>, name: &str) -> Result<T, Failure> {
    reference.ok_or_else(|| Failure::invalid_argument(format!("{name} is null")))
}

/// Returns the place of a result, which is the default of its type until it is written and after a failure.
pub(crate) fn result<'a, T: Default>(
    place: Option<&'a mut MaybeUninit<T>>,
    name: &str,
) -> Result<&'a mut T, Failure> {
    Ok(not_null(place, name)?.write(T::default()))
}

/// Returns the place of a result like [`result`]; the place may be null.
pub(crate) fn result_or_null<T: Default>(place: Option<&mut MaybeUninit<T>>) -> Option<&mut T> {
    place.map(|place| place.write(T::default()))
}

/// Writes a result.
pub(crate) fn fill<T>(place: Option<&mut T>, value: impl Into<T>) {
    if let Some(place) = place {
        *place = value.into();
    }
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

fn leak<T>(elements: Box<[T]>) -> (Option<NonNull<T>>, usize) {
    let len = elements.len();
    (NonNull::new(Box::into_raw(elements).cast::<T>()), len)
}

/// # Safety
/// The pointer and the length are of one `leak` that was not taken back yet, or the length is 0.
unsafe fn unleak<T>(pointer: Option<NonNull<T>>, len: usize) -> Box<[T]> {
    match pointer {
        Some(pointer) if len > 0 => {
            let slice = NonNull::slice_from_raw_parts(pointer, len);
            // SAFETY: the caller promises that this is the box that `leak` took apart.
            unsafe { Box::from_raw(slice.as_ptr()) }
        }
        _ => Box::default(),
    }
}

/// Gives functions the names in the library that they have here.
macro_rules! exported {
    ($($function:item)+) => {$(
        #[expect(unsafe_code, reason = "C finds exported functions by their plain names")]
        #[unsafe(no_mangle)]
        $function
    )+};
}

pub(crate) use exported;

#[cfg(test)]
mod tests {
    use super::*;

    fn problem<T: std::fmt::Debug>(result: Result<T, Failure>) -> String {
        let failure = result.expect_err("this is refused");
        assert_eq!(failure.status, Status::C10D_ERROR_INVALID_ARGUMENT);
        failure.text
    }

    fn counted<P: Pointer>(pointer: P, len: usize, name: &'static str) -> Counted<P> {
        Counted::new(pointer, len, name)
    }

    #[test]
    fn null_is_empty_or_refused() {
        let null = |len| counted(KeyPointer(ptr::null()), len, "key");
        assert_eq!(null(0).read().unwrap(), b"");
        assert_eq!(problem(null(3).read()), "key is null, but its length is 3");
        assert_eq!(CText(ptr::null()).optional("host").unwrap(), None);
        assert_eq!(problem(CText(ptr::null()).required("host")), "host is null");
        assert_eq!(problem(not_null(None::<&u8>, "store")), "store is null");
    }

    #[test]
    fn a_value_fills_memory_of_its_own_length() {
        let mut memory = [0_u8; 4];
        let start: *mut c_void = memory.as_mut_ptr().cast();
        let value = || counted(ValuePointer(start), 4, "value");
        value().fill(b"abcd").unwrap();
        assert_eq!(value().read().unwrap(), b"abcd");
        let failure = value().fill(b"abc").unwrap_err();
        assert_eq!(failure.status, Status::C10D_ERROR_MISMATCH);
        assert_eq!(failure.text, "value has 4 bytes, the value has 3");
        assert_eq!(value().read().unwrap(), b"abcd");
        let null = |len| counted(ValuePointer(ptr::null_mut()), len, "value");
        null(0).fill(b"").unwrap();
        problem(null(4).fill(b"abcd"));
        let numbers = [3, 4];
        let ranks = counted(NumberArray(numbers.as_ptr()), 2, "ranks");
        assert_eq!(ranks.read().unwrap(), [3, 4]);
    }

    #[test]
    fn impossible_lengths_and_places_are_refused() {
        let bytes = [0_u8; 32];
        let pointer = || DataPointer(bytes.as_ptr().cast());
        let too_long = counted(pointer(), usize::MAX, "value");
        assert!(problem(too_long.read()).contains("address space"));
        let list = [Bytes {
            data: pointer(),
            len: 1,
        }];
        let too_long = counted(BytesArray(list.as_ptr()), usize::MAX / 8, "keys");
        assert!(problem(too_long.read()).contains("address space"));
        let odd = BytesArray(list.as_ptr().wrapping_byte_add(1));
        assert_eq!(
            problem(counted(odd, 1, "keys").read()),
            "keys is not aligned"
        );
    }

    #[test]
    fn buffers_return_what_they_were_given() {
        for bytes in [&b""[..], b"x", b"binary \0 value"] {
            let mut buffer = Buffer::from(bytes.to_vec());
            assert!(buffer.data.is_some());
            assert_eq!(buffer.len, bytes.len());
            assert_eq!(&*buffer.take(), bytes);
            assert!(buffer.data.is_none());
            assert_eq!(&*buffer.take(), b"", "a second time there is nothing");
        }
        let mut list = BufferList::from(vec![b"a".to_vec(), Vec::new()]);
        assert_eq!(list.len, 2);
        let values: Vec<_> = list.take().iter_mut().map(Buffer::take).collect();
        assert_eq!(values, [b"a".to_vec().into_boxed_slice(), Box::default()]);
        assert!(list.take().is_empty());
    }

    #[test]
    fn results_are_empty_until_they_are_written() {
        let mut place = MaybeUninit::uninit();
        assert_eq!(*result::<u8>(Some(&mut place), "sum").unwrap(), 0);
        assert_eq!(problem(result::<u8>(None, "sum")), "sum is null");
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
