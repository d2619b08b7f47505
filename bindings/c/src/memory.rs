//! Frees the memory of results.

use crate::border::{Buffer, BufferList, exported};
use crate::guard;

exported! {
    /// Frees a buffer and sets it to zero. Null, a buffer of zeros and a freed buffer are ignored. Do not free a copy
    /// of a freed buffer.
    pub extern "C" fn c10d_buffer_free(buffer: Option<&mut Buffer>) {
        guard::value((), || drop(buffer.map(Buffer::take)));
    }

    /// Frees a list and all its buffers, and sets it to zero. Otherwise as `c10d_buffer_free`.
    pub extern "C" fn c10d_buffer_list_free(list: Option<&mut BufferList>) {
        guard::value((), || {
            if let Some(list) = list {
                for buffer in &mut list.take() {
                    drop(buffer.take());
                }
            }
        });
    }
}
